"""The ordered combine: summaries of splits in, one snapshot per boundary out; and the engine that runs it in-process.

A run of a partition is combined in one ordered pass: the state so far is itself a summary, each split's summary is
composed onto it, and at every segment end that is a boundary the entries that survive are written. Spark
(``spark_job``) scans elsewhere and combines with the same ``RunCombine``; ``rebuild_locally`` is its oracle.

If a boundary has entries whose past is in doubt and more may be read, nothing is written for it: the run is planned
anew with a longer window (``plan.reach_back``). So whatever is written is final.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from replay.boundary_state import BoundaryState, LeftOut, boundary_state, idle_state, may_have_begun_below
from replay.comparison import Comparison, compare
from replay.partial_state import NONE
from replay.plan import PartitionPlan, reach_back
from replay.splits import NOTHING, Piece, join, plan_splits, scan_split
from replay.window import roll_time_ms
from storage.errors import FormatError, in_file
from storage.log.producer_snapshot import SnapshotDigest, read_snapshot_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from replay.header_scan import Array
    from replay.plan import Boundary, Run
    from replay.splits import SplitSummary
    from storage.errors import ResnapError
    from storage.log.names import TopicPartition


class Outcome(StrEnum):
    """What became of one boundary."""

    REBUILT = "rebuilt"
    DAMAGED = "damaged"
    """A segment below it could not be read."""
    ILLEGAL = "invalid-txn-state"
    """Below it is input that Kafka itself refuses to load."""
    UNEXPLAINED = "unexplained"
    """More must be read first; never the last word of a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryResult:
    """One boundary, done or not."""

    boundary: Boundary
    outcome: Outcome
    as_of_ms: int
    window_start_offset: int | None
    """Base offset of the first segment that was read for it; None if nothing was."""
    entries: int = 0
    digest: SnapshotDigest | None = None
    """Of the snapshot as written; None where it was not."""
    left_out: tuple[LeftOut, ...] = ()
    comparison: Comparison | None = None
    unexplained_since_ms: int | None = None
    reason: str | None = None
    """Why it was not rebuilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run gave."""

    boundaries: tuple[BoundaryResult, ...]
    first_unstable_offset: int | None
    compacted: bool
    batches: int
    bytes_read: int
    segments_read: int
    error: ResnapError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """What the replay of one partition gave."""

    topic_partition: TopicPartition
    boundaries: tuple[BoundaryResult, ...]
    """By offset."""
    first_unstable_offset: int | None
    """First offset of the oldest transaction without a marker below the high watermark; None if all have one."""
    compacted: bool = False
    """Batches were seen that only a cleaner leaves behind."""
    batches: int = 0
    bytes_read: int = 0
    segments_read: int = 0
    error: ResnapError | None = None
    """Damage, or a segment that could not be read: boundaries above it are not rebuilt."""


class SnapshotSink(Protocol):
    """Takes the snapshots that are made."""

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest:
        """Store the entries (``ENTRY_DTYPE``, by producer id) as the snapshot at ``offset``, whole or not at all."""
        ...


@dataclass(slots=True)
class RunCombine:
    """Folds the summaries of one run, which come in offset order."""

    plan: PartitionPlan
    run: Run
    sink: SnapshotSink
    _seen: Piece = NOTHING
    _results: list[BoundaryResult] = field(default_factory=list)
    _first_unstable_offset: int | None = None
    _compacted: bool = False
    _batches: int = 0
    _bytes_read: int = 0
    _segments_read: int = 0
    _error: ResnapError | None = None
    _at_high_watermark: bool = False
    _waiting: Boundary | None = None
    _clock_above_ms: int | None = None
    _oldest_clock_ms: int | None = None
    _by_segment: dict[int, Boundary] = field(init=False)

    def __post_init__(self) -> None:
        self._by_segment = {boundary.segment_index: boundary for boundary in self.run.boundaries}

    def add(self, split: SplitSummary) -> None:
        """Take the next split."""
        self._make_waiting(split.facts.oldest_server_clock_ms)
        self._count(split)
        if self._error is not None:
            self._pass_high_watermark()
            return
        base_offset = self.plan.segments[split.segment_index].base_offset
        if self.plan.high_watermark is not None and self.plan.high_watermark <= base_offset:
            self._pass_high_watermark()
        *below, last = split.pieces
        for piece in below:
            self._compose(piece)
            self._pass_high_watermark()
        self._compose(last)
        if split.ends_segment:
            self._waiting = self._by_segment.get(split.segment_index)

    def finish(self) -> RunResult:
        """Return what came out; boundaries that were not reached lie above damage."""
        self._make_waiting(None)
        self._pass_high_watermark()
        reached = {result.boundary.offset for result in self._results}
        missed = [boundary for boundary in self.run.boundaries if boundary.offset not in reached]
        damaged = [self._result(boundary, Outcome.DAMAGED, reason=str(self._error)) for boundary in missed]
        return RunResult(
            boundaries=(*self._results, *damaged),
            first_unstable_offset=self._first_unstable_offset,
            compacted=self._compacted,
            batches=self._batches,
            bytes_read=self._bytes_read,
            segments_read=self._segments_read,
            error=self._error,
        )

    def _count(self, split: SplitSummary) -> None:
        self._batches += split.facts.batches
        self._bytes_read += split.facts.bytes_read
        self._segments_read += split.ends_segment
        self._compacted = self._compacted or split.facts.compacted
        self._error = self._error or split.error
        clocks = (self._oldest_clock_ms, split.facts.oldest_server_clock_ms)
        self._oldest_clock_ms = min((clock for clock in clocks if clock is not None), default=None)

    @property
    def _state(self) -> Array:
        return self._seen.rows

    def _compose(self, piece: Piece) -> None:
        self._seen = join(self._seen, piece, self.plan.rules.written_under.certain_silence_ms)

    def _pass_high_watermark(self) -> None:
        if self._at_high_watermark:
            return
        self._at_high_watermark = True
        is_open = self._state["txn_first_offset"] != NONE
        found = [*self._state["txn_first_offset"][is_open].tolist(), *self._open_since_before()]
        if may_have_begun_below(self._state, self.plan, self.run, self._oldest_clock_ms).any():
            found.append(self._start_offset)
        self._first_unstable_offset = min(found, default=None)

    def _open_since_before(self) -> list[int]:
        """Return where transactions began that hang from below the run, by what the newest snapshots show."""
        hanging = self.plan.evidence.hanging_from_below(self._start_offset)
        ended = set(self._state["producer_id"][self._state["closed"]].tolist())
        return [seen.first_offset for seen in hanging if seen.entry.producer_id not in ended]

    def _make_waiting(self, clock_above_ms: int | None) -> None:
        """Make the boundary that the last split ended at, now that the one above it tells its clock."""
        self._clock_above_ms = clock_above_ms
        if self._waiting is not None:
            self._results.append(self._make(self._waiting))
            self._waiting = None

    def _make(self, boundary: Boundary) -> BoundaryResult:
        illegal = self._state["illegal_offset"][self._state["illegal_offset"] != NONE]
        if len(illegal):
            reason = f"non-transactional data inside an open transaction at offset {int(illegal.min())}"
            return self._result(boundary, Outcome.ILLEGAL, reason=reason)
        as_of_ms = self._as_of_ms(boundary)
        kept_after_ms = self.plan.rules.kept_after_ms(as_of_ms)
        since_ms = self.run.seen_since_ms
        if since_ms is not None and kept_after_ms < since_ms and not self.run.last_chance:
            # Planned with a later T than the clocks then showed: the window begins too late.
            since_ms = kept_after_ms + self.plan.rules.silence_ms
            return self._result(boundary, Outcome.UNEXPLAINED, unexplained_since_ms=since_ms)
        found = boundary_state(
            self._state, self.plan, self.run, boundary, as_of_ms, oldest_clock_ms=self._oldest_clock_ms
        )
        if found.unexplained_since_ms is not None and not self.run.last_chance:
            return self._result(boundary, Outcome.UNEXPLAINED, unexplained_since_ms=found.unexplained_since_ms)
        return make_snapshot(
            self.plan, boundary, found, self.sink, as_of_ms=as_of_ms, seen=self._state["producer_id"],
            window_start_offset=self._start_offset,
        )  # fmt: skip

    def _as_of_ms(self, boundary: Boundary) -> int:
        as_of = self.plan.rules.as_of
        if not as_of.roll:
            return as_of.now_ms
        return roll_time_ms(boundary.earliest_roll_ms, self._seen.clock_ms, self._clock_above_ms)

    @property
    def _start_offset(self) -> int:
        return self.plan.segments[self.run.start].base_offset

    def _result(
        self,
        boundary: Boundary,
        outcome: Outcome,
        *,
        reason: str | None = None,
        unexplained_since_ms: int | None = None,
    ) -> BoundaryResult:
        return BoundaryResult(
            boundary=boundary,
            outcome=outcome,
            as_of_ms=self._as_of_ms(boundary),
            window_start_offset=self._start_offset,
            reason=reason,
            unexplained_since_ms=unexplained_since_ms,
        )


def make_snapshot(
    plan: PartitionPlan,
    boundary: Boundary,
    found: BoundaryState,
    sink: SnapshotSink,
    *,
    as_of_ms: int,
    seen: Array,
    window_start_offset: int | None,
) -> BoundaryResult:
    """Write the snapshot of ``boundary``, and compare the one that is there with it."""
    return BoundaryResult(
        boundary=boundary,
        outcome=Outcome.REBUILT,
        as_of_ms=as_of_ms,
        window_start_offset=window_start_offset,
        entries=len(found.entries),
        digest=sink.write(plan.topic_partition, boundary.offset, found.entries),
        left_out=found.left_out,
        comparison=_compare_existing(
            plan, boundary, found, as_of_ms, seen=seen, window_start_offset=window_start_offset
        ),
    )


def _compare_existing(
    plan: PartitionPlan,
    boundary: Boundary,
    found: BoundaryState,
    as_of_ms: int,
    *,
    seen: Array,
    window_start_offset: int | None,
) -> Comparison | None:
    if boundary.existing is None:
        return None
    path = Path(boundary.existing)
    try:
        data, written_ms = path.read_bytes(), path.stat().st_mtime_ns // 1_000_000
        with in_file(path):
            existing = read_snapshot_array(data)
    except (OSError, FormatError):
        return None  # the inventory has called it corrupt already, or it went away meanwhile
    # What was left out is no contradiction to a snapshot that has it.
    known = np.setdiff1d(seen, [producer.producer_id for producer in found.left_out])
    comparison = compare(
        existing,
        found.entries,
        kept_after_ms=plan.rules.kept_after_ms(as_of_ms),
        written_ms=written_ms,
        expiration_ms=plan.rules.written_under.expiration_ms,
        seen=known,
        read_from=window_start_offset or 0,
    )
    return replace(comparison, sha256=hashlib.sha256(data).hexdigest())


def make_idle(plan: PartitionPlan, sink: SnapshotSink) -> list[BoundaryResult]:
    """Write the snapshots for which nothing need be read."""
    made = []
    for boundary in plan.idle:
        found = idle_state(boundary)
        made.append(
            make_snapshot(
                plan, boundary, found, sink, as_of_ms=plan.rules.as_of.now_ms, seen=found.entries["producer_id"],
                window_start_offset=None,
            )
        )  # fmt: skip
    return made


def partition_result(plan: PartitionPlan, runs: Sequence[RunResult], idle: Sequence[BoundaryResult]) -> PartitionResult:
    """Join what the runs of one partition gave, in their order."""
    results = [*idle, *(result for run in runs for result in run.boundaries)]
    return PartitionResult(
        topic_partition=plan.topic_partition,
        boundaries=tuple(sorted(results, key=lambda result: result.boundary.offset)),
        first_unstable_offset=runs[-1].first_unstable_offset if runs else None,
        compacted=any(run.compacted for run in runs),
        batches=sum(run.batches for run in runs),
        bytes_read=sum(run.bytes_read for run in runs),
        segments_read=sum(run.segments_read for run in runs),
        error=next((run.error for run in runs if run.error), None),
    )


def unexplained_since(result: PartitionResult) -> int | None:
    """Return how far back a replay must look further, or None if every boundary has its last word."""
    times = [b.unexplained_since_ms for b in result.boundaries if b.unexplained_since_ms is not None]
    return min(times, default=None)


def next_round(plan: PartitionPlan, result: PartitionResult) -> PartitionPlan | None:
    """Return the plan that reads further back, or None if ``result`` is final."""
    since_ms = unexplained_since(result)
    return None if since_ms is None else reach_back(plan, since_ms)


def join_rounds(earlier: PartitionResult | None, later: PartitionResult) -> PartitionResult:
    """Return ``later``, but what ``earlier`` had made where damage is in the way that only the longer window meets."""
    made = {b.boundary.offset: b for b in earlier.boundaries if b.outcome is Outcome.REBUILT} if earlier else {}
    return replace(
        later,
        boundaries=tuple(
            made.get(b.boundary.offset, b) if b.outcome is Outcome.DAMAGED else b for b in later.boundaries
        ),
    )


def rebuild_locally(
    plans: Iterable[PartitionPlan], sink: SnapshotSink, *, progress: Callable[[int, int], None] | None = None
) -> Iterator[PartitionResult]:
    """Replay ``plans`` one after the other in this process, yielding each result as it is there.

    ``progress`` is called with (segments, bytes covered) after each segment.
    """
    for plan in plans:
        result = _rebuild_once(plan, sink, progress)
        while (further := next_round(plan, result)) is not None:
            plan = further  # noqa: PLW2901
            result = join_rounds(result, _rebuild_once(plan, sink, progress))
        yield result


def _rebuild_once(
    plan: PartitionPlan, sink: SnapshotSink, progress: Callable[[int, int], None] | None
) -> PartitionResult:
    runs = []
    for run in plan.runs:
        combine = RunCombine(plan, run, sink)
        for split in plan_splits(plan, run):
            summary = scan_split(split, plan.rules.written_under.certain_silence_ms)
            combine.add(summary)
            if progress is not None:
                progress(summary.ends_segment, split.size_bytes)
        runs.append(combine.finish())
    return partition_result(plan, runs, make_idle(plan, sink))
