"""Shipping: the objects of a segment first, each made sure of, the manifest last.

**No manifest, no segment.** A crash at any point leaves objects that nothing names; keys come from the content, so a
later run writes the same bytes over them or other bytes beside them, and what a manifest names is never overwritten. A
segment that has a manifest is done, whatever T is now: listing the topic tells, before anything is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal, TypeAlias

from resnap.storage.crc32c import crc32c
from resnap.storage.disk import unread_error
from resnap.storage.errors import (
    FormatError,
    LockedError,
    LogDirError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    VerificationError,
    in_file,
)
from resnap.storage.layouts.flat.keys import (
    MANIFEST_EXTENSION,
    is_tombstone,
    object_key,
    segment_id,
    segment_prefix,
)
from resnap.storage.layouts.lineage import epochs_in
from resnap.storage.layouts.local_tiered import object_key as local_tiered_key
from resnap.storage.layouts.manifest import TOMBSTONE, Manifest, ManifestObject, read_manifest, write_manifest
from resnap.storage.stores.protocol import MAX_KEY_PART_BYTES
from resnap.tiering.shipping.shipped import ShippedSegment, shipped_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from resnap.storage.layouts.manifest import ObjectKind, SnapshotOrigin
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.segment_bundle import BundlePart, SegmentBundle


Layout: TypeAlias = Literal["flat", "local-tiered", "aiven"]
"""Where objects lie; manifests, which only Resnap reads, are those of ``flat`` and name them wherever that is. The
layout ``aiven`` has its own, and is written by ``aiven_uploader``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the segments of one partition come from, which goes into every manifest, and how they are laid out."""

    cluster_id: str | None
    broker_id: int | None
    log_directory: str
    topic_partition: TopicPartition
    topic_id: str | None
    compaction_assumption: str | None
    resnap_version: str
    layout: Layout = "flat"
    apart: frozenset[str] = frozenset()
    """Manifests that were shipped without a topic id, and are known to be of another topic of this name."""


class TopicIdUnknownError(LogDirError):
    """The layout has the topic's id in its keys, and nothing tells it."""


class TopicNameTooLongError(LogDirError):
    """The layout has the topic's name in its keys as it is, and no store is sure to keep them."""


class ShippedMeanwhileError(StoreError):
    """Another run has shipped the segment since this one looked; what this one wrote is named by nothing."""


class DeletedMeanwhileError(LockedError):
    """Retention or garbage collection has deleted what this run wrote; its id is never used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A segment whose objects are in the store, and which nothing names yet."""

    manifest_key: str
    manifest: Manifest
    provenance: Provenance
    bundle: SegmentBundle


def ship(
    delivery: Delivery, provenance: Provenance, bundle: SegmentBundle, origin: SnapshotOrigin, *, created_at_ms: int
) -> ShippedSegment:
    """Ship one segment and return what names it; see ``upload`` and ``publish``."""
    return publish(delivery, upload(delivery, provenance, bundle, origin, created_at_ms=created_at_ms))


def upload(
    delivery: Delivery, provenance: Provenance, bundle: SegmentBundle, origin: SnapshotOrigin, *, created_at_ms: int
) -> Uploaded:
    """Put the objects of one segment into the store; several segments may be on their way at once.

    Raises:
        ShippedMeanwhileError: the segment has got a manifest from another run.
        SegmentChangedError: the segment changed meanwhile; what was written is left for a later run.
        VerificationError: an object came back different from what was written.
        TopicIdUnknownError: the layout needs it.
        TopicNameTooLongError: the layout has no key for it.
        StoreError: the store refused or failed.

    """
    identity = _unburied_id(delivery.store, provenance, bundle)
    manifest_key = _key(provenance, bundle, identity, MANIFEST_EXTENSION)
    _check_still_missing(delivery.store, provenance, bundle, manifest_key)

    def put(part: BundlePart) -> ManifestObject:
        key = _object_key(provenance, bundle, identity, part.kind)
        _put(delivery, key, part, bundle)
        return _named(part, key)

    objects = delivery.each(put, bundle.parts)
    manifest = _manifest(provenance, bundle, origin, identity, objects, created_at_ms=created_at_ms)
    return Uploaded(manifest_key=manifest_key, manifest=manifest, provenance=provenance, bundle=bundle)


def publish(delivery: Delivery, uploaded: Uploaded) -> ShippedSegment:
    """Make a segment visible that was uploaded, if it is still what it was, and nobody else has shipped it.

    Another run may be at work on the same segment: it was asked for before the first object, and is again. Should both
    pass at the same instant there are two manifests, each of them true; readers take the one made last.

    Raises:
        ShippedMeanwhileError, SegmentChangedError, VerificationError, StoreError: as ``upload`` does.
        DeletedMeanwhileError: what ``upload`` wrote was deleted.

    """
    uploaded.bundle.check_unchanged()
    for torn in _check_still_missing(delivery.store, uploaded.provenance, uploaded.bundle, uploaded.manifest_key):
        delivery.store.put(torn, TOMBSTONE)
    _put_manifest(delivery, uploaded.manifest_key, uploaded.manifest)
    return shipped_segment(uploaded.manifest_key, uploaded.manifest)


def _unburied_id(store: ObjectStore, provenance: Provenance, bundle: SegmentBundle) -> UUID:
    """Return the first id of the segment that has no tombstone: who deletes may still be about to."""
    buried = {info.key for info in _listed(store, provenance, bundle) if is_tombstone(info)}
    ids = (_segment_id(provenance, bundle, incarnation) for incarnation in count())
    return next(one for one in ids if _key(provenance, bundle, one, MANIFEST_EXTENSION) not in buried)


def _check_still_missing(store: ObjectStore, provenance: Provenance, bundle: SegmentBundle, own_key: str) -> list[str]:
    """Make sure that nobody has shipped the segment; return the manifests of it that name what is not there."""
    torn = []
    for info in _listed(store, provenance, bundle):
        if info.key == own_key and is_tombstone(info):
            raise _deleted_meanwhile(own_key)
        is_other = info.key.endswith(f".{MANIFEST_EXTENSION}") and info.key not in {own_key, *provenance.apart}
        other = _in_the_way(store, info.key, bundle) if is_other and not is_tombstone(info) else None
        if other is not None and all(_length(store, entry.key) == entry.size_bytes for entry in other.objects):
            raise ShippedMeanwhileError(f"{info.key}: another run has shipped the segment", key=info.key)
        torn += [] if other is None else [info.key]
    return torn


def _listed(store: ObjectStore, provenance: Provenance, bundle: SegmentBundle) -> Iterator[ObjectInfo]:
    for topic_id in {provenance.topic_id, None}:
        prefix = segment_prefix(
            cluster_id=provenance.cluster_id,
            topic=provenance.topic_partition.topic,
            topic_id=topic_id,
            partition=provenance.topic_partition.partition,
            base_offset=bundle.segment.base_offset,
        )
        yield from store.list(prefix)


def _in_the_way(store: ObjectStore, key: str, bundle: SegmentBundle) -> Manifest | None:
    """Return the manifest at ``key`` if it forbids ``bundle``: not if it ends elsewhere, and is of one lineage with it.

    Raises:
        ShippedMeanwhileError: nobody knows what it says.

    """
    try:
        other = read_manifest(store.get(key))
    except (FormatError, ObjectNotFoundError) as error:
        raise ShippedMeanwhileError(f"{key}: another run has shipped the segment", key=key) from error
    start, end = other.base_offset, min(other.next_base_offset, bundle.next_base_offset)
    agree = epochs_in(other.leader_epochs, start, end) == epochs_in(bundle.leader_epochs, start, end)
    return other if other.next_base_offset == bundle.next_base_offset or not agree else None


def _put(delivery: Delivery, key: str, part: BundlePart, bundle: SegmentBundle) -> None:
    try:
        delivery.deliver(key, part.open_body, size_bytes=part.size_bytes, checksum=part.crc32c, sha256=part.sha256)
    except OSError as error:
        bundle.check_unchanged()
        raise unread_error(bundle.segment.path, error, hint="check the disk") from error
    except (VerificationError, ObjectNotFoundError, ObjectChangedError):
        # The body was not what it had been a moment ago: say so, if it is the segment that changed.
        bundle.check_unchanged()
        raise


def _put_manifest(delivery: Delivery, key: str, manifest: Manifest) -> None:
    """Check that every object is still there, then make the segment visible; a manifest is always read back."""
    store = delivery.store
    lengths = delivery.each(lambda entry: _length(store, entry.key), manifest.objects)
    for entry, length in zip(manifest.objects, lengths, strict=True):
        if length != entry.size_bytes:
            raise VerificationError(f"{entry.key}: gone or changed after it was verified", hint="run again")
    body = write_manifest(manifest)
    try:
        store.put(key, body, if_absent=True)
    except ObjectExistsError:
        # Another run, or our own attempt whose answer was lost: the key comes from the content.
        _check_same(store, key, manifest)
        return
    delivery.verify(key, size_bytes=len(body), checksum=crc32c(body))


def _length(store: ObjectStore, key: str) -> int | None:
    try:
        return store.head(key).size_bytes
    except ObjectNotFoundError:
        return None


def _check_same(store: ObjectStore, key: str, manifest: Manifest) -> None:
    """Make sure that the manifest at ``key`` names what ``manifest`` names; of when it was made it may differ."""
    hint = "look at it with `resnap inspect`; delete it to have the segment shipped anew"
    body = store.get(key)
    if body == TOMBSTONE:
        raise _deleted_meanwhile(key)
    try:
        with in_file(key):
            found = read_manifest(body)
    except FormatError as error:
        # Of the store's bytes, not of the log's: the segment is sound.
        raise VerificationError(str(error), hint=hint) from error
    if found.objects != manifest.objects:
        raise VerificationError(f"{key}: names other objects than those its key comes from", hint=hint)


def _deleted_meanwhile(key: str) -> DeletedMeanwhileError:
    return DeletedMeanwhileError(
        f"{key}: another run has deleted what was on its way there, by retention or as garbage",
        hint="run again: the segment then goes under keys of its own",
    )


def _segment_id(provenance: Provenance, bundle: SegmentBundle, incarnation: int) -> UUID:
    return segment_id(
        cluster_id=provenance.cluster_id,
        topic=provenance.topic_partition.topic,
        topic_id=provenance.topic_id,
        partition=provenance.topic_partition.partition,
        base_offset=bundle.segment.base_offset,
        next_base_offset=bundle.next_base_offset,
        digests={part.kind: part.sha256 for part in bundle.parts},
        incarnation=incarnation,
    )


def _key(provenance: Provenance, bundle: SegmentBundle, identity: UUID, extension: str) -> str:
    return object_key(
        cluster_id=provenance.cluster_id,
        topic=provenance.topic_partition.topic,
        topic_id=provenance.topic_id,
        partition=provenance.topic_partition.partition,
        base_offset=bundle.segment.base_offset,
        segment_id=identity,
        extension=extension,
    )


def _object_key(provenance: Provenance, bundle: SegmentBundle, identity: UUID, kind: ObjectKind) -> str:
    if provenance.layout == "flat":
        return _key(provenance, bundle, identity, kind)
    if provenance.topic_id is None:
        raise TopicIdUnknownError(f"{bundle.segment.path}: nothing tells the id of {provenance.topic_partition.topic}")
    base_offset = bundle.segment.base_offset
    key = local_tiered_key(provenance.topic_partition, provenance.topic_id, base_offset, identity, kind)
    check_length(key, bundle)
    return key


def check_length(key: str, bundle: SegmentBundle) -> None:
    """Refuse a key that no store is sure to keep, since the topic's name is long.

    Raises:
        TopicNameTooLongError: it is.

    """
    longest = max(key.split("/"), key=len)
    if len(longest) > MAX_KEY_PART_BYTES:
        raise TopicNameTooLongError(
            f"{bundle.segment.path}: its key would have a part of {len(longest)} bytes, and stores are sure to keep"
            f" {MAX_KEY_PART_BYTES}"
        )


def _named(part: BundlePart, key: str) -> ManifestObject:
    return ManifestObject(kind=part.kind, key=key, size_bytes=part.size_bytes, sha256=part.sha256, crc32c=part.crc32c)


def _manifest(
    provenance: Provenance,
    bundle: SegmentBundle,
    origin: SnapshotOrigin,
    identity: UUID,
    objects: list[ManifestObject],
    *,
    created_at_ms: int,
) -> Manifest:
    return Manifest(
        resnap_version=provenance.resnap_version,
        cluster_id=provenance.cluster_id,
        broker_id=provenance.broker_id,
        log_directory=provenance.log_directory,
        topic=provenance.topic_partition.topic,
        topic_id=provenance.topic_id,
        partition=provenance.topic_partition.partition,
        base_offset=bundle.segment.base_offset,
        next_base_offset=bundle.next_base_offset,
        last_offset=bundle.last_offset,
        max_timestamp_ms=bundle.max_timestamp_ms,
        segment_id=identity,
        leader_epochs=bundle.leader_epochs,
        objects=tuple(objects),
        snapshot_origin=origin,
        created_at_ms=created_at_ms,
        compaction_assumption=provenance.compaction_assumption,
    )
