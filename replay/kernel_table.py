"""The producer table by machine code: pieces are composed in place, and rows sorted only when new producers came.

What a piece costs follows its own rows; what a look costs, all rows, but only a comparison each while no producer is
new. Two million producers take some 400 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.kernel import combine
from replay.partial_state import SUMMARY_DTYPE
from replay.producer_fold import FoldArrays, new_rows

if TYPE_CHECKING:
    from replay.header_scan import Array
    from replay.splits import Piece


class KernelTable(FoldArrays):
    """A ``ProducerTable`` whose rows lie in the memory of a fold, with whole pieces for events."""

    def __init__(self, certain_silence_ms: int) -> None:
        super().__init__(certain_silence_ms)
        self._joined = np.zeros(len(self._rows), dtype=combine.JOINED_DTYPE)
        self._sorted = 0
        """So many rows stand in order."""
        self._shown: Array | None = None

    def append(self, piece: Piece) -> None:
        """Take what comes after everything before it."""
        self._shown = None
        rows = np.ascontiguousarray(piece.rows, dtype=SUMMARY_DTYPE)
        self.make_room(len(rows))
        if len(self._joined) < len(self._rows):
            joined = np.zeros(len(self._rows), dtype=combine.JOINED_DTYPE)
            joined[: len(self)] = self._joined[: len(self)]
            self._joined = joined
        combine.append_piece(rows.ctypes.data, len(rows), piece.clock_ms, self._joined.ctypes.data, self.at)

    def rows(self) -> Array:
        """Return the rows by producer id; a view that the next piece changes."""
        if self._shown is None:
            self._shown = self._settled()
        return self._shown

    def _settled(self) -> Array:
        combine.settle_pieces(self._joined.ctypes.data, self.at)
        rows = self._rows[: len(self)]
        if len(rows) > self._sorted:
            # What has been sorted is a run already, and so is what one piece added: little is left to do.
            order = np.argsort(rows["producer_id"], kind="stable").astype(np.int64, copy=False)
            combine.reorder(rows.ctypes.data, len(rows), order.ctypes.data, new_rows(1).ctypes.data)
            self._hold()
            self._sorted = len(rows)
        rows.flags.writeable = False
        return rows
