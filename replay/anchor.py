"""Anchors: the state at an offset, cached by one replay so that later ones read only the segments above it.

A state is itself a summary (``kernel.summary``), so a run that begins with an anchor's rows gives the same result as a
run from the earlier run's start. The anchor also records the offset from which that run had read, the time since which
it had seen everything, and the clocks.

Rows that can no longer matter are removed (``prune``): idle producers that have expired, and from which a later batch
would inherit nothing. ``must_be_given_up`` detects later batches that need a pruned row; the run is then repeated
without its anchor.

The snapshot of a boundary is written here, too, and compared with an existing one.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from resnap.replay.base_state import NEVER
from resnap.replay.boundary_state import BoundaryState, harmful, idle_state, in_doubt, may_have_begun_below
from resnap.replay.comparison import IdleSince, compare
from resnap.replay.explain import batches_of
from resnap.replay.kernel.summary import NONE
from resnap.replay.results import BoundaryOutcome, BoundaryResult
from resnap.replay.scan.splits import Anchor, write_state
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, snapshot_arrays
from resnap.storage.sources.files import PLAIN, UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.replay.explain import Batch
    from resnap.replay.kernel.summary import Array, BoolArray, IntArray
    from resnap.replay.plan import Boundary, PartitionPlan, SegmentRun
    from resnap.replay.results import IdRange, SnapshotSink
    from resnap.replay.scan.splits import Piece
    from resnap.storage.sources.files import Sources

IdleTimes: TypeAlias = dict[tuple[int, int, int], tuple[int, int]]
"""Since when producers were idle (``IdleSince``), by id, last offset and timestamp of their entries."""


def begin_at_anchor(plan: PartitionPlan, anchors: Iterable[Anchor]) -> PartitionPlan:
    """Return ``plan`` with its last run begun at the nearest usable one of ``anchors``; unchanged if none is usable.

    This checks only what the plan requires of the states, not whether the log below them is unchanged.
    """
    serving = [anchor for anchor in anchors if _serves(anchor, plan)]
    if not serving:
        return plan
    *others, window = plan.runs
    anchor = max(serving, key=lambda state: state.offset)
    aborted = {txn.producer_id for txn in plan.evidence.aborted_across(anchor.read_from)}
    begun = replace(
        window,
        start=_index_of(plan, anchor.offset) or 0,
        seen_since_ms=anchor.seen_since_ms,
        touched_until_ms=anchor.touched_until_ms,
        cut_through=anchor.cut_through | aborted,
        anchor=anchor,
        unanchored=window,
    )
    return replace(plan, runs=(*others, begun))


def _serves(anchor: Anchor, plan: PartitionPlan) -> bool:
    """Whether the last run of ``plan`` may begin at ``anchor``, and becomes shorter by it."""
    window = plan.runs[-1] if plan.runs else None
    index = _index_of(plan, anchor.offset)
    if window is None or index is None or not window.boundaries:
        return False
    # At the log start a window reads no less than an anchor, and the anchor knows what was below.
    above = (window.start < index or not index) and index < window.end and window.boundaries[0].segment_index >= index
    reaches = anchor.read_from <= plan.segments[window.start].base_offset
    below_high_watermark = plan.high_watermark is None or anchor.offset <= plan.high_watermark
    same_silence = anchor.certain_silence_ms == plan.rules.written_under.certain_silence_ms
    kept_after_ms = _kept_after_ms(plan, anchor.last_clock_ms)
    complete = anchor.pruned_ms is None or (kept_after_ms is not None and anchor.pruned_ms <= kept_after_ms)
    return above and reaches and below_high_watermark and same_silence and complete


def _index_of(plan: PartitionPlan, offset: int) -> int | None:
    """Return the index of the segment that begins at ``offset``."""
    return next((i for i, segment in enumerate(plan.segments) if segment.base_offset == offset), None)


def _kept_after_ms(plan: PartitionPlan, clock_ms: int) -> int | None:
    """Return the time up to which idle producers have expired at every T of the plan, or of a later one.

    Under ``roll`` the T of a later boundary is not before the last server clock below it, unless that was ahead: then
    the run is repeated without its anchor (``lacks_entries_at``).
    """
    if not plan.rules.as_of.roll:
        return plan.rules.kept_after_ms(plan.rules.as_of.now_ms)
    return plan.rules.kept_after_ms(min(clock_ms, plan.rules.as_of.now_ms)) if clock_ms >= 0 else None


def kept_places(plan: PartitionPlan, run: SegmentRun) -> frozenset[int]:
    """Return the indexes of the segments after which the state is cached: the last ones of ``run``, with growing gaps.

    The newest is for a log that has grown; the older ones are for runs whose oldest remaining segment is deeper.
    """
    if plan.keep_in is None or run is not plan.runs[-1]:
        return frozenset()
    high_watermark = plan.segments[-1].base_offset if plan.high_watermark is None else plan.high_watermark
    closed = [
        index
        for index in range(run.start, run.end)
        if (end := plan.segments[index].next_base_offset) is not None and end <= high_watermark
    ]
    return frozenset(closed[-back] for back in KEPT_BACK if back <= len(closed))


KEPT_BACK = (1, 2, 4, 16)
"""How many segments before the end of a run the cached states are."""


def keep_state(
    plan: PartitionPlan,
    run: SegmentRun,
    seen: Piece,
    offset: int,
    *,
    last_clock_ms: int,
    oldest_clock_ms: int | None,
    lacks_records: bool,
) -> Anchor | None:
    """Write the state ``seen`` at ``offset`` as an anchor; None if that fails, which only costs later reading."""
    if plan.keep_in is None or (seen.rows["illegal_offset"] != NONE).any():
        return None
    kept_after_ms = _kept_after_ms(plan, last_clock_ms)
    rows = seen.rows if kept_after_ms is None else prune(seen.rows, plan, kept_after_ms)
    earlier_ms = run.anchor.pruned_ms if run.anchor else None
    pruned_ms = max((ms for ms in (earlier_ms, kept_after_ms) if ms is not None), default=None)
    state = write_state(plan.keep_in, segment_name(offset, "state"), rows)
    if state is None:
        return None
    return Anchor(
        offset=offset,
        read_from=run.read_from(plan),
        known_from=plan.known_from(run),
        seen_since_ms=run.seen_since_ms,
        touched_until_ms=run.touched_until_ms,
        cut_through=run.cut_through,
        oldest_clock_ms=oldest_clock_ms,
        clock_ms=seen.clock_ms,
        last_clock_ms=last_clock_ms,
        lacks_records=lacks_records,
        certain_silence_ms=plan.rules.written_under.certain_silence_ms,
        pruned_ms=pruned_ms,
        states=(state,),
    )


def prune(rows: Array, plan: PartitionPlan, kept_after_ms: int) -> Array:
    """Return ``rows`` without those that no later boundary can need.

    These are idle, expired at every later T, and their producers' next data gives the same entry with and without them:
    there is no coordinator epoch to inherit, or the broker has certainly forgotten it.
    """
    idle = (rows["txn_first_offset"] == NONE) & (rows["timestamp"] <= kept_after_ms)
    inherited = (rows["coordinator_epoch"] != NONE) & ~_are_forgotten(rows, plan.rules.written_under.certain_silence_ms)
    shown = np.isin(rows["producer_id"], [seen.entry.producer_id for seen in plan.evidence.open])
    shown |= np.isin(rows["producer_id"], plan.evidence.below["producer_id"])
    kept: Array = rows[~idle | inherited | shown]
    return kept


def _are_forgotten(rows: Array, certain_silence_ms: int) -> BoolArray:
    """Return which producers' next data will be a rebirth (``producer_state``), whenever it comes."""
    certain: BoolArray = rows["clock_since_ms"] - certain_silence_ms >= rows["timestamp"]
    return rows["last_is_marker"] & (rows["timestamp"] >= 0) & certain


def may_be_pruned(unknown: Array, run: SegmentRun) -> bool:
    """Whether an entry that snapshots show, but the anchor of ``run`` lacks, may have been pruned from it."""
    if run.anchor is None or run.anchor.pruned_ms is None:
        return False
    is_open = unknown["current_txn_first_offset"] != NONE
    return bool((is_open | (unknown["timestamp"] > run.anchor.pruned_ms)).any())


def lacks_entries_at(plan: PartitionPlan, run: SegmentRun, as_of_ms: int) -> bool:
    """Whether producers may have been pruned from the anchor of ``run`` that have not expired at ``as_of_ms``."""
    pruned_ms = None if run.anchor is None else run.anchor.pruned_ms
    return pruned_ms is not None and plan.rules.kept_after_ms(as_of_ms) < pruned_ms


def must_be_given_up(state: Array, plan: PartitionPlan, run: SegmentRun, oldest_clock_ms: int | None) -> bool:
    """Whether ``run`` met a producer whose rows, pruned from its anchor, may matter after all."""
    if run.anchor is None or run.anchor.pruned_ms is None:
        return False
    fresh = state[state["first_offset"] >= run.anchor.offset]
    doubtful: BoolArray = fresh["first_is_marker"] | may_have_begun_below(fresh, plan, run, oldest_clock_ms)
    return bool((doubtful | in_doubt(fresh, plan, run, oldest_clock_ms)).any())


def make_snapshot(
    plan: PartitionPlan,
    boundary: Boundary,
    found: BoundaryState,
    sink: SnapshotSink,
    *,
    as_of_ms: int,
    seen: IntArray,
    window_start_offset: int | None,
    known_from_offset: int,
    ids: IdRange | None = None,
    sources: Sources = PLAIN,
    lacks_records: bool = False,
    idle_times: IdleTimes | None = None,
) -> BoundaryResult:
    """Write the snapshot of ``boundary``, and compare the existing one with it, within ``ids``.

    ``idle_times`` has what was read of the batches for boundaries below, and gets what is read for this one.
    """
    digest = sink.write(plan.topic_partition, boundary.offset, found.entries)
    existing = None if boundary.existing is None else _existing(boundary.existing, ids, sources)
    comparison = None
    if existing is not None:
        entries, is_empty, sha256, written_ms = existing
        comparison = compare(
            entries,
            found.entries,
            kept_after_ms=plan.rules.kept_after_ms(as_of_ms),
            written_ms=written_ms,
            expiration_ms=plan.rules.written_under.expiration_ms,
            seen=seen,
            # Where nothing was read, nothing is known of any batch.
            read_from=boundary.offset if window_start_offset is None else window_start_offset,
            begins=plan.known_from(),
            left_out=[producer.producer_id for producer in harmful(found.left_out)],
            is_empty=is_empty,
            lacks_records=lacks_records,
            idle_since=partial(_idle_since, plan, boundary, sources, {} if idle_times is None else idle_times),
        )
        comparison = replace(comparison, sha256=sha256)
    return BoundaryResult(
        boundary=boundary,
        outcome=BoundaryOutcome.REBUILT,
        as_of_ms=as_of_ms,
        window_start_offset=window_start_offset,
        known_from_offset=known_from_offset,
        entries=len(found.entries),
        digest=digest,
        left_out=found.left_out,
        comparison=comparison,
    )


def _idle_since(
    plan: PartitionPlan, boundary: Boundary, sources: Sources, known: IdleTimes, entries: Array
) -> IdleSince:
    """Return since when each entry was idle before its last marker or data; that is read again from the batches.

    An entry with an open transaction does not expire: the timestamp of a transactional batch does not count.
    """
    keys = list(zip(*(entries[name].tolist() for name in ("producer_id", "last_offset", "timestamp")), strict=True))
    unknown = {key[0]: key for key in keys if key not in known}
    batches: dict[int, list[Batch]] = {producer_id: [] for producer_id in unknown}
    left = set(unknown)
    try:
        for segment in reversed(plan.segments[: boundary.segment_index + 1]):
            if not left:
                break
            here: dict[int, list[Batch]] = {}
            for producer_id, batch in batches_of(segment, left, sources):
                here.setdefault(producer_id, []).append(batch)
            for producer_id, found in here.items():
                batches[producer_id][:0] = found
                if len({batch.is_marker for batch in batches[producer_id]}) == len((True, False)):
                    left.remove(producer_id)
    except UNREADABLE:
        batches = {}  # it has gone since it was read: nothing explains these entries
    for producer_id, key in unknown.items():
        known[key] = _idle_times(batches.get(producer_id, []))
    before_marker, before_data = (np.array([known[key][which] for key in keys], dtype=np.int64) for which in range(2))
    return before_marker, before_data


def _idle_times(batches: Iterable[Batch]) -> tuple[int, int]:
    """Return since when the entry of a producer with ``batches`` was idle, before its last marker and data."""
    since_data: list[int] = []
    since_marker: list[int] = []
    before_marker, before_data = NEVER, 0
    for batch in batches:
        if batch.is_marker:
            before_marker = min(since_data, default=NEVER)
            since_data.append(batch.timestamp)
            since_marker, before_data = [batch.timestamp], NEVER
        else:
            before_data = min(since_marker, default=before_data)
            since_data = [] if batch.is_transactional else [batch.timestamp]
            since_marker += [] if batch.is_transactional else [batch.timestamp]
    return before_marker, before_data


def _existing(locator: str, ids: IdRange | None, sources: Sources) -> tuple[Array, bool, str, int] | None:
    """Return the entries of ``ids`` in a snapshot: all entries of a large run may exceed a task's memory.

    With them come whether it has no entry at all, its SHA-256, and when it was written; None if it cannot be read.
    """
    digest = hashlib.sha256()

    def read(position: int, length: int) -> bytes:
        data = reader.read(position, length)
        digest.update(data)
        return data

    try:
        with sources.open(locator) as reader:
            parts = snapshot_arrays(read, reader.size_bytes)
            kept = [entries if ids is None else ids.of(entries).copy() for entries in parts]
            written_ms = sources.facts(locator, reader).mtime_ns // 1_000_000
    except UNREADABLE:
        return None  # the inventory has called it corrupt already, or it went away meanwhile
    # Joining turns numbers into the machine's own byte order.
    entries = np.concatenate(kept).astype(ENTRY_DTYPE) if kept else np.zeros(0, dtype=ENTRY_DTYPE)
    return entries, not kept, digest.hexdigest(), written_ms


def make_idle(plan: PartitionPlan, sink: SnapshotSink, sources: Sources = PLAIN) -> list[BoundaryResult]:
    """Write the snapshots that need no reading."""
    made = []
    for boundary in plan.idle:
        found = idle_state(boundary)
        made.append(
            make_snapshot(
                plan, boundary, found, sink, as_of_ms=plan.rules.as_of.now_ms, seen=found.entries["producer_id"],
                window_start_offset=None, known_from_offset=plan.proven_from(boundary.offset), sources=sources,
            )
        )  # fmt: skip
    return made
