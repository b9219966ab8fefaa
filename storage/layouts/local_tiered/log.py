"""Reads what brokers tiered in the layout ``local-tiered`` as a log dir; keys alone name the segments.

A segment is complete if all objects that brokers need exist and its log ends with a whole batch. An incomplete one is a
copy that is in progress or was abandoned. Exception: if another segment lies above it, and no complete one has its base
offset, a segment without a snapshot was shipped so, as by brokers that are patched to ship segments without one
(KIP-1026). The key gives the base offset, the last batch the end. Which segments brokers use is recorded in
``__remote_log_metadata``, which is not read here: of several segments with the same offsets, as retries leave them, the
one written last is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, ObjectNotFoundError, ResnapError, in_file
from resnap.storage.layouts.local_tiered.keys import EXTENSIONS, NEEDED, parse_key
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.stored_log import (
    ClosedSegment,
    closed_segment,
    end_snapshot,
    stored_log_dir,
    stored_partition,
    whole_chain,
)
from resnap.storage.log.checkpoints import read_leader_epochs, segment_leader_epochs
from resnap.storage.log.indexes import OFFSET_ENTRY, OffsetIndexEntry
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, MAGIC_V2, RecordBatchHeader
from resnap.storage.log.store_path import StorePath
from resnap.storage.log.survey import Incomplete
from resnap.storage.small_pieces import each
from resnap.storage.stores.ranged_reader import ranged_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

HINT: Final = "`resnap remote status LOG_DIR --store URL` shows which segments the brokers know"
_URL_OF_ONE: Final = "<URL>/<topic>-<partition>-<topic id>"
_RANGE_BYTES: Final = 1 << 16
"""Of the end of a log: as a rule the batches of one entry of its offset index."""


class SegmentObjects(NamedTuple):
    """The objects of one segment."""

    topic_partition: TopicPartition
    topic_id: str
    base_offset: int
    remote_id: str
    infos: dict[ObjectKind, ObjectInfo]


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """A complete segment [base offset, next base offset)."""

    of: SegmentObjects
    next_base_offset: int
    leader_epochs: tuple[LeaderEpoch, ...]
    """Those of the segment alone."""
    cluster_id: None = None
    """Nothing says."""
    snapshot_origin: None = None
    """It is a broker's."""
    broker_id: None = None
    """Nothing says."""
    max_timestamp_ms: None = None
    """Nothing but the batches says."""

    @property
    def topic(self) -> str:
        """The topic's name, as in the folder."""
        return self.of.topic_partition.topic

    @property
    def topic_id(self) -> str:
        """The topic's id, in Kafka's base64 form."""
        return self.of.topic_id

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.of.topic_partition.partition

    @property
    def base_offset(self) -> int:
        """First offset."""
        return self.of.base_offset

    @property
    def log_bytes(self) -> int:
        """Size of its log."""
        return self.of.infos[ObjectKind.LOG].size_bytes

    @property
    def remote_id(self) -> str:
        """The segment id, as in its keys."""
        return self.of.remote_id

    @property
    def made(self) -> tuple[int, str]:
        """When its log was written, and the segment id."""
        return self.of.infos[ObjectKind.LOG].modified_ms, self.of.remote_id

    @property
    def snapshot_key(self) -> str:
        """The key of its snapshot."""
        return self.of.infos[ObjectKind.SNAPSHOT].key


class _Read(NamedTuple):
    """A segment, or the reason why it cannot be read; neither, if its objects were deleted since the listing."""

    of: SegmentObjects
    segment: TieredSegment | None
    error: ResnapError | None


def tiered_log_dir(
    store: ObjectStore,
    listed: Iterable[ObjectInfo],
    topics: Callable[[TopicPartition], bool] | None,
    *,
    topic_ids: Mapping[str, str] | None = None,
) -> LogDir:
    """Return the log dir that the objects ``listed`` of ``store`` make, of brokers or of Resnap.

    A partition whose segments are damaged, contradict each other or leave a gap becomes a problem; so do those of
    several topics of one name, unless ``topic_ids`` chooses one by name.

    Raises:
        StoreError: the store failed.

    """
    partitions: dict[TopicPartition, dict[str, list[_Read]]] = {}
    segments, incomplete = tiered_segments(listed, topics)
    for one in each(partial(_read, store), segments, remote=True):
        if one.segment is not None or one.error is not None:
            partitions.setdefault(one.of.topic_partition, {}).setdefault(one.of.topic_id, []).append(one)
    root = StorePath(store.url)
    return stored_log_dir(
        root,
        partitions,
        lambda read, _: _folder(root, read[0].of),
        partial(_partition, root),
        topic_ids=topic_ids,
        url_of_one=_URL_OF_ONE,
        incomplete=incomplete,
    )


def tiered_segments(
    listed: Iterable[ObjectInfo], topics: Callable[[TopicPartition], bool] | None
) -> tuple[list[SegmentObjects], list[Incomplete]]:
    """Return the wanted segments with all objects that brokers need, and what the other segments lack.

    A snapshot that was not shipped is listed with no bytes. An incomplete segment is returned, with the key of one of
    its objects, if no complete one has its offsets.
    """
    found: dict[str, SegmentObjects] = {}
    for info in listed:
        key = parse_key(info.key)
        if key is None or not (topics is None or topics(TopicPartition(key.topic, key.partition))):
            continue
        place = TopicPartition(key.topic, key.partition)
        stem = info.key.removesuffix(f".{EXTENSIONS[key.kind]}")
        one = SegmentObjects(place, key.topic_id, key.base_offset, key.segment_id, {})
        found.setdefault(stem, one).infos[key.kind] = info
    whole = [one for one in found.values() if one.infos.keys() >= NEEDED]
    bases = {(one.topic_partition, one.topic_id, one.base_offset) for one in whole}
    last: dict[tuple[TopicPartition, str], int] = {}
    for one in found.values():
        of = one.topic_partition, one.topic_id
        last[of] = max(last.get(of, 0), one.base_offset)
    for stem, one in found.items():
        of = one.topic_partition, one.topic_id
        is_bare = one.infos.keys() >= NEEDED - {ObjectKind.SNAPSHOT} and ObjectKind.SNAPSHOT not in one.infos
        if is_bare and (*of, one.base_offset) not in bases and one.base_offset < last[of]:
            log = one.infos[ObjectKind.LOG]
            absent = replace(log, key=f"{stem}.{EXTENSIONS[ObjectKind.SNAPSHOT]}", size_bytes=0, etag="")
            whole.append(one._replace(infos={**one.infos, ObjectKind.SNAPSHOT: absent}))
    shown = {(one.topic_partition, one.topic_id, one.base_offset) for one in whole}
    lacking = (
        Incomplete(one.topic_partition, one.base_offset, f"{stem}.{EXTENSIONS[_first_lacking(one)]}")
        for stem, one in found.items()
        if (one.topic_partition, one.topic_id, one.base_offset) not in shown
    )
    return sorted(whole, key=lambda one: one.infos[ObjectKind.LOG].key), sorted(lacking)


def _first_lacking(of: SegmentObjects) -> ObjectKind:
    return next(kind for kind in EXTENSIONS if kind in NEEDED and kind not in of.infos)


def read_segment(store: ObjectStore, of: SegmentObjects) -> TieredSegment:
    """Return the segment that the objects ``of`` make.

    Raises:
        FormatError: its log ends within a batch, or its leader epochs are damaged.
        ObjectNotFoundError: an object has gone.
        StoreError: the store failed.

    """
    end = _end_offset(store, of)
    checkpoint = of.infos[ObjectKind.LEADER_EPOCH_CHECKPOINT].key
    with in_file(f"{store.url}/{checkpoint}"):
        epochs = read_leader_epochs(store.get(checkpoint))
    return TieredSegment(of, end, segment_leader_epochs(epochs, of.base_offset, end))


def _read(store: ObjectStore, of: SegmentObjects) -> _Read:
    try:
        return _Read(of, read_segment(store, of), None)
    except ObjectNotFoundError:
        return _Read(of, None, None)
    except FormatError as error:
        error.hint = HINT
        return _Read(of, None, error)


def _end_offset(store: ObjectStore, of: SegmentObjects) -> int:
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


def _folder(root: StorePath, of: SegmentObjects) -> StorePath:
    return root / of.infos[ObjectKind.LOG].key.rpartition("/")[0]


def _partition(root: StorePath, topic_partition: TopicPartition, topic_id: str, found: Sequence[_Read]) -> PartitionDir:
    """Return the partition; a damaged segment is an error if no other one begins at its offset.

    Raises:
        FormatError: one is.
        VerificationError: the segments are of two histories, or leave a gap.

    """
    segments = [one.segment for one in found if one.segment is not None]
    begins = {one.base_offset for one in segments}
    for one in found:
        if one.error is not None and one.of.base_offset not in begins:
            raise one.error
    chain = whole_chain(topic_partition, sorted(segments, key=attrgetter("made")), hint=HINT)
    return stored_partition(
        _folder(root, found[0].of),
        topic_partition,
        [ClosedSegment(segment_of(root, one), _snapshot(root, one)) for one in chain],
        leader_epochs=str(root / chain[-1].of.infos[ObjectKind.LEADER_EPOCH_CHECKPOINT].key),
        topic_id=topic_id,
    )


def segment_of(root: StorePath, one: TieredSegment) -> Segment:
    """Return the segment as part of a log dir at ``root``."""
    log = one.of.infos[ObjectKind.LOG]
    sizes = {kind: info.size_bytes for kind, info in one.of.infos.items()}
    return closed_segment(one, str(root / log.key), log, sizes)


def _snapshot(root: StorePath, one: TieredSegment) -> SnapshotFile:
    info = one.of.infos[ObjectKind.SNAPSHOT]
    return end_snapshot(one, str(root / info.key), info, info.size_bytes)
