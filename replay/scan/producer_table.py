"""The state of a run so far: a summary that grows piece by piece, in offset order.

Pieces are composed in place (``kernel.combine``), and the order of the rows is kept beside them. The cost of a piece,
and of the order, depends on the piece's own rows; entries cost one pass over all rows. The rows themselves are sorted
only when all of them are requested. Two million producers take some 400 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.kernel import combine
from resnap.replay.kernel.summary import SUMMARY_DTYPE
from resnap.replay.scan.producer_fold import FoldArrays, order_of
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE

if TYPE_CHECKING:
    from resnap.replay.kernel.summary import Array, IntArray
    from resnap.replay.scan.splits import Piece


class ProducerTable(FoldArrays):
    """One row of ``SUMMARY_DTYPE`` per producer, stored as in a fold, with whole pieces as events."""

    def __init__(self, certain_silence_ms: int) -> None:
        super().__init__(certain_silence_ms)
        self._joined = np.zeros(len(self._rows), dtype=combine.JOINED_DTYPE)
        self._order = np.zeros(0, dtype=np.int64)
        """Numbers of the rows by producer id, without those added since the last update."""
        self._ids = np.zeros(0, dtype=np.int64)
        """Producer ids in that order."""
        self._in_order = True
        """Whether the rows themselves are in that order."""
        self._shown: Array | None = None

    def append(self, piece: Piece) -> None:
        """Add the next piece."""
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
            self._shown = self._rows_by_id()
        return self._shown

    def unordered(self) -> Array:
        """Return the rows in no order, and with any ``clock_since_ms``; a view that the next piece changes."""
        return self._rows[: len(self)]

    def producer_ids(self) -> IntArray:
        """Return the producer ids in order."""
        self._take_up_new()
        return self._ids

    def entries(self, kept_after_ms: int, past_ms: int) -> Array | None:
        """Return the entries of the surviving rows, or None if one of them is in doubt or illegal.

        A producer that first appears up to ``past_ms`` may have existed before: with a batch that a marker refers to,
        or a transaction that its data belong to.
        """
        self._take_up_new()
        made = np.empty(len(self), dtype=ENTRY_DTYPE)
        count = combine.write_entries(
            self._order.ctypes.data, len(self), kept_after_ms, past_ms, self.at, made.ctypes.data
        )
        return None if count == combine.IN_DOUBT else made[:count]

    def _take_up_new(self) -> None:
        """Update the order with the new rows."""
        known = len(self._order)
        if known == len(self):
            return
        by_id = order_of(np.ascontiguousarray(self._rows["producer_id"][known : len(self)]))
        ids, order = np.empty((2, len(self)), dtype=np.int64)
        self._in_order = combine.merge_order(
            self._ids.ctypes.data, self._order.ctypes.data, known, by_id.ctypes.data, ids.ctypes.data,
            order.ctypes.data, self.at,
        )  # fmt: skip
        self._ids, self._order = ids, order

    def _rows_by_id(self) -> Array:
        combine.settle_pieces(self._joined.ctypes.data, self.at)
        self._take_up_new()
        rows = self._rows[: len(self)]
        if not self._in_order:
            # Afterwards the order is the identity: each row is at its place.
            combine.reorder(rows.ctypes.data, len(rows), self._order.ctypes.data)
            self._hold()
            self._in_order = True
        rows.flags.writeable = False
        return rows
