"""The layout ``flat``, and Resnap's own manifests in any layout whose objects they name.

Keys are derived from the content, so a later run overwrites what a crash has left with the same bytes, or writes other
bytes beside it, and never overwrites an object that a manifest names. A deleted manifest leaves a tombstone: that id is
not used again.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final
from uuid import uuid5

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from resnap.storage.layouts.flat import keys
from resnap.storage.layouts.flat.listing import (
    list_shipped,
    listing_prefix,
    manifest_records,
    shipped_log_dir,
    unnamed_objects,
)
from resnap.storage.layouts.local_tiered import NEEDED, log_key
from resnap.storage.layouts.local_tiered import object_key as brokers_key
from resnap.storage.layouts.manifest import (
    TIER_AGAIN,
    TOMBSTONE,
    Manifest,
    ManifestObject,
    ObjectKind,
    read_manifest,
    write_manifest,
)
from resnap.storage.layouts.segments import (
    DeletedMeanwhileError,
    Deletion,
    NewObject,
    Rewritten,
    SegmentIdentity,
    SegmentNeeds,
    SegmentObjects,
    ShippedMeanwhileError,
    ShippedSegment,
)
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.names import OFFSET_DIGITS, TopicPartition
from resnap.storage.stores.protocol import UNKNOWN, length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from uuid import UUID

    from resnap.storage.encryption import KeyRing
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.segment_key import SegmentKey
    from resnap.storage.layouts.segments import (
        NewSegment,
        StoredManifest,
    )
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_NEEDS: Final = SegmentNeeds(objects=5, has_transaction_index=True, is_log_known=True, lists=1, partition_lists=7)
_MANIFEST_IN_THE_WAY: Final = "see it with `resnap inspect`; delete it to ship the segment again"


def key_beside(segment: NewSegment, segment_id: UUID, extension: str) -> str:
    """Return the key of an object of ``segment`` under Resnap's own keys; ``extension`` as for ``keys.object_key``."""
    provenance = segment.provenance
    return keys.object_key(
        cluster_id=provenance.cluster_id,
        topic=provenance.topic_partition.topic,
        topic_id=provenance.topic_id,
        partition=provenance.topic_partition.partition,
        base_offset=segment.base_offset,
        segment_id=segment_id,
        extension=extension,
    )


@dataclass(frozen=True, slots=True)
class Flat:
    """Manifests under Resnap's own keys; their objects are beside them, or where brokers read them."""

    name: str = "flat"
    object_key: Callable[[NewSegment, UUID, ObjectKind], str] = key_beside
    """Gives the key of an object that a manifest names; those of a segment differ only in extension, the kind."""
    key_prefix: str = ""
    folders: ClassVar = 4
    needed_parts: ClassVar[frozenset[str]] = frozenset()
    """None: what brokers read of it they find as in ``LocalTiered``."""
    visible_by: ClassVar = ""
    is_plain_copy: ClassVar = False
    may_overlap: ClassVar = True
    """Readers take one chain."""
    keeps_snapshots_as_found: ClassVar = False
    needs: ClassVar = _NEEDS
    has_digests: ClassVar = True
    remedy_when_verified: ClassVar = TIER_AGAIN
    remedy: ClassVar = "see `resnap verify URL`; delete the manifest to ship the segment again"
    log_key = staticmethod(log_key)
    listing = staticmethod(list_shipped)
    manifest_records = staticmethod(manifest_records)
    unnamed_objects = staticmethod(unnamed_objects)

    def is_key(self, key: str) -> bool:
        """Whether ``key`` is a key of this layout."""
        return keys.parse_key(key) is not None

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",
        topic_ids: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Return the segments that manifests in ``listed`` name; for a topic id also those shipped without an id."""
        wider = listing_prefix(within)
        found = listed if wider == within else store.list(wider)
        return shipped_log_dir(store, found, topics, within=within, topic_ids=topic_ids)

    def misplacement(self, found: StoredManifest, *, key_prefix: str) -> str | None:  # noqa: ARG002
        """Return which objects are missing, or are not where ``LocalTieredStorage`` reads them."""
        of, topic_id = found.facts, found.facts.topic_id
        place = of.topic_partition
        for entry in found.objects:
            if topic_id is None or entry.key != brokers_key(place, topic_id, of.base_offset, of.remote_id, entry.kind):
                return f"{entry.key} is not where brokers read"
        missing = NEEDED - {entry.kind for entry in found.objects}
        return f"there is no {min(missing)}" if missing else None

    def replacements(
        self,
        read: Callable[[str], bytes],
        manifest_key: str,
        parts: Mapping[ObjectKind, bytes],
        origin: SnapshotOrigin | None,
        key_ring: KeyRing,  # noqa: ARG002
    ) -> Rewritten:
        """Return new objects beside the manifest, or replacing the old ones beside a log elsewhere, and the manifest.

        An object that the manifest names already is written to the key that it names, in case another object is
        there.
        """
        with in_file(manifest_key):
            manifest = read_manifest(read(manifest_key))
        objects = {part.kind: part for part in manifest.objects}
        bodies = {kind: body for kind, body in parts.items() if not _names(objects.get(kind), body)}
        named = [(objects[kind].key, body) for kind, body in parts.items() if kind not in bodies]
        if not bodies:
            return Rewritten(tuple(named))
        place = _keys_of_new(manifest, manifest_key, bodies)
        replaced = tuple(objects[kind].key for kind in bodies if kind in objects and objects[kind].key != place[kind])
        objects |= {kind: _entry(kind, place[kind], body) for kind, body in bodies.items()}
        ordered = tuple(objects[kind] for kind in ObjectKind if kind in objects)
        body = write_manifest(replace(manifest, objects=ordered, snapshot_origin=origin or manifest.snapshot_origin))
        writes = ((place[kind], body) for kind, body in bodies.items())
        return Rewritten((*named, *writes, (manifest_key, body)), replaced)

    def objects_of(self, segment: NewSegment, store: ObjectStore) -> SegmentObjects:
        """Return the files of ``segment`` and their manifest, under the first id without a tombstone."""
        segment_id = _id_without_tombstone(segment, store)
        files = tuple(
            NewObject(self.object_key(segment, segment_id, file.kind), file.open_body, file.size_bytes, file.crc32c,
                      file.sha256)
            for file in segment.files
        )  # fmt: skip
        return SegmentObjects(
            files=files,
            manifest_key=key_beside(segment, segment_id, keys.MANIFEST_EXTENSION),
            manifest=write_manifest(_manifest(segment, segment_id, files)),
        )

    def check_missing(self, segment: NewSegment, store: ObjectStore, manifest_key: str) -> list[str]:
        """Check that no other manifest forbids ``segment``; return its manifests that name missing objects."""
        torn = []
        for info in _list_objects(segment, store):
            if info.key == manifest_key and keys.is_tombstone(info):
                raise _deleted_meanwhile(manifest_key)
            if info.key == manifest_key and segment.files and not _is_of(segment, store.get(info.key)):
                raise _other_objects(info.key)
            is_other = (
                info.key.endswith(f".{keys.MANIFEST_EXTENSION}")
                and info.key not in {manifest_key, *segment.provenance.apart}
                and not keys.is_tombstone(info)
            )
            other = _in_the_way(segment, store, info.key) if is_other else None
            if other is not None and all(length_of(store, entry.key) == entry.size_bytes for entry in other.objects):
                raise ShippedMeanwhileError(f"{info.key}: another run has shipped the segment", key=info.key)
            torn += [] if other is None else [info.key]
        return torn

    def check_same(self, key: str, found: bytes, meant: bytes) -> None:
        """Check that both manifests name the same objects; the time at which they were made may differ."""
        if found == TOMBSTONE:
            raise _deleted_meanwhile(key)
        try:
            with in_file(key):
                there = read_manifest(found)
        except FormatError as error:
            # Of the store's bytes, not of the log's: the segment is sound.
            raise VerificationError(str(error), hint=_MANIFEST_IN_THE_WAY) from error
        if there.objects != read_manifest(meant).objects:
            raise _other_objects(key)

    def key_prefixes(self, cluster_id: str | None, topic: str, only: tuple[str, int] | None) -> list[str]:
        """Return the prefix of a topic, or those of a partition."""
        return [keys.topic_prefix(cluster_id, topic)] if only is None else keys.folders(cluster_id, topic, *only)

    def segment_of_manifest(self, info: ObjectInfo, topic: str) -> SegmentIdentity | None:  # noqa: ARG002
        """Return which segment a manifest belongs to; None for a tombstone."""
        parsed = keys.segment_of_manifest(info)
        if parsed is None:
            return None
        return SegmentIdentity(
            parsed.partition, parsed.base_offset, None if parsed.topic_id == UNKNOWN else parsed.topic_id
        )

    def read_manifest(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment that a manifest names."""
        manifest = read_manifest(data)
        return ShippedSegment(
            **manifest.facts.values(),
            manifest_key=key,
            log_key=manifest.log.key,
            objects=tuple((entry.key, entry.size_bytes) for entry in manifest.objects),
            is_replaceable=manifest.log.key.startswith(key.removesuffix(keys.MANIFEST_EXTENSION)),
        )

    def brokers_object(self, key: str) -> SegmentKey | None:  # noqa: ARG002
        """Return None: brokers do not read these keys."""
        return None

    def deletion_of(self, key: str) -> Deletion | None:
        """Return how to delete an object of a segment, so that no manifest names it, now or later."""
        place = keys.parse_key(key)
        if place is None:
            return None
        return Deletion(
            beside=(place.folder,),
            lease=f"{place.cluster}/{place.topic}/{place.partition}",
            manifest_key=replace(place, suffix=keys.MANIFEST_EXTENSION).key,
        )

    def is_tombstone(self, info: ObjectInfo) -> bool:
        """Whether the object has replaced a manifest."""
        return keys.is_tombstone(info) and keys.parse_key(info.key) is not None


def _keys_of_new(manifest: Manifest, manifest_key: str, bodies: Mapping[ObjectKind, bytes]) -> dict[ObjectKind, str]:
    """Return the keys of new parts of a segment: beside its log if that is elsewhere, else under an id used only once.

    So whatever deletes what another attempt has left, however late, deletes nothing that a manifest names.
    """
    log, place = manifest.log.key, keys.parse_key(manifest_key)
    if place is None or not log.startswith(manifest_key.removesuffix(keys.MANIFEST_EXTENSION)):
        return {kind: f"{log.removesuffix(ObjectKind.LOG)}{kind}" for kind in bodies}
    once = str(uuid5(keys.SEGMENT_ID_NAMESPACE, secrets.token_hex()))
    return {kind: replace(place, segment_id=once, suffix=kind).key for kind in bodies}


def _names(entry: ManifestObject | None, body: bytes) -> bool:
    """Whether a manifest names ``body`` already."""
    return entry is not None and entry.sha256 == hashlib.sha256(body).hexdigest()


def _entry(kind: ObjectKind, key: str, body: bytes) -> ManifestObject:
    sha256 = hashlib.sha256(body).hexdigest()
    return ManifestObject(kind=kind, key=key, size_bytes=len(body), sha256=sha256, crc32c=crc32c(body))


def _id_without_tombstone(segment: NewSegment, store: ObjectStore) -> UUID:
    """Return the first id of the segment without a tombstone: a deletion may still be in progress."""
    tombstones = {info.key for info in _list_objects(segment, store) if keys.is_tombstone(info)}
    provenance = segment.provenance
    ids = keys.segment_ids(
        cluster_id=provenance.cluster_id,
        topic=provenance.topic_partition.topic,
        topic_id=provenance.topic_id,
        partition=provenance.topic_partition.partition,
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        digests={file.kind: file.sha256 for file in segment.files},
    )
    return next(id_ for id_ in ids if key_beside(segment, id_, keys.MANIFEST_EXTENSION) not in tombstones)


def _list_objects(segment: NewSegment, store: ObjectStore) -> Iterator[ObjectInfo]:
    provenance = segment.provenance
    topic, partition = provenance.topic_partition
    for folder in keys.folders(provenance.cluster_id, topic, provenance.topic_id, partition):
        prefix = f"{folder}{segment.base_offset:0{OFFSET_DIGITS}d}-"
        if segment.beside is None:
            yield from store.list(prefix)
        else:
            yield from (info for info in segment.beside if info.key.startswith(prefix))


def _in_the_way(segment: NewSegment, store: ObjectStore, key: str) -> Manifest | None:
    """Return the manifest at ``key`` if it forbids ``segment``: not if it ends elsewhere, in the same lineage.

    Raises:
        ShippedMeanwhileError: it cannot be read.

    """
    try:
        other = read_manifest(store.get(key))
    except (FormatError, ObjectNotFoundError) as error:
        raise ShippedMeanwhileError(f"{key}: another run has shipped the segment", key=key) from error
    start, end = other.base_offset, min(other.next_base_offset, segment.next_base_offset)
    agree = epochs_in(other.leader_epochs, start, end) == epochs_in(segment.leader_epochs, start, end)
    return other if other.next_base_offset == segment.next_base_offset or not agree else None


def _is_of(segment: NewSegment, manifest: bytes) -> bool:
    """Whether ``manifest`` names the files of ``segment``; one that was repaired names others, in the same place."""
    try:
        found = read_manifest(manifest)
    except FormatError:
        return True  # publishing reports it
    return {part.kind: part.sha256 for part in found.objects} == {file.kind: file.sha256 for file in segment.files}


def _other_objects(key: str) -> VerificationError:
    what = f"{key}: names other objects than those its key comes from"
    return VerificationError(what, hint=_MANIFEST_IN_THE_WAY)


def _deleted_meanwhile(key: str) -> DeletedMeanwhileError:
    return DeletedMeanwhileError(
        f"{key}: another run has deleted what was being written there, by retention or as garbage",
        hint="run again: the segment then gets its own keys",
    )


def _manifest(segment: NewSegment, segment_id: UUID, files: tuple[NewObject, ...]) -> Manifest:
    provenance = segment.provenance
    named = zip(segment.files, files, strict=True)
    return Manifest(
        resnap_version=provenance.resnap_version,
        cluster_id=provenance.cluster_id,
        broker_id=provenance.broker_id,
        log_directory=provenance.log_directory,
        topic=provenance.topic_partition.topic,
        topic_id=provenance.topic_id,
        partition=provenance.topic_partition.partition,
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        last_offset=segment.last_offset,
        max_timestamp_ms=segment.max_timestamp_ms,
        segment_id=segment_id,
        leader_epochs=segment.leader_epochs,
        objects=tuple(
            ManifestObject(kind=file.kind, key=there.key, size_bytes=file.size_bytes, sha256=file.sha256,
                           crc32c=file.crc32c)
            for file, there in named
        ),
        snapshot_origin=segment.origin,
        created_at_ms=segment.created_at_ms,
        compaction_assumption=provenance.compaction_assumption,
    )  # fmt: skip
