"""The fold, compiled: applies one event of a producer to its row of ``summary.SUMMARY_DTYPE``.

Rows are in the order of the producers' first appearance; an open-addressing table of row numbers finds them. While a
fold is open, ``clock_since_ms`` of a row holds the number of the producer's last event instead of a clock. A stack
gives the newest clock since that event: it holds the clocks that no later one has reached, so they decrease, and the
first one above an event's number is the newest since. Clocks mostly rise, so the stack is short.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel.compiling import compiled, inlined, prefetch, record_at
from resnap.replay.kernel.summary import EVENT_DTYPE, NONE, SUMMARY_DTYPE

if TYPE_CHECKING:
    from resnap.replay.kernel.machine import Record

FOLD_DTYPE: Final = np.dtype(
    [
        ("certain_silence_ms", "i8"),
        # where the arrays are, and how many fit in; who sets this keeps them alive
        ("rows_at", "i8"), ("row_room", "i8"), ("slots_at", "i8"), ("slot_room", "i8"),
        ("clocks_at", "i8"), ("clock_room", "i8"),
        # how many there are
        ("rows", "i8"), ("clocks", "i8"), ("events", "i8"),
        ("clock_ms", "i8"),
        ("illegal", "?"),
    ],
    align=True,
)  # fmt: skip
"""One record, a summary in the making; ``clock_ms`` is the newest of all events. ``illegal``: pieces were composed into
a row that Kafka refuses."""
SLOT_DTYPE: Final = np.dtype([("row", "i4"), ("tag", "i4")])
"""The number of a row, and the lower 31 bits of its producer id, which tell most other ids apart without the row."""
_SLOT_BYTES: Final = SLOT_DTYPE.itemsize
_ROW_BYTES: Final = SUMMARY_DTYPE.itemsize
CACHE_LINE_BYTES: Final = 64
MANY_SLOTS: Final = 1 << 16
"""From so many slots on, slots and rows are fetched in advance: fewer stay in the processor's caches."""
CLOCK_DTYPE: Final = np.dtype([("event", "i8"), ("clock_ms", "i8")])
"""An entry of the stack: the number of an event, and its clock."""
FREE: Final = -1
"""A slot of the table without a row."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: spreads groups of ids that follow each other, as Kafka gives them out."""
_HALF: Final = np.uint64(32)
_NEIGHBOURS: Final = 3
"""The lowest bits of an id: ids that differ in them alone have slots side by side, a cache line in all."""


row_at = record_at(SUMMARY_DTYPE)
record_of_fold = record_at(FOLD_DTYPE)
_event_at = record_at(EVENT_DTYPE)
_slot_at = record_at(SLOT_DTYPE)
_clock_at = record_at(CLOCK_DTYPE)


@inlined
def _first_slot(fold: Record, producer_id: int) -> int:
    """Return the number of the slot where ``producer_id`` is, or the search for it begins."""
    spread = np.int64(np.uint64(producer_id >> _NEIGHBOURS) * _GOLDEN >> _HALF)
    # The upper bits decide, which are the well mixed ones.
    number: int = (spread * (fold.slot_room >> _NEIGHBOURS) >> 32 << _NEIGHBOURS) + (
        producer_id & (1 << _NEIGHBOURS) - 1
    )
    return number


@inlined
def prefetch_slot(fold: Record, producer_id: int) -> None:
    """Let the processor fetch where the search for ``producer_id`` begins."""
    prefetch(fold.slots_at + _first_slot(fold, producer_id) * _SLOT_BYTES)


@inlined
def prefetch_row(fold: Record, producer_id: int) -> None:
    """Let the processor fetch the row that is probably that of ``producer_id``."""
    row = _slot_at(fold.slots_at, _first_slot(fold, producer_id)).row
    prefetch(fold.rows_at + row * _ROW_BYTES)
    prefetch(fold.rows_at + row * _ROW_BYTES + CACHE_LINE_BYTES)


@inlined
def find_slot(fold: Record, producer_id: int) -> Record:
    """Return the slot with the row of ``producer_id``, or the free slot for it."""
    number = _first_slot(fold, producer_id)
    tag = np.int32(producer_id & 0x7FFFFFFF)
    slot = _slot_at(fold.slots_at, number)
    while slot.row != FREE and (slot.tag != tag or row_at(fold.rows_at, slot.row).producer_id != producer_id):
        number = 0 if number + 1 == fold.slot_room else number + 1
        slot = _slot_at(fold.slots_at, number)
    slot.tag = tag
    return slot


@compiled
def enter_rows(fold_at: int) -> None:
    """Enter the rows into slots, which must all be free."""
    fold = record_of_fold(fold_at, 0)
    for number in range(fold.rows):
        slot = find_slot(fold, row_at(fold.rows_at, number).producer_id)
        slot.row = number


@inlined
def has_room(fold: Record) -> bool:
    """Return whether another event certainly has room."""
    return bool(fold.rows < fold.row_room and fold.clocks < fold.clock_room)


@inlined
def append_data(
    fold: Record, producer_id: int, epoch: int, offset: int,
    last_offset: int, base_sequence: int, last_sequence: int, timestamp: int, transactional: bool, clock_ms: int,
) -> None:  # fmt: skip
    """Append a data batch; ``clock_ms`` as in ``EVENT_DTYPE``."""
    number = _note_clock(fold, clock_ms)
    slot = find_slot(fold, producer_id)
    if slot.row == FREE:
        slot.row = _add_row(fold, producer_id, epoch, offset, timestamp, base_sequence, False, transactional)
    row = row_at(fold.rows_at, slot.row)
    if row.epoch != epoch:
        row.epoch = epoch
        row.one_epoch = False
        row.has_data = False
    if row.last_is_marker:
        row.last_is_marker = False
        between = newest_since(fold, row.clock_since_ms)
        if row.timestamp >= 0 and between - fold.certain_silence_ms >= row.timestamp:
            row.coordinator_epoch = NONE
    _join_transaction(row, offset, transactional)
    if not row.has_data:
        row.has_data = True
        if row.first_data_offset == NONE:
            row.first_data_offset = offset
    row.last_sequence = last_sequence
    row.last_offset = last_offset
    row.offset_delta = last_offset - offset
    row.timestamp = timestamp
    row.clock_since_ms = number


@inlined
def _join_transaction(row: Record, offset: int, transactional: bool) -> None:
    if transactional:
        if row.txn_first_offset == NONE:
            row.txn_first_offset = offset
    elif row.txn_first_offset != NONE:
        if row.illegal_offset == NONE:
            row.illegal_offset = offset
    elif not row.closed and not row.has_data and row.illegal_if_open == NONE:
        # With data before, of the same epoch and outside any transaction, it has been noted already.
        row.illegal_if_open = offset


@inlined
def append_marker(
    fold: Record, producer_id: int, epoch: int, offset: int,
    base_sequence: int, coordinator_epoch: int, timestamp: int, transactional: bool, clock_ms: int,
) -> None:  # fmt: skip
    """Append a marker; ``clock_ms`` as in ``EVENT_DTYPE``."""
    number = _note_clock(fold, clock_ms)
    slot = find_slot(fold, producer_id)
    if slot.row == FREE:
        slot.row = _add_row(fold, producer_id, epoch, offset, timestamp, base_sequence, True, transactional)
    row = row_at(fold.rows_at, slot.row)
    if row.epoch != epoch:
        row.epoch = epoch
        row.one_epoch = False
        row.has_data = False
        row.last_sequence = NONE
        row.last_offset = NONE
        row.offset_delta = 0
    if not row.closed:
        row.closed = True
        row.coordinator_known = True
        row.first_marker_offset = offset
    row.txn_first_offset = NONE
    row.coordinator_epoch = coordinator_epoch
    row.timestamp = timestamp
    row.last_is_marker = True
    row.clock_since_ms = number


@inlined
def _add_row(
    fold: Record, producer_id: int, epoch: int, offset: int, timestamp: int, sequence: int, is_marker: bool,
    transactional: bool,
) -> int:  # fmt: skip
    """Add the row of a producer's first event; return its number."""
    number: int = fold.rows
    fold.rows += 1
    row = row_at(fold.rows_at, number)
    row.producer_id = producer_id
    row.epoch = epoch
    row.one_epoch = True
    row.has_data = False
    row.last_sequence = NONE
    row.last_offset = NONE
    row.offset_delta = 0
    row.coordinator_known = False
    row.coordinator_epoch = NONE
    row.last_is_marker = False
    row.closed = False
    row.txn_first_offset = NONE
    row.illegal_if_open = NONE
    row.illegal_offset = NONE
    row.first_offset = offset
    row.first_timestamp = timestamp
    row.first_sequence = sequence
    row.first_epoch = epoch
    row.first_is_marker = is_marker
    row.first_is_transactional = transactional
    row.first_clock_ms = fold.clock_ms
    row.first_marker_offset = NONE
    row.first_data_offset = NONE
    return number


@inlined
def _note_clock(fold: Record, clock_ms: int) -> int:
    """Count the event, and record its clock; return its number."""
    number: int = fold.events
    fold.events += 1
    push_clock(fold, number, clock_ms)
    return number


@inlined
def push_clock(fold: Record, number: int, clock_ms: int) -> None:
    """Record the clock of the event ``number``, if it has one."""
    if clock_ms < 0:
        return
    fold.clock_ms = max(fold.clock_ms, clock_ms)
    depth = fold.clocks
    while depth and _clock_at(fold.clocks_at, depth - 1).clock_ms <= clock_ms:
        depth -= 1
    top = _clock_at(fold.clocks_at, depth)
    top.event = number
    top.clock_ms = clock_ms
    fold.clocks = depth + 1


@inlined
def newest_since(fold: Record, number: int) -> int:
    """Return the newest clock of the events after ``number``, -1 if they have none."""
    low, high = 0, fold.clocks
    while low < high:
        middle = low + high >> 1
        if _clock_at(fold.clocks_at, middle).event > number:
            high = middle
        else:
            low = middle + 1
    return _clock_at(fold.clocks_at, low).clock_ms if low < fold.clocks else NONE


@compiled
def append_events(events_at: int, count: int, fold_at: int) -> int:
    """Append rows of ``EVENT_DTYPE`` until there is no more room; return how many."""
    fold = record_of_fold(fold_at, 0)
    for number in range(count):
        event = _event_at(events_at, number)
        if not has_room(fold):
            return number
        if event.is_marker:
            append_marker(
                fold, event.producer_id, event.producer_epoch, event.offset, event.base_sequence,
                event.coordinator_epoch, event.timestamp, event.is_transactional, event.clock_ms,
            )  # fmt: skip
        else:
            append_data(
                fold, event.producer_id, event.producer_epoch, event.offset, event.last_offset, event.base_sequence,
                event.last_sequence, event.timestamp, event.is_transactional, event.clock_ms,
            )  # fmt: skip
    return count


@compiled
def settle_clocks(fold_at: int, trailing_ms: int) -> None:
    """Replace event numbers in ``clock_since_ms`` by clocks; ``trailing_ms`` is the newest after the last event."""
    fold = record_of_fold(fold_at, 0)
    for number in range(fold.rows):
        row = row_at(fold.rows_at, number)
        row.clock_since_ms = max(newest_since(fold, row.clock_since_ms), trailing_ms)
