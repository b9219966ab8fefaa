"""What brokers believe, compared with what lies in the store and on disk: findings, by what they mean for the operator.

Some findings do harm now or as soon as somebody reads: records that nobody can reach, objects that are gone, a reader
of the metadata topic that has died. Others only cost room: what is there and nothing leads to.

Brokers go on while they are looked at. They tell that they begin to copy before the first object is there, and that
they begin to delete before the first is gone. So where the store was listed between two readings of the metadata
topic, an object is amiss only if it is so by both.

Objects of partitions of which this log dir's metadata say nothing are counted, and nothing is made of them: another
broker may know them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.remote.layouts import aiven, local_tiered
from storage.remote.manifest import ObjectKind
from tiering.remote_log.records import SegmentState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from storage.log.partition_dir import PartitionDir
    from storage.remote.object_store import ObjectInfo
    from tiering.remote_log.beliefs import Beliefs, PartitionBeliefs


class FindingKind(StrEnum):
    """What is not as it should be."""

    POISON = "poison"
    GAP = "gap"
    HOLE = "hole"
    MISSING_OBJECTS = "missing-objects"
    OVERLAP = "overlap"
    ORPHANS = "orphans"
    REPLACED = "replaced"
    STUCK_DELETION = "stuck-deletion"
    DROPPED = "dropped"
    UNREFERENCED_OBJECTS = "unreferenced-objects"


HARMFUL: Final = frozenset({FindingKind.POISON, FindingKind.GAP, FindingKind.HOLE, FindingKind.MISSING_OBJECTS})
"""Those that lose records, or stop tiering."""
_HINTS: Final = {
    FindingKind.POISON: "stop whoever writes there; `kafka-delete-records.sh` up to and with the record, and a restart,"
    " let brokers read on, but they forget all that was told before it",
    FindingKind.GAP: "brokers never fill it: save what still has these offsets, on a disk of a replica or in a store",
    FindingKind.HOLE: "look for a replica that still has these offsets",
    FindingKind.MISSING_OBJECTS: "bring them back from a backup of the store, under the same keys",
}
_NEEDED: Final = {
    "local-tiered": frozenset(ObjectKind) - {ObjectKind.TXN_INDEX},
    "aiven": frozenset({aiven.LOG, aiven.INDEXES, aiven.MANIFEST}),
}
"""The objects without which brokers cannot read a segment, by layout."""
_OF_OBJECTS: Final = frozenset({FindingKind.MISSING_OBJECTS, FindingKind.UNREFERENCED_OBJECTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be."""

    kind: FindingKind
    place: str
    """A partition."""
    count: int
    size_bytes: int = 0
    """Of the logs, or objects, concerned; 0 where that says nothing."""
    detail: str

    @property
    def hint(self) -> str | None:
        """What the operator does next, where harm is done."""
        return _HINTS.get(self.kind)


class SegmentPlace(NamedTuple):
    """Which segment of which partition."""

    topic_id: str
    partition: int
    segment_id: str


@dataclass(slots=True)
class StoredSegment:
    """What a store holds of one segment."""

    layout: str
    objects: set[str]
    """What each of them is, in the layout's own words."""
    size_bytes: int = 0

    @property
    def lacks(self) -> list[str]:
        """What is missing that brokers need."""
        return sorted(_NEEDED[self.layout] - self.objects)


def stored_segments(listed: Iterable[ObjectInfo]) -> dict[SegmentPlace, StoredSegment]:
    """Return what the objects ``listed`` hold in a layout that brokers read; others do not count."""
    found: dict[SegmentPlace, StoredSegment] = {}
    for info in listed:
        told = _told_by(info.key)
        if told is None:
            continue
        place, layout, what = told
        stored = found.setdefault(place, StoredSegment(layout, set()))
        stored.objects.add(what)
        stored.size_bytes += info.size_bytes
    return found


def _told_by(key: str) -> tuple[SegmentPlace, str, str] | None:
    """Return the segment that ``key`` is of, its layout, and what the object is in it."""
    local = local_tiered.parse_key(key)
    if local is not None:
        return SegmentPlace(local.topic_id, local.partition, local.segment_id), "local-tiered", local.kind
    plugin = aiven.parse_key(key)
    if plugin is not None:
        return SegmentPlace(plugin.topic_id, plugin.partition, plugin.segment_id), "aiven", plugin.suffix
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    """One partition: beliefs, disk and store together."""

    beliefs: PartitionBeliefs
    local: PartitionDir | None
    """Its directory; None where this log dir has none with its topic id."""
    stored: dict[str, StoredSegment] | None
    """By segment id; None where no store was looked at."""
    before: PartitionBeliefs | None
    """What was believed before the store was listed, where ``beliefs`` is from after it."""

    @property
    def local_start(self) -> int | None:
        """The first offset on this disk."""
        return self.local.segments[0].base_offset if self.local and self.local.segments else None

    def findings(self) -> Iterator[Finding]:
        """Yield what is not as it should be, the gravest first."""
        yield from self._unreachable()
        yield from self._missing_objects()
        yield from self._idle()
        yield from self._unreferenced_objects()

    def _finding(self, kind: FindingKind, count: int, detail: str, size_bytes: int = 0) -> Finding:
        place = str(self.beliefs.partition.topic_partition)
        return Finding(kind=kind, place=place, count=count, size_bytes=size_bytes, detail=detail)

    def _unreachable(self) -> Iterator[Finding]:
        beliefs = self.beliefs
        if beliefs.gaps:
            said = ", ".join(f"[{gap.start}, {gap.end})" for gap in beliefs.gaps)
            yield self._finding(FindingKind.GAP, len(beliefs.gaps), f"no segment has the offsets {said}")
        end = beliefs.end_offset
        if self.local_start is not None and end is not None and end < self.local_start:
            said = f"remote segments end at {end}, and the log on this disk begins at {self.local_start}"
            yield self._finding(FindingKind.HOLE, 1, said)
        if beliefs.overlaps:
            said = ", ".join(f"[{one.start}, {one.end})" for one in beliefs.overlaps)
            yield self._finding(FindingKind.OVERLAP, len(beliefs.overlaps), f"two segments have the offsets {said}")

    def _missing_objects(self) -> Iterator[Finding]:
        if self.stored is None:
            return
        missing = []
        for one in self.beliefs.readable:
            if self.before is not None and one.id not in self.before.readable_ids:
                continue
            stored = self.stored.get(one.id)
            lacking = ["all"] if stored is None else stored.lacks
            if lacking:
                missing.append(f"{one.id} at {one.start_offset} lacks {', '.join(lacking)}")
        if missing:
            yield self._finding(FindingKind.MISSING_OBJECTS, len(missing), "; ".join(missing))

    def _idle(self) -> Iterator[Finding]:
        beliefs = self.beliefs
        deleting = [one for one in beliefs.segments if one.state is SegmentState.DELETE_SEGMENT_STARTED]
        for kind, segments, said in (
            (FindingKind.ORPHANS, beliefs.orphans, "copying began and was never finished"),
            (FindingKind.REPLACED, beliefs.replaced, "others with their offsets took their places"),
            (FindingKind.STUCK_DELETION, deleting, "deletion began and was not finished"),
        ):
            if segments:
                size_bytes = sum(one.size_bytes for one in segments)
                yield self._finding(kind, len(segments), f"{said}, first of {segments[0].id}", size_bytes)
        if beliefs.dropped:
            yield self._finding(FindingKind.DROPPED, beliefs.dropped, "records that brokers pass over")

    def _unreferenced_objects(self) -> Iterator[Finding]:
        earlier = () if self.before is None else self.before.segments
        known = {one.id for one in (*earlier, *self.beliefs.segments)} - {one.id for one in self.beliefs.orphans}
        strange = {key: one for key, one in (self.stored or {}).items() if key not in known}
        if strange:
            size_bytes = sum(one.size_bytes for one in strange.values())
            said = f"objects that nothing leads to, first of {min(strange)}"
            yield self._finding(FindingKind.UNREFERENCED_OBJECTS, len(strange), said, size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All partitions that the metadata tell of."""

    partitions: tuple[PartitionStanding, ...]
    poison: tuple[Finding, ...]
    other_objects: int
    """Segments in the store of partitions that the metadata read here say nothing of."""

    @property
    def findings(self) -> list[Finding]:
        """Everything that is not as it should be."""
        return [*self.poison, *(finding for one in self.partitions for finding in one.findings())]

    @property
    def asks_for_another_reading(self) -> bool:
        """Whether a finding may be of nothing but the time between reading the metadata and listing the store."""
        return any(finding.kind in _OF_OBJECTS for finding in self.findings)


def stand(
    beliefs: Beliefs,
    local: Iterable[PartitionDir],
    stored: dict[SegmentPlace, StoredSegment] | None,
    before: Beliefs | None = None,
) -> Standing:
    """Return ``beliefs`` beside the directories ``local`` and what a store holds, where it was looked at.

    ``before`` is what was believed before the store was listed, where ``beliefs`` was read after that.
    """
    earlier = {} if before is None else {one.partition: one for one in before.partitions}
    directories = {(one.topic_id, one.topic_partition.partition): one for one in local}
    by_partition: dict[tuple[str, int], dict[str, StoredSegment]] = {}
    for place, segment in (stored or {}).items():
        by_partition.setdefault((place.topic_id, place.partition), {})[place.segment_id] = segment
    partitions = []
    for one in beliefs.partitions:
        key = one.partition.id, one.partition.partition
        objects = by_partition.pop(key, {})
        partitions.append(
            PartitionStanding(
                beliefs=one,
                local=directories.get(key),
                stored=None if stored is None else objects,
                before=earlier.get(one.partition),
            )
        )
    poison = (
        Finding(
            kind=FindingKind.POISON,
            place=f"__remote_log_metadata-{one.metadata_partition}",
            count=1,
            detail=f"the record at offset {one.offset} ends every broker's reading: {one.error}",
        )
        for one in beliefs.poison
    )
    others = sum(map(len, by_partition.values()))
    return Standing(partitions=tuple(partitions), poison=tuple(poison), other_objects=others)
