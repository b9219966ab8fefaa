"""``RemoteLogMetadataCache``: brokers' state of remote segments, folded from ``__remote_log_metadata``.

A segment can be read if, in one of its leader epochs, its start offset leads to it. A segment that was finished later
and ends at least as high replaces those that begin at or after its start; a later one in the middle replaces the one
with exactly its start. Replaced segments still exist, and still cost storage.

A broker copies the segments of a partition one after the other, so an unfinished copy that was followed by another is
an orphan: it will not be finished, and its objects are not expected.

Source: ``RemoteLogMetadataCache``, ``RemoteLogLeaderEpochState``, ``RemotePartitionMetadataStore``.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.log.names import OffsetRange
from resnap.tiering.remote_log.records import (
    PartitionDeleteState,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    SegmentState,
    TopicIdPartition,
    partition_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from resnap.tiering.remote_log.records import Event

_STARTED, _FINISHED, _DELETING, _DELETED = SegmentState
_NEXT: Final = {
    _STARTED: {_STARTED, _FINISHED, _DELETING},
    _FINISHED: {_FINISHED, _DELETING},
    _DELETING: {_DELETING, _DELETED},
}
"""What may follow; anything else is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A segment in brokers' metadata, in its current state."""

    id: str
    start_offset: int
    end_offset: int
    """Inclusive."""
    state: SegmentState
    size_bytes: int
    broker_id: int
    """Id of the broker that wrote its last record."""
    leader_epochs: tuple[SegmentLeaderEpoch, ...]
    max_timestamp_ms: int
    event_timestamp_ms: int
    """Time of its last record."""
    begun_at: int
    """Offset of its first record in the metadata partition."""
    custom_metadata: bytes | None
    """The last custom metadata of the plugin that copied it, in the plugin's own form."""

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield each leader epoch with its first and last offset in the segment."""
        ends = [later.offset - 1 for _, later in pairwise(self.leader_epochs)] + [self.end_offset]
        for epoch, end in zip(self.leader_epochs, ends, strict=True):
            yield epoch.leader_epoch, epoch.offset, end


class BegunDeletion(NamedTuple):
    """A finished segment whose deletion began."""

    segment: RemoteSegment
    """As it was in remote storage."""
    at_ms: int
    remote_bytes: int
    """Size of all finished segments of the partition then, this one included."""
    last_begun_at: int
    """Offset in the metadata partition where copying had been begun last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogMetadataCache:
    """Brokers' state of the remote segments of one partition."""

    partition: TopicIdPartition
    metadata_partition: int
    segments: tuple[RemoteSegment, ...]
    """All that are not deleted, in order of offset, then of their first records."""
    readable_ids: frozenset[str]
    last_begun_at: int
    """Offset in the metadata partition where copying was begun last, of whatever segment; -1 if never."""
    dropped: int
    """Records that brokers skip: of unknown segments, or out of order."""
    delete_state: PartitionDeleteState | None
    """State of the deletion of the whole partition."""
    deletions: tuple[BegunDeletion, ...] = ()
    """All deletions of finished segments that the records name, in their order."""
    deleted: Mapping[str, int] = field(default_factory=dict)
    """The time of the last record of each deleted segment, by its id."""

    @property
    def readable(self) -> tuple[RemoteSegment, ...]:
        """The segments that a fetch can lead to."""
        return tuple(segment for segment in self.segments if segment.id in self.readable_ids)

    @property
    def replaced(self) -> tuple[RemoteSegment, ...]:
        """Finished segments that no fetch can lead to."""
        return tuple(one for one in self.segments if one.state is _FINISHED and one.id not in self.readable_ids)

    @property
    def orphans(self) -> tuple[RemoteSegment, ...]:
        """Segments whose copy began and was never finished, although others followed."""
        return tuple(one for one in self.segments if one.state is _STARTED and one.begun_at < self.last_begun_at)

    @property
    def copying(self) -> RemoteSegment | None:
        """The last begun segment, if it is not finished: its copy may be in progress."""
        begun = (segment for segment in self.segments if segment.state is _STARTED)
        return next((segment for segment in begun if segment.begun_at == self.last_begun_at), None)

    @property
    def end_offset(self) -> int | None:
        """The offset after the last one that can be read; None where none can."""
        return max((segment.end_offset + 1 for segment in self.readable), default=None)

    @property
    def start_offset(self) -> int | None:
        """The first offset that can be read; None where none can."""
        return min((segment.start_offset for segment in self.readable), default=None)

    @property
    def gaps(self) -> tuple[OffsetRange, ...]:
        """Offsets between readable segments that none of them has."""
        return tuple(gap for gap, _ in self._seams() if gap.start < gap.end)

    @property
    def overlaps(self) -> tuple[OffsetRange, ...]:
        """Offsets that two readable segments share."""
        return tuple(shared for _, shared in self._seams() if shared.start < shared.end)

    def _seams(self) -> Iterator[tuple[OffsetRange, OffsetRange]]:
        reached = 0
        for number, one in enumerate(self.readable):
            if number:
                yield (
                    OffsetRange(reached, one.start_offset),
                    OffsetRange(one.start_offset, min(reached, one.end_offset + 1)),
                )
            reached = max(reached, one.end_offset + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogMetadata:
    """Brokers' state of all partitions, as far as the metadata topic was read."""

    partitions: tuple[RemoteLogMetadataCache, ...]
    """The segments of partitions, by topic, number and topic id."""
    poison: tuple[Event, ...]
    """Records that stop the reader of a metadata partition, in every broker that follows it."""


def fold_events(events: Iterable[Event]) -> RemoteLogMetadata:
    """Return the state that ``events``, in the order of each metadata partition, make."""
    folds: dict[TopicIdPartition, _CacheBuilder] = {}
    poison: list[Event] = []
    for event in events:
        number, offset, record = event
        if isinstance(record, FormatError):
            poison.append(event)
            continue
        partition = partition_of(record)
        fold = folds.setdefault(partition, _CacheBuilder(partition, number))
        match record:
            case RemoteLogSegmentMetadataRecord():
                fold.begin(record, offset)
            case RemoteLogSegmentMetadataUpdateRecord():
                fold.update(record)
            case _:
                fold.delete(PartitionDeleteState(record.remote_partition_delete_state), record.event_timestamp_ms)
    found = (fold.result() for fold in folds.values())
    return RemoteLogMetadata(
        partitions=tuple(sorted(found, key=lambda one: (one.partition.topic_partition, one.partition.id))),
        poison=tuple(poison),
    )


def nothing_copied(partition: TopicIdPartition, number: int) -> RemoteLogMetadataCache:
    """Return the cache of a partition that the metadata partition ``number`` does not name."""
    return _CacheBuilder(partition, number).result()


def begun_since(cache: RemoteLogMetadataCache, ids: Collection[str]) -> tuple[RemoteSegment, ...]:
    """Return the segments whose copy began after that of the first of ``ids``, except ``ids``."""
    first = min((segment.begun_at for segment in cache.segments if segment.id in ids), default=cache.last_begun_at)
    return tuple(segment for segment in cache.segments if segment.id not in ids and segment.begun_at > first)


@dataclass(slots=True)
class _Epoch:
    """The segments of one leader epoch, by offset."""

    ids: dict[int, str] = field(default_factory=dict)
    """The segment ids by start offset."""
    starts: list[int] = field(default_factory=list)
    """Ascending."""
    highest: int = -1

    def finish(self, start: int, end: int, segment_id: str) -> None:
        while self.starts and self.starts[-1] >= start and self.highest <= end:
            del self.ids[self.starts.pop()]
        if start not in self.ids:
            insort(self.starts, start)
        self.ids[start] = segment_id
        self.highest = max(self.highest, end)

    def forget(self, start: int, segment_id: str) -> None:
        if self.ids.get(start) == segment_id:
            del self.ids[start]
            self.starts.remove(start)


class _CacheBuilder:
    """Builds the cache of one partition from records."""

    def __init__(self, partition: TopicIdPartition, metadata_partition: int) -> None:
        self._partition, self._metadata_partition = partition, metadata_partition
        self._segments: dict[str, RemoteSegment] = {}
        self._epochs: dict[int, _Epoch] = {}
        self._last_begun_at = -1
        self._dropped = 0
        self._delete_state: PartitionDeleteState | None = None
        self._finished_bytes = 0
        self._deletions: list[BegunDeletion] = []
        self._deleted: dict[str, int] = {}

    def begin(self, record: RemoteLogSegmentMetadataRecord, begun_at: int) -> None:
        """Record that a segment's copy began."""
        segment_id = record.remote_log_segment_id.id
        known = self._segments.get(segment_id)
        if known is not None and known.state is not _STARTED:
            self._dropped += 1
            return
        self._last_begun_at = begun_at
        self._deleted.pop(segment_id, None)
        self._segments[segment_id] = RemoteSegment(
            id=segment_id,
            start_offset=record.start_offset,
            end_offset=record.end_offset,
            state=_STARTED,
            size_bytes=record.segment_size_in_bytes,
            broker_id=record.broker_id,
            leader_epochs=record.segment_leader_epochs,
            max_timestamp_ms=record.max_timestamp_ms,
            event_timestamp_ms=record.event_timestamp_ms,
            begun_at=begun_at,
            custom_metadata=record.custom_metadata,
        )

    def update(self, record: RemoteLogSegmentMetadataUpdateRecord) -> None:
        """Record a later state of a segment."""
        segment_id, state = record.remote_log_segment_id.id, SegmentState(record.remote_log_segment_state)
        known = self._segments.get(segment_id)
        if known is None or state not in _NEXT[known.state]:
            self._dropped += 1
            return
        self._count(known, state, record.event_timestamp_ms)
        if state is _DELETED:
            del self._segments[segment_id]
            self._deleted[segment_id] = record.event_timestamp_ms
            return
        for epoch, start, end in known.parts():
            found = self._epochs.setdefault(epoch, _Epoch())
            if state is _FINISHED:
                found.finish(start, end, segment_id)
            else:
                found.forget(start, segment_id)
        self._segments[segment_id] = replace(
            known,
            state=state,
            broker_id=record.broker_id,
            event_timestamp_ms=record.event_timestamp_ms,
            custom_metadata=record.custom_metadata,
        )

    def _count(self, known: RemoteSegment, state: SegmentState, at_ms: int) -> None:
        """Keep the size of all finished segments, and a deletion with it."""
        if state is _FINISHED and known.state is not _FINISHED:
            self._finished_bytes += known.size_bytes
        elif state is _DELETING and known.state is _FINISHED:
            self._deletions.append(BegunDeletion(known, at_ms, self._finished_bytes, self._last_begun_at))
            self._finished_bytes -= known.size_bytes

    def delete(self, state: PartitionDeleteState, at_ms: int) -> None:
        """Record the state of the partition's deletion."""
        self._delete_state = state
        if state is PartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._deleted |= dict.fromkeys(self._segments, at_ms)
            self._segments.clear()
            self._epochs.clear()

    def result(self) -> RemoteLogMetadataCache:
        """Return the cache."""
        return RemoteLogMetadataCache(
            partition=self._partition,
            metadata_partition=self._metadata_partition,
            segments=tuple(sorted(self._segments.values(), key=attrgetter("start_offset", "begun_at"))),
            readable_ids=frozenset(segment_id for epoch in self._epochs.values() for segment_id in epoch.ids.values()),
            last_begun_at=self._last_begun_at,
            dropped=self._dropped,
            delete_state=self._delete_state,
            deletions=tuple(self._deletions),
            deleted=self._deleted,
        )
