"""The mergeable summary: what a run of batches does to each producer, whatever was there before.

The state of one producer after a run of batches is a function of the state before it, and that function has a small
closed form, one row of ``SUMMARY_DTYPE``:

- the last data batch since the epoch last changed; or "inherit", while every batch so far had one epoch and none had
  data (a marker of another epoch than the inherited one clears the inherited batch);
- the coordinator epoch of the last marker, or "inherit";
- the open transaction: "closed, and reopened at X or not" once a marker was seen, else "inherit, else X";
- what happened first (for rebirth at a seam, and to tell whether history before the run is needed);
- where non-transactional data met an open transaction, or would meet an inherited one.

Such functions compose (``compose``), and composition is associative, so splits are summarised in parallel in any order
and the state at *every* segment boundary comes from one ordered pass over summaries. A state is itself a summary: that
of the log so far. Empty runs are empty arrays, the neutral element.

Rebirth (see ``producer_state``) touches the coordinator epoch alone. It is decided between a marker and the data that
follows it at once: inside a run where both are there, at the seam otherwise. For the seam a row remembers how its last
event ended and the newest server clock since then, and the newest one up to its first event.

Arrays are sorted by producer id, each id at most once. ``producer_state.ProducerStates`` is the oracle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from resnap.replay.scan.header_scan import Array

NONE: Final = -1
"""No offset, no epoch, no timestamp: as Kafka writes it."""
SUMMARY_DTYPE: Final = np.dtype(
    [
        # what every batch changes: one cache line
        ("producer_id", "i8"),
        ("last_offset", "i8"),
        ("timestamp", "i8"),
        ("clock_since_ms", "i8"),
        ("txn_first_offset", "i8"),
        ("last_sequence", "i4"),
        ("offset_delta", "i4"),
        ("coordinator_epoch", "i4"),
        ("epoch", "i2"),
        ("one_epoch", "?"),
        ("has_data", "?"),
        ("coordinator_known", "?"),
        ("last_is_marker", "?"),
        ("closed", "?"),
        # the first event of the run
        ("first_is_marker", "?"),
        ("first_is_transactional", "?"),
        ("first_offset", "i8"),
        ("first_timestamp", "i8"),
        ("first_clock_ms", "i8"),
        ("first_marker_offset", "i8"),
        ("first_data_offset", "i8"),
        ("first_sequence", "i4"),
        ("first_epoch", "i2"),
        # what Kafka refuses
        ("illegal_if_open", "i8"),
        ("illegal_offset", "i8"),
    ],
    align=True,
)
"""One row per producer. ``first_clock_ms``: newest server clock up to the first event; ``clock_since_ms``: newest one
after the last event; -1 for none. ``closed``: a marker was seen. ``has_data``: since the epoch last changed.
``txn_first_offset``: first transactional data since the last marker, or since the start. ``illegal_if_open``: first
non-transactional data that is illegal if the run began inside a transaction; ``illegal_offset``: the first that is
illegal in any case."""

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def empty() -> Array:
    """Return the summary of no batches at all."""
    return np.zeros(0, dtype=SUMMARY_DTYPE)


def summarise(events: Array, certain_silence_ms: int) -> Array:
    """Return the summary of ``events`` (``header_scan.EVENT_DTYPE``, in offset order).

    ``certain_silence_ms`` is expiration plus check interval (``producer_state.Expiry``).
    """
    if not len(events):
        return empty()
    order = np.argsort(events["producer_id"], kind="stable")
    runs = _Runs(events[order])
    out = np.zeros(len(runs.first), dtype=SUMMARY_DTYPE)
    out["producer_id"] = runs.events["producer_id"][runs.first]
    _fill_first(out, runs)
    _fill_last_batch(out, runs)
    _fill_transaction(out, runs)
    _fill_coordinator(out, runs)
    _fill_clocks(out, runs, order, events["clock_ms"], certain_silence_ms)
    return out


class _Runs:
    """Events grouped by producer, with the running positions that the rules ask for.

    A position is an index into the grouped events; -1, or one before the group, means that there is none.
    """

    def __init__(self, events: Array) -> None:
        ids = events["producer_id"]
        self.events = events
        self.index = np.arange(len(events))
        self.starts = np.concatenate(([True], ids[1:] != ids[:-1]))
        self.first = np.flatnonzero(self.starts)
        self.last = np.concatenate((self.first[1:], [len(events)])) - 1
        self.group = np.cumsum(self.starts) - 1
        self.group_start = self.first[self.group]
        self.is_marker = events["is_marker"]
        self.is_txn_data = events["is_transactional"] & ~self.is_marker
        self.is_plain_data = ~events["is_transactional"] & ~self.is_marker
        marker_before = self._latest_before(self.is_marker)
        txn_before = self._latest_before(self.is_txn_data)
        self.closed_before = marker_before >= self.group_start
        self.open_before = txn_before > np.maximum(marker_before, self.group_start - 1)

    def _latest_before(self, mask: BoolArray) -> IntArray:
        """Return, for each event, the position of the latest one before it in ``mask`` (of any producer)."""
        latest = np.maximum.accumulate(np.where(mask, self.index, -1))
        return np.concatenate(([-1], latest[:-1]))

    def latest(self, mask: BoolArray) -> IntArray:
        """Return, for each producer, the position of its last event in ``mask``, or -1."""
        return np.maximum.reduceat(np.where(mask, self.index, -1), self.first)

    def earliest(self, mask: BoolArray, field: str = "offset") -> IntArray:
        """Return, for each producer, ``field`` of its first event in ``mask``, or -1."""
        missing = len(self.index)
        found = np.minimum.reduceat(np.where(mask, self.index, missing), self.first)
        values = np.append(self.events[field].astype(np.int64), NONE)
        return values[found]


def _fill_first(out: Array, runs: _Runs) -> None:
    first = runs.events[runs.first]
    out["first_offset"] = first["offset"]
    out["first_timestamp"] = first["timestamp"]
    out["first_sequence"] = first["base_sequence"]
    out["first_epoch"] = first["producer_epoch"]
    out["first_is_marker"] = first["is_marker"]
    out["first_is_transactional"] = first["is_transactional"]
    out["first_marker_offset"] = runs.earliest(runs.is_marker)
    out["first_data_offset"] = runs.earliest(~runs.is_marker)


def _fill_last_batch(out: Array, runs: _Runs) -> None:
    events = runs.events
    last = events[runs.last]
    epochs = events["producer_epoch"]
    changed = ~runs.starts & np.concatenate(([False], epochs[1:] != epochs[:-1]))
    changed_at = np.maximum(runs.latest(changed), runs.first)
    data_at = runs.latest(~runs.is_marker)
    batch = events[data_at]
    has_data = data_at >= changed_at
    out["epoch"] = last["producer_epoch"]
    out["one_epoch"] = changed_at == runs.first
    out["has_data"] = has_data
    out["last_sequence"] = np.where(has_data, batch["last_sequence"], NONE)
    out["last_offset"] = np.where(has_data, batch["last_offset"], NONE)
    out["offset_delta"] = np.where(has_data, batch["last_offset"] - batch["offset"], 0)
    out["timestamp"] = last["timestamp"]


def _fill_transaction(out: Array, runs: _Runs) -> None:
    marker_at = runs.latest(runs.is_marker)
    out["closed"] = marker_at >= 0
    since_marker = runs.index > marker_at[runs.group]
    out["txn_first_offset"] = runs.earliest(runs.is_txn_data & since_marker)
    out["illegal_if_open"] = runs.earliest(runs.is_plain_data & ~runs.closed_before & ~runs.open_before)
    out["illegal_offset"] = runs.earliest(runs.is_plain_data & runs.open_before)


def _fill_coordinator(out: Array, runs: _Runs) -> None:
    marker_at = runs.latest(runs.is_marker)
    out["coordinator_known"] = marker_at >= 0
    out["coordinator_epoch"] = np.where(marker_at >= 0, runs.events["coordinator_epoch"][marker_at], NONE)
    out["last_is_marker"] = runs.is_marker[runs.last]


def _fill_clocks(out: Array, runs: _Runs, order: IntArray, clock_ms: IntArray, certain_silence_ms: int) -> None:
    """Note the clocks at both ends, and settle what follows the last marker; ``order`` leads back to offset order."""
    up_to = np.maximum.accumulate(clock_ms)
    since = np.append(np.maximum.accumulate(clock_ms[::-1])[::-1], NONE)
    out["first_clock_ms"] = up_to[order[runs.first]]
    out["clock_since_ms"] = since[order[runs.last] + 1]
    marker_at = runs.latest(runs.is_marker)
    followed = np.flatnonzero((marker_at >= 0) & (marker_at < runs.last))
    closed_ms = runs.events["timestamp"][marker_at[followed]]
    begins, ends = order[marker_at[followed]], order[marker_at[followed] + 1]
    for i in np.flatnonzero(_is_certain(closed_ms, up_to[ends], certain_silence_ms)):
        between = clock_ms[begins[i] + 1 : ends[i] + 1].max()
        if _is_certain(closed_ms[i], between, certain_silence_ms):
            out["coordinator_epoch"][followed[i]] = NONE


def _is_certain(closed_ms: IntArray, clock_ms: IntArray, certain_silence_ms: int) -> BoolArray:
    """Tell where a clock reading shows that a producer silent since its marker at ``closed_ms`` was dropped."""
    # A marker may claim any timestamp: near the end of int64 the sum would wrap round.
    return (closed_ms >= 0) & (clock_ms - certain_silence_ms >= closed_ms)


def compose(left: Array, right: Array, certain_silence_ms: int, *, left_clock_ms: int, right_clock_ms: int) -> Array:
    """Return the summary of ``left`` followed by ``right``; neither argument is changed.

    The clocks are the newest server clocks of the two runs, -1 where a run has none. That of either run counts for the
    producers that only the other has, even where its summary is empty.
    """
    at = np.searchsorted(left["producer_id"], right["producer_id"])
    known = np.zeros(len(right), dtype=bool)
    inside = at < len(left)
    known[inside] = left["producer_id"][at[inside]] == right["producer_id"][inside]
    joined = left.copy()
    np.maximum(joined["clock_since_ms"], right_clock_ms, out=joined["clock_since_ms"])
    joined[at[known]] = _compose_rows(left[at[known]], right[known], certain_silence_ms)
    if known.all():
        return joined
    fresh = right[~known]
    np.maximum(fresh["first_clock_ms"], left_clock_ms, out=fresh["first_clock_ms"])
    return np.insert(joined, at[~known], fresh)


def _compose_rows(left: Array, right: Array, certain_silence_ms: int) -> Array:
    out = right.copy()
    for field in (name for name in SUMMARY_DTYPE.names or () if name.startswith("first_")):
        out[field] = left[field]
    for field in ("first_marker_offset", "first_data_offset"):
        out[field] = np.where(left[field] == NONE, right[field], left[field])
    _join_last_batch(out, left, right)
    _join_transaction(out, left, right)
    _join_coordinator(out, left, right, certain_silence_ms)
    return out


def _join_last_batch(out: Array, left: Array, right: Array) -> None:
    same_epoch = right["one_epoch"] & (left["epoch"] == right["epoch"])
    out["one_epoch"] = left["one_epoch"] & same_epoch
    inherits = same_epoch & ~right["has_data"]
    for field in ("has_data", "last_sequence", "last_offset", "offset_delta"):
        out[field] = np.where(inherits, left[field], right[field])


def _join_transaction(out: Array, left: Array, right: Array) -> None:
    left_open = left["txn_first_offset"] != NONE
    out["closed"] = left["closed"] | right["closed"]
    out["txn_first_offset"] = np.where(
        ~right["closed"] & left_open, left["txn_first_offset"], right["txn_first_offset"]
    )
    still_unknown = ~left["closed"] & ~left_open
    later = np.where(still_unknown, right["illegal_if_open"], NONE)
    out["illegal_if_open"] = np.where(left["illegal_if_open"] != NONE, left["illegal_if_open"], later)
    met_open = np.where(left_open, right["illegal_if_open"], NONE)
    later = np.where(met_open != NONE, met_open, right["illegal_offset"])
    out["illegal_offset"] = np.where(left["illegal_offset"] != NONE, left["illegal_offset"], later)


def _join_coordinator(out: Array, left: Array, right: Array, certain_silence_ms: int) -> None:
    clock_ms = np.maximum(left["clock_since_ms"], right["first_clock_ms"])
    at_seam = left["last_is_marker"] & ~right["first_is_marker"]
    reborn = at_seam & _is_certain(left["timestamp"], clock_ms, certain_silence_ms)
    inherited = np.where(reborn, NONE, left["coordinator_epoch"])
    known = right["coordinator_known"]
    out["coordinator_known"] = left["coordinator_known"] | known
    out["coordinator_epoch"] = np.where(known, right["coordinator_epoch"], inherited)
