"""Compares brokers' metadata of remote storage with the store and the disk, and makes findings for the operator.

Some findings do harm now or at the next read: closed segments that wait for too long, unreachable records, missing
objects, a dead reader of the metadata topic. Others only cost space: objects that nothing refers to.

Brokers continue to work at the same time. They write a record before the first object of a copy exists, and before they
delete the first one. So if the store was listed between two reads of the metadata topic, an object is missing or
superfluous only if it is so by both.

Objects of partitions that this log dir's metadata do not mention are only counted: another broker may know them.

Findings are also remote segments that brokers deleted although the topic's retention kept them. Up to 4.3 a leader that
has copied nothing since its election counts the local log twice (KAFKA-20732), and up to 3.8.0 copies that failed
count, too (KAFKA-17062). The metadata have every deletion with its time, and the size of all segments; what was local
only at that moment was copied later, or is not copied yet and is not counted here. Retention is taken as it is set now,
and by Kafka's default where a metadata log alone does not have it. Records deleted on request look the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.tiering.judging.known_faults import LOCAL_LOG_COUNTED_TWICE, known_fault
from resnap.tiering.remote_log.records import SegmentState
from resnap.tiering.remote_log.waiting import Waiting, waiting_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.remote_log.metadata_cache import (
        BegunDeletion,
        RemoteLogMetadata,
        RemoteLogMetadataCache,
        RemoteSegment,
    )
    from resnap.tiering.remote_log.records import TopicIdPartition
    from resnap.tiering.remote_log.stored import StoredSegment, StoredSegments

    _Fault = Callable[[RemoteSegment, StoredSegment | None], str | None]


class FindingKind(StrEnum):
    """The kind of a finding."""

    POISON = "poison"
    NOT_COPIED = "not-copied"
    GAP = "gap"
    HOLE = "hole"
    MISSING_OBJECTS = "missing-objects"
    CONTRADICTED = "contradicted"
    OVERLAP = "overlap"
    ORPHANS = "orphans"
    REPLACED = "replaced"
    STUCK_DELETION = "stuck-deletion"
    DROPPED = "dropped"
    UNREFERENCED_OBJECTS = "unreferenced-objects"
    DELETED_WITHIN_RETENTION = "deleted-within-retention"


HARMFUL: Final = frozenset(
    {
        FindingKind.POISON,
        FindingKind.NOT_COPIED,
        FindingKind.GAP,
        FindingKind.HOLE,
        FindingKind.MISSING_OBJECTS,
        FindingKind.CONTRADICTED,
    }
)
"""Findings of records that are lost, or of tiering that stops."""
_DEFAULT_KEEPS_MS: Final = 604_800_000


_HINTS: Final = {
    FindingKind.POISON: "stop what writes there; `kafka-delete-records.sh` up to and with the record, and a restart,"
    " let brokers read on, but they forget all records before it",
    FindingKind.NOT_COPIED: "look for RemoteLogManager in the leader's log, and run `resnap check` on its log dir; a"
    " copy task that an Error ended runs again after the leader's restart, or under another leader",
    FindingKind.GAP: "brokers never fill it: save what still has these offsets, on a disk of a replica or in a store",
    FindingKind.HOLE: "look for a replica that still has these offsets",
    FindingKind.MISSING_OBJECTS: "bring them back from a backup of the store, under the same keys",
    FindingKind.CONTRADICTED: "brokers read log and indexes at the key in the metadata: bring the objects back from"
    " a backup, under that key; `resnap verify URL` names the damaged ones",
}


_NAMED: Final = 5
"""Segments that a finding names: of a store that is another one all are amiss."""


_OF_OBJECTS: Final = frozenset(
    {FindingKind.MISSING_OBJECTS, FindingKind.CONTRADICTED, FindingKind.UNREFERENCED_OBJECTS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem."""

    kind: FindingKind
    place: str
    """A partition."""
    count: int
    size_bytes: int = 0
    """Size of the logs or objects concerned; 0 if a size means nothing."""
    detail: str

    @property
    def hint(self) -> str | None:
        """The operator's next step, if harm is done."""
        return _HINTS.get(self.kind)


def _missing(_: RemoteSegment, stored: StoredSegment | None) -> str | None:
    """Return the objects that brokers need and a segment lacks."""
    lacking = ["all"] if stored is None else stored.lacks
    return f"lacks {', '.join(lacking)}" if lacking else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionComparison:
    """One partition: metadata, disk and store."""

    cache: RemoteLogMetadataCache
    local: PartitionDir | None
    """Its directory; None where this log dir has none with its topic id."""
    stored: dict[str, StoredSegment] | None
    """The stored segments by segment id; None if no store was listed."""
    before: RemoteLogMetadataCache | None
    """The cache as it was before the store was listed, where ``cache`` is from after it."""
    waiting: Waiting | None
    """What is not in remote storage yet, by this log dir, else by the leader, else by the copy that was begun last."""
    overdue_from_ms: int
    """A segment that has waited since before this time is overdue."""
    settings: Mapping[str, str]
    """The settings of the topic, as far as they are known."""

    @property
    def local_start(self) -> int | None:
        """The first offset on this disk."""
        return self.local.segments[0].base_offset if self.local and self.local.segments else None

    def findings(self) -> Iterator[Finding]:
        """Yield the problems, the most serious first."""
        yield from self._not_copied()
        yield from self._unreachable()
        yield from self._faulty_objects()
        yield from self._superfluous()
        yield from self._unreferenced_objects()
        yield from self._deleted_within_retention()

    def _finding(self, kind: FindingKind, count: int, detail: str, size_bytes: int = 0) -> Finding:
        place = str(self.cache.partition.topic_partition)
        return Finding(kind=kind, place=place, count=count, size_bytes=size_bytes, detail=detail)

    def _not_copied(self) -> Iterator[Finding]:
        one, copying = self.waiting, self.cache.copying
        if one is None or one.since_ms > self.overdue_from_ms:
            return
        said = f"tiering has stopped: the closed segment at offset {one.offset} waits since {_instant(one.since_ms)}"
        if copying is not None:
            began = _instant(copying.event_timestamp_ms)
            said += (
                f"; broker {copying.broker_id} began to copy [{copying.start_offset}, {copying.end_offset + 1}) at"
                f" {began}, as {copying.id}, and has not finished"
            )
        yield self._finding(FindingKind.NOT_COPIED, one.segments, said, one.size_bytes)

    def _unreachable(self) -> Iterator[Finding]:
        cache = self.cache
        if cache.gaps:
            said = ", ".join(map(str, cache.gaps))
            yield self._finding(FindingKind.GAP, len(cache.gaps), f"no segment has the offsets {said}")
        end = cache.end_offset
        if self.local_start is not None and end is not None and end < self.local_start:
            said = f"remote segments end at {end}, and the log on this disk begins at {self.local_start}"
            yield self._finding(FindingKind.HOLE, 1, said)
        if cache.overlaps:
            said = ", ".join(map(str, cache.overlaps))
            yield self._finding(FindingKind.OVERLAP, len(cache.overlaps), f"two segments have the offsets {said}")

    def _faulty_objects(self) -> Iterator[Finding]:
        """Yield the readable segments' objects that are not in the store, or differ from the metadata."""
        for kind, fault in (
            (FindingKind.MISSING_OBJECTS, _missing),
            (FindingKind.CONTRADICTED, lambda one, stored: None if stored is None else stored.contradiction(one)),
        ):
            found = [f"{segment.id} at {segment.start_offset} {said}" for segment, said in self._faulty(fault)]
            if found:
                more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
                yield self._finding(kind, len(found), "; ".join(found[:_NAMED]) + more)

    def _faulty(self, fault: _Fault) -> Iterator[tuple[RemoteSegment, str]]:
        for segment in () if self.stored is None else self.cache.readable:
            if self.before is None or segment.id in self.before.readable_ids:
                said = fault(segment, (self.stored or {}).get(segment.id))
                if said is not None:
                    yield segment, said

    def _superfluous(self) -> Iterator[Finding]:
        cache = self.cache
        deleting = [segment for segment in cache.segments if segment.state is SegmentState.DELETE_SEGMENT_STARTED]
        for kind, segments, said in (
            (FindingKind.ORPHANS, cache.orphans, "copying began and was never finished"),
            (FindingKind.REPLACED, cache.replaced, "other segments with the same offsets replaced them"),
            (FindingKind.STUCK_DELETION, deleting, "deletion began and was not finished"),
        ):
            if segments:
                size_bytes = sum(segment.size_bytes for segment in segments)
                yield self._finding(kind, len(segments), f"{said}, first of {segments[0].id}", size_bytes)
        if cache.dropped:
            yield self._finding(FindingKind.DROPPED, cache.dropped, "records that brokers skip")

    def _unreferenced_objects(self) -> Iterator[Finding]:
        earlier = () if self.before is None else self.before.segments
        known = {one.id for one in (*earlier, *self.cache.segments)} - {orphan.id for orphan in self.cache.orphans}
        strange = {key: segment for key, segment in (self.stored or {}).items() if key not in known}
        if strange:
            size_bytes = sum(segment.size_bytes for segment in strange.values())
            said = f"objects that no metadata names, first of {min(strange)}"
            yield self._finding(FindingKind.UNREFERENCED_OBJECTS, len(strange), said, size_bytes)

    def _deleted_within_retention(self) -> Iterator[Finding]:
        found = list(deleted_within_retention(self.cache.deletions, self.cache, self.settings))
        if found:
            starts, ends = zip(*((one.segment.start_offset, one.segment.end_offset + 1) for one in found), strict=True)
            first = datetime.fromtimestamp(min(deletion.at_ms for deletion in found) / 1000, UTC).isoformat(
                timespec="milliseconds"
            )
            twice = known_fault(LOCAL_LOG_COUNTED_TWICE)
            said = (
                f"brokers deleted remote segments of the offsets [{min(starts)}, {max(ends)}) from {first} on, though"
                f" retention.bytes={self.settings['retention.bytes']} kept them: {twice.sources[0]}"
                f" ({twice.releases_text}), unless records were deleted on request or retention has been changed since"
            )
            size_bytes = sum(deletion.segment.size_bytes for deletion in found)
            yield self._finding(FindingKind.DELETED_WITHIN_RETENTION, len(found), said, size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteComparison:
    """All partitions in the metadata."""

    partitions: tuple[PartitionComparison, ...]
    poison: tuple[Finding, ...]
    other_objects: int
    """Segments in the store of partitions that the metadata read here say nothing of."""

    @property
    def findings(self) -> list[Finding]:
        """All problems."""
        return [*self.poison, *(finding for partition in self.partitions for finding in partition.findings())]

    @property
    def is_of_another_store(self) -> bool:
        """Whether a store was listed that has no object of any segment in the metadata: its URL may be wrong."""
        return all(partition.stored == {} for partition in self.partitions)

    @property
    def asks_for_another_reading(self) -> bool:
        """Whether a finding may only be due to the time between reading the metadata and listing the store."""
        return any(finding.kind in _OF_OBJECTS for finding in self.findings)


def _waiting(cache: RemoteLogMetadataCache, local: PartitionDir | None, on_leader: Waiting | None) -> Waiting | None:
    """Return what waits to be copied; a copy that was begun shows that its segment was closed by then."""
    if cache.delete_state is not None:
        return None
    copying = cache.copying
    found = on_leader if local is None else waiting_segments(local, cache.end_offset or 0)
    if copying is None or (local is not None and found is None):
        return found
    if found is None:
        began_ms, size_bytes = copying.event_timestamp_ms, copying.size_bytes
        return Waiting(offset=copying.start_offset, since_ms=began_ms, segments=1, size_bytes=size_bytes)
    return replace(found, since_ms=min(found.since_ms, copying.event_timestamp_ms))


def _instant(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def compare(
    metadata: RemoteLogMetadata,
    local: Iterable[PartitionDir],
    stored: StoredSegments | None,
    before: RemoteLogMetadata | None = None,
    *,
    on_leaders: Mapping[TopicIdPartition, Waiting] | None = None,
    overdue_from_ms: int,
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> RemoteComparison:
    """Return ``metadata`` compared with the directories ``local`` and with a store, if one was listed.

    Args:
        metadata: of all partitions.
        local: directories of the same broker.
        stored: the segments in the store; None if it was not listed.
        before: the metadata as read before the store was listed, if ``metadata`` was read after that.
        on_leaders: what is not in remote storage by the running cluster, if it was asked.
        overdue_from_ms: a segment that has waited since before this time is overdue.
        settings: of topics, where they are known.

    """
    earlier = {} if before is None else {partition.partition: partition for partition in before.partitions}
    directories = {(partition.topic_id, partition.topic_partition.partition): partition for partition in local}
    by_partition = dict(stored or {})
    partitions = []
    for cache in metadata.partitions:
        key = cache.partition.id, cache.partition.partition
        objects = by_partition.pop(key, {})
        partitions.append(
            PartitionComparison(
                cache=cache,
                local=directories.get(key),
                stored=None if stored is None else objects,
                before=earlier.get(cache.partition),
                waiting=_waiting(cache, directories.get(key), (on_leaders or {}).get(cache.partition)),
                overdue_from_ms=overdue_from_ms,
                settings=(settings or {}).get(cache.partition.name, {}),
            )
        )
    poison = (
        Finding(
            kind=FindingKind.POISON,
            place=f"__remote_log_metadata-{event.metadata_partition}",
            count=1,
            detail=f"the record at offset {event.offset} stops every broker from reading on: {event.record}",
        )
        for event in metadata.poison
    )
    others = sum(map(len, by_partition.values()))
    return RemoteComparison(partitions=tuple(partitions), poison=tuple(poison), other_objects=others)


def deleted_within_retention(
    deletions: tuple[BegunDeletion, ...], cache: RemoteLogMetadataCache, settings: Mapping[str, str]
) -> Iterator[BegunDeletion]:
    """Yield the deletions that neither size nor time called for, of a topic with ``retention.bytes``."""
    limit, keeps_ms = int(settings.get("retention.bytes", "-1")), int(settings.get("retention.ms", _DEFAULT_KEEPS_MS))
    if limit < 0 or cache.delete_state is not None:
        return
    later = [segment for segment in cache.segments if segment.id in cache.readable_ids]
    later += [deletion.segment for deletion in deletions]
    for deletion in deletions:
        local_only = sum(
            each.size_bytes
            for each in later
            if each.begun_at > deletion.last_begun_at and each.max_timestamp_ms <= deletion.at_ms
        )
        has_expired = 0 <= keeps_ms <= deletion.at_ms - deletion.segment.max_timestamp_ms
        if not has_expired and deletion.remote_bytes + local_only <= limit:
            yield deletion
