"""The ordered combine, compiled: composes rows of a later piece onto those before it, and makes snapshot entries.

Rows are composed in place. The cost follows the piece and not the state: the clocks of later pieces count for every row
that they do not touch; that is looked up when a row is next touched or shown, in the stack of ``fold``, whose events
are whole pieces here.

Snapshot entries are made in one pass over the rows of a state, by producer id; the first cache line of most rows is
enough. Nothing doubtful is decided here: a row that needs more checks ends the pass, and ``boundary_state`` then does
the whole boundary.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel.compiling import compiled, inlined, record_at, store_16, store_32, store_64
from resnap.replay.kernel.fold import (
    FREE,
    MANY_SLOTS,
    find_slot,
    newest_since,
    prefetch_row,
    prefetch_slot,
    push_clock,
    record_of_fold,
    row_at,
)
from resnap.replay.kernel.summary import NONE
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE

if TYPE_CHECKING:
    from resnap.replay.kernel.machine import Record

JOINED_DTYPE: Final = np.dtype([("piece", "i8")])
"""The number of the piece up to whose end ``clock_since_ms`` of a row is known."""
_joined_at = record_at(JOINED_DTYPE)
_word_at = record_at(np.dtype([("word", "i8")]))
_WORDS_IN_ROW: Final = 16
ORDER_DTYPE: Final = np.dtype([("row", "i8")])
"""The number of the row at a place."""
IN_DOUBT: Final = -1
_NOBODY: Final = -1
_AHEAD: Final = 16
"""Rows by which slots are fetched in advance; the rows they name by half as many."""
_order_at = record_at(ORDER_DTYPE)
_ENTRY_BYTES: Final = ENTRY_DTYPE.itemsize
_offsets: Final = {name: ENTRY_DTYPE.fields[name][1] for name in ENTRY_DTYPE.names or ()}  # type: ignore[index]
_EPOCH: Final = _offsets["producer_epoch"]
_LAST_SEQUENCE: Final = _offsets["last_sequence"]
_LAST_OFFSET: Final = _offsets["last_offset"]
_OFFSET_DELTA: Final = _offsets["offset_delta"]
_TIMESTAMP: Final = _offsets["timestamp"]
_COORDINATOR_EPOCH: Final = _offsets["coordinator_epoch"]
_TXN_FIRST_OFFSET: Final = _offsets["current_txn_first_offset"]


@compiled
def append_piece(rows_at: int, count: int, clock_ms: int, joined_at: int, fold_at: int) -> None:
    """Compose ``count`` rows onto the table, which must have room for all of them and for a clock."""
    fold = record_of_fold(fold_at, 0)
    piece = fold.events
    fetched = count - _AHEAD if fold.slot_room >= MANY_SLOTS else 0
    for number in range(count):
        later = row_at(rows_at, number)
        if number < fetched:
            prefetch_slot(fold, row_at(rows_at, number + _AHEAD).producer_id)
            prefetch_row(fold, row_at(rows_at, number + _AHEAD // 2).producer_id)
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
    """Put the row ``order[n]`` at place ``n``; ``order`` (``ORDER_DTYPE``) is overwritten."""
    for start in range(count):
        place, source = start, _take(order_at, start)
        while source != start:
            _swap_rows(rows_at, place, source)
            place, source = source, _take(order_at, source)


@inlined
def _take(order_at: int, place: int) -> int:
    """Return the source of the row for ``place``, and record that the row is at ``place`` now."""
    entry = _order_at(order_at, place)
    source: int = entry.row
    entry.row = place
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


@compiled
def merge_order(
    ids_at: int, order_at: int, known: int, by_id_at: int, made_ids_at: int, made_at: int, fold_at: int
) -> bool:
    """Merge the rows from number ``known`` on into the order of the rows below; return whether all rows are in order.

    ``order`` and ``by_id`` (``ORDER_DTYPE``) number the rows below by producer id, and those above from 0 on; ``ids``
    are the producer ids of the former. The output must have room for all rows.
    """
    fold = record_of_fold(fold_at, 0)
    below, above, is_in_place = 0, 0, True
    for place in range(fold.rows):
        number, producer_id = _NOBODY, _NOBODY
        if above < fold.rows - known:
            number = known + _order_at(by_id_at, above).row
            producer_id = row_at(fold.rows_at, number).producer_id
        if below < known and (number == _NOBODY or _order_at(ids_at, below).row < producer_id):
            number, producer_id = _order_at(order_at, below).row, _order_at(ids_at, below).row
            below += 1
        else:
            above += 1
        made_id, made = _order_at(made_ids_at, place), _order_at(made_at, place)
        made_id.row = producer_id
        made.row = number
        is_in_place = is_in_place and number == place
    return is_in_place


@compiled
def write_entries(order_at: int, count: int, kept_after_ms: int, past_ms: int, fold_at: int, entries_at: int) -> int:
    """Write the entries of the ``count`` rows that survive; return how many, or ``IN_DOUBT``.

    A producer that first appears at or before ``past_ms`` may have an earlier batch or transaction.
    """
    fold = record_of_fold(fold_at, 0)
    if fold.illegal:
        return IN_DOUBT
    at = entries_at
    for place in range(count):
        row = row_at(fold.rows_at, _order_at(order_at, place).row)
        if row.txn_first_offset == NONE and row.timestamp <= kept_after_ms:
            continue
        if _in_doubt(row, past_ms):
            return IN_DOUBT
        _write(row, at)
        at += _ENTRY_BYTES
    return (at - entries_at) // _ENTRY_BYTES


@inlined
def _in_doubt(row: Record, past_ms: int) -> bool:
    """Return whether something of the past of ``row`` may be missing; compare ``boundary_state``."""
    if row.first_timestamp > past_ms:
        return False
    if row.first_is_marker:
        return bool(row.one_epoch and not row.has_data)
    if not row.first_is_transactional or row.first_marker_offset != NONE:
        return False
    return bool(row.first_sequence != 0 or (row.first_epoch != 0 and not row.coordinator_known))


@inlined
def _write(row: Record, at: int) -> None:
    store_64(at, 0, row.producer_id)
    store_16(at, _EPOCH, row.epoch)
    store_32(at, _LAST_SEQUENCE, row.last_sequence)
    store_64(at, _LAST_OFFSET, row.last_offset)
    store_32(at, _OFFSET_DELTA, row.offset_delta)
    store_64(at, _TIMESTAMP, row.timestamp)
    store_32(at, _COORDINATOR_EPOCH, row.coordinator_epoch)
    store_64(at, _TXN_FIRST_OFFSET, row.txn_first_offset)
