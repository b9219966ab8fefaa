"""Builds a summary event by event with compiled code, and holds the arrays for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from resnap.replay.kernel import fold as kernel
from resnap.replay.kernel.summary import NONE, SUMMARY_DTYPE
from resnap.replay.scan.splits import Piece

if TYPE_CHECKING:
    from resnap.replay.kernel.summary import Array

ROWS_AT_FIRST: Final = 1024
CLOCKS_AT_FIRST: Final = 64
_CACHE_LINE_BYTES: Final = 64


class FoldArrays:
    """The arrays that compiled code writes summaries into (``replay.kernel.fold``), and their growth."""

    def __init__(self, certain_silence_ms: int) -> None:
        self.state = np.zeros(1, dtype=kernel.FOLD_DTYPE)
        self.state["clock_ms"] = NONE
        self.at = int(self.state.ctypes.data)
        """Address of the record that machine code works on."""
        self.state["certain_silence_ms"] = certain_silence_ms
        self._rows = new_rows(ROWS_AT_FIRST)
        self._clocks = np.zeros(CLOCKS_AT_FIRST, dtype=kernel.CLOCK_DTYPE)
        self._hold()

    @property
    def clock_ms(self) -> int:
        """Newest server clock; -1 if there is none."""
        return int(self.state["clock_ms"][0])

    def __len__(self) -> int:
        return int(self.state["rows"][0])

    def make_room(self, rows: int = 1) -> None:
        """Make room for so many rows, and a clock."""
        count, room = len(self), len(self._rows)
        while room < count + rows:
            room *= 2
        if room > len(self._rows):
            larger = new_rows(room)
            _words(larger)[:count] = _words(self._rows)[:count]
            self._rows = larger
            self._hold()
        if int(self.state["clocks"][0]) == len(self._clocks):
            self._clocks = np.concatenate((self._clocks, np.zeros_like(self._clocks)))
            self._point_at("clock", self._clocks)

    def _hold(self) -> None:
        """Give compiled code the addresses of the arrays, and enter the rows again."""
        self._slots = np.full(2 * len(self._rows), kernel.FREE, dtype=np.int32).view(kernel.SLOT_DTYPE)
        self._point_at("row", self._rows)
        self._point_at("slot", self._slots)
        self._point_at("clock", self._clocks)
        kernel.enter_rows(self.at)

    def _point_at(self, name: str, array: Array) -> None:
        self.state[f"{name}s_at"] = array.ctypes.data
        self.state[f"{name}_room"] = len(array)


class ProducerFold(FoldArrays):
    """The summary of a run of events, which must come in offset order."""

    def append(self, events: Array) -> None:
        """Append ``events`` (``EVENT_DTYPE``)."""
        events = np.ascontiguousarray(events)
        while len(events):
            done = kernel.append_events(events.ctypes.data, len(events), self.at)
            events = events[done:]
            if len(events):
                self.make_room()

    def finish(self, trailing_ms: int = NONE) -> Piece:
        """Return the summary, with the newest clock after the last event; nothing may be appended after that."""
        kernel.settle_clocks(self.at, trailing_ms)
        rows = self._rows[: len(self)]
        # Indexing by an array is several times slower than ``take``, and so is sorting a column where it lies.
        in_order = _words(rows).take(np.ascontiguousarray(rows["producer_id"]).argsort(), axis=0)
        return Piece(in_order.view(SUMMARY_DTYPE).reshape(-1), max(self.clock_ms, trailing_ms))


def _words(rows: Array) -> npt.NDArray[np.int64]:
    """Return ``rows`` as words, one row per line, which copy ten times as fast as fields."""
    return rows.view(np.int64).reshape(len(rows), SUMMARY_DTYPE.itemsize // 8)


def new_rows(count: int) -> Array:
    """Return zeroed rows, aligned to cache lines; each row takes two."""
    memory = np.zeros(count * SUMMARY_DTYPE.itemsize + _CACHE_LINE_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[start : start + count * SUMMARY_DTYPE.itemsize].view(SUMMARY_DTYPE)
