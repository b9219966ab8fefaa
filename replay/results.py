"""The results of a replay, of each boundary, run and partition, and how those of ranges of producer ids are joined.

If a boundary has entries with an uncertain past and more may be read, nothing is written for it: the run is planned
again with a longer window (``next_round``). So everything that is written is final.

Several tasks may each do a range of a run's producer ids: what a combine decides about a producer depends only on that
producer, on the run's clocks, and on evidence that names it. So a task gets the rows and the evidence of its range, and
the results are joined: a boundary is written only if every range rebuilt it, its entries one range after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from resnap.replay.boundary_state import fewest, harmful
from resnap.replay.comparison import Comparison, Producers, SnapshotVerdict
from resnap.replay.plan import PartitionPlan, reach_back
from resnap.storage.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.replay.evidence import BoundaryEvidence
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import Boundary, Coverage, SegmentRun
    from resnap.replay.scan.splits import Anchor, SplitSummary
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import LeftOut, SnapshotDigest


class BoundaryOutcome(StrEnum):
    """The outcome of one boundary; of several, for ranges of producers, the one declared last counts."""

    REBUILT = "rebuilt"
    UNEXPLAINED = "unexplained"
    """More must be read first; never the last word of a replay."""
    ILLEGAL = "invalid-txn-state"
    """Below it is input that Kafka itself refuses to load."""
    UNREADABLE = "unreadable"
    """A segment below it could not be read: the system or a store refused or failed, or it has gone."""
    DAMAGED = "damaged"
    """A segment below it is not what Kafka writes."""


BLIND: Final = frozenset({BoundaryOutcome.DAMAGED, BoundaryOutcome.UNREADABLE})
"""What is above could not be seen."""


def blind_outcome(error: ResnapError | None) -> BoundaryOutcome:
    """Return the outcome of the boundaries above a segment in which ``error`` occurred."""
    return BoundaryOutcome.DAMAGED if error is None or isinstance(error, DataError) else BoundaryOutcome.UNREADABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryResult:
    """The result of one boundary, written or not."""

    boundary: Boundary
    outcome: BoundaryOutcome
    as_of_ms: int
    window_start_offset: int | None
    """Base offset of the first segment that was read for it; None if nothing was."""
    known_from_offset: int = 0
    """First available offset of the log, or that from which it was read; below it only what snapshots show is known."""
    entries: int = 0
    digest: SnapshotDigest | None = None
    """Digest of the snapshot as written; None if it was not."""
    left_out: tuple[LeftOut, ...] = ()
    comparison: Comparison | None = None
    unexplained_since_ms: int | None = None
    moved: frozenset[int] = frozenset()
    """Producers whose state at the run's beginning differed from the snapshots, as the run has shown."""
    unmoved: frozenset[int] = frozenset()
    """Producers whose state was as in the snapshots."""
    reason: str | None = None
    """Why it was not rebuilt."""

    @property
    def offset(self) -> int:
        """Where it is in the log."""
        return self.boundary.offset

    @property
    def coverage(self) -> Coverage:
        """How much of the state there is rebuilt."""
        return self.boundary.coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result of the replay of one partition, or of one of its runs."""

    topic_partition: TopicPartition
    boundaries: tuple[BoundaryResult, ...]
    """The boundaries, ascending by offset."""
    first_unstable_offset: int | None
    """First offset of the oldest transaction without a marker below the high watermark; None if all have one."""
    lacks_records: bool = False
    """Records are missing inside what was read, as only a cleaner, or a loss, leaves it."""
    batches: int = 0
    bytes_read: int = 0
    segments_read: int = 0
    error: ResnapError | None = None
    """Damage, or a segment that could not be read: boundaries above it are not rebuilt."""
    anchor: int | None = None
    """Offset of the state that the last run began with; everything below it was known from an earlier replay."""
    anchors: tuple[Anchor, ...] = ()
    """States that were kept on the way, for later replays to begin with."""

    def proves_wrong(self, found: BoundaryResult) -> bool:
        """Whether the replay proves the existing snapshot at a boundary wrong, and the rebuilt one is better."""
        if found.comparison is None or found.comparison.is_sound:
            return False
        is_empty = found.comparison.verdict is SnapshotVerdict.FALSE_EMPTY
        return is_empty or not (harmful(found.left_out) or self.lacks_records)


class SnapshotSink(Protocol):
    """Stores the snapshots of a replay."""

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest | None:
        """Store the entries (``ENTRY_DTYPE``, by producer id) as the snapshot at ``offset``, whole or not at all.

        Returns None if these are only some of the entries, and the snapshot is still to be joined.
        """
        ...


class PartSink(SnapshotSink, Protocol):
    """Also stores snapshots that come in parts."""

    def write_parts(
        self, topic_partition: TopicPartition, offset: int, parts: Iterable[Array], count: int
    ) -> SnapshotDigest:
        """Write ``count`` entries as ``write`` does, in parts, of which one at a time is in memory."""
        ...


def partition_result(
    plan: PartitionPlan, runs: Sequence[PartitionResult], idle: Sequence[BoundaryResult]
) -> PartitionResult:
    """Join the results of one partition's runs, in their order."""
    results = [*idle, *(result for run in runs for result in run.boundaries)]
    return PartitionResult(
        topic_partition=plan.topic_partition,
        boundaries=tuple(sorted(results, key=lambda result: result.offset)),
        first_unstable_offset=runs[-1].first_unstable_offset if runs else None,
        lacks_records=any(run.lacks_records for run in runs),
        batches=sum(run.batches for run in runs),
        bytes_read=sum(run.bytes_read for run in runs),
        segments_read=sum(run.segments_read for run in runs),
        error=next((run.error for run in runs if run.error), None),
        anchor=next((run.anchor.offset for run in plan.runs if run.anchor is not None), None),
        anchors=tuple(anchor for run in runs for anchor in run.anchors),
    )


def next_round(plan: PartitionPlan, result: PartitionResult) -> PartitionPlan | None:
    """Return the plan that reads further back, or None if ``result`` is final."""
    times = (found.unexplained_since_ms for found in result.boundaries if found.unexplained_since_ms is not None)
    since_ms = min(times, default=None)
    moved = plan.moved.union(*(boundary.moved for boundary in result.boundaries))
    unmoved = plan.unmoved.union(*(boundary.unmoved for boundary in result.boundaries))
    if since_ms is None and (moved, unmoved) == (plan.moved, plan.unmoved):
        return None
    further = replace(plan, moved=moved, unmoved=unmoved)
    return further if since_ms is None else reach_back(further, since_ms)


def join_rounds(earlier: PartitionResult | None, later: PartitionResult) -> PartitionResult:
    """Return ``later``, with the results of ``earlier`` where only the longer window met damage."""
    made = {b.offset: b for b in earlier.boundaries if b.outcome is BoundaryOutcome.REBUILT} if earlier else {}
    boundaries = (made.get(b.offset, b) if b.outcome in BLIND else b for b in later.boundaries)
    return replace(later, boundaries=tuple(boundaries))


_T = TypeVar("_T")
_R = TypeVar("_R")


class IdRange(NamedTuple):
    """Producer ids [``first``, ``end``); ``end`` is None in the last range."""

    first: int
    end: int | None

    def holds(self, producer_id: int) -> bool:
        """Whether ``producer_id`` is in the range."""
        return producer_id >= self.first and (self.end is None or producer_id < self.end)

    def of(self, rows: Array) -> Array:
        """Return the rows of these producers; ``rows`` may be in any order."""
        inside = rows["producer_id"] >= self.first
        if self.end is not None:
            inside &= rows["producer_id"] < self.end
        held: Array = rows if inside.all() else rows[inside]
        return held


def id_ranges(starts: Sequence[int]) -> tuple[IdRange, ...]:
    """Return the ranges that begin below all ids and at each of ``starts``."""
    return tuple(IdRange(first, end) for first, end in zip((-1, *starts), (*starts, None), strict=True))


def within(plan: PartitionPlan, run: SegmentRun, ids: IdRange) -> tuple[PartitionPlan, SegmentRun]:
    """Return ``plan`` and its ``run`` with only the evidence that concerns ``ids``."""
    narrowed = tuple(
        replace(
            planned,
            boundaries=tuple(replace(at, evidence=_at_boundary(at.evidence, ids)) for at in planned.boundaries),
            cut_through=frozenset(filter(ids.holds, planned.cut_through)),
        )
        for planned in plan.runs
    )
    evidence = replace(
        plan.evidence,
        aborted=tuple(txn for txn in plan.evidence.aborted if ids.holds(txn.producer_id)),
        open=tuple(seen for seen in plan.evidence.open if ids.holds(seen.entry.producer_id)),
        below=ids.of(plan.evidence.below),
    )
    index = next(number for number, planned in enumerate(plan.runs) if planned is run)
    return replace(plan, runs=narrowed, evidence=evidence), narrowed[index]


def _at_boundary(evidence: BoundaryEvidence, ids: IdRange) -> BoundaryEvidence:
    def held(by_id: Mapping[int, _T]) -> dict[int, _T]:
        return {producer_id: value for producer_id, value in by_id.items() if ids.holds(producer_id)}

    return replace(evidence, **{field.name: held(getattr(evidence, field.name)) for field in fields(evidence)})


def of_range(summary: SplitSummary, ids: IdRange) -> SplitSummary:
    """Return ``summary`` with the rows of ``ids`` only; clocks and facts are unchanged."""
    return replace(summary, pieces=(piece._replace(rows=ids.of(piece.rows)) for piece in summary.pieces))


def join_boundaries(ranges: Sequence[BoundaryResult]) -> BoundaryResult:
    """Return the joined result of one boundary from all ranges; its digest is not known yet."""
    outcome = max((boundary.outcome for boundary in ranges), key=[*BoundaryOutcome].index)
    given_up = any(boundary.unexplained_since_ms == 0 for boundary in ranges)
    outcome = BoundaryOutcome.UNEXPLAINED if given_up else outcome
    of_outcome = [boundary for boundary in ranges if boundary.outcome is outcome]
    if outcome is not BoundaryOutcome.REBUILT:
        return replace(
            of_outcome[0],
            unexplained_since_ms=min(_known(of_outcome, lambda boundary: boundary.unexplained_since_ms), default=None),
            moved=frozenset().union(*(boundary.moved for boundary in of_outcome)),
            unmoved=frozenset().union(*(boundary.unmoved for boundary in of_outcome)),
            # If reasons differ only in an offset, take the one with the smallest offset.
            reason=min(_known(of_outcome, lambda one: one.reason), key=lambda text: (len(text), text), default=None),
        )
    return replace(
        ranges[0],
        entries=sum(boundary.entries for boundary in ranges),
        left_out=fewest(left_out for boundary in ranges for left_out in boundary.left_out),
        comparison=_join_comparisons(_known(ranges, lambda boundary: boundary.comparison)),
    )


def _known(ranges: Sequence[_R], value: Callable[[_R], _T | None]) -> list[_T]:
    return [found for part in ranges if (found := value(part)) is not None]


def _join_comparisons(ranges: Sequence[Comparison]) -> Comparison | None:
    if not ranges:
        return None
    worst = max((comparison.verdict for comparison in ranges), key=[*SnapshotVerdict].index)
    of_each = ((field.name, [getattr(comparison, field.name) for comparison in ranges]) for field in fields(Comparison))
    joined: dict[str, Any] = {
        name: Producers.join(values) for name, values in of_each if isinstance(values[0], Producers)
    }
    return replace(
        ranges[0],
        verdict=worst,
        **joined,
        unread_since_ms=min(_known(ranges, lambda boundary: boundary.unread_since_ms), default=None),
    )


def join_runs(ranges: Sequence[PartitionResult]) -> PartitionResult:
    """Return the joined result of one run from all ranges, without its boundaries."""
    unstable = [result.first_unstable_offset for result in ranges if result.first_unstable_offset is not None]
    return replace(
        ranges[0],
        boundaries=(),
        first_unstable_offset=min(unstable, default=None),
        lacks_records=any(result.lacks_records for result in ranges),
        error=next((result.error for result in ranges if result.error is not None), None),
        anchors=_join_anchors(ranges),
    )


def _join_anchors(ranges: Sequence[PartitionResult]) -> tuple[Anchor, ...]:
    """Return the states that every range has cached, each with the files of all ranges."""
    by_offset: dict[int, list[Anchor]] = {}
    for anchor in chain.from_iterable(result.anchors for result in ranges):
        by_offset.setdefault(anchor.offset, []).append(anchor)
    return tuple(
        replace(
            kept[0],
            states=tuple(chain.from_iterable(anchor.states for anchor in kept)),
            cut_through=frozenset(chain.from_iterable(anchor.cut_through for anchor in kept)),
        )
        for kept in by_offset.values()
        if len(kept) == len(ranges)
    )
