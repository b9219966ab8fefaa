"""The layout ``local-tiered``, which `LocalTieredStorage`, Kafka's reference, reads: keys, segments, brokers' folders.

There is no manifest: keys alone name the segments.

A segment is complete if all objects that brokers need exist and its log ends with a whole batch. An incomplete one is a
copy that is in progress or was abandoned. Exception: if another segment is above it, and no complete one has its base
offset, a segment without a snapshot was shipped so, as by brokers that are patched to ship segments without one
(KIP-1026). The key gives the base offset, the last batch the end. Which segments brokers use is recorded in
``__remote_log_metadata``, which is not read here: of several segments with the same offsets, as retries leave them, the
one written last is taken.

Object keys of the layout ``local-tiered``, as ``LocalTieredStorage`` in Kafka's tests makes them.

    kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset, 20 digits>-<segment id>.<extension>

relative to the broker's ``rsm.config.dir``. Ids are 22 characters of base64url, which may hold dashes themselves, so
names are taken apart from their ends.

Source: ``RemoteLogSegmentFileset`` and ``RemoteTopicPartitionDirectory`` in the test jar of Kafka's storage module.

``BrokersFolders`` shows what brokers delete and tier on their own in a store to which Resnap ships in this layout.
Brokers' retention deletes whole segments from the beginning of a log, but not Resnap's manifests, which brokers do not
know. Segments that brokers tier after those that Resnap shipped have no manifest. In other layouts there is neither.

Source: ``RemoteLogManager.cleanupExpiredRemoteLogSegments``, ``LocalTieredStorage.deleteLogSegmentData``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.manifest import ManifestFacts, ObjectKind
from resnap.storage.layouts.segment_key import SegmentKey, parsed_key
from resnap.storage.layouts.segments import (
    Listing,
    ManifestRecords,
    Rewritten,
    SegmentFiles,
    StoredManifest,
    check_key_length,
    folder_above,
    known_topic_id,
)
from resnap.storage.layouts.stored_log import (
    ListedSegment,
    ManifestSegment,
    closed_segment,
    end_snapshot,
    stored_log_dir,
    whole_chain,
)
from resnap.storage.log.checkpoints import epochs_in, read_leader_epochs
from resnap.storage.log.indexes import OFFSET_ENTRY, OffsetIndexEntry
from resnap.storage.log.log_dir import Incomplete
from resnap.storage.log.names import OFFSET_DIGITS, StorePath, TopicPartition
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, MAGIC_V2, RecordBatchHeader
from resnap.storage.messages.wire import uuid_text
from resnap.storage.stores.ranged_reader import ranged_reader
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from resnap.storage.encryption import KeyRing
    from resnap.storage.layouts.manifest import Manifest, SnapshotOrigin
    from resnap.storage.layouts.segments import NewSegment
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

ROOT: Final = "kafka-tiered-storage"
EXTENSIONS: Final = {
    ObjectKind.LOG: "log",
    ObjectKind.INDEX: "index",
    ObjectKind.TIME_INDEX: "timeindex",
    ObjectKind.TXN_INDEX: "txnindex",
    ObjectKind.SNAPSHOT: "snapshot",
    ObjectKind.LEADER_EPOCH_CHECKPOINT: "leader_epoch_checkpoint",
}
"""All but that of aborted transactions must be there."""
NEEDED: Final = frozenset(ObjectKind) - {ObjectKind.TXN_INDEX}
"""The objects without which brokers cannot read a segment."""
_KINDS: Final = {extension: kind for kind, extension in EXTENSIONS.items()}
_UUID: Final = "[A-Za-z0-9_-]{22}"
_KEY = re.compile(
    rf"(?:.*/)?(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>0|[1-9][0-9]{{0,9}})-(?P<topic_id>{_UUID})"
    rf"/(?P<base_offset>[0-9]{{{OFFSET_DIGITS}}})-(?P<segment_id>{_UUID})\.(?P<suffix>{'|'.join(EXTENSIONS.values())})"
)


def object_key(
    topic_partition: TopicPartition, topic_id: str, base_offset: int, segment_id: UUID | str, kind: ObjectKind
) -> str:
    """Return the key of one object of a segment, relative to ``rsm.config.dir``."""
    segment_id = segment_id if isinstance(segment_id, str) else uuid_text(segment_id.bytes)
    return f"{ROOT}/{topic_partition}-{topic_id}/{base_offset:0{OFFSET_DIGITS}d}-{segment_id}.{EXTENSIONS[kind]}"


def log_key(
    topic_partition: TopicPartition,
    topic_id: str,
    base_offset: int,
    remote_id: str,
    *,
    key_prefix: str,  # noqa: ARG001 - another layout's
) -> str:
    """Return the key at which brokers read the log of a segment."""
    return object_key(topic_partition, topic_id, base_offset, remote_id, ObjectKind.LOG)


def parse_key(key: str) -> SegmentKey | None:
    """Return the parts of a key of this layout, seen from any folder; None for any other key."""
    match = _KEY.fullmatch(key)
    return match and parsed_key(SegmentKey, match, suffix=_KINDS[match["suffix"]])


@dataclass(frozen=True, slots=True)
class BrokersFolders:
    """The folders of ``store`` that brokers write to, each listed once, at its first use."""

    store: ObjectStore
    _listed: dict[str, frozenset[str]] = field(default_factory=dict)

    def have_lost(self, base_offset: int, keys: Collection[str]) -> bool:
        """Whether retention deleted the segment of ``keys``: nothing is at or below its base offset.

        Some segment must be above it: a partition without any segment has lost its objects in another way.

        Raises:
            StoreError: the store failed.

        """
        folder = next((folder for key in keys if (folder := _folder(key)) is not None), None)
        if folder is None:
            return False
        there = self._objects(folder)
        begins = _begins(there)
        return there.isdisjoint(keys) and bool(begins) and min(begins) > base_offset

    def without_manifest(self, manifests: Collection[Manifest]) -> list[int]:
        """Return the base offsets of a partition's segments that have objects, but none of its ``manifests``.

        Raises:
            StoreError: the store failed.

        """
        named = {entry.key for manifest in manifests for entry in manifest.objects}
        folders = {folder for manifest in manifests if (folder := _folder(manifest.log.key)) is not None}
        return sorted(base for folder in folders for base in _begins(self._objects(folder) - named))

    def _objects(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            self._listed[folder] = frozenset(info.key for info in self.store.list(folder))
        return self._listed[folder]


def _folder(key: str) -> str | None:
    """Return the key prefix of the partition; None in any other layout."""
    return f"{key.rpartition('/')[0]}/" if key.startswith(f"{ROOT}/") else None


def _begins(keys: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments whose logs are in ``keys``."""
    parsed = map(parse_key, keys)
    return [key.base_offset for key in parsed if key is not None and key.suffix == ObjectKind.LOG]


HINT: Final = "`resnap remote status LOG_DIR --store URL` shows which segments the brokers know"
_RANGE_BYTES: Final = 1 << 16
"""How much is read of the end of a log: as a rule the batches of one entry of its offset index."""


class TieredSegment(NamedTuple):
    """The objects of one segment."""

    topic_partition: TopicPartition
    topic_id: str
    base_offset: int
    remote_id: str
    infos: dict[ObjectKind, ObjectInfo]

    @property
    def begins_at(self) -> tuple[TopicPartition, str, int]:
        """Its partition, with the id of the topic, and its base offset; several attempts at it share them."""
        return self[:3]


def tiered_segments(
    listed: Iterable[ObjectInfo], topics: Callable[[TopicPartition], bool] | None
) -> tuple[list[TieredSegment], list[Incomplete]]:
    """Return the wanted segments with all objects that brokers need, and what the other segments lack.

    A snapshot that was not shipped is listed with no bytes. An incomplete segment is returned, with the key of one of
    its objects, if no complete one has its offsets.
    """
    found: dict[str, TieredSegment] = {}
    for info in listed:
        key = parse_key(info.key)
        if key is None or not (topics is None or topics(TopicPartition(key.topic, key.partition))):
            continue
        place = TopicPartition(key.topic, key.partition)
        stem = info.key.rpartition(".")[0]
        one = TieredSegment(place, key.topic_id, key.base_offset, key.segment_id, {})
        found.setdefault(stem, one).infos[ObjectKind(key.suffix)] = info
    whole = [segment for segment in found.values() if segment.infos.keys() >= NEEDED]
    begun = {segment.begins_at for segment in whole}
    last: dict[tuple[TopicPartition, str], int] = {}
    for topic_partition, topic_id, base_offset in sorted(segment.begins_at for segment in found.values()):
        last[topic_partition, topic_id] = base_offset
    for stem, tiered in found.items():
        is_bare = tiered.infos.keys() >= NEEDED - {ObjectKind.SNAPSHOT} and ObjectKind.SNAPSHOT not in tiered.infos
        is_below_another = tiered.base_offset < last[tiered.topic_partition, tiered.topic_id]
        if is_bare and tiered.begins_at not in begun and is_below_another:
            log = tiered.infos[ObjectKind.LOG]
            absent = replace(log, key=f"{stem}.{EXTENSIONS[ObjectKind.SNAPSHOT]}", size_bytes=0, etag="")
            whole.append(tiered._replace(infos={**tiered.infos, ObjectKind.SNAPSHOT: absent}))
    shown = {segment.begins_at for segment in whole}
    incomplete = (
        Incomplete(segment.topic_partition, segment.base_offset, f"{stem}.{EXTENSIONS[lacking[0]]}")
        for stem, segment in found.items()
        if segment.begins_at not in shown
        and (lacking := [kind for kind in EXTENSIONS if kind in NEEDED and kind not in segment.infos])
    )
    return sorted(whole, key=lambda one: one.infos[ObjectKind.LOG].key), sorted(incomplete)


def read_segment(store: ObjectStore, of: TieredSegment) -> ManifestSegment:
    """Return the segment that the objects ``of`` make.

    Raises:
        FormatError: its log ends within a batch, or its leader epochs are damaged.
        ObjectNotFoundError: an object has gone.
        StoreError: the store failed.

    """
    end = _end_offset(store, of)
    log, snapshot = of.infos[ObjectKind.LOG], of.infos[ObjectKind.SNAPSHOT]
    checkpoint = of.infos[ObjectKind.LEADER_EPOCH_CHECKPOINT].key
    with in_file(f"{store.url}/{checkpoint}"):
        epochs = read_leader_epochs(store.get(checkpoint))
    facts = ManifestFacts(
        cluster_id=None,  # nothing says it, nor the broker; the largest timestamp only the batches say
        topic=of.topic_partition.topic,
        topic_id=of.topic_id,
        partition=of.topic_partition.partition,
        base_offset=of.base_offset,
        next_base_offset=end,
        leader_epochs=epochs_in(epochs, of.base_offset, end),
        snapshot_origin=None,
        snapshot_key=snapshot.key,
        max_timestamp_ms=None,
        log_bytes=log.size_bytes,
        broker_id=None,
        remote_id=of.remote_id,
        made=(log.modified_ms, of.remote_id),
    )
    root = StorePath(store.url)
    return ManifestSegment(
        facts,
        closed_segment(facts, str(root / log.key), log, {kind: info.size_bytes for kind, info in of.infos.items()}),
        end_snapshot(facts, str(root / snapshot.key), snapshot, snapshot.size_bytes),
        str(root / checkpoint),
    )


def _listed_segment(store: ObjectStore, of: TieredSegment) -> ListedSegment | None:
    """Return the segment, or the reason why it cannot be read; None if its objects were deleted since the listing."""
    path = StorePath(store.url) / of.infos[ObjectKind.LOG].key.rpartition("/")[0]
    found = ListedSegment(of.topic_partition, of.topic_id, of.base_offset, path, None)
    try:
        return found._replace(segment=read_segment(store, of))
    except ObjectNotFoundError:
        return None
    except FormatError as error:
        error.hint = HINT
        return found._replace(error=error)


def _end_offset(store: ObjectStore, of: TieredSegment) -> int:
    """Return the offset after the last batch of a log, found from the last entry of its offset index on.

    Raises:
        FormatError: the log ends within a batch, or has none.
        ObjectNotFoundError: it has gone.

    """
    log = of.infos[ObjectKind.LOG]
    position, end = _last_indexed(store, of.infos[ObjectKind.INDEX]), of.base_offset
    with ranged_reader(store, log.key, range_bytes=_RANGE_BYTES, ranges_in_flight=1) as reader, in_file(reader.locator):
        while len(header := reader.read(position, HEADER.size)) == HEADER.size:
            batch = RecordBatchHeader._make(HEADER.unpack(header))
            # Before magic 2 a batch has the offset of its last record.
            end = 1 + (batch.last_offset if batch.magic == MAGIC_V2 else batch.base_offset)
            position += LOG_OVERHEAD + max(batch.batch_length, 0)
        if position != reader.size_bytes or end <= of.base_offset:
            raise FormatError("end of a log", position=position, expected="whole batches up to it",
                              found=f"{reader.size_bytes} bytes")  # fmt: skip
    return end


def _last_indexed(store: ObjectStore, index: ObjectInfo) -> int:
    """Return the log position of the last batch in its offset index; 0 if it has none."""
    end = index.size_bytes - index.size_bytes % OFFSET_ENTRY.size
    if not end:
        return 0
    entry = OffsetIndexEntry._make(OFFSET_ENTRY.unpack(store.get_range(index.key, end - OFFSET_ENTRY.size, end)))
    return max(entry.position, 0)


def _chain_to_read(topic_partition: TopicPartition, found: Sequence[ListedSegment]) -> list[ManifestSegment]:
    """Return the segments to read; a damaged one is an error if no other one begins at its offset.

    Raises:
        FormatError: one is.
        VerificationError: the segments are of two histories, or leave a gap.

    """
    begins = {listed.base_offset for listed in found if listed.error is None}
    wanted = [listed for listed in found if listed.error is None or listed.base_offset not in begins]
    return whole_chain(topic_partition, wanted, hint=HINT)


REMEDY: Final = (
    "brokers cannot read it either, if `resnap remote status LOG_DIR --store` says that they know it: only another copy"
    " of the objects helps then"
)


_CHECKPOINT: Final = EXTENSIONS[ObjectKind.LEADER_EPOCH_CHECKPOINT]
_URL_OF_ONE: Final = "<URL>/<topic>-<partition>-<topic id>"


def _read_stored(store: ObjectStore, segment: TieredSegment) -> StoredManifest:
    """Return the facts of a segment, from its objects."""
    found = read_segment(store, segment)
    files = SegmentFiles(found.segment, found.snapshot.path, found.segment.sibling(_CHECKPOINT))
    size = sum(info.size_bytes for info in segment.infos.values())
    return StoredManifest(key=segment.infos[ObjectKind.LOG].key, facts=found.facts, size_bytes=size, files=files)


@dataclass(frozen=True, slots=True)
class LocalTiered:
    """Segments as brokers tier them, without a manifest."""

    name: str = "local-tiered"
    folders: ClassVar = 2
    is_plain_copy: ClassVar = False
    has_digests: ClassVar = False
    remedy_when_verified: ClassVar = REMEDY
    needed_parts: ClassVar[frozenset[str]] = NEEDED
    """All but the transaction index."""
    visible_by: ClassVar[str] = ObjectKind.LOG
    log_key = staticmethod(log_key)
    brokers_object = staticmethod(parse_key)

    def is_key(self, key: str) -> bool:
        """Whether ``key`` belongs to a segment, seen from the brokers' folder or from above it."""
        return key.removeprefix(f"{ROOT}/").count("/") == 1 and parse_key(key) is not None

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",  # noqa: ARG002 - a partition is in one folder, which was listed
        topic_ids: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Return the complete segments in ``listed``, of brokers or of Resnap."""
        segments, incomplete = tiered_segments(listed, topics)
        return stored_log_dir(
            StorePath(store.url),
            filter(None, each(partial(_listed_segment, store), segments, remote=True)),
            _chain_to_read,
            topic_ids=topic_ids,
            url_of_one=_URL_OF_ONE,
            incomplete=incomplete,
        )

    def misplacement(self, found: StoredManifest, *, key_prefix: str) -> str | None:  # noqa: ARG002
        """Return None: brokers wrote the object, so it is where they read it."""
        return None

    def listing(self, store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> Listing:
        """Return the complete segments; the log of each serves as its manifest."""
        found, incomplete = tiered_segments(store.list(within), lambda partition: wants(partition.topic))
        segments = {segment.infos[ObjectKind.LOG].key: segment for segment in found}
        return Listing(
            manifests={key: segment.infos[ObjectKind.LOG] for key, segment in segments.items()},
            sizes={key: sum(info.size_bytes for info in segment.infos.values()) for key, segment in segments.items()},
            source=lambda key: (folder_above(folder_above(key)), segments[key].topic_id),
            read=lambda key: _read_stored(store, segments[key]),
            incomplete=incomplete,
        )

    def manifest_records(self, store: ObjectStore, partition: PartitionDir) -> ManifestRecords:  # noqa: ARG002 - no digests
        """Return where the leader epochs of all segments are stored."""
        return ManifestRecords(
            leader_epochs=tuple(segment.sibling(_CHECKPOINT) for segment in partition.segments), digests={}
        )

    def replacements(
        self,
        read: Callable[[str], bytes],  # noqa: ARG002 - objects are replaced whole
        manifest_key: str,
        parts: Mapping[ObjectKind, bytes],
        origin: SnapshotOrigin | None,  # noqa: ARG002
        key_ring: KeyRing,  # noqa: ARG002
    ) -> Rewritten:
        """Return the objects as brokers read them, each replacing the old one."""
        stem = manifest_key.removesuffix(EXTENSIONS[ObjectKind.LOG])
        return Rewritten(tuple((f"{stem}{EXTENSIONS[kind]}", body) for kind, body in parts.items()))


def key_for_brokers(segment: NewSegment, segment_id: UUID, kind: ObjectKind) -> str:
    """Return the key at which a broker reads an object of ``segment``.

    Raises:
        TopicIdUnknownError, TopicNameTooLongError: it has no key in this layout.

    """
    topic_id = known_topic_id(segment)
    key = object_key(segment.provenance.topic_partition, topic_id, segment.base_offset, segment_id, kind)
    check_key_length(key, segment)
    return key
