"""The ordered combine: takes summaries of splits, and writes one snapshot per boundary.

A run of a partition is combined in one ordered pass: the state so far is itself a summary, each split's summary is
composed onto it, and at every segment end that is a boundary the entries that survive are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.anchor import (
    keep_state,
    kept_places,
    lacks_entries_at,
    make_snapshot,
    may_be_pruned,
    must_be_given_up,
)
from resnap.replay.base_state import NEVER, NO_BASE, Base, base_of
from resnap.replay.boundary_state import (
    BoundaryState,
    boundary_state,
    fewest,
    may_have_begun_below,
    quick_boundary_state,
    with_a_past,
)
from resnap.replay.comparison import SnapshotVerdict
from resnap.replay.kernel.summary import NONE, IntArray
from resnap.replay.plan import Coverage
from resnap.replay.results import BoundaryOutcome, BoundaryResult, PartitionResult, blind_outcome
from resnap.replay.scan.splits import ANCHOR_PART, Piece
from resnap.replay.window import roll_time_ms
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.anchor import IdleTimes
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import Boundary, PartitionPlan, SegmentRun
    from resnap.replay.results import IdRange, SnapshotSink
    from resnap.replay.scan.producer_table import ProducerTable
    from resnap.replay.scan.splits import Anchor, SplitSummary
    from resnap.storage.errors import ResnapError
    from resnap.storage.sources.files import Sources


@dataclass(slots=True)
class RunCombine:
    """Combines the summaries of one run, which come in offset order."""

    plan: PartitionPlan
    run: SegmentRun
    sink: SnapshotSink
    ids: IdRange | None = None
    """The producers whose rows are given; None for all."""
    sources: Sources = PLAIN
    """How the snapshots to compare with are reached."""
    _table: ProducerTable = field(init=False)
    _results: list[BoundaryResult] = field(default_factory=list)
    _first_unstable_offset: int | None = None
    _lacks_records: bool = False
    _batches: int = 0
    _bytes_read: int = 0
    _segments_read: int = 0
    _error: ResnapError | None = None
    _at_high_watermark: bool = False
    _waiting: Boundary | None = None
    _clock_ms: int = -1
    """The last server clock; -1 if there was none."""
    _clock_above_ms: int | None = None
    _oldest_clock_ms: int | None = None
    _by_segment: dict[int, Boundary] = field(init=False)
    _kept_places: frozenset[int] = field(init=False)
    _anchors: list[Anchor] = field(default_factory=list)
    _base: Base = NO_BASE
    _idle_times: IdleTimes = field(default_factory=dict)
    _reached: int = 0
    """Up to this offset everything has been read."""
    _given_up: bool = False
    """The anchor that the run began with has gone, or lacks what turned out to matter."""

    def __post_init__(self) -> None:
        from resnap.replay.scan.producer_table import ProducerTable  # noqa: PLC0415 - loads numba

        self._table = ProducerTable(self.plan.rules.written_under.certain_silence_ms)
        self._kept_places = kept_places(self.plan, self.run)
        self._base = _base_of_run(self.plan, self.run)
        if len(rows := self._base.rows):
            self._table.append(Piece(rows, NONE))
        self._by_segment = {boundary.segment_index: boundary for boundary in self.run.boundaries}

    def add(self, split: SplitSummary) -> None:
        """Add the next split."""
        if split.part == ANCHOR_PART:
            self._start_from_anchor(split)
            return
        self._make_waiting(split.facts.oldest_server_clock_ms)
        self._count(split)
        if self._error is not None:
            self._pass_high_watermark()
            return
        base_offset = self.plan.segments[split.segment_index].base_offset
        if self.plan.high_watermark is not None and self.plan.high_watermark <= base_offset:
            self._pass_high_watermark()
        for piece in split.pieces:
            if piece.above and len(piece.rows):
                self._pass_high_watermark()
            self._table.append(piece)
        if split.ends_segment:
            self._waiting = self._by_segment.get(split.segment_index)
            self._keep_anchor(split.segment_index)
            ended = self.plan.segments[split.segment_index].next_base_offset
            self._reached = NEVER if ended is None else ended

    def _start_from_anchor(self, kept: SplitSummary) -> None:
        """Start from the state of the run's anchor."""
        self._given_up = kept.error is not None
        self._lacks_records = kept.facts.lacks_records
        self._clock_ms = kept.facts.server_clock_ms
        self._oldest_clock_ms = kept.facts.oldest_server_clock_ms
        unknown = np.concatenate((self._base.shown, self._base.begun))
        for piece in kept.pieces:
            unknown = unknown[~np.isin(unknown["producer_id"], piece.rows["producer_id"])]
            self._table.append(piece)
        self._given_up = self._given_up or may_be_pruned(unknown, self.run)

    def _keep_anchor(self, segment_index: int) -> None:
        """Cache the state at the end of a segment, if it is one of those after which it is cached."""
        offset = self.plan.segments[segment_index].next_base_offset
        if segment_index not in self._kept_places or offset is None or self._is_given_up():
            return
        state = Piece(self._state, self._table.clock_ms)
        anchor = keep_state(
            self.plan,
            self.run,
            state,
            offset,
            last_clock_ms=self._clock_ms,
            oldest_clock_ms=self._oldest_clock_ms,
            lacks_records=self._lacks_records,
        )
        if anchor is not None:
            self._anchors.append(anchor)

    def _is_given_up(self) -> bool:
        if not self._given_up and self.run.anchor is not None:
            self._given_up = must_be_given_up(self._state, self.plan, self.run, self._oldest_clock_ms)
        return self._given_up

    def finish(self) -> PartitionResult:
        """Return the result; boundaries that were not reached are above damage."""
        self._make_waiting(None)
        self._pass_high_watermark()
        reached = {result.offset for result in self._results}
        missed = [boundary for boundary in self.run.boundaries if boundary.offset not in reached]
        above = blind_outcome(self._error)
        unseen = [self._result(boundary, above, str(self._error)) for boundary in missed]
        boundaries = (*self._final_results(), *unseen)
        if self._given_up:
            boundaries = tuple(self._unexplained(made.boundary, 0) for made in boundaries)
        return PartitionResult(
            topic_partition=self.plan.topic_partition,
            boundaries=boundaries,
            anchors=() if self._given_up else tuple(self._anchors),
            first_unstable_offset=self._first_unstable_offset,
            lacks_records=self._lacks_records,
            batches=self._batches,
            bytes_read=self._bytes_read,
            segments_read=self._segments_read,
            error=self._error,
        )

    def _final_results(self) -> Iterator[BoundaryResult]:
        """Yield the results; if the whole run has disproved the base of a boundary, only that fact."""
        known = self.plan.moved | self.plan.unmoved
        has_base = len(self._base.shown) or len(self._base.without_batch)  # else rows need not be put in order
        base_findings = self._base.base_findings(self._state, self._start_offset, self._reached) if has_base else []
        base_findings = [finding for finding in base_findings if finding.producer_id not in known]
        for found in self._results:
            kept_after_ms = self.plan.rules.kept_after_ms(found.as_of_ms)
            of_it = [one for one in base_findings if one.up_to >= found.offset and one.kept_until_ms > kept_after_ms]
            is_made = found.outcome is BoundaryOutcome.REBUILT and found.coverage is Coverage.WINDOW
            if not (of_it and is_made):
                yield self._with_past(found) if is_made else found
                continue
            moved, unmoved = (
                frozenset(one.producer_id for one in of_it if one.was_there == was_there) for was_there in (False, True)
            )
            yield replace(self._unexplained(found.boundary), moved=moved, unmoved=unmoved)

    def _with_past(self, found: BoundaryResult) -> BoundaryResult:
        """Add producers that appear only above the boundary, but existed before: their entry is unknown.

        In a run with an anchor, their past may have been pruned from the anchor: a run without the anchor shows that.
        """
        if self._start_offset > self.plan.known_from(self.run) or not self._start_offset:
            return found
        named = with_a_past(self._table.unordered(), found.offset, self.plan.evidence.open)
        self._given_up = self._given_up or (self.run.anchor is not None and bool(named))
        comparison = found.comparison
        if named and comparison is not None and comparison.verdict is SnapshotVerdict.PROVEN:
            comparison = replace(comparison, verdict=SnapshotVerdict.UNPROVEN)
        return replace(found, left_out=fewest((*found.left_out, *named)), comparison=comparison)

    def _count(self, split: SplitSummary) -> None:
        """Add the facts of a split to those of the run."""
        self._batches += split.facts.batches
        self._bytes_read += split.facts.bytes_read
        self._segments_read += split.ends_segment
        self._lacks_records = self._lacks_records or split.facts.lacks_records
        self._error = self._error or split.error
        if split.facts.server_clock_ms >= 0:
            self._clock_ms = split.facts.server_clock_ms
        clocks = (self._oldest_clock_ms, split.facts.oldest_server_clock_ms)
        self._oldest_clock_ms = min((clock for clock in clocks if clock is not None), default=None)

    @property
    def _state(self) -> Array:
        return self._table.rows()

    def _pass_high_watermark(self) -> None:
        """Set the first unstable offset by the state so far; does nothing after the first call."""
        if self._at_high_watermark:
            return
        self._at_high_watermark = True
        self._is_given_up()
        rows = self._table.unordered()
        is_open = rows["txn_first_offset"] != NONE
        found = [*rows["txn_first_offset"][is_open].tolist(), *self._open_since_before(rows)]
        if may_have_begun_below(rows, self.plan, self.run, self._oldest_clock_ms).any():
            found.append(self._start_offset)
        self._first_unstable_offset = min(found, default=None)

    def _open_since_before(self, rows: Array) -> list[int]:
        """Return the first offsets of transactions that hang from below the run, by the newest snapshots."""
        hanging = self.plan.evidence.hanging_from_below(self._start_offset)
        ended = set(rows["producer_id"][rows["closed"]].tolist()) if hanging else ()
        return [seen.first_offset for seen in hanging if seen.entry.producer_id not in ended]

    def _make_waiting(self, clock_above_ms: int | None) -> None:
        """Write the boundary at the end of the last split, now that the split above it shows its clock."""
        self._clock_above_ms = clock_above_ms
        if self._waiting is not None:
            self._results.append(self._boundary_result(self._waiting))
            self._waiting = None

    def _boundary_result(self, boundary: Boundary) -> BoundaryResult:
        """Write the snapshot of ``boundary`` if its state is known; return the result."""
        found = self._state_at(boundary)
        if isinstance(found, BoundaryResult):
            return found
        made = make_snapshot(
            self.plan, boundary, found, self.sink, as_of_ms=self._as_of_ms(boundary), seen=self._producers_read(),
            window_start_offset=self._start_offset, known_from_offset=self._proven_from, ids=self.ids,
            sources=self.sources, lacks_records=self._lacks_records, idle_times=self._idle_times,
        )  # fmt: skip
        unread_since_ms = None if made.comparison is None else made.comparison.unread_since_ms
        if unread_since_ms is not None and boundary.coverage is Coverage.WINDOW and not self.run.last_chance:
            return self._unexplained(boundary, max(unread_since_ms, 1))
        return made

    def _producers_read(self) -> IntArray:
        """Return the producers with a batch in what was read."""
        ids = self._table.producer_ids()
        return np.setdiff1d(ids, self._base.untouched(self._state)) if len(self._base.shown) else ids

    def _state_at(self, boundary: Boundary) -> BoundaryState | BoundaryResult:
        """Return the state at ``boundary``, or the result with the reason why it is unknown."""
        as_of_ms, needed_since_ms = self._as_of_ms(boundary), self._needed_since_ms(boundary)
        self._given_up = self._given_up or lacks_entries_at(self.plan, self.run, as_of_ms)
        if needed_since_ms is None and not self._is_given_up():
            found = quick_boundary_state(
                self._table, self.plan, self.run, boundary, as_of_ms, oldest_clock_ms=self._oldest_clock_ms,
                base=self._base,
            )  # fmt: skip
            if found is not None:
                return found
        illegal = self._state["illegal_offset"][self._state["illegal_offset"] != NONE]
        if len(illegal):
            reason = f"non-transactional data inside an open transaction at offset {int(illegal.min())}"
            return self._result(boundary, BoundaryOutcome.ILLEGAL, reason)
        if self._is_given_up():
            return self._unexplained(boundary, 0)
        if needed_since_ms is not None:
            return self._unexplained(boundary, needed_since_ms)
        found = boundary_state(
            self._state, self.plan, self.run, boundary, as_of_ms, oldest_clock_ms=self._oldest_clock_ms, base=self._base
        )
        if found.unexplained_since_ms is not None and not self.run.last_chance:
            return self._unexplained(boundary, found.unexplained_since_ms)
        return found

    def _needed_since_ms(self, boundary: Boundary) -> int | None:
        """Return since when the run should have seen everything, if its window begins too late for ``boundary``.

        That happens if the plan's T was later than the one the clocks showed.
        """
        since_ms = self.run.seen_since_ms
        kept_after_ms = self.plan.rules.kept_after_ms(self._as_of_ms(boundary))
        if since_ms is None or kept_after_ms >= since_ms or self.run.last_chance:
            return None
        return kept_after_ms + self.plan.rules.silence_ms

    def _as_of_ms(self, boundary: Boundary) -> int:
        as_of = self.plan.rules.as_of
        if not as_of.roll:
            return as_of.now_ms
        return min(roll_time_ms(boundary.earliest_roll_ms, self._clock_ms, self._clock_above_ms), as_of.now_ms)

    @property
    def _start_offset(self) -> int:
        return self.run.read_from(self.plan)

    @property
    def _proven_from(self) -> int:
        return self.plan.proven_from(self._start_offset, self.run)

    def _result(self, boundary: Boundary, outcome: BoundaryOutcome, reason: str | None = None) -> BoundaryResult:
        """Return the result of a boundary whose snapshot is not written."""
        return BoundaryResult(
            boundary=boundary,
            outcome=outcome,
            as_of_ms=self._as_of_ms(boundary),
            window_start_offset=self._start_offset,
            known_from_offset=self._proven_from,
            reason=reason,
        )

    def _unexplained(self, boundary: Boundary, since_ms: int | None = None) -> BoundaryResult:
        """Return the result of a boundary for which more must be read, back to ``since_ms`` if that is known."""
        return replace(self._result(boundary, BoundaryOutcome.UNEXPLAINED), unexplained_since_ms=since_ms)


def _base_of_run(plan: PartitionPlan, run: SegmentRun) -> Base:
    """Return the base of ``run``; empty for boundaries beyond the window, where evidence names all that matter."""
    if run is not plan.runs[-1] or any(boundary.coverage is not Coverage.WINDOW for boundary in run.boundaries[-1:]):
        return NO_BASE
    return base_of(plan.evidence, run.read_from(plan), begins=plan.segments[0].base_offset, unmoved=plan.unmoved)
