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
from typing import TYPE_CHECKING, Final

from resnap.tiering.remote_log.records import SegmentState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.remote_log.beliefs import Beliefs, PartitionBeliefs, RemoteSegment
    from resnap.tiering.remote_log.stored import SegmentPlace, StoredSegment

    _Fault = Callable[[RemoteSegment, StoredSegment | None], str | None]


class FindingKind(StrEnum):
    """What is not as it should be."""

    POISON = "poison"
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


HARMFUL: Final = frozenset(
    {FindingKind.POISON, FindingKind.GAP, FindingKind.HOLE, FindingKind.MISSING_OBJECTS, FindingKind.CONTRADICTED}
)
"""Those that lose records, or stop tiering."""
_HINTS: Final = {
    FindingKind.POISON: "stop whoever writes there; `kafka-delete-records.sh` up to and with the record, and a restart,"
    " let brokers read on, but they forget all that was told before it",
    FindingKind.GAP: "brokers never fill it: save what still has these offsets, on a disk of a replica or in a store",
    FindingKind.HOLE: "look for a replica that still has these offsets",
    FindingKind.MISSING_OBJECTS: "bring them back from a backup of the store, under the same keys",
    FindingKind.CONTRADICTED: "brokers read log and indexes at the key that they were told: bring the objects back from"
    " a backup, under that key; `resnap verify --store` tells which of them is damaged",
}
_NAMED: Final = 5
"""Segments that a finding names: of a store that is another one all are amiss."""
_OF_OBJECTS: Final = frozenset(
    {FindingKind.MISSING_OBJECTS, FindingKind.CONTRADICTED, FindingKind.UNREFERENCED_OBJECTS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be."""

    kind: FindingKind
    place: str
    """A partition."""
    count: int
    size_bytes: int = 0
    """Size of the logs or objects concerned; 0 if a size means nothing."""
    detail: str

    @property
    def hint(self) -> str | None:
        """What the operator does next, where harm is done."""
        return _HINTS.get(self.kind)


def _missing(_: RemoteSegment, stored: StoredSegment | None) -> str | None:
    """Return what a segment lacks that brokers need."""
    lacking = ["all"] if stored is None else stored.lacks
    return f"lacks {', '.join(lacking)}" if lacking else None


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
        yield from self._amiss()
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

    def _amiss(self) -> Iterator[Finding]:
        """Yield what of the readable segments is not in the store, or is not there as brokers were told."""
        for kind, fault in (
            (FindingKind.MISSING_OBJECTS, _missing),
            (FindingKind.CONTRADICTED, lambda one, stored: None if stored is None else stored.contradiction(one)),
        ):
            found = [f"{one.id} at {one.start_offset} {said}" for one, said in self._faulty(fault)]
            if found:
                more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
                yield self._finding(kind, len(found), "; ".join(found[:_NAMED]) + more)

    def _faulty(self, fault: _Fault) -> Iterator[tuple[RemoteSegment, str]]:
        for one in () if self.stored is None else self.beliefs.readable:
            if self.before is None or one.id in self.before.readable_ids:
                said = fault(one, (self.stored or {}).get(one.id))
                if said is not None:
                    yield one, said

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
