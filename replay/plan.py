"""What to read for which boundaries of one partition: pure planning, from file facts and evidence.

A boundary N is the base offset of a segment and the end of the one before; its snapshot holds the state of everything
below N. Boundaries inside the window are rebuilt in full. Older ones, under ``--as-of`` a fixed time, hold no idle
producer any more, since all have expired; they still hold those whose transaction spans them, where evidence names one,
and only the stretch from that transaction's first offset on is read (``Coverage.BEYOND_WINDOW``).

What is read is a list of *runs*, stretches of consecutive segments that are folded each for itself. A run that starts
above the log start knows from which time on it has seen everything (``seen_since_ms``): that tells whether a producer
that first appears in it can have had a past.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from replay.evidence import Evidence
from replay.window import earliest_roll_ms, window_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from replay.window import ReplayRules, SegmentSpan
    from storage.log.names import TopicPartition
    from storage.log.producer_snapshot import ProducerEntry


class Coverage(StrEnum):
    """How much of the state at a boundary is rebuilt."""

    WINDOW = "window"
    """Every entry that survives."""
    BEYOND_WINDOW = "beyond-window"
    """Idle producers have expired; transactions that evidence shows to span the boundary are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One snapshot to make."""

    offset: int
    segment_index: int
    """Index of the segment that ends here."""
    coverage: Coverage
    earliest_roll_ms: int
    existing: str | None = None
    """Path of the snapshot that is there already and is to be compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Segments [start, end) by index, folded together, with the boundaries made on the way, ascending."""

    start: int
    end: int
    boundaries: tuple[Boundary, ...] = ()
    seen_since_ms: int | None = None
    """Every batch below the run's end and later than this is in the run; None: the run starts at the log start."""
    last_chance: bool = False
    """Nothing more can be read: what is unexplained now is left out instead of read further for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What to read and to make of one partition."""

    topic_partition: TopicPartition
    segments: tuple[SegmentSpan, ...]
    rules: ReplayRules
    runs: tuple[Run, ...]
    """Ascending and apart from each other; the last one is the window, where there is one."""
    idle: tuple[Boundary, ...]
    """Boundaries for which nothing need be read."""
    evidence: Evidence
    high_watermark: int | None

    @property
    def bytes_in_segments(self) -> int:
        """Size of the segments that are read; headers alone are fewer bytes."""
        return sum(self.segments[i].size_bytes for run in self.runs for i in range(run.start, run.end))

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Return every boundary that is made, ascending."""
        made = [*self.idle, *(boundary for run in self.runs for boundary in run.boundaries)]
        return tuple(sorted(made, key=lambda boundary: boundary.offset))


def spanning(evidence: Evidence, offset: int) -> dict[int, int]:
    """Return the first offset of each transaction known to be open at ``offset``, by producer id."""
    found = {
        txn.producer_id: txn.first_offset for txn in evidence.aborted if txn.first_offset < offset <= txn.last_offset
    }
    found |= {seen.entry.producer_id: seen.first_offset for seen in evidence.open if seen.spans(offset)}
    return found


def standing(evidence: Evidence, offset: int) -> dict[int, ProducerEntry]:
    """Return the entries, by producer id, that stood at ``offset`` exactly as a later snapshot shows them."""
    return {seen.entry.producer_id: seen.entry for seen in evidence.open if seen.stands_at(offset)}


def plan_partition(
    topic_partition: TopicPartition,
    segments: Sequence[SegmentSpan],
    wanted: Iterable[int],
    rules: ReplayRules,
    *,
    evidence: Evidence | None = None,
    high_watermark: int | None = None,
    existing: Mapping[int, str] | None = None,
    to_end: bool = False,
) -> PartitionPlan:
    """Plan the replay of one partition.

    Args:
        topic_partition: which one.
        segments: all of them, ascending, the active one last.
        wanted: offsets of the boundaries to make; each the base offset of a segment but the first.
        rules: the times that decide.
        evidence: what the files beside the segments say of transactions.
        high_watermark: up to where transactions count for the last stable offset; None for the log end.
        existing: snapshots to compare with, path by offset.
        to_end: read on to the log end, as the last stable offset asks for.

    """
    segments = tuple(segments)
    evidence = evidence or Evidence()
    boundaries = _boundaries(segments, set(wanted), rules, existing or {})
    runs, idle = _runs(segments, boundaries, rules, evidence, to_end=to_end)
    return PartitionPlan(
        topic_partition=topic_partition,
        segments=segments,
        rules=rules,
        runs=runs,
        idle=idle,
        evidence=evidence,
        high_watermark=high_watermark,
    )


def _boundaries(
    segments: tuple[SegmentSpan, ...], wanted: set[int], rules: ReplayRules, existing: Mapping[int, str]
) -> list[Boundary]:
    inside = 0 if rules.full or rules.as_of.roll else window_start(segments, rules.kept_after_ms(rules.as_of.now_ms))
    boundaries = []
    largest_ms = -1
    for index, segment in enumerate(segments):
        largest_ms = max(largest_ms, segment.largest_timestamp_ms or -1)
        offset = segment.next_base_offset
        if offset in wanted and offset is not None:
            boundaries.append(
                Boundary(
                    offset=offset,
                    segment_index=index,
                    coverage=Coverage.WINDOW if index >= inside else Coverage.BEYOND_WINDOW,
                    earliest_roll_ms=earliest_roll_ms(largest_ms, segment.mtime_ms, rules.as_of.now_ms),
                    existing=existing.get(offset),
                )
            )
    return boundaries


def _runs(
    segments: tuple[SegmentSpan, ...],
    boundaries: list[Boundary],
    rules: ReplayRules,
    evidence: Evidence,
    *,
    to_end: bool,
) -> tuple[tuple[Run, ...], tuple[Boundary, ...]]:
    """Cover the boundaries by runs; also return those that need none."""
    full = [boundary for boundary in boundaries if boundary.coverage is Coverage.WINDOW]
    stretches = [stretch for b in boundaries if b not in full and (stretch := _spanning_stretch(segments, b, evidence))]
    window = None
    if (full or to_end) and segments:
        cut_ms = _cut_ms(full, rules)
        start = 0 if rules.full else min(window_start(segments, cut_ms), len(segments) - 1)
        start = _reach_for_transactions(segments, start, full, rules, evidence)
        end = len(segments) if to_end else full[-1].segment_index + 1
        window = _starting_at(Run(start=start, end=end, seen_since_ms=cut_ms), start)
    runs = _merge([Run(start=start, end=end, last_chance=True) for start, end in stretches], window)
    return _place(runs, boundaries)


def _cut_ms(full: list[Boundary], rules: ReplayRules) -> int:
    as_of_ms = min((b.earliest_roll_ms for b in full), default=rules.as_of.now_ms)
    return rules.kept_after_ms(as_of_ms if rules.as_of.roll else rules.as_of.now_ms) - rules.transaction_reach_ms


def _reach_for_transactions(
    segments: tuple[SegmentSpan, ...], start: int, full: list[Boundary], rules: ReplayRules, evidence: Evidence
) -> int:
    """Start early enough for the transactions that are known to be open at the first boundary made in full."""
    if not full:
        return start
    exact = standing(evidence, full[0].offset)
    for producer_id, first_offset in spanning(evidence, full[0].offset).items():
        if producer_id not in exact:
            start = min(start, segment_at(segments, first_offset))
    return max(start, earliest_start(segments, rules))


def earliest_start(segments: Sequence[SegmentSpan], rules: ReplayRules) -> int:
    """Return the index of the first segment that ``max_reach_back_ms`` lets a run begin at."""
    if rules.max_reach_back_ms is None:
        return 0
    cut_ms = rules.kept_after_ms(rules.as_of.now_ms) - rules.transaction_reach_ms - rules.max_reach_back_ms
    return min(window_start(segments, cut_ms), len(segments) - 1)


def segment_at(segments: Sequence[SegmentSpan], offset: int) -> int:
    """Return the index of the segment that holds ``offset``; 0 if that is gone."""
    return max((i for i, segment in enumerate(segments) if segment.base_offset <= offset), default=0)


def _spanning_stretch(
    segments: tuple[SegmentSpan, ...], boundary: Boundary, evidence: Evidence
) -> tuple[int, int] | None:
    exact = standing(evidence, boundary.offset)
    first_offsets = [f for pid, f in spanning(evidence, boundary.offset).items() if pid not in exact]
    if not first_offsets:
        return None
    return segment_at(segments, min(first_offsets)), boundary.segment_index + 1


def _merge(stretches: list[Run], window: Run | None) -> list[Run]:
    """Join runs that overlap; the window, whose end is the largest, swallows what reaches into it."""
    merged: list[Run] = []
    for run in sorted([*stretches, *([window] if window else [])], key=lambda run: (run.start, run.end)):
        if merged and run.start < merged[-1].end:
            last = merged.pop()
            longer = replace(run if run is window else last, end=max(last.end, run.end))
            merged.append(_starting_at(longer, last.start))
        else:
            merged.append(run)
    return merged


def _starting_at(run: Run, start: int) -> Run:
    if start == 0:
        return replace(run, start=0, seen_since_ms=None, last_chance=True)
    return replace(run, start=start)


def _with_boundaries(run: Run, boundaries: Sequence[Boundary]) -> Run:
    return replace(run, boundaries=tuple(b for b in boundaries if run.start <= b.segment_index < run.end))


def _place(runs: Sequence[Run], boundaries: Sequence[Boundary]) -> tuple[tuple[Run, ...], tuple[Boundary, ...]]:
    """Give each boundary to the run that passes it; also return those that no run passes."""
    placed = tuple(_with_boundaries(run, boundaries) for run in runs)
    made = {boundary.offset for run in placed for boundary in run.boundaries}
    return placed, tuple(boundary for boundary in boundaries if boundary.offset not in made)


def reach_back(plan: PartitionPlan, first_seen_ms: int) -> PartitionPlan:
    """Return ``plan`` with a window that also covers the past of a producer first seen at ``first_seen_ms``.

    Where no more may be read, the window stays and becomes the last chance. It must not be that already.
    """
    *others, window = plan.runs
    if window.last_chance:
        raise AssertionError("a run that was the last chance has nothing left unexplained")
    cut_ms = first_seen_ms - plan.rules.silence_ms
    start = min(window_start(plan.segments, cut_ms), window.start - 1)
    start = max(start, earliest_start(plan.segments, plan.rules))
    if start >= window.start:
        return replace(plan, runs=(*others, replace(window, last_chance=True)))
    seen_since_ms = cut_ms if window.seen_since_ms is None else min(cut_ms, window.seen_since_ms)
    longer = _starting_at(replace(window, seen_since_ms=seen_since_ms), start)
    runs, idle = _place(_merge(others, longer), plan.boundaries)
    return replace(plan, runs=runs, idle=idle)
