"""Plans what to read for which boundaries of one partition; pure, from file facts and evidence.

A boundary N is the base offset of a segment and the end of the one before; its snapshot holds the state of everything
below N. Boundaries inside the window are rebuilt in full. Older ones, under ``--as-of`` a fixed time, hold no idle
producers, since all have expired; they still hold those whose transaction spans them, where evidence names one, and
only the segments from that transaction's first offset on are read (``Coverage.BEYOND_WINDOW``).

A plan reads a list of *runs*: consecutive segments, each run folded separately. A run that starts above the log start
knows since which time it has seen everything (``seen_since_ms``), and so whether a producer that first appears in it
can have a past.

``proven`` plans windows whose start is proven by batches, not by time indexes alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.replay.base_state import base_of
from resnap.replay.evidence import BoundaryEvidence, Evidence
from resnap.replay.largest_timestamp import largest_timestamp_by_batches
from resnap.replay.window import earliest_roll_ms, window_start
from resnap.storage.packed import pack_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.replay.scan.splits import Anchor
    from resnap.replay.window import ReplayRules, SegmentSpan
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources

_NOTHING_KNOWN: Final = BoundaryEvidence()
"""Shared by the many boundaries without any evidence."""


class Coverage(StrEnum):
    """How much of the state at a boundary is rebuilt."""

    WINDOW = "window"
    """Every entry that survives."""
    BEYOND_WINDOW = "beyond-window"
    """Idle producers have expired; transactions that span the boundary by evidence are included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One snapshot to write."""

    offset: int
    segment_index: int
    """Index of the segment that ends here."""
    coverage: Coverage
    earliest_roll_ms: int
    existing: str | None = None
    """Path of the existing snapshot to compare with."""
    evidence: BoundaryEvidence = field(default_factory=BoundaryEvidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRun:
    """Segments [start, end) by index, folded together, with the boundaries written on the way, ascending."""

    start: int
    end: int
    boundaries: Sequence[Boundary] = ()
    seen_since_ms: int | None = None
    """Every batch below the run's end and later than this is in the run; None: the run starts at the log start."""
    touched_until_ms: int | None = None
    """Newest modification time of what was not read: by the server's clock nothing of it is later."""
    cut_through: frozenset[int] = frozenset()
    """Producers with a transaction that began below the run and was aborted in it."""
    last_chance: bool = False
    """Nothing more can be read: unexplained producers are omitted, without reading further."""
    anchor: Anchor | None = None
    """The state to begin with, of everything below ``start`` that matters."""
    unanchored: SegmentRun | None = None
    """With an anchor: the run to make without it, should it leave a doubt."""

    def read_from(self, plan: PartitionPlan) -> int:
        """Return the offset from which on the batches have been read, by this run or by the run of its anchor."""
        return plan.segments[self.start].base_offset if self.anchor is None else self.anchor.read_from


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What to read and to write for one partition."""

    topic_partition: TopicPartition
    segments: Sequence[SegmentSpan]
    rules: ReplayRules
    runs: tuple[SegmentRun, ...]
    """Ascending and apart from each other; the last one is the window, where there is one."""
    idle: Sequence[Boundary]
    """Boundaries for which nothing need be read."""
    evidence: Evidence
    high_watermark: int | None
    moved: frozenset[int] = frozenset()
    """Producers whose state at the run's beginning an earlier round has shown to differ from the snapshots."""
    unmoved: frozenset[int] = frozenset()
    """Producers whose entry without a batch was."""
    keep_in: str | None = None
    """Directory for the states that later replays may begin with; None to keep none."""

    def known_from(self, run: SegmentRun | None = None) -> int:
        """Return the first available offset of the log; if ``run`` begins at an anchor, that of the anchor's run.

        A log begins at offset 0. If this is later, producers may be alive whose batches were deleted.
        """
        if run is not None and run.anchor is not None:
            return run.anchor.known_from
        return self.segments[0].base_offset if self.segments else 0

    def proven_from(self, read_from: int, run: SegmentRun | None = None) -> int:
        """Return the offset from which all is known of a boundary for which ``run`` has read from ``read_from`` on.

        That is the first available one, unless ``--max-reach-back`` left what is below ``read_from`` unread, and no
        snapshot shows the transactions that were open there.
        """
        first = self.known_from(run)
        is_cut = self.rules.max_reach_back_ms is not None and not self.rules.full and read_from > first
        return read_from if is_cut and not self.evidence.shows_hanging_below(read_from) else first

    @property
    def bytes_in_segments(self) -> int:
        """Size of the segments that are read; headers alone are fewer bytes."""
        return sum(segment.size_bytes for run in self.runs for segment in self.segments[run.start : run.end])

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Return every boundary that is written, ascending."""
        made = [*self.idle, *(boundary for run in self.runs for boundary in run.boundaries)]
        return tuple(sorted(made, key=lambda boundary: boundary.offset))

    def is_beyond_window(self, boundary: Boundary) -> bool:
        """Whether every idle producer below has expired at T, though the log may be read from its start."""
        return boundary.segment_index < window_begin(self.segments, self.rules)


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
        topic_partition: the partition.
        segments: all of them, ascending, the active one last.
        wanted: offsets of the boundaries to write; base offsets of segments other than the first.
        rules: the times that decide.
        evidence: what the files beside the segments show of transactions.
        high_watermark: transactions above it do not count for the last stable offset; None for the log end.
        existing: snapshots to compare with, path by offset.
        to_end: read to the log end, as the last stable offset requires.

    """
    evidence = evidence or Evidence()
    boundaries = _boundaries(segments, set(wanted), rules, evidence, existing or {})
    read_for = high_watermark if to_end else None
    runs, idle = _runs(segments, boundaries, rules, evidence, to_end=to_end, high_watermark=read_for)
    return PartitionPlan(
        topic_partition=topic_partition,
        segments=segments,
        rules=rules,
        runs=runs,
        idle=idle,
        evidence=evidence,
        high_watermark=high_watermark,
    )


def window_begin(segments: Sequence[SegmentSpan], rules: ReplayRules) -> int:
    """Return the index of the segment from whose end on boundaries are rebuilt in full."""
    return 0 if rules.as_of.roll else window_start(segments, rules.kept_after_ms(rules.as_of.now_ms))


def _boundaries(
    segments: Sequence[SegmentSpan],
    wanted: set[int],
    rules: ReplayRules,
    evidence: Evidence,
    existing: Mapping[int, str],
) -> list[Boundary]:
    known = evidence.at(sorted(wanted))
    inside = 0 if rules.full else window_begin(segments, rules)
    boundaries = []
    of_batches_ms = of_files_ms = -1
    for index, segment in enumerate(segments):
        if segment.has_batch_times:
            of_batches_ms = max(of_batches_ms, segment.largest_timestamp_ms or -1)
        else:
            of_files_ms = max(of_files_ms, segment.mtime_ms)
        # A copy may have lost the times of files, and then they say nothing of when producers were last seen.
        largest_ms = of_files_ms if of_batches_ms < 0 else of_batches_ms
        offset = segment.next_base_offset
        if offset in wanted and offset is not None:
            boundaries.append(
                Boundary(
                    offset=offset,
                    segment_index=index,
                    coverage=Coverage.WINDOW if index >= inside else Coverage.BEYOND_WINDOW,
                    earliest_roll_ms=earliest_roll_ms(largest_ms, segment.mtime_ms, rules.as_of.now_ms),
                    existing=existing.get(offset),
                    evidence=known.get(offset, _NOTHING_KNOWN),
                )
            )
    return boundaries


def _runs(
    segments: Sequence[SegmentSpan],
    boundaries: list[Boundary],
    rules: ReplayRules,
    evidence: Evidence,
    *,
    to_end: bool,
    high_watermark: int | None,
) -> tuple[tuple[SegmentRun, ...], Sequence[Boundary]]:
    """Cover the boundaries by runs; also return those that need no reading."""
    full = [boundary for boundary in boundaries if boundary.coverage is Coverage.WINDOW]
    older = [boundary for boundary in boundaries if boundary.coverage is Coverage.BEYOND_WINDOW]
    ranges = [
        (segment_at(segments, begun), boundary.segment_index + 1)
        for boundary in older
        if (begun := _begun_at(boundary)) is not None
    ]
    if not ((full or to_end) and segments):
        return _place([_last_chance_run(*ends) for ends in _merge(ranges)], boundaries)
    cut_ms = _cut_ms(full, rules)
    earliest = _earliest_start(segments, cut_ms, rules)
    start = 0 if rules.full else min(window_start(segments, cut_ms), len(segments) - 1)
    start = min(start, max(earliest, _begun_in(segments, full)), _start_for(segments, high_watermark, rules))
    # Under `roll`, the segment above a boundary says how late it can have been rolled.
    above = 2 if rules.as_of.roll else 1
    end = len(segments) if to_end else min(full[-1].segment_index + above, len(segments))
    start = _before_aborted(segments, start, earliest, evidence)
    end = max(end, _end_for_base(segments, start, rules, evidence))
    return _place(_with_window(segments, ranges, (start, end), earliest, evidence), boundaries)


def _end_for_base(segments: Sequence[SegmentSpan], start: int, rules: ReplayRules, evidence: Evidence) -> int:
    """Return the end of the segments that prove the state where the segment at ``start`` begins."""
    read_from = segments[start].base_offset
    kept_after_ms = None if rules.as_of.roll else rules.kept_after_ms(rules.as_of.now_ms)
    up_to = base_of(evidence, read_from, begins=segments[0].base_offset).to_be_read_up_to(read_from, kept_after_ms)
    return segment_at(segments, up_to - 1) + 1 if up_to > read_from else 0


def _cut_ms(full: list[Boundary], rules: ReplayRules) -> int:
    as_of_ms = min((b.earliest_roll_ms for b in full), default=rules.as_of.now_ms)
    return rules.kept_after_ms(as_of_ms if rules.as_of.roll else rules.as_of.now_ms) - rules.transaction_reach_ms


def _begun_in(segments: Sequence[SegmentSpan], full: list[Boundary]) -> int:
    """Return the index of the segment of the first offset of transactions open at the first full boundary."""
    begun = _begun_at(full[0]) if full else None
    return len(segments) if begun is None else segment_at(segments, begun)


def _begun_at(boundary: Boundary) -> int | None:
    """Return the first offset of the oldest transaction that must be replayed to know its entry at ``boundary``."""
    known = boundary.evidence
    return min((first for pid, first in known.spanning.items() if pid not in known.at_boundary), default=None)


def _before_aborted(segments: Sequence[SegmentSpan], start: int, earliest: int, evidence: Evidence) -> int:
    """Return the start at or before ``start`` that splits no aborted transaction, not below ``earliest``.

    A hanging transaction may have been aborted long after its batch: its marker alone is not its producer's past.
    """
    while start > earliest and (cut := evidence.aborted_across(segments[start].base_offset)):
        start = max(earliest, segment_at(segments, min(txn.first_offset for txn in cut)))
    return start


def _start_for(segments: Sequence[SegmentSpan], high_watermark: int | None, rules: ReplayRules) -> int:
    """Return the index of the first segment in which a transaction open at ``high_watermark`` can have begun."""
    if high_watermark is None:
        return len(segments)
    index = segment_at(segments, high_watermark)
    before = segments[index - 1].largest_timestamp_ms if index else None
    return min(index, window_start(segments, (before or 0) - rules.transaction_reach_ms))


def _earliest_start(segments: Sequence[SegmentSpan], cut_ms: int, rules: ReplayRules) -> int:
    """Return the index of the first segment that a window planned for ``cut_ms`` may reach back to."""
    if rules.max_reach_back_ms is None:
        return 0
    return min(window_start(segments, cut_ms - rules.max_reach_back_ms), len(segments) - 1)


def earliest_read(segments: Sequence[SegmentSpan], offset: int, rules: ReplayRules) -> int:
    """Return the first offset that may be read for the boundary at ``offset``, or for the next one of ``segments``."""
    if rules.full or rules.max_reach_back_ms is None or not segments:
        return segments[0].base_offset if segments else 0
    ends = {segment.next_base_offset for segment in segments if segment.next_base_offset is not None}
    near = {min((end for end in ends if end >= offset), default=offset)}
    cut_ms = _cut_ms(_boundaries(segments, near, rules, Evidence(), {}), rules)
    return segments[_earliest_start(segments, cut_ms, rules)].base_offset


def segment_at(segments: Sequence[SegmentSpan], offset: int) -> int:
    """Return the index of the segment that holds ``offset``; 0 if that was deleted."""
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join overlapping ranges [start, end)."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _last_chance_run(start: int, end: int) -> SegmentRun:
    """Return a run of segments beyond the window, which is not made longer."""
    return SegmentRun(start=start, end=end, last_chance=True)


def _with_window(
    segments: Sequence[SegmentSpan],
    ranges: Iterable[tuple[int, int]],
    window: tuple[int, int],
    earliest: int,
    evidence: Evidence,
) -> list[SegmentRun]:
    """Return the runs for ``ranges`` and ``window``, which has the largest end and becomes the last run.

    The segments below the window's start give the time since which it has seen everything.
    """
    *others, (start, end) = _merge([*ranges, window])
    unread = (
        span.mtime_ms if span.largest_timestamp_ms is None else span.largest_timestamp_ms for span in segments[:start]
    )
    last = SegmentRun(
        start=start,
        end=end,
        seen_since_ms=max(unread, default=None),
        touched_until_ms=max((segment.mtime_ms for segment in segments[:start]), default=None),
        cut_through=frozenset(txn.producer_id for txn in evidence.aborted_across(segments[start].base_offset)),
        last_chance=start <= earliest,
    )
    return [*(_last_chance_run(*ends) for ends in others), last]


def _with_boundaries(run: SegmentRun, boundaries: Sequence[Boundary]) -> SegmentRun:
    first, end = (bisect_left(boundaries, index, key=lambda b: b.segment_index) for index in (run.start, run.end))
    return replace(run, boundaries=pack_all(boundaries[first:end], "offset"))


def _place(runs: list[SegmentRun], boundaries: Sequence[Boundary]) -> tuple[tuple[SegmentRun, ...], Sequence[Boundary]]:
    """Assign each boundary to the run that passes it; also return those that no run passes."""
    placed = tuple(_with_boundaries(run, boundaries) for run in runs)
    made = {boundary.offset for run in placed for boundary in run.boundaries}
    return placed, pack_all((boundary for boundary in boundaries if boundary.offset not in made), "offset")


def reach_back(plan: PartitionPlan, first_seen_ms: int) -> PartitionPlan:
    """Return ``plan`` with a window that also covers the past of a producer first seen at ``first_seen_ms``.

    A window that began at an anchor first drops the anchor. The window must not be the last chance yet; it becomes the
    last chance when no more may be read.
    """
    *others, window = plan.runs
    if window.unanchored is not None:
        return replace(plan, runs=(*others, window.unanchored))
    if window.last_chance:
        raise AssertionError("a run that was the last chance has nothing left unexplained")
    full = [boundary for boundary in plan.boundaries if boundary.coverage is Coverage.WINDOW]
    earliest = _earliest_start(plan.segments, _cut_ms(full, plan.rules), plan.rules)
    start = max(window_start(plan.segments, first_seen_ms - plan.rules.silence_ms), earliest)
    if start >= window.start:
        # The timestamps show nothing missing, but no server clock confirms them: read twice as much.
        start = max(window.start - (window.end - window.start), earliest)
    start = _before_aborted(plan.segments, start, earliest, plan.evidence)
    ranges = [(run.start, run.end) for run in others]
    longer = _with_window(plan.segments, ranges, (start, window.end), earliest, plan.evidence)
    runs, idle = _place(longer, plan.boundaries)
    return replace(plan, runs=runs, idle=idle)


def proven(
    planned: PartitionPlan,
    plan: Callable[[tuple[SegmentSpan, ...]], PartitionPlan],
    segments: Sequence[Segment],
    sources: Sources,
) -> PartitionPlan:
    """Return ``planned``, or a new ``plan`` of ``segments`` if batches show other largest timestamps.

    Only the deciding timestamps are verified. If a segment turns out to belong to the window, the one below it decides,
    and so on.

    Raises:
        StoreError: the store they are in failed.

    """
    known: set[int] = set()
    while doubtful := deciding(planned) - known:
        known |= doubtful
        spans = list(planned.segments)
        for index in doubtful:
            largest_ms = largest_timestamp_by_batches(segments[index], sources)
            spans[index] = replace(spans[index], largest_timestamp_ms=largest_ms)
        if tuple(spans) != planned.segments:
            planned = plan(tuple(spans))
    return planned


def deciding(plan: PartitionPlan) -> set[int]:
    """Return the indexes of the closed segments whose largest timestamps decide what ``plan`` reads, and each T.

    They are the ones directly below what is read and what is rebuilt in full, and the newest, which decides on open
    transactions. If timestamps ascend, all lower segments are older than these. Under `roll` each boundary has a T from
    the segments below it.
    """
    if plan.rules.as_of.roll:
        return _deciding_rolls(plan)
    if plan.rules.full or not plan.segments:
        return set()
    below = {window_begin(plan.segments, plan.rules), *(run.start for run in plan.runs[-1:]), len(plan.segments) - 1}
    if plan.high_watermark is not None:
        below.add(segment_at(plan.segments, plan.high_watermark))
    return {index - 1 for index in below if index}


def _deciding_rolls(plan: PartitionPlan) -> set[int]:
    newest, found = 0, {boundary.segment_index for boundary in plan.boundaries}
    for index in range(max(found, default=-1) + 1):
        if (plan.segments[index].largest_timestamp_ms or -1) >= (plan.segments[newest].largest_timestamp_ms or -1):
            newest = index
        if index in found:
            found.add(newest)
    return found
