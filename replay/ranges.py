"""Divides a run into ranges of producer ids for several tasks, and joins their results.

What a combine decides about a producer depends only on that producer, on the run's clocks, and on evidence that names
it. So a task gets the rows and the evidence of its range, and the results are joined: a boundary is written only if
every range rebuilt it, its entries one range after the other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from resnap.replay.boundary_state import fewest
from resnap.replay.comparison import Producers, Verdict
from resnap.replay.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resnap.replay.comparison import Comparison
    from resnap.replay.evidence import BoundaryEvidence, Evidence
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import PartitionPlan, Run
    from resnap.replay.results import BoundaryResult, RunResult
    from resnap.replay.scan.splits import SplitSummary
    from resnap.replay.scan.state_file import Anchor

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


def within(plan: PartitionPlan, run: Run, ids: IdRange) -> tuple[PartitionPlan, Run]:
    """Return ``plan`` and its ``run`` with only the evidence that concerns ``ids``."""
    narrowed = tuple(_narrowed(one, ids) for one in plan.runs)
    index = next(number for number, one in enumerate(plan.runs) if one is run)
    return replace(plan, runs=narrowed, evidence=_evidence(plan.evidence, ids)), narrowed[index]


def _narrowed(run: Run, ids: IdRange) -> Run:
    return replace(
        run,
        boundaries=tuple(replace(one, evidence=_at_boundary(one.evidence, ids)) for one in run.boundaries),
        cut_through=frozenset(filter(ids.holds, run.cut_through)),
    )


def _evidence(evidence: Evidence, ids: IdRange) -> Evidence:
    return replace(
        evidence,
        aborted=tuple(txn for txn in evidence.aborted if ids.holds(txn.producer_id)),
        open=tuple(seen for seen in evidence.open if ids.holds(seen.entry.producer_id)),
        below=ids.of(evidence.below),
    )


def _at_boundary(evidence: BoundaryEvidence, ids: IdRange) -> BoundaryEvidence:
    def held(by_id: Mapping[int, _T]) -> dict[int, _T]:
        return {producer_id: value for producer_id, value in by_id.items() if ids.holds(producer_id)}

    return replace(
        evidence,
        spanning=held(evidence.spanning),
        shown=held(evidence.shown),
        at_boundary=held(evidence.at_boundary),
        by_index=held(evidence.by_index),
    )


def of_range(summary: SplitSummary, ids: IdRange) -> SplitSummary:
    """Return ``summary`` with the rows of ``ids`` only; clocks and facts are unchanged."""
    return replace(summary, pieces=(piece._replace(rows=ids.of(piece.rows)) for piece in summary.pieces))


def join_boundaries(ranges: Sequence[BoundaryResult]) -> BoundaryResult:
    """Return the joined result of one boundary from all ranges; its digest is not known yet."""
    outcome = max((one.outcome for one in ranges), key=_GRAVITY.index)
    given_up = any(one.unexplained_since_ms == 0 for one in ranges)
    outcome = Outcome.UNEXPLAINED if given_up else outcome
    of_outcome = [one for one in ranges if one.outcome is outcome]
    if outcome is not Outcome.REBUILT:
        return replace(
            of_outcome[0],
            unexplained_since_ms=min(_known(of_outcome, lambda one: one.unexplained_since_ms), default=None),
            moved=frozenset().union(*(one.moved for one in of_outcome)),
            unmoved=frozenset().union(*(one.unmoved for one in of_outcome)),
            # If reasons differ only in an offset, take the one with the smallest offset.
            reason=min(_known(of_outcome, lambda one: one.reason), key=lambda text: (len(text), text), default=None),
        )
    return replace(
        ranges[0],
        entries=sum(one.entries for one in ranges),
        left_out=fewest(left_out for one in ranges for left_out in one.left_out),
        comparison=_join_comparisons(_known(ranges, lambda one: one.comparison)),
    )


_GRAVITY: Final = (Outcome.REBUILT, Outcome.UNEXPLAINED, Outcome.ILLEGAL, Outcome.UNREADABLE, Outcome.DAMAGED)


def _known(ranges: Sequence[_R], value: Callable[[_R], _T | None]) -> list[_T]:
    return [found for one in ranges if (found := value(one)) is not None]


def _join_comparisons(ranges: Sequence[Comparison]) -> Comparison | None:
    if not ranges:
        return None
    verdicts = {one.verdict for one in ranges}
    worst = next(verdict for verdict in _WORST_FIRST if verdict in verdicts)
    return replace(
        ranges[0],
        verdict=worst,
        missing=Producers.join([one.missing for one in ranges]),
        different=Producers.join([one.different for one in ranges]),
        swept=Producers.join([one.swept for one in ranges]),
        coordinator_lost=Producers.join([one.coordinator_lost for one in ranges]),
        batch_lost=Producers.join([one.batch_lost for one in ranges]),
        coordinator_kept=Producers.join([one.coordinator_kept for one in ranges]),
        older_rules=Producers.join([one.older_rules for one in ranges]),
        unrecorded=Producers.join([one.unrecorded for one in ranges]),
        unread_since_ms=min(_known(ranges, lambda one: one.unread_since_ms), default=None),
    )


_WORST_FIRST: Final = (
    Verdict.DIFFERENT, Verdict.FALSE_PARTIAL, Verdict.FALSE_EMPTY, Verdict.UNPROVEN, Verdict.PROVEN,
)  # fmt: skip


def join_runs(ranges: Sequence[RunResult]) -> RunResult:
    """Return the joined result of one run from all ranges, without its boundaries."""
    unstable = [one.first_unstable_offset for one in ranges if one.first_unstable_offset is not None]
    return replace(
        ranges[0],
        boundaries=(),
        first_unstable_offset=min(unstable, default=None),
        lacks_records=any(one.lacks_records for one in ranges),
        error=next((one.error for one in ranges if one.error is not None), None),
        anchors=_join_anchors(ranges),
    )


def _join_anchors(ranges: Sequence[RunResult]) -> tuple[Anchor, ...]:
    """Return the states that every range has cached, each with the files of all ranges."""
    by_offset: dict[int, list[Anchor]] = {}
    for anchor in chain.from_iterable(one.anchors for one in ranges):
        by_offset.setdefault(anchor.offset, []).append(anchor)
    return tuple(
        replace(
            kept[0],
            states=tuple(chain.from_iterable(one.states for one in kept)),
            cut_through=frozenset(chain.from_iterable(one.cut_through for one in kept)),
        )
        for kept in by_offset.values()
        if len(kept) == len(ranges)
    )
