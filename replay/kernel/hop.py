"""The scan, compiled: hops from header to header over a block, and from block to block over a file.

It does what ``header_scan``, ``producer_fold`` and ``fold.append_events`` do together, and stops before the first
unusual batch: the plain path accepts that one, or raises an error.

The mean size of recent batches (``SCAN_DTYPE.mean_bytes``) decides how a file is read: header by header if batches are
large; if they are smaller, header by header as long as these are in the page cache (``RWF_NOWAIT``), and else in
blocks, which also make the system read ahead. The file is never memory-mapped: a broker that truncates it would kill
this process.

Nothing of a batch is recorded before all its checks have passed, so that an unusual one can be left to the plain path
as if it had not been read. Control batches are parsed as ``storage.log.record`` does, but without error messages.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from resnap.replay.kernel.checksum import crc32c
from resnap.replay.kernel.compiling import compiled, inlined
from resnap.replay.kernel.fold import (
    MANY_SLOTS,
    append_data,
    append_marker,
    has_room,
    prefetch_row,
    prefetch_slot,
    record_of_fold,
)
from resnap.replay.kernel.machine import (
    RWF_NOWAIT,
    Record,
    load_8,
    load_16,
    load_32,
    load_64,
    pread,
    preadv2,
    record_at,
)
from resnap.replay.kernel.records import CUT_SHORT, field_bounds, varint
from resnap.storage.log.record import ABORT, COMMIT, KEY, MARKER_VALUE, RECORDS_COUNT_POSITION
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER,
    LENGTH_POSITION,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_SEQUENCE,
    TRANSACTIONAL,
)

SCAN_DTYPE: Final = np.dtype(
    [
        # an iovec, for the system
        ("iovec_base", "i8"), ("iovec_length", "i8"),
        # the stretch: bytes, offsets, and the offset before which to stop
        ("start", "i8"), ("end", "i8"), ("next_base_offset", "i8"), ("stop_offset", "i8"), ("verify_crc", "i8"),
        # how to read it
        ("descriptor", "i8"), ("cached_from", "i8"), ("header_from", "i8"), ("mean_bytes", "i8"),
        # what has been seen (``ScanFacts``)
        ("position", "i8"), ("end_offset", "i8"), ("batches", "i8"), ("bytes_read", "i8"), ("lacks_records", "i8"),
        ("max_timestamp_ms", "i8"), ("server_clock_ms", "i8"), ("oldest_server_clock_ms", "i8"),
        ("clock_since_event_ms", "i8"), ("leader_epoch", "i8"), ("leader_epochs", "i8"),
        # where the leader epochs are noted, and how many fit in; who sets this keeps them alive
        ("leader_epochs_at", "i8"), ("leader_epoch_room", "i8"),
    ]
)  # fmt: skip
"""One record, which begins with what ``preadv2`` takes. ``cached_from`` and ``header_from`` are mean sizes of batches
from which headers are read one by one, as far as they are cached and in any case. ``leader_epoch`` is the newest,
``leader_epochs`` how many were noted."""

LEADER_EPOCH_DTYPE: Final = np.dtype([("epoch", "i8"), ("first_offset", "i8")])
scan_at = record_at(SCAN_DTYPE)
leader_epoch_at = record_at(LEADER_EPOCH_DTYPE)

TAKEN: Final = -1
"""There is no objection."""
END: Final = 0
"""The end of the stretch."""
MORE: Final = 1
"""The batch at ``position`` is not in the block, as far as it must be seen."""
ODD: Final = 2
"""The batch at ``position`` is for the plain path."""
FULL: Final = 3
"""There is no room for another event or leader epoch."""
STOPPED: Final = 4
"""The batch at ``position`` begins at the stop offset or above."""
PAUSED: Final = 5
"""Enough has been done without Python, which may want to handle a signal."""
FAILED: Final = 6
"""The system refused to read."""
LEGACY: Final = 7
"""At ``position`` is a message of magic 0 or 1, or zeros."""

NEVER: Final = np.iinfo(np.int64).max
"""A size, offset or clock that none reaches."""


HEADER_BYTES: Final = HEADER.size
COST_AT_ONCE: Final = 4096
"""In reads of a header, of which a block counts as several."""
_COST_OF_BLOCK: Final = 16
_FIRST_BYTES: Final = 4096
"""The first read of a stretch, which says how large batches are: more would have the system read ahead in vain."""
# A record of 16 bytes without a timestamp delta: a key of 4, version 0 and type 0 or 1, a value of 6, version 0.
_MARKER_BYTES: Final = HEADER_BYTES + 17
"""Size of a control batch as every coordinator writes it."""
_HEADER_READ_BYTES: Final = _MARKER_BYTES + HEADER_BYTES
"""Bytes read for a header: enough for a whole marker and the header after it, without another call."""
IN_BLOCKS: Final = 0
IF_CACHED: Final = 1
BY_HEADER: Final = 2
MARKER: Final = 0
"""The kind of a control batch that ends a transaction; else its kind is ``TAKEN`` or ``ODD``."""
BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_ID_POSITION: Final = 43
_AHEAD: Final = 8
"""Batches by which the slots of producers are fetched in advance; the rows they name by half as many."""
_KEY_BYTES: Final = KEY.size
_VALUE_BYTES: Final = MARKER_VALUE.size
_UNSIGNED: Final = 0xFFFFFFFF
_LARGEST: Final = 2**63 - 1
_SMALLEST: Final = -(2**63)
_USUAL_BEGINNING: Final = 0x2000000008000000
_USUAL_TYPE_POSITION: Final = HEADER_BYTES + 8
_ALL_BUT_TYPE: Final = 0x00FFFFFF
_USUAL_VALUE: Final = 0x000C0000
_USUAL_EPOCH_POSITION: Final = HEADER_BYTES + 12


class BatchHeader(NamedTuple):
    """``record_batch.HEADER`` without the checksum and the base timestamp, which only markers need."""

    base_offset: int
    size: int
    """Bytes of the whole batch."""
    leader_epoch: int
    magic: int
    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int


@inlined
def header_of(batch: int) -> BatchHeader:
    """Return the header of the batch at the address ``batch``."""
    return BatchHeader(
        load_64(batch, 0),
        LOG_OVERHEAD + load_32(batch, LENGTH_POSITION),
        load_32(batch, 12),
        load_8(batch, MAGIC_POSITION),
        load_16(batch, ATTRIBUTES_POSITION),
        load_32(batch, 23),
        load_64(batch, MAX_TIMESTAMP_POSITION),
        load_64(batch, PRODUCER_ID_POSITION),
        load_16(batch, 51),
        load_32(batch, 53),
        load_32(batch, 57),
    )


@inlined
def check(header: BatchHeader, scan: Record, fold: Record) -> int:
    """Return the reason why the batch cannot be accepted here, if there is one."""
    if header.magic == 0 or header.magic == 1:  # noqa: PLR1714 - machine code has no tuples to look in
        return LEGACY
    has_fit_length = HEADER_BYTES <= header.size <= scan.end - scan.position
    # Compared without a sum: one that overflows is undefined in machine code.
    has_fit_offsets = (
        scan.end_offset <= header.base_offset < scan.next_base_offset - header.last_offset_delta
        and header.last_offset_delta >= 0
    )
    if header.magic != MAGIC_V2 or not has_fit_length or not has_fit_offsets:
        return ODD
    if header.base_offset >= scan.stop_offset:
        return STOPPED
    return TAKEN if scan.leader_epochs < scan.leader_epoch_room and has_room(fold) else FULL


@inlined
def take_control(batch: int, header: BatchHeader, scan: Record, fold: Record) -> int:
    """Fold the control batch at the address ``batch``, unless it is unusual."""
    kind, coordinator_epoch, timestamp = read_marker(batch, header.size, header.producer_id >= 0)
    if kind == MARKER:
        append_marker(
            fold, header.producer_id, header.producer_epoch, header.base_offset,
            header.base_sequence, coordinator_epoch, timestamp, header.attributes & TRANSACTIONAL != 0,
            max(scan.clock_since_event_ms, timestamp),
        )  # fmt: skip
        _note_clock(scan, timestamp)
        scan.clock_since_event_ms = -1
    elif header.attributes & LOG_APPEND_TIME:
        _note_clock(scan, header.max_timestamp)
    return ODD if kind == ODD else TAKEN


@inlined
def take_data(header: BatchHeader, scan: Record, fold: Record) -> int:
    """Fold a data batch, unless it is unusual."""
    if header.producer_id >= 0 and header.base_sequence < 0:
        return ODD
    if header.attributes & LOG_APPEND_TIME:
        _note_clock(scan, header.max_timestamp)
    if header.producer_id >= 0:
        last_sequence = header.base_sequence + header.last_offset_delta
        if last_sequence > MAX_SEQUENCE:
            last_sequence -= MAX_SEQUENCE + 1
        append_data(
            fold, header.producer_id, header.producer_epoch, header.base_offset,
            header.base_offset + header.last_offset_delta, header.base_sequence, last_sequence, header.max_timestamp,
            header.attributes & TRANSACTIONAL != 0, scan.clock_since_event_ms,
        )  # fmt: skip
        scan.clock_since_event_ms = -1
    return TAKEN


@inlined
def _note_clock(scan: Record, clock_ms: int) -> None:
    if clock_ms >= 0:
        scan.server_clock_ms = clock_ms
        scan.oldest_server_clock_ms = min(scan.oldest_server_clock_ms, clock_ms)
        scan.clock_since_event_ms = max(scan.clock_since_event_ms, clock_ms)


@inlined
def note(header: BatchHeader, scan: Record) -> None:
    """Record the batch's facts of the segment, and advance past it."""
    # What precedes the first batch of a part of a segment is in the previous part.
    has_gap = header.base_offset > scan.end_offset and (scan.batches > 0 or scan.start == 0)
    lacks_records = header.records_count != header.last_offset_delta + 1
    if has_gap or lacks_records or header.attributes & DELETE_HORIZON:
        scan.lacks_records = 1
    scan.max_timestamp_ms = max(scan.max_timestamp_ms, header.max_timestamp)
    if header.leader_epoch > scan.leader_epoch:
        scan.leader_epoch = header.leader_epoch
        noted = leader_epoch_at(scan.leader_epochs_at, scan.leader_epochs)
        noted.epoch = header.leader_epoch
        noted.first_offset = header.base_offset
        scan.leader_epochs += 1
    scan.batches += 1
    scan.end_offset = header.base_offset + header.last_offset_delta + 1
    scan.position += header.size


@inlined
def check_crc(batch: int, size: int, scan: Record, address: int, room: int, here: int) -> int:
    """Compare the checksum of a batch with ``here`` bytes in memory; the rest is read over the memory before it."""
    if size > here and scan.descriptor < 0:
        return MORE
    carried = load_32(batch, CRC_POSITION) & _UNSIGNED
    passed = min(here, size)
    checksum = crc32c(batch + ATTRIBUTES_POSITION, passed - ATTRIBUTES_POSITION, 0)
    while passed < size:
        got = pread(scan.descriptor, address, min(room, size - passed), scan.position + passed)
        if got <= 0:
            return ODD
        scan.bytes_read += got
        checksum = crc32c(address, got, checksum)
        passed += got
    return TAKEN if checksum == carried else ODD


@inlined
def read_marker(batch: int, size: int, has_producer: bool) -> tuple[int, int, int]:
    """Return (kind, coordinator epoch, timestamp) of the control batch of ``size`` bytes at the address ``batch``.

    The kind is ``MARKER``, ``TAKEN`` if there is nothing to fold, or ``ODD``.
    """
    attributes = load_16(batch, ATTRIBUTES_POSITION)
    count = load_32(batch, RECORDS_COUNT_POSITION)
    carried = load_32(batch, CRC_POSITION) & _UNSIGNED
    if carried != crc32c(batch + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION, 0):
        return ODD, 0, 0
    if attributes & COMPRESSION_MASK or count < 0 or (count == 0 and size > HEADER_BYTES):
        return ODD, 0, 0
    if count == 0:
        return TAKEN, 0, 0
    if count == 1 and has_producer and _is_usual_marker(batch, size):
        stamp = MAX_TIMESTAMP_POSITION if attributes & LOG_APPEND_TIME else BASE_TIMESTAMP_POSITION
        return MARKER, load_32(batch, _USUAL_EPOCH_POSITION), load_64(batch, stamp)
    return _read_record(batch, size, attributes, count, has_producer)


@inlined
def _is_usual_marker(batch: int, size: int) -> bool:
    """Return whether the record is, byte for byte, one that brokers write today (``write_marker_batch``)."""
    return (
        size == _MARKER_BYTES
        and load_64(batch, HEADER_BYTES) == _USUAL_BEGINNING
        and 0 <= load_8(batch, _USUAL_TYPE_POSITION) <= 1
        and load_32(batch, _USUAL_TYPE_POSITION) & _ALL_BUT_TYPE == _USUAL_VALUE
        and load_8(batch, _MARKER_BYTES - 1) == 0
    )


@inlined
def _read_record(batch: int, size: int, attributes: int, count: int, has_producer: bool) -> tuple[int, int, int]:
    length, start = varint(batch, HEADER_BYTES, size, 32)
    end = start + length
    if start == CUT_SHORT or length < 1 or end > size or (count == 1 and end != size):
        return ODD, 0, 0
    delta, position = varint(batch, start + 1, end, 64)
    _, position = varint(batch, position, end, 32)
    _, key, key_end = field_bounds(batch, position, end, -1)
    _, value, value_end = field_bounds(batch, key_end, end, -1)
    headers, position = varint(batch, value_end, end, 32)
    if headers != 0 or position != end or key_end - key < _KEY_BYTES or load_16(batch, key) < 0:
        return ODD, 0, 0
    kind = load_16(batch, key + 2)
    is_marker = kind == ABORT or kind == COMMIT  # noqa: PLR1714 - machine code has no tuples to look in
    if is_marker and (value_end - value < _VALUE_BYTES or load_16(batch, value) < 0):
        return ODD, 0, 0
    base = load_64(batch, BASE_TIMESTAMP_POSITION)
    if attributes & LOG_APPEND_TIME:
        base, delta = load_64(batch, MAX_TIMESTAMP_POSITION), 0
    # Compared without a sum: one that overflows is undefined in machine code.
    if (delta > 0 and base > _LARGEST - delta) or (delta < 0 and base < _SMALLEST - delta):
        return ODD, 0, 0
    if not is_marker:
        return (ODD if has_producer else TAKEN), 0, 0
    return (MARKER if has_producer else TAKEN), load_32(batch, value + 2), base + delta


@compiled
def fold_block(address: int, length: int, at: int, stretch_at: int, fold_at: int) -> int:
    """Fold the batches in the block at ``address``, whose file position is ``at``; return why it stopped."""
    return _hop(address, 0, length, at, scan_at(stretch_at, 0), record_of_fold(fold_at, 0))


@compiled
def fold_file(address: int, room: int, stretch_at: int, fold_at: int) -> int:
    """Fold the batches of the file ``descriptor``, read to ``address``; return why it stopped."""
    state, fold = scan_at(stretch_at, 0), record_of_fold(fold_at, 0)
    way = _way(state)
    cost = 0
    while state.position < state.end:
        if cost > COST_AT_ONCE:
            return PAUSED
        position, batches = state.position, state.batches
        length = min(_length(state, way, room), state.end - position)
        if way == IF_CACHED:
            state.iovec_base, state.iovec_length = address, length
            got = preadv2(state.descriptor, stretch_at, 1, position, RWF_NOWAIT)
            if got < length:
                way = IN_BLOCKS
                continue
        else:
            got = pread(state.descriptor, address, length, position)
            if got < 0:
                return FAILED
        cost += _COST_OF_BLOCK if way == IN_BLOCKS else 1
        state.bytes_read += got
        reason = _hop(address, room, got, position, state, fold)
        passed = state.batches - batches
        if reason != MORE:
            return reason
        if not passed:
            return ODD
        _note_size(state, (state.position - position) // passed, way)
        way = _way(state)
    return END


@inlined
def _way(scan: Record) -> int:
    if scan.verify_crc or scan.mean_bytes < scan.cached_from:
        return IN_BLOCKS
    return IF_CACHED if scan.mean_bytes < scan.header_from else BY_HEADER


@inlined
def _length(scan: Record, way: int, room: int) -> int:
    if way != IN_BLOCKS:
        return min(room, _HEADER_READ_BYTES)
    return room if scan.mean_bytes else min(room, _FIRST_BYTES)


@inlined
def _note_size(scan: Record, mean_bytes: int, way: int) -> None:
    """Update the mean batch size by a block's mean, or by a single batch with a weight of one in eight."""
    scan.mean_bytes = mean_bytes if way == IN_BLOCKS else scan.mean_bytes + (mean_bytes - scan.mean_bytes) // 8


@inlined
def _hop(address: int, room: int, filled: int, at: int, scan: Record, fold: Record) -> int:
    """Fold the batches in the ``filled`` bytes at ``address``; more may be read there, up to ``room`` bytes."""
    position = scan.position - at
    near, far = _ahead(address, position if fold.slot_room >= MANY_SLOTS else filled, filled)
    while filled - position >= HEADER_BYTES:
        near, far = _prefetch(address, near, far, filled, fold)
        batch = address + position
        header = header_of(batch)
        reason = check(header, scan, fold)
        if reason != TAKEN:
            return reason
        is_whole = position + header.size <= filled
        if header.attributes & CONTROL:
            if not is_whole:
                if _read_again(scan, address, room, header.size) < header.size:
                    return MORE
                at, position, filled, batch = scan.position, 0, header.size, address
            reason = take_control(batch, header, scan, fold)
        else:
            if scan.verify_crc:
                reason = check_crc(batch, header.size, scan, address, room, filled - position)
                filled = filled if is_whole else 0
            if reason == TAKEN:
                reason = take_data(header, scan, fold)
        if reason != TAKEN:
            return reason
        note(header, scan)
        position += header.size
    return MORE


@inlined
def _prefetch(address: int, near: int, far: int, filled: int, fold: Record) -> tuple[int, int]:
    """Fetch the slot of the producer at ``far``, and the row of that at ``near``; return where the next ones are."""
    if filled - far >= HEADER_BYTES:
        prefetch_slot(fold, load_64(address, far + PRODUCER_ID_POSITION))
        prefetch_row(fold, load_64(address, near + PRODUCER_ID_POSITION))
    return _beyond(address, near, filled), _beyond(address, far, filled)


@inlined
def _ahead(address: int, position: int, filled: int) -> tuple[int, int]:
    """Return where the batches begin that are half of ``_AHEAD``, and all of it, beyond the one at ``position``."""
    near = far = position
    for number in range(_AHEAD):
        far = _beyond(address, far, filled)
        near = far if number < _AHEAD // 2 else near
    return near, far


@inlined
def _beyond(address: int, position: int, filled: int) -> int:
    """Return where the batch after the one at ``position`` seems to begin, or ``filled``: nothing was checked yet."""
    if filled - position < HEADER_BYTES:
        return filled
    size = LOG_OVERHEAD + load_32(address, position + LENGTH_POSITION)
    return position + size if HEADER_BYTES <= size < filled - position else filled


@inlined
def _read_again(scan: Record, address: int, room: int, size: int) -> int:
    """Read ``size`` bytes at the current position; return how many were read, none if that fails."""
    if scan.descriptor < 0 or size > room:
        return 0
    got: int = pread(scan.descriptor, address, size, scan.position)
    scan.bytes_read += max(got, 0)
    return got
