"""The state of a run so far: a summary that grows by the pieces of its splits, in offset order.

``producer_table`` gives the compiled one, whose pieces are composed in place; where numba cannot work, one that makes a
new summary for each piece. Both equal ``splits.join``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from replay.split_scan import why_no_kernel
from replay.splits import NOTHING, Piece, join

if TYPE_CHECKING:
    from replay.header_scan import Array


class ProducerTable(Protocol):
    """One row of ``SUMMARY_DTYPE`` per producer."""

    @property
    def clock_ms(self) -> int:
        """Newest server clock; -1 if there is none."""
        ...

    def append(self, piece: Piece) -> None:
        """Take what comes after everything before it."""
        ...

    def rows(self) -> Array:
        """Return the rows by producer id; not to be written to, and only right until more is appended."""
        ...


def producer_table(certain_silence_ms: int, begins_with: Piece = NOTHING, *, kernel: bool = True) -> ProducerTable:
    """Return the table that holds ``begins_with``."""
    if not kernel or why_no_kernel() is not None:
        return PlainTable(certain_silence_ms, begins_with)
    from replay.kernel_table import KernelTable  # noqa: PLC0415 - loads numba

    table = KernelTable(certain_silence_ms)
    table.append(begins_with)
    return table


class PlainTable:
    """Without machine code."""

    def __init__(self, certain_silence_ms: int, begins_with: Piece = NOTHING) -> None:
        self._silence_ms = certain_silence_ms
        self._piece = begins_with

    @property
    def clock_ms(self) -> int:
        """Newest server clock; -1 if there is none."""
        return self._piece.clock_ms

    def append(self, piece: Piece) -> None:
        """Take what comes after everything before it."""
        self._piece = join(self._piece, piece, self._silence_ms)

    def rows(self) -> Array:
        """Return the rows by producer id."""
        return self._piece.rows
