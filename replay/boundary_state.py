"""Turns the state of a run at a boundary into snapshot entries: which survive, which are certain, which are missing.

A wrong snapshot is worse than none, so an entry is written only if what it inherits from before the run is known, or
known not to exist. Three things may be unknown of a producer that first appears inside the run:

- its *batch*, when a marker came first: an entry without sequence at a live epoch would make the broker refuse the
  producer's next batch as out of order;
- its *transaction*, when transactional data came first: the transaction may have begun below the run;
- its *coordinator epoch*, in the same case.

Nothing is unknown if snapshots show the producer's state below the run (``base_state``), if the run starts at offset 0,
or if everything of the last ``ReplayRules.silence_ms`` before the first appearance has been read: the broker itself had
forgotten the producer by then. For a run from the first segment of a log whose beginning was deleted, the first two
must be settled: the batch always, the transaction for as long as one that was open there can have lasted. Data of epoch
0 that starts at sequence 0 has no past at all; at a later epoch it still shows where its transaction begins. Evidence
of an open transaction settles the other two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.base_state import ENTRY_FIELDS, NO_BASE, Base
from resnap.replay.kernel.summary import NONE, BoolArray, IntArray
from resnap.replay.plan import Coverage
from resnap.replay.window import Unexplained
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, LeftOut

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from resnap.replay.evidence import ShownTransaction
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import Boundary, PartitionPlan, SegmentRun
    from resnap.replay.scan.producer_table import ProducerTable
    from resnap.storage.log.producer_snapshot import ProducerEntry


def harmful(left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return ``left_out`` without those that lack a coordinator epoch alone."""
    return tuple(producer for producer in left_out if producer.reason != Unexplained.COORDINATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryState:
    """The known entries at one boundary, and the unknown ones."""

    entries: Array
    """``producer_snapshot.ENTRY_DTYPE``, by producer id."""
    left_out: tuple[LeftOut, ...]
    """Producers without an entry, and those whose entry may lack something."""
    unexplained_since_ms: int | None
    """Oldest first appearance of a producer whose past is in doubt, for reaching back; None if all is explained."""


def boundary_state(
    state: Array,
    plan: PartitionPlan,
    run: SegmentRun,
    boundary: Boundary,
    as_of_ms: int,
    *,
    oldest_clock_ms: int | None = None,
    base: Base = NO_BASE,
) -> BoundaryState:
    """Return the entries at ``boundary`` of a run whose summary so far is ``state``.

    ``oldest_clock_ms`` is the oldest server clock that the run has read so far; ``base`` is the run's base.
    """
    if boundary.coverage is Coverage.BEYOND_WINDOW:
        return _beyond_window(state, boundary)
    kept_after_ms = plan.rules.kept_after_ms(as_of_ms)
    moved = np.intersect1d(base.untouched(state), list(plan.moved))
    survives = (state["txn_first_offset"] != NONE) | (state["timestamp"] > kept_after_ms)
    rows = state[survives & ~np.isin(state["producer_id"], moved)]
    entries = entries_of(rows)
    doubt_batch, doubt_transaction, doubt_coordinator = _doubts(rows, plan, run, oldest_clock_ms)
    # This also holds if the log itself begins later than the transaction: retention may have cut it there.
    begun_below = rows["first_marker_offset"] == NONE if run.read_from(plan) else doubt_transaction
    doubted = doubt_transaction | doubt_coordinator | begun_below
    begun, coordinated = _settle_by_evidence(entries, rows, doubted, boundary)
    doubt_transaction &= ~begun
    doubt_coordinator &= ~coordinated
    doubtful = doubt_batch | doubt_transaction | doubt_coordinator
    # An unknown coordinator epoch alone does no harm: once nothing more can be read, the entry is kept without one.
    # Evidence is not needed if the log was read from its first offset.
    believed = boundary.evidence.at_boundary if run.read_from(plan) else {}
    shown = _not_replayed(believed, state, rows["producer_id"][doubtful])
    still_doubtful = doubtful & ~np.isin(rows["producer_id"], list(shown))
    kept = ~(doubt_batch | doubt_transaction | np.isin(rows["producer_id"], list(shown)))
    below = _known_below(state, base, moved, kept_after_ms)
    unseen = _spanning_unseen(state, run.read_from(plan), boundary, shown)
    partial = {pid: entry for pid, entry in boundary.evidence.by_index.items() if pid in unseen}
    left_out = _left_out(rows[still_doubtful], *(doubt[still_doubtful] for doubt in (doubt_batch, doubt_transaction)))
    named = {LeftOut(pid, Unexplained.BELOW) for pid in {*below["producer_id"].tolist(), *unseen} - partial.keys()}
    named |= {LeftOut(pid, Unexplained.BATCHES) for pid in partial}
    since_ms = [*rows["first_timestamp"][still_doubtful].tolist(), *below["timestamp"].tolist()]
    return BoundaryState(
        entries=_with_entries(entries[kept], [*shown.values(), *partial.values()]),
        left_out=tuple(sorted({*left_out, *named})),
        unexplained_since_ms=min(since_ms, default=None),
    )


def with_a_past(state: Array, offset: int, opened: Iterable[ShownTransaction]) -> tuple[LeftOut, ...]:
    """Return the producers that first appear at ``offset`` or above, continuing from batches that were not read.

    At most ``MOST_NAMED`` of them, the smallest ids. ``state`` is that of the whole run, which begins with the first
    available segment. Producers that its base describes have no first batch (``base_state``). Each transaction of
    version 2 begins at sequence 0; for such a producer the coordinator epoch decides that snapshots show with one of
    the transactions ``opened`` which began before any marker of the run.
    """
    goes_on = state["first_is_marker"] | (state["first_sequence"] > 0) | (state["first_epoch"] > 0)
    coordinated = sorted((one for one in opened if one.entry.coordinator_epoch != NONE), key=attrgetter("first_offset"))
    begun = {transaction.entry.producer_id: transaction.first_offset for transaction in reversed(coordinated)}
    for index in np.flatnonzero(np.isin(state["producer_id"], list(begun))):
        marker = state["first_marker_offset"][index]
        goes_on[index] |= marker == NONE or begun[int(state["producer_id"][index])] < marker
    ids = np.sort(state["producer_id"][goes_on & (state["first_offset"] >= offset)])
    return tuple(LeftOut(pid, Unexplained.LATER) for pid in ids[:MOST_NAMED].tolist())


def fewest(left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return ``left_out`` in order, each producer once, with at most ``MOST_NAMED`` of those that only have a past."""
    ordered = sorted(left_out)
    named = [producer for producer in ordered if producer.reason != Unexplained.LATER]
    known = {producer.producer_id for producer in named}
    later = [left for left in ordered if left.reason == Unexplained.LATER and left.producer_id not in known]
    return tuple(sorted((*named, *later[:MOST_NAMED])))


MOST_NAMED: Final = 1000
"""Of a log that retention has cut nearly every producer may have a past: what a driver holds is bounded."""


def _known_below(state: Array, base: Base, moved: IntArray, kept_after_ms: int) -> Array:
    """Return the entries of producers that were alive below the run and whose state at the boundary is unknown."""
    unseen = base.undecided[~np.isin(base.undecided["producer_id"], state["producer_id"])]
    below = np.concatenate((unseen, base.shown[np.isin(base.shown["producer_id"], moved)]))
    is_open = below["current_txn_first_offset"] != NONE
    kept: Array = below[is_open | (below["timestamp"] > kept_after_ms)]
    return kept


def _spanning_unseen(state: Array, read_from: int, boundary: Boundary, shown: Container[int]) -> set[int]:
    """Return the producers with a transaction open across the boundary, begun below the run, without a batch in it."""
    begun = {pid for pid, first in boundary.evidence.spanning.items() if first < read_from and pid not in shown}
    return begun.difference(state["producer_id"].tolist()) if begun else begun


def quick_boundary_state(
    table: ProducerTable,
    plan: PartitionPlan,
    run: SegmentRun,
    boundary: Boundary,
    as_of_ms: int,
    *,
    oldest_clock_ms: int | None = None,
    base: Base = NO_BASE,
) -> BoundaryState | None:
    """Return what ``boundary_state`` returns, at a fraction of its cost; None if anything is in doubt.

    None also if non-transactional data met an open transaction, or if evidence matters.
    """
    evidence = boundary.evidence
    evident = bool(run.read_from(plan)) and bool(evidence.spanning or evidence.at_boundary)
    is_below = bool(len(base.undecided)) or bool(plan.moved)
    if boundary.coverage is Coverage.BEYOND_WINDOW or run.cut_through or evident or is_below:
        return None
    entries = table.entries(plan.rules.kept_after_ms(as_of_ms), _past_ms(plan, run, oldest_clock_ms))
    return None if entries is None else BoundaryState(entries=entries, left_out=(), unexplained_since_ms=None)


def _past_ms(plan: PartitionPlan, run: SegmentRun, oldest_clock_ms: int | None) -> int:
    """Return the latest time at which a producer may first appear and yet have an earlier batch or transaction."""
    if run.seen_since_ms is None:
        return _ALWAYS_MS if _cut_by_retention(plan, run) else _NEVER_MS
    return _silent_from_ms(run, plan.rules.silence_ms, oldest_clock_ms) - 1


_NEVER_MS: Final = int(np.iinfo(np.int64).min)
_ALWAYS_MS: Final = int(np.iinfo(np.int64).max)


def idle_state(boundary: Boundary) -> BoundaryState:
    """Return the entries at a boundary for which nothing was read: those that evidence proves."""
    nothing = BoundaryState(entries=np.zeros(0, dtype=ENTRY_DTYPE), left_out=(), unexplained_since_ms=None)
    return _with_partial(nothing, boundary)


def entries_of(state: Array) -> Array:
    """Return the entries of a summary that begins at an empty state, of any age."""
    entries = np.zeros(len(state), dtype=ENTRY_DTYPE)
    for ours, theirs in ENTRY_FIELDS:
        entries[theirs] = state[ours]
    return entries


def _beyond_window(state: Array, boundary: Boundary) -> BoundaryState:
    """Keep the producers that evidence names with open transactions: all others have expired by T."""
    named = boundary.evidence.spanning
    stands = boundary.evidence.at_boundary
    wanted = [pid for pid in named if pid not in stands]
    rows = state[np.isin(state["producer_id"], wanted) & (state["txn_first_offset"] != NONE)]
    entries = entries_of(rows)
    for entry in entries:
        entry["current_txn_first_offset"] = named[int(entry["producer_id"])]
    _settle_by_evidence(entries, rows, np.ones(len(rows), dtype=bool), boundary)
    return _with_partial(BoundaryState(entries=entries, left_out=(), unexplained_since_ms=None), boundary)


def _with_partial(found: BoundaryState, boundary: Boundary) -> BoundaryState:
    """Add the entries that evidence proves, and entries of other producers from transaction indexes."""
    stands = boundary.evidence.at_boundary
    known = {*stands, *found.entries["producer_id"].tolist()}
    partial = {pid: entry for pid, entry in boundary.evidence.by_index.items() if pid not in known}
    return replace(
        found,
        entries=_with_entries(found.entries, [*stands.values(), *partial.values()]),
        left_out=tuple(LeftOut(pid, Unexplained.BATCHES) for pid in sorted(partial)),
    )


def _doubts(
    rows: Array, plan: PartitionPlan, run: SegmentRun, oldest_clock_ms: int | None
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return which rows lack their batch, their transaction's first offset, and their coordinator epoch."""
    marker_first = rows["first_is_marker"] & rows["one_epoch"] & ~rows["has_data"]
    data_first = rows["first_is_transactional"] & ~rows["first_is_marker"] & (rows["first_marker_offset"] == NONE)
    starts_at_zero = rows["first_sequence"] == 0
    without_coordinator = data_first & ~rows["coordinator_known"] & ~(starts_at_zero & (rows["first_epoch"] == 0))
    if run.seen_since_ms is None:
        nothing = np.zeros(len(rows), dtype=bool)
        if not _cut_by_retention(plan, run):
            return nothing, nothing, nothing
        goes_on = data_first & ~starts_at_zero & _may_lie_across_the_cut(rows, plan, oldest_clock_ms)
        return marker_first, goes_on, without_coordinator
    with_past = ~_silent_before(rows["first_timestamp"], run, plan.rules.silence_ms, oldest_clock_ms)
    with_past |= np.isin(rows["producer_id"], list(run.cut_through))
    return (
        marker_first & with_past,
        data_first & with_past & ~starts_at_zero,
        without_coordinator & with_past,
    )


def _cut_by_retention(plan: PartitionPlan, run: SegmentRun) -> bool:
    return (plan.segments[0].base_offset if run.anchor is None else run.anchor.read_from) > 0


def _may_lie_across_the_cut(rows: Array, plan: PartitionPlan, oldest_clock_ms: int | None) -> BoolArray:
    """Return whose first transaction may begin below the first segment of a log whose beginning was deleted.

    Only server clocks show when a coordinator has ended all transactions that were open there.
    """
    if oldest_clock_ms is None:
        return np.ones(len(rows), dtype=bool)
    may_lie: BoolArray = rows["first_clock_ms"] < oldest_clock_ms + plan.rules.transaction_reach_ms
    return may_lie


def in_doubt(rows: Array, plan: PartitionPlan, run: SegmentRun, oldest_clock_ms: int | None) -> BoolArray:
    """Return for which producers in ``rows`` something may be missing, before evidence is considered."""
    batch, transaction, coordinator = _doubts(rows, plan, run, oldest_clock_ms)
    doubtful: BoolArray = batch | transaction | coordinator
    return doubtful


def may_have_begun_below(state: Array, plan: PartitionPlan, run: SegmentRun, oldest_clock_ms: int | None) -> BoolArray:
    """Return which producers have an open transaction that may have begun below the run.

    While one is open, a broker accepts only transactional batches from its producer (``ProducerAppendInfo``).
    """
    if not run.read_from(plan):
        return np.zeros(len(state), dtype=bool)
    is_open = (state["txn_first_offset"] != NONE) & (state["first_marker_offset"] == NONE)
    begun: BoolArray = is_open & state["first_is_transactional"] & (state["first_sequence"] != 0)
    if run.seen_since_ms is None:
        return begun
    return begun & ~_silent_before(state["first_timestamp"], run, plan.rules.silence_ms, oldest_clock_ms)


def _silent_before(first_ms: IntArray, run: SegmentRun, silence_ms: int, oldest_clock_ms: int | None) -> BoolArray:
    """Return which producers were certainly silent for ``silence_ms`` before they first appear in the run."""
    silent: BoolArray = first_ms >= _silent_from_ms(run, silence_ms, oldest_clock_ms)
    return silent


def _silent_from_ms(run: SegmentRun, silence_ms: int, oldest_clock_ms: int | None) -> int:
    """Return the time from which on a first appearance certainly follows a silence of ``silence_ms``.

    Timestamps of unread segments come from clients, and a client may stamp its records years back. So a server clock
    must confirm them: a reading in the run that old, or the modification times of the unread segments.
    """
    begun_ms = [clock for clock in (oldest_clock_ms, run.touched_until_ms) if clock is not None]
    return max(run.seen_since_ms or 0, min(begun_ms, default=0)) + silence_ms


def _not_replayed(stands: dict[int, ProducerEntry], state: Array, doubtful: Array) -> dict[int, ProducerEntry]:
    """Return the entries that evidence shows of producers that the replay has not seen, or doubts."""
    if not stands:
        return {}
    ids = np.array(sorted(stands))
    unseen = ids[~np.isin(ids, state["producer_id"]) | np.isin(ids, doubtful)]
    return {pid: stands[pid] for pid in unseen.tolist()}


def _settle_by_evidence(
    entries: Array, rows: Array, doubtful: BoolArray, boundary: Boundary
) -> tuple[BoolArray, BoolArray]:
    """Complete doubtful entries by what is known of their transaction: its first offset and earlier coordinator epoch.

    Returns for which rows each of the two is settled.
    """
    begun, coordinated = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    for i in np.flatnonzero(doubtful & (rows["txn_first_offset"] != NONE)):
        producer_id = int(rows["producer_id"][i])
        first_offset = boundary.evidence.spanning.get(producer_id)
        if first_offset is None or first_offset > rows["txn_first_offset"][i]:
            continue
        entries["current_txn_first_offset"][i] = first_offset
        begun[i] = True
        entry = boundary.evidence.shown.get(producer_id)
        if entry is not None and entry.current_txn_first_offset == first_offset:
            entries["coordinator_epoch"][i] = entry.coordinator_epoch
            coordinated[i] = True
    return begun, coordinated


def _with_entries(entries: Array, others: Iterable[ProducerEntry]) -> Array:
    more = np.array([tuple(entry) for entry in others], dtype=ENTRY_DTYPE)
    # Joining alone would give numbers of this machine's byte order.
    joined = np.concatenate((entries, more)).astype(ENTRY_DTYPE)
    return joined[np.argsort(joined["producer_id"])]


def _left_out(rows: Array, batch: BoolArray, transaction: BoolArray) -> tuple[LeftOut, ...]:
    """Return the reason why each of ``rows`` is doubtful: its batch, its transaction, or else its coordinator epoch."""
    others = np.where(transaction, Unexplained.TRANSACTION, Unexplained.COORDINATOR)
    reasons = map(Unexplained, np.where(batch, Unexplained.BATCH, others).tolist())
    return tuple(sorted(map(LeftOut, rows["producer_id"].tolist(), reasons)))
