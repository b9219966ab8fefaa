"""The layout ``aiven``: writes what the plugin would have written, in the plugin's order.

Log, indexes, manifest: the manifest completes the segment, and is first read back as strictly as a broker will read it.
Brokers do not see the segment until their own metadata name it. The id of a segment is derived from everything that its
objects are made from, down to the chunk sizes, and for an encrypted segment from its random data key: two runs never
write different bytes under one key, and no broker writes to such a key, because brokers' ids are random. Before the
manifest Resnap writes an object of its own with the origin of the snapshot, which the plugin never reads.

Source: ``KafkaRemoteStorageManager.copyLogSegmentData`` of the plugin; ``RemoteLogManager.copyLogSegment``.

To repair a segment, new indexes are appended to the stored ``.indexes`` object (``with_indexes``).
A reader with the old manifest finds every byte where it says; a reader with the new one finds the new indexes. So no
reader sees a mixture, however long the plugin caches a manifest. Nothing else in the manifest changes, except that
``remoteLogSegmentMetadata``, which the plugin never reads, says whether the transaction index is empty.

Both objects are like no others: before the new indexes are random bytes, which nothing names, and before the manifest
is white space, which is random, too. So a late request that was to replace other ones is refused, even where the etag
of a store depends on the bytes alone.
"""

from __future__ import annotations

import io
import json
import secrets
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from resnap.storage.crc32c import crc32c
from resnap.storage.encryption import new_cipher
from resnap.storage.errors import ConfigurationError, FormatError, VerificationError, in_file
from resnap.storage.json_values import INT_MAX
from resnap.storage.layouts import SegmentForm
from resnap.storage.layouts.aiven import members
from resnap.storage.layouts.aiven.log import REMEDY, copied_log_dir, copied_segment, list_copies
from resnap.storage.layouts.aiven.manifest import (
    INDEX_NAMES,
    AivenManifest,
    IndexRange,
    SegmentMetadata,
    read_manifest,
    write_manifest,
)
from resnap.storage.layouts.aiven.members import SegmentDecoder, origin_key, segment_key_of_origin
from resnap.storage.layouts.aiven.opening import forget_segments
from resnap.storage.layouts.aiven.pieces import (
    ChunkedLog,
    ListedSizes,
    is_compressed_already,
    plain_chunks,
    stored_log,
    stored_piece,
)
from resnap.storage.layouts.manifest import ObjectKind, random_blanks
from resnap.storage.layouts.segments import (
    Deletion,
    ManifestRecords,
    NewObject,
    Rewritten,
    SegmentIdentity,
    SegmentNeeds,
    SegmentObjects,
    ShippedMeanwhileError,
    ShippedSegment,
    Unnamed,
    check_key_length,
    known_topic_id,
    write_origin,
)
from resnap.storage.log.names import OFFSET_DIGITS, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.encryption import KeyRing, SegmentCipher, WrappedKey
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.segments import Listing, NewSegment, SegmentFile, StoredManifest
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_UNKNOWN_BROKER = -1
_RANDOM_BYTES: Final = 16
_NEEDS: Final = SegmentNeeds(objects=3, has_transaction_index=False, is_log_known=False, lists=3, partition_lists=5)
_IS_EMPTY: Final = "txnIdxEmpty"
"""What brokers from 4.0 on say of the transaction index."""


class _Contents(NamedTuple):
    """The bodies of a segment's objects."""

    log: ChunkedLog
    indexes: bytes
    ranges: dict[str, IndexRange | None]
    encryption: WrappedKey | None


@dataclass(frozen=True, slots=True)
class Aiven:
    """Three objects for each segment, as the plugin reads them, and an origin object beside the leases."""

    form: SegmentForm = field(default_factory=SegmentForm)
    """How segments are written."""
    name: str = "aiven"
    folders: ClassVar = 2
    is_plain_copy: ClassVar = False
    may_overlap: ClassVar = False
    """Brokers write here, too, and expect one chain."""
    keeps_snapshots_as_found: ClassVar = True
    """As a broker would have shipped them."""
    needed_parts: ClassVar = frozenset({members.LOG, members.INDEXES, members.MANIFEST})
    """All three objects of the plugin."""
    visible_by: ClassVar = members.MANIFEST
    needs: ClassVar = _NEEDS
    has_digests: ClassVar = False
    """The plugin's manifests have none."""
    remedy: ClassVar = REMEDY
    remedy_when_verified: ClassVar = REMEDY
    brokers_object = staticmethod(members.parse_key)

    def __post_init__(self) -> None:
        """Check the key prefix.

        Raises:
            ConfigurationError: keys with this prefix could not be read again.

        """
        last = self.key_prefix.rpartition("/")[2]
        if not members.TOPIC_PART.fullmatch(last):
            raise ConfigurationError(
                f"key prefix {self.key_prefix!r}: its part {last!r} would be read as part of the topic",
                hint="end it with a slash, or use only ASCII letters, digits and ._- after its last slash",
            )

    @property
    def key_prefix(self) -> str:
        """The plugin's setting ``key.prefix``."""
        return self.form.key_prefix

    def is_key(self, key: str) -> bool:
        """Return whether the plugin could have made ``key``, without a key prefix."""
        found = members.parse_key(key)
        return found is not None and not found.prefix

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",  # noqa: ARG002 - a topic is in one folder, which was listed
        topic_ids: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Return the segments that the manifests in ``listed`` make visible, of brokers and of Resnap."""
        forget_segments()
        return copied_log_dir(store, listed, topics, topic_ids=topic_ids)

    def log_key(
        self, topic_partition: TopicPartition, topic_id: str, base_offset: int, remote_id: str, *, key_prefix: str
    ) -> str:
        """Return the key at which brokers read the log of a segment, under their key prefix."""
        return members.object_key(topic_partition, topic_id, base_offset, remote_id, members.LOG, prefix=key_prefix)

    def misplacement(self, found: StoredManifest, *, key_prefix: str) -> str | None:
        """Return a message if brokers use another key prefix."""
        of, place = found.facts, found.facts.topic_partition
        topic_id = of.topic_id or ""  # manifests of this layout have it
        suffix = members.MANIFEST
        expected = members.object_key(place, topic_id, of.base_offset, of.remote_id, suffix, prefix=key_prefix)
        return None if found.key == expected else f"brokers with the key prefix {key_prefix!r} do not read {found.key}"

    def listing(self, store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> Listing:
        """Return the segments that have manifests, of brokers and of Resnap."""
        forget_segments()
        return list_copies(store, wants, within)

    def manifest_records(self, store: ObjectStore, partition: PartitionDir) -> ManifestRecords:  # noqa: ARG002 - no digests
        """Return where the leader epochs of all segments are stored."""
        checkpoints = (segment.sibling(ObjectKind.LEADER_EPOCH_CHECKPOINT) for segment in partition.segments)
        return ManifestRecords(leader_epochs=tuple(checkpoints), digests={})

    def objects_of(self, segment: NewSegment, store: ObjectStore) -> SegmentObjects:  # noqa: ARG002 - ids are its own
        """Return log and indexes of ``segment`` in their stored form, its origin, and its manifest."""
        topic_id = known_topic_id(segment)
        check_key_length(self._segment_prefix(segment), segment)
        log = segment.files[0]
        if log.size_bytes + self.form.chunk_size > INT_MAX:
            raise ConfigurationError(
                f"{segment.path}: {log.size_bytes} bytes and a chunk of {self.form.chunk_size} are more than"
                f" {INT_MAX}, beyond which the plugin reads wrong chunks",
                hint="give a smaller --chunk-size",
            )
        contents = _contents(segment, self.form)
        segment_id = _segment_id(segment, contents)
        place = members.AivenKey(
            prefix=self.key_prefix,
            topic=segment.provenance.topic_partition.topic,
            topic_id=topic_id,
            partition=segment.provenance.topic_partition.partition,
            base_offset=segment.base_offset,
            segment_id=segment_id,
            suffix=members.MANIFEST,
        )
        stored = contents.log
        return SegmentObjects(
            files=(
                NewObject(place.beside(members.LOG), stored.open_body, stored.size_bytes, stored.crc32c),
                _small(place.beside(members.INDEXES), contents.indexes),
            ),
            beside=(_small(origin_key(place.key), write_origin(segment.origin)),),
            manifest_key=place.key,
            manifest=write_manifest(_manifest(segment, topic_id, segment_id, contents)),
        )

    def check_missing(self, segment: NewSegment, store: ObjectStore, manifest_key: str) -> list[str]:  # noqa: ARG002
        """Check that ``segment`` is not shipped: any manifest at its base offset counts, even a broker's.

        Brokers know no lease: before the manifest, when its files are sent, it is looked for again.
        """
        prefix = self._segment_prefix(segment)
        found = store.list(prefix) if segment.beside is None or not segment.files else segment.beside
        for info in found:
            if info.key.startswith(prefix) and self._parse_key(info.key) is not None:
                raise ShippedMeanwhileError(
                    f"{info.key}: another run, or a broker, has shipped the segment", key=info.key
                )
        return []

    def check_same(self, key: str, found: bytes, meant: bytes) -> None:  # noqa: ARG002 - the key comes from it
        """Check that a broker could read what was found: our own attempt, or a run that did the same."""
        self.read_manifest(key, found)

    def key_prefixes(
        self,
        cluster_id: str | None,  # noqa: ARG002 - keys do not have it
        topic: str,
        only: tuple[str, int] | None,
    ) -> list[str]:
        """Return the one prefix; that of a topic may also be one of another topic."""
        return [f"{self.key_prefix}{topic}-" + ("" if only is None else f"{only[0]}/{only[1]}/")]

    def segment_of_manifest(self, info: ObjectInfo, topic: str) -> SegmentIdentity | None:
        """Return which segment a manifest belongs to."""
        parsed = self._parse_key(info.key)
        if parsed is None or (parsed.prefix, parsed.topic) != (self.key_prefix, topic):
            return None
        return SegmentIdentity(parsed.partition, parsed.base_offset, parsed.topic_id)

    def read_manifest(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment of a manifest, from the metadata that it holds for brokers."""
        place = self._parse_key(key)
        if place is None:
            raise AssertionError(f"{key} is not a key of a manifest")
        found = copied_segment(place, data)
        return ShippedSegment(
            **found.facts.values(),
            manifest_key=key,
            log_key=place.beside(members.LOG),
            objects=tuple(found.objects.items()),
            is_replaceable=False,
            origin_key=origin_key(key),
        )

    def replacements(
        self,
        read: Callable[[str], bytes],
        manifest_key: str,
        parts: Mapping[ObjectKind, bytes],
        origin: SnapshotOrigin | None,
        key_ring: KeyRing,
    ) -> Rewritten:
        """Return the indexes with the new ones appended to the stored ones, the origin, and the manifest."""
        beside = members.parse_own_key(manifest_key).beside(members.INDEXES)
        with in_file(manifest_key):
            indexes, manifest = with_indexes(read(manifest_key), read(beside), parts, key_ring)
        if manifest == read(manifest_key):
            return Rewritten(())
        origins = () if origin is None else ((origin_key(manifest_key), write_origin(origin)),)
        return Rewritten(((beside, indexes), *origins, (manifest_key, manifest)))

    def unnamed_objects(self, store: ObjectStore, listed: Sequence[ObjectInfo]) -> Unnamed:  # noqa: ARG002 - keys show it
        """Return the snapshot origins of deleted segments; all other objects are for brokers to delete."""
        segments = {place.beside("") for info in listed if (place := members.parse_key(info.key))}
        said = [(info, place) for info in listed if (place := segment_key_of_origin(info.key))]
        return Unnamed(tuple(info for info, place in said if place.beside("") not in segments), ())

    def deletion_of(self, key: str) -> Deletion | None:
        """Return how a snapshot origin is deleted: only while its segment does not exist."""
        place = segment_key_of_origin(key)
        return None if place is None else Deletion((key, place.beside("")), lease=None, manifest_key=None)

    def is_tombstone(self, info: ObjectInfo) -> bool:  # noqa: ARG002
        """Return False: nothing remains of a deleted segment."""
        return False

    def _segment_prefix(self, segment: NewSegment) -> str:
        topic, partition = segment.provenance.topic_partition
        (folder,) = self.key_prefixes(None, topic, (known_topic_id(segment), partition))
        return f"{folder}{segment.base_offset:0{OFFSET_DIGITS}d}-"

    def _parse_key(self, key: str) -> members.AivenKey | None:
        """Return the parts of the key of a manifest under the key prefix; None for any other key."""
        parsed = members.parse_key(key.removeprefix(self.key_prefix))
        if parsed is None or parsed.suffix != members.MANIFEST:
            return None
        return replace(parsed, prefix=f"{self.key_prefix}{parsed.prefix}")


def _small(key: str, body: bytes) -> NewObject:
    return NewObject(key, partial(io.BytesIO, body), len(body), crc32c(body))


def _contents(segment: NewSegment, form: SegmentForm) -> _Contents:
    """Return the bodies to store; for an encrypted segment no two calls give the same."""
    files = {file.kind: file for file in segment.files}
    cipher, encryption = None, None
    if form.encryption_key is not None:
        cipher, encryption = new_cipher(form.encryption_key)
    return _Contents(_stored_log(files[ObjectKind.LOG], form, cipher), *_stored_indexes(files, cipher), encryption)


def _stored_log(log: SegmentFile, form: SegmentForm, cipher: SegmentCipher | None) -> ChunkedLog:
    compresses = form.compression == "zstd" or (
        form.compression == "heuristic" and not is_compressed_already(log.open_body)
    )
    if compresses or cipher is not None:
        return stored_log(log, form.chunk_size, is_compressed=compresses, cipher=cipher)
    chunks = plain_chunks(log.size_bytes, form.chunk_size)
    return ChunkedLog(chunks=chunks, open_body=log.open_body, size_bytes=log.size_bytes, crc32c=log.crc32c)


def _stored_indexes(
    files: Mapping[ObjectKind, SegmentFile], cipher: SegmentCipher | None
) -> tuple[bytes, dict[str, IndexRange | None]]:
    """Return the ``.indexes`` object, and where each index is in it; an empty one takes no space."""
    stored, ranges = b"", dict[str, IndexRange | None]()
    for suffix, name in INDEX_NAMES.items():
        file = files.get(ObjectKind(suffix))
        if file is None:
            ranges[name] = None
            continue
        with file.open_body() as body:
            data = body.read()
        piece = stored_piece(data, name, is_compressed=False, cipher=cipher) if data else b""
        ranges[name] = IndexRange(len(stored), len(piece))
        stored += piece
    return stored, ranges


def _manifest(segment: NewSegment, topic_id: str, segment_id: str, contents: _Contents) -> AivenManifest:
    provenance = segment.provenance
    return AivenManifest(
        chunks=contents.log.chunks,
        indexes=contents.ranges,
        compression=isinstance(contents.log.chunks.stored, ListedSizes),
        encryption=contents.encryption,
        segment=SegmentMetadata(
            topic=provenance.topic_partition.topic,
            topic_id=topic_id,
            partition=provenance.topic_partition.partition,
            segment_id=segment_id,
            start_offset=segment.base_offset,
            end_offset=segment.next_base_offset - 1,
            max_timestamp_ms=segment.max_timestamp_ms,
            broker_id=_UNKNOWN_BROKER if provenance.broker_id is None else provenance.broker_id,
            event_timestamp_ms=segment.created_at_ms,
            leader_epochs=segment.leader_epochs,
        ),
    )


def _segment_id(segment: NewSegment, contents: _Contents) -> str:
    """Return an id that differs from that of any segment with other bytes in any of its objects."""
    provenance, index, encryption = segment.provenance, contents.log.chunks, contents.encryption
    place = provenance.topic_partition
    return members.segment_id(
        {
            "cluster": provenance.cluster_id,
            "topic": [place.topic, provenance.topic_id, place.partition],
            "offsets": [segment.base_offset, segment.next_base_offset],
            "digests": {file.kind: file.sha256 for file in segment.files},
            "chunks": [index.chunk_size, list(index.stored.sizes) if isinstance(index.stored, ListedSizes) else None],
            "log": contents.log.crc32c,
            "encryption": None if encryption is None else [encryption.wrapped.hex(), encryption.aad.hex()],
        }
    )


def with_indexes(
    manifest: bytes, indexes: bytes, bodies: Mapping[ObjectKind, bytes], keys: KeyRing
) -> tuple[bytes, bytes]:
    """Return the indexes object and the manifest, with ``bodies`` replacing the indexes that differ.

    Raises:
        FormatError: the manifest is damaged, or the object lacks bytes that it names.
        ConfigurationError: the segment is encrypted, and its private key is missing.

    """
    found = read_manifest(manifest)
    if len(indexes) < found.indexes_end:
        raise FormatError("indexes", position=0, expected=f"{found.indexes_end} bytes or more", found=len(indexes))
    segment, stored = SegmentDecoder.of(found, keys), indexes
    cipher = segment.cipher
    new = {kind: body for kind, body in bodies.items() if _stored_index(segment, stored, kind) != body}
    if not new:
        return indexes, manifest
    indexes += secrets.token_bytes(_RANDOM_BYTES)
    document = json.loads(manifest)
    for kind, body in new.items():
        name = INDEX_NAMES[kind]
        # The place says what is repaired and where: no other piece of the segment was ever sealed there.
        place = f"repaired:{name}:{len(indexes)}"
        piece = stored_piece(body, place, is_compressed=False, cipher=cipher) if body else b""
        is_none = kind is ObjectKind.TXN_INDEX and not body
        document["segmentIndexes"][name] = None if is_none else IndexRange(len(indexes), len(piece))._asdict()
        indexes += piece
        metadata = document.get("remoteLogSegmentMetadata")
        if kind is ObjectKind.TXN_INDEX and isinstance(metadata, dict) and _IS_EMPTY in metadata:
            metadata[_IS_EMPTY] = is_none
    written = random_blanks() + json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    _check(written, indexes, bodies, keys)
    return indexes, written


def _stored_index(segment: SegmentDecoder, indexes: bytes, kind: ObjectKind) -> bytes | None:
    """Return an index as it is stored, empty if there is none; None if it is damaged."""
    place = segment.index_range(kind)
    try:
        return b"" if place is None else segment.index(indexes[place.position : place.position + place.size], place)
    except FormatError:
        return None


def _check(manifest: bytes, indexes: bytes, bodies: Mapping[ObjectKind, bytes], keys: KeyRing) -> None:
    """Check that a reader of ``manifest`` finds ``bodies``: a segment whose manifest cannot be read is lost."""
    segment = SegmentDecoder.of(read_manifest(manifest), keys)
    for kind, body in bodies.items():
        if _stored_index(segment, indexes, kind) != body:
            raise VerificationError(f"the {INDEX_NAMES[kind]} that was stored is read as another one")
