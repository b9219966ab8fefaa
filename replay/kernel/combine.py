"""The ordered combine, compiled: composes the rows of a later piece onto the rows before it, in place.

Its cost follows the piece and not the state. The clocks of later pieces count for every row that they do not touch;
that is looked up when a row is next touched or shown, in the stack of ``fold``, whose events are whole pieces here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel.compiling import compiled, inlined, record_at
from resnap.replay.kernel.fold import FREE, find_slot, newest_since, push_clock, record_of_fold, row_at
from resnap.replay.kernel.summary import NONE

if TYPE_CHECKING:
    from resnap.replay.kernel.machine import Record

JOINED_DTYPE: Final = np.dtype([("piece", "i8")])
"""The number of the piece up to whose end ``clock_since_ms`` of a row is known."""
_joined_at = record_at(JOINED_DTYPE)
_word_at = record_at(np.dtype([("word", "i8")]))
_WORDS_IN_ROW: Final = 16


@compiled
def append_piece(rows_at: int, count: int, clock_ms: int, joined_at: int, fold_at: int) -> None:
    """Compose ``count`` rows onto the table, which must have room for all of them and for a clock."""
    fold = record_of_fold(fold_at, 0)
    piece = fold.events
    for number in range(count):
        later = row_at(rows_at, number)
        slot = find_slot(fold, later.producer_id)
        if slot.row == FREE:
            slot.row = fold.rows
            fold.rows += 1
            _copy_row(rows_at, number, fold.rows_at, slot.row)
            row = row_at(fold.rows_at, slot.row)
            row.first_clock_ms = max(row.first_clock_ms, fold.clock_ms)
        else:
            row = row_at(fold.rows_at, slot.row)
            since_ms = newest_since(fold, _joined_at(joined_at, slot.row).piece)
            _compose(row, later, max(row.clock_since_ms, since_ms), fold.certain_silence_ms)
        if row.illegal_offset != NONE:
            fold.illegal = True
        joined = _joined_at(joined_at, slot.row)
        joined.piece = piece
    push_clock(fold, piece, clock_ms)
    fold.events += 1


@compiled
def settle_pieces(joined_at: int, fold_at: int) -> None:
    """Bring ``clock_since_ms`` of every row up to the last piece."""
    fold = record_of_fold(fold_at, 0)
    for number in range(fold.rows):
        row = row_at(fold.rows_at, number)
        joined = _joined_at(joined_at, number)
        row.clock_since_ms = max(row.clock_since_ms, newest_since(fold, joined.piece))
        joined.piece = fold.events - 1


@compiled
def reorder(rows_at: int, count: int, order_at: int) -> None:
    """Put the row ``order[n]`` at place ``n``; ``order`` (``JOINED_DTYPE``) is overwritten."""
    for start in range(count):
        place, source = start, _take(order_at, start)
        while source != start:
            _swap_rows(rows_at, place, source)
            place, source = source, _take(order_at, source)


@inlined
def _take(order_at: int, place: int) -> int:
    """Return the row for ``place``, and record that it is there now."""
    entry = _joined_at(order_at, place)
    source: int = entry.piece
    entry.piece = place
    return source


@inlined
def _copy_row(source_at: int, source: int, target_at: int, target: int) -> None:
    for number in range(_WORDS_IN_ROW):
        word = _word_at(target_at, target * _WORDS_IN_ROW + number)
        word.word = _word_at(source_at, source * _WORDS_IN_ROW + number).word


@inlined
def _swap_rows(rows_at: int, one: int, other: int) -> None:
    for number in range(_WORDS_IN_ROW):
        here, there = _word_at(rows_at, one * _WORDS_IN_ROW + number), _word_at(rows_at, other * _WORDS_IN_ROW + number)
        word = here.word
        here.word = there.word
        there.word = word


@inlined
def _compose(row: Record, later: Record, clock_since_ms: int, certain_silence_ms: int) -> None:
    """Make ``row`` the summary of itself and ``later``, which the clock ``clock_since_ms`` precedes."""
    if row.first_marker_offset == NONE:
        row.first_marker_offset = later.first_marker_offset
    if row.first_data_offset == NONE:
        row.first_data_offset = later.first_data_offset
    _join_coordinator(row, later, max(clock_since_ms, later.first_clock_ms), certain_silence_ms)
    _join_transaction(row, later)
    _join_last_batch(row, later)
    row.epoch = later.epoch
    row.timestamp = later.timestamp
    row.last_is_marker = later.last_is_marker
    row.clock_since_ms = later.clock_since_ms


@inlined
def _join_coordinator(row: Record, later: Record, clock_ms: int, certain_silence_ms: int) -> None:
    if later.coordinator_known:
        row.coordinator_known = True
        row.coordinator_epoch = later.coordinator_epoch
        return
    at_seam = row.last_is_marker and not later.first_is_marker
    if at_seam and row.timestamp >= 0 and clock_ms - certain_silence_ms >= row.timestamp:
        row.coordinator_epoch = NONE


@inlined
def _join_transaction(row: Record, later: Record) -> None:
    is_open = row.txn_first_offset != NONE
    if row.illegal_offset == NONE:
        row.illegal_offset = later.illegal_offset
        if is_open and later.illegal_if_open != NONE:
            row.illegal_offset = later.illegal_if_open
    if row.illegal_if_open == NONE and not row.closed and not is_open:
        row.illegal_if_open = later.illegal_if_open
    if later.closed or not is_open:
        row.txn_first_offset = later.txn_first_offset
    row.closed = row.closed or later.closed


@inlined
def _join_last_batch(row: Record, later: Record) -> None:
    same_epoch = later.one_epoch and row.epoch == later.epoch
    row.one_epoch = row.one_epoch and same_epoch
    if later.has_data or not same_epoch:
        row.has_data = later.has_data
        row.last_sequence = later.last_sequence
        row.last_offset = later.last_offset
        row.offset_delta = later.offset_delta
