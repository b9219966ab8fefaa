"""The state of a run so far: a summary that grows by the pieces of its splits, in offset order.

``producer_table`` gives the compiled one, whose pieces are composed in place; where numba cannot work, one that makes a
new summary for each piece. Both equal ``splits.join``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from resnap.replay.scan.split_scan import why_no_kernel
from resnap.replay.scan.splits import NOTHING, Piece, join

if TYPE_CHECKING:
    from resnap.replay.partial_state import IntArray
    from resnap.replay.scan.header_scan import Array


class Past(NamedTuple):
    """Up to when (milliseconds) a producer may first appear and yet have been there before: where doubt begins."""

    batch_ms: int
    """With a batch that a marker refers to."""
    transaction_ms: int
    """With a transaction that its data belong to."""


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

    def producer_ids(self) -> IntArray:
        """Return the ids of all rows in order."""
        ...

    def entries(self, kept_after_ms: int, past: Past) -> Array | None:
        """Return what ``boundary_state`` makes of rows of which none is in doubt; None if it must be asked."""
        ...


def producer_table(certain_silence_ms: int, begins_with: Piece = NOTHING, *, kernel: bool = True) -> ProducerTable:
    """Return the table that holds ``begins_with``."""
    if not kernel or why_no_kernel() is not None:
        return PlainTable(certain_silence_ms, begins_with)
    from resnap.replay.scan.kernel_table import KernelTable  # noqa: PLC0415 - loads numba

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

    def producer_ids(self) -> IntArray:
        """Return the producer ids in order."""
        ids: IntArray = self._piece.rows["producer_id"]
        return ids

    def entries(self, kept_after_ms: int, past: Past) -> Array | None:  # noqa: ARG002
        """Return None: ``boundary_state`` does all."""
        return None
