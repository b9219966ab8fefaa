"""Parses the records of a decompressed batch, compiled, and copies their keys and values side by side.

The rules are those of ``storage.log.record.read_client_records``, but without error messages: what does not fit gives
``ODD``, and goes to that module, which raises the error.

Source: ``DefaultRecord`` in Kafka's clients module.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import Final

import numpy as np

from resnap.replay.kernel.compiling import WHY_NOT, compiled, inlined, load_8, load_32, memcpy, record_at
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    HEADER,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    MIN_BATCH_LENGTH,
)

if WHY_NOT is None:
    from resnap.replay.kernel.checksum import crc32c
else:
    from resnap.replay.kernel.interpreted import crc32c

ODD: Final = -1
CUT_SHORT: Final = -1
"""The position after a number that is not one."""
HEADER_DTYPE: Final = np.dtype([("key_at", "<i8"), ("key_length", "<i8"), ("value_at", "<i8"), ("value_length", "<i8")])
"""A header of a record: addresses and bytes; a null has the length -1."""
RECORD_DTYPE: Final = np.dtype(
    [("timestamp_delta", "<i8"), ("offset_delta", "<i8"), *HEADER_DTYPE.descr, ("headers", "<i8")]
)
"""A record, and how many headers it has."""
BATCH_DTYPE: Final = np.dtype(
    [("at", "<i8"), ("size", "<i8"), ("crc", "<i8"), ("records_at", "<i8"), ("records_size", "<i8"), ("count", "<i8")]
)
"""A batch: its address and bytes, its checksum, those of its decompressed records, and how many are to be read."""
_record_at = record_at(RECORD_DTYPE)
_batch_at = record_at(BATCH_DTYPE)
_RECORD_BYTES: Final = RECORD_DTYPE.itemsize
_HEADER_BYTES: Final = HEADER_DTYPE.itemsize
_BATCH_HEADER: Final = HEADER.size
_header_at = record_at(HEADER_DTYPE)


@compiled
def read_records(batch: int, size: int, count: int, records: int, headers: int, room: int) -> int:
    """Fill ``records`` with the records that fill ``size`` bytes at ``batch``; return how many headers they have.

    So many of these as there is room for go to ``headers``.
    """
    position, found = 0, 0
    for number in range(count):
        length, start = varint(batch, position, size, 32)
        if start == CUT_SHORT or length < 1 or length > size - start:
            return ODD
        end = start + length
        timestamp_delta, after = varint(batch, start + 1, end, 64)
        offset_delta, after = varint(batch, after, end, 32)
        key_length, key, after = field_bounds(batch, after, end, -1)
        value_length, value, after = field_bounds(batch, after, end, -1)
        header_count, after = varint(batch, after, end, 32)
        if after == CUT_SHORT or header_count < 0 or header_count > end - after:
            return ODD
        for header in range(found, found + header_count):
            after = _read_header(batch, after, end, headers, header, room)
        if after != end:
            return ODD
        record = _record_at(records, number)
        record.timestamp_delta, record.offset_delta, record.headers = timestamp_delta, offset_delta, header_count
        record.key_at, record.key_length = batch + key, key_length
        record.value_at, record.value_length = batch + value, value_length
        position = end
        found += header_count
    return found if position == size else ODD


@compiled
def read_batches(batches: int, count: int, records: int, headers: int, room: int) -> int:
    """Fill ``records`` with those of all ``batches``, as ``read_records`` does for one."""
    found = 0
    for number in range(count):
        batch = _batch_at(batches, number)
        if batch.count == 0:
            continue
        read = read_records(batch.records_at, batch.records_size, batch.count, records, headers, room - found)
        if read < 0:
            return ODD
        records += batch.count * _RECORD_BYTES
        headers += read * _HEADER_BYTES
        found += read
    return found


@compiled
def are_intact(batches: int, count: int) -> bool:
    """Return whether all ``batches`` have the checksums that they carry."""
    for number in range(count):
        batch = _batch_at(batches, number)
        if crc32c(batch.at + ATTRIBUTES_POSITION, batch.size - ATTRIBUTES_POSITION, 0) != batch.crc:
            return False
    return True


@inlined
def _read_header(batch: int, position: int, end: int, headers: int, number: int, room: int) -> int:
    """Fill header ``number``, if there is room; return the position after it."""
    key_length, key, after = field_bounds(batch, position, end, 0)
    value_length, value, after = field_bounds(batch, after, end, -1)
    if number < room and after != CUT_SHORT:
        header = _header_at(headers, number)
        header.key_at, header.key_length = batch + key, key_length
        header.value_at, header.value_length = batch + value, value_length
    return after


@inlined
def field_bounds(batch: int, position: int, end: int, least: int) -> tuple[int, int, int]:
    """Return the length of a field, where it starts, and where it ends."""
    length, start = varint(batch, position, end, 32)
    if start == CUT_SHORT or length < least or length > end - start:
        return 0, 0, CUT_SHORT
    return length, start, start + max(length, 0)


@compiled
def gather(fields: int, lengths: int, count: int, target: int) -> int:
    """Copy ``count`` fields, whose addresses and lengths are at the two given ones, to ``target``; return the bytes."""
    copied = 0
    for number in range(count):
        length = _number_at(lengths, number).value
        if length > 0:
            memcpy(target + copied, _number_at(fields, number).value, length)
            copied += length
    return copied


def find_batches(block: memoryview, room: int) -> tuple[list[int], int]:
    """Return where batches start in ``block``, and where the last of them ends.

    It stops before a header that the block cuts, before a batch that ends above ``room``, and before what is no batch.
    """
    content, starts = np.frombuffer(block, dtype=np.uint8), np.empty(len(block) // _BATCH_HEADER + 1, dtype=np.int64)
    found = _find_batches(content.ctypes.data, len(content), room, starts.ctypes.data)
    *begins, end = starts[: found + 1].tolist()
    return begins, end


@compiled
def _find_batches(block: int, size: int, room: int, starts: int) -> int:
    position, found = 0, 0
    while size - position >= _BATCH_HEADER and load_8(block, position + MAGIC_POSITION) == MAGIC_V2:
        length = load_32(block, position + LENGTH_POSITION)
        if length < MIN_BATCH_LENGTH or position + LOG_OVERHEAD + length > room:
            break
        _number_at(starts, found).value = position
        found += 1
        position += LOG_OVERHEAD + length
    _number_at(starts, found).value = position
    return found


_number_at = record_at(np.dtype([("value", "<i8")]))


@inlined
def varint(batch: int, position: int, end: int, bits: int) -> tuple[int, int]:
    """Return the number at ``position`` and the position after it (``storage.messages.wire``)."""
    value = 0
    if position == CUT_SHORT:
        return 0, CUT_SHORT
    for shift in range(0, bits, 7):
        if position >= end:
            return 0, CUT_SHORT
        byte = load_8(batch, position) & 0xFF
        position += 1
        room = bits - shift
        if room < 7 and (byte & 0x7F) >> room:  # noqa: PLR2004 - seven bits to a byte
            return 0, CUT_SHORT
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the eighth bit says that more follow
            half = value >> 1 & 0x7FFFFFFFFFFFFFFF
            return half ^ -(value & 1), position
    return 0, CUT_SHORT
