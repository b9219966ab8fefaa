"""What a broker knows of the producers of a ``traffic`` log: epochs, sequences, transactions, and so the snapshots.

It follows the generator's own rules, by columns and across pieces, and shares no code with a replay: what both come to
can be compared. Producers never expire here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from resnap.storage.log.indexes import AbortedTxn
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, NO_LAST_OFFSET, NO_OPEN_TRANSACTION
from resnap.storage.log.record_batch import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tests.logs.traffic import NO_PRODUCERS, Bools, Ints, Traffic, Turns

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PRODUCER_EPOCH: Final = 2**15 - 2
_SEQUENCES: Final = MAX_SEQUENCE + 1
_NEVER: Final = 1 << 62
_STATE_DTYPE: Final = np.dtype([
    *((name, ENTRY_DTYPE[name].newbyteorder("=")) for name in ENTRY_DTYPE.names or ()),
    ("client_epoch", "i8"),
    ("next_sequence", "i8"),
    ("was_seen", "?"),
])  # fmt: skip


class Batches(NamedTuple):
    """What is to be written, a column for each field of a header, in offset order."""

    base_offset: Ints
    producer_id: Ints
    producer_epoch: Ints
    base_sequence: Ints
    is_transactional: Bools
    aborted: list[AbortedTxn]
    """Transactions whose abort marker is among the batches."""


class TrafficState:
    """Follows one partition."""

    def __init__(self, traffic: Traffic, *, first_offset: int = 0) -> None:
        """Begin at ``first_offset``, with all producers new."""
        self.next_offset = first_offset
        self._traffic = traffic
        self._state = np.zeros(traffic.producers, dtype=_STATE_DTYPE)
        self._state["producer_id"] = traffic.first_producer_id + np.arange(traffic.producers)
        for name, nothing in (
            ("last_sequence", NO_SEQUENCE), ("last_offset", NO_LAST_OFFSET), ("coordinator_epoch", -1),
            ("current_txn_first_offset", NO_OPEN_TRANSACTION),
        ):  # fmt: skip
            self._state[name] = nothing
        self._open = np.zeros(0, dtype=np.int64)

    def entries(self) -> npt.NDArray[np.void]:
        """Return the snapshot at the log end: an array of ``ENTRY_DTYPE`` by producer id."""
        seen = self._state[self._state["was_seen"]]
        out = np.zeros(len(seen), dtype=ENTRY_DTYPE)
        for name in ENTRY_DTYPE.names or ():
            out[name] = seen[name]
        return out

    def append(self, turns: Turns) -> Batches:
        """Give ``turns`` their offsets, epochs and sequences, and move on past them.

        Raises:
            ValueError: a producer has used up its epochs.

        """
        records = np.where(turns.is_marker, 1, self._traffic.records)
        offsets = self.next_offset + np.cumsum(records) - records
        self.next_offset += int(records.sum())
        mine = _Mine(turns, offsets, self._state, self._traffic)
        out = Batches(
            base_offset=offsets,
            producer_id=_scatter(mine, self._traffic.first_producer_id + mine.who, NO_PRODUCER_ID, len(offsets)),
            producer_epoch=_scatter(mine, mine.epoch, NO_PRODUCER_EPOCH, len(offsets)),
            base_sequence=_scatter(mine, mine.base_sequence, NO_SEQUENCE, len(offsets)),
            is_transactional=self._traffic.is_transactional(turns.producer),
            aborted=[],
        )
        mine.store(self._state)
        if len(mine.epoch) and mine.epoch.max() >= MAX_PRODUCER_EPOCH:
            raise ValueError("a producer has used up its epochs: lower abort_share or fence_share")
        concerned = np.union1d(self._open, mine.who[mine.is_transactional])
        self._open = concerned[self._state["current_txn_first_offset"][concerned] != NO_OPEN_TRANSACTION]
        out.aborted.extend(self._aborted(mine))
        return out

    def _aborted(self, mine: _Mine) -> Iterable[AbortedTxn]:
        """Return index entries, each with what the last stable offset became at its marker.

        Ordered by first offset, the running maximum of the ends first exceeds a marker at the oldest transaction that
        is still open there.
        """
        markers = np.flatnonzero(mine.is_marker)
        ends = np.concatenate((mine.offset[markers], np.full(len(self._open), _NEVER)))
        firsts = np.concatenate((mine.txn_first[markers], self._state["current_txn_first_offset"][self._open]))
        order = np.argsort(firsts)
        firsts, latest_end = np.append(firsts[order], _NEVER), np.maximum.accumulate(ends[order])
        aborts = markers[~mine.is_commit[markers]]
        aborts = aborts[np.argsort(mine.offset[aborts])]
        at = mine.offset[aborts]
        oldest = firsts[np.searchsorted(latest_end, at, side="right")]
        stable = np.where(oldest < at, oldest, at + 1)
        ids = self._traffic.first_producer_id + mine.who[aborts]
        rows = zip(ids.tolist(), mine.txn_first[aborts].tolist(), at.tolist(), stable.tolist(), strict=True)
        return map(AbortedTxn._make, rows)


class _Mine:
    """Batches with a producer, grouped by it, each group in offset order, with what its state makes of them."""

    def __init__(self, turns: Turns, offsets: Ints, state: npt.NDArray[np.void], traffic: Traffic) -> None:
        known = np.flatnonzero(turns.producer != NO_PRODUCERS)
        small = turns.producer[known].astype(np.uint16 if len(state) <= 1 << 16 else np.uint32)
        self.index = known[np.argsort(small, kind="stable")]
        """Number of the batch among all batches."""
        self.who = turns.producer[self.index]
        self.is_marker, self.is_commit = turns.is_marker[self.index], turns.is_commit[self.index]
        self.offset, self.timestamp = offsets[self.index], turns.timestamp[self.index]
        self._leader_epoch = turns.leader_epoch[self.index]
        self._fence = turns.is_fence[self.index]
        self._records = traffic.records
        self.is_transactional = traffic.is_transactional(self.who)
        self._place = np.arange(len(self.who))
        starts = np.append(True, self.who[1:] != self.who[:-1])[: len(self.who)]
        self._starts = starts
        self._first = np.flatnonzero(starts)
        self._last = np.append(self._first[1:], len(self.who))[: len(self._first)] - 1
        self._group_first = np.repeat(self._first, self._last - self._first + 1)
        self._fence_up_to = self._latest(self._fence)
        self.epoch = self._epochs(state)
        self.base_sequence = self._sequences(state)
        self.txn_first = self._transactions(state)

    def _latest(self, events: Bools) -> Ints:
        """Return the place of the latest of ``events`` up to each place within its group, or -1."""
        found = np.maximum.accumulate(np.where(events, self._place, -1))
        return np.where(found >= self._group_first, found, -1)

    def _before(self, places: Ints) -> Ints:
        """Return ``places`` as they were one place earlier within each group, or -1."""
        return np.where(self._starts, -1, np.append(-1, places[:-1])[: len(places)])

    def _epochs(self, state: npt.NDArray[np.void]) -> Ints:
        fences: Ints = np.cumsum(self._fence) - self._fence
        epochs: Ints = state["client_epoch"][self.who] + 2 * (fences - fences[self._group_first]) + self._fence
        return epochs

    def _sequences(self, state: npt.NDArray[np.void]) -> Ints:
        sent: Ints = np.cumsum(~self.is_marker) - ~self.is_marker
        fence = self._before(self._fence_up_to)
        fresh = fence >= 0
        since = np.where(fresh, sent[fence], sent[self._group_first])
        begun = np.where(fresh, 0, state["next_sequence"][self.who])
        sequences = (begun + self._records * (sent - since)) % _SEQUENCES
        return np.where(self.is_marker, NO_SEQUENCE, sequences)

    def _transactions(self, state: npt.NDArray[np.void]) -> Ints:
        """Return the first offset of the transaction each batch is in, of a marker the one it ends."""
        closed_before = np.append(False, self.is_marker[:-1])[: len(self.who)] & ~self._starts
        carried = state["current_txn_first_offset"][self.who]
        begins = self.is_transactional & ~self.is_marker & (closed_before | (self._starts & (carried < 0)))
        begun = self._latest(begins)
        return np.where(begun >= 0, self.offset[begun], carried)

    def store(self, state: npt.NDArray[np.void]) -> None:
        """Put what the last batches of each producer leave into ``state``."""
        last, who = self._last, self.who[self._last]
        data, marker = self._latest(~self.is_marker)[last], self._latest(self.is_marker)[last]
        fence = self._fence_up_to[last]
        cleared = fence > data
        data = np.where(cleared, -1, data)
        state["was_seen"][who] = True
        state["producer_epoch"][who] = self.epoch[last]
        state["client_epoch"][who] = self.epoch[last] + self._fence[last]
        state["timestamp"][who] = self.timestamp[last]
        state["current_txn_first_offset"][who] = np.where(
            self.is_marker[last], NO_OPEN_TRANSACTION, self.txn_first[last]
        )
        _put(state, "coordinator_epoch", who, marker, self._leader_epoch)
        _put(state, "last_offset", who, data, self.offset + self._records - 1)
        _put(state, "last_sequence", who, data, (self.base_sequence + self._records - 1) % _SEQUENCES)
        _put(state, "offset_delta", who, data, np.full(len(self.who), self._records - 1))
        _put(state, "next_sequence", who, data, (self.base_sequence + self._records) % _SEQUENCES)
        for name, nothing in (("last_offset", NO_LAST_OFFSET), ("last_sequence", NO_SEQUENCE), ("offset_delta", 0)):
            state[name][who[cleared]] = nothing
        state["next_sequence"][who[cleared]] = 0


def _put(state: npt.NDArray[np.void], name: str, who: Ints, places: Ints, values: Ints) -> None:
    """Set a field to the value at each place, where there is one."""
    there = places >= 0
    state[name][who[there]] = values[places[there]]


def _scatter(mine: _Mine, values: npt.NDArray[np.generic], nothing: int, count: int) -> Ints:
    column = np.full(count, nothing, dtype=np.int64)
    column[mine.index] = values
    return column
