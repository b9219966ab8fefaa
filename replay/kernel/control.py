"""Parses control batches, compiled: as ``storage.log.record`` does, but without error messages.

An unusual marker gives ``None`` here, and goes to that module, which accepts it or raises an error.
"""

from __future__ import annotations

from typing import Final

from resnap.replay.kernel.checksum import crc32c
from resnap.replay.kernel.compiling import inlined
from resnap.replay.kernel.machine import load_8, load_16, load_32, load_64
from resnap.replay.kernel.records import CUT_SHORT, varint
from resnap.storage.log.record import ABORT, COMMIT, KEY, MARKER_VALUE, RECORDS_COUNT_POSITION
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, COMPRESSION_MASK, CRC_POSITION, HEADER, LOG_APPEND_TIME

ODD: Final = 0
NO_MARKER: Final = 1
MARKER: Final = 2

BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
_HEADER_BYTES: Final = HEADER.size
_KEY_BYTES: Final = KEY.size
_VALUE_BYTES: Final = MARKER_VALUE.size
_UNSIGNED: Final = 0xFFFFFFFF
_LARGEST: Final = 2**63 - 1
_SMALLEST: Final = -(2**63)
# A record of 16 bytes without a timestamp delta: a key of 4, version 0 and type 0 or 1, a value of 6, version 0.
_USUAL_SIZE: Final = HEADER.size + 17
_USUAL_BEGINNING: Final = 0x2000000008000000
_USUAL_TYPE_POSITION: Final = HEADER.size + 8
_ALL_BUT_TYPE: Final = 0x00FFFFFF
_USUAL_VALUE: Final = 0x000C0000
_USUAL_EPOCH_POSITION: Final = HEADER.size + 12


@inlined
def read_marker(batch: int, size: int, has_producer: bool) -> tuple[int, int, int]:
    """Return (kind, coordinator epoch, timestamp) of the control batch of ``size`` bytes at the address ``batch``."""
    attributes = load_16(batch, ATTRIBUTES_POSITION)
    count = load_32(batch, RECORDS_COUNT_POSITION)
    carried = load_32(batch, CRC_POSITION) & _UNSIGNED
    if carried != crc32c(batch + ATTRIBUTES_POSITION, size - ATTRIBUTES_POSITION, 0):
        return ODD, 0, 0
    if attributes & COMPRESSION_MASK or count < 0 or (count == 0 and size > _HEADER_BYTES):
        return ODD, 0, 0
    if count == 0:
        return NO_MARKER, 0, 0
    if count == 1 and has_producer and _is_usual_marker(batch, size):
        stamp = MAX_TIMESTAMP_POSITION if attributes & LOG_APPEND_TIME else BASE_TIMESTAMP_POSITION
        return MARKER, load_32(batch, _USUAL_EPOCH_POSITION), load_64(batch, stamp)
    return _read_record(batch, size, attributes, count, has_producer)


@inlined
def _is_usual_marker(batch: int, size: int) -> bool:
    """Return whether the record is, byte for byte, one that brokers write today (``write_marker_batch``)."""
    return (
        size == _USUAL_SIZE
        and load_64(batch, _HEADER_BYTES) == _USUAL_BEGINNING
        and 0 <= load_8(batch, _USUAL_TYPE_POSITION) <= 1
        and load_32(batch, _USUAL_TYPE_POSITION) & _ALL_BUT_TYPE == _USUAL_VALUE
        and load_8(batch, _USUAL_SIZE - 1) == 0
    )


@inlined
def _read_record(batch: int, size: int, attributes: int, count: int, has_producer: bool) -> tuple[int, int, int]:
    length, start = varint(batch, _HEADER_BYTES, size, 32)
    end = start + length
    if start == CUT_SHORT or length < 1 or end > size or (count == 1 and end != size):
        return ODD, 0, 0
    delta, position = varint(batch, start + 1, end, 64)
    _, position = varint(batch, position, end, 32)
    key, key_end = _field(batch, position, end)
    value, value_end = _field(batch, key_end, end)
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
        return (ODD if has_producer else NO_MARKER), 0, 0
    return (MARKER if has_producer else NO_MARKER), load_32(batch, value + 2), base + delta


@inlined
def _field(batch: int, position: int, end: int) -> tuple[int, int]:
    """Return the start and the end of a key or value; the same position if it is null."""
    length, start = varint(batch, position, end, 32)
    if start == CUT_SHORT or length < -1 or length > end - start:
        return 0, CUT_SHORT
    return start, start + max(length, 0)
