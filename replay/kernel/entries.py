"""Makes snapshot entries, compiled: one pass over the rows of a state, by producer id.

The first cache line of most rows is enough. Nothing doubtful is decided here: a row that needs more checks ends the
pass, and ``boundary_state`` then does the whole boundary.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel.compiling import compiled, inlined, record_at, store_16, store_32, store_64
from resnap.replay.kernel.fold import record_of_fold, row_at
from resnap.replay.kernel.summary import NONE
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE

if TYPE_CHECKING:
    from resnap.replay.kernel.machine import Record

ORDER_DTYPE: Final = np.dtype([("row", "i8")])
"""The number of the row at a place."""
IN_DOUBT: Final = -1
_NOBODY: Final = -1
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
