"""CRC-32C of very many record batches at once, by columns.

A CRC is linear: that of a batch is the exclusive or of what each byte of its header adds, carried on past the records,
and the checksum of the records alone. What a byte adds at its place is one table, and what a run of bytes does to a
checksum before it is another, so a generator that shares records between batches pays for the headers only.

Source: the combination of CRCs as zlib's ``crc32_combine`` describes it, for the polynomial of Castagnoli.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from resnap.storage.crc32c import crc32c

Checksums = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

POLYNOMIAL: Final = 0x82F63B78
"""The polynomial of Castagnoli, lowest bit first."""
_BYTE_VALUES: Final = 256
_BYTES_OF_A_CHECKSUM: Final = 4
_BLOCK_ROWS: Final = 8192


def checksums(rows: Bytes) -> Checksums:
    """Return the checksum of each row of ``rows``, an array of shape (batches, bytes)."""
    # Some thousands at a time: a column that does not fit into the processor's cache takes three times as long.
    blocks = [_checksums(rows[start : start + _BLOCK_ROWS]) for start in range(0, len(rows), _BLOCK_ROWS)]
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.uint32)


def _checksums(rows: Bytes) -> Checksums:
    count, width = rows.shape
    found = np.full(count, crc32c(bytes(width)), dtype=np.uint32)
    for place in range(width):
        column = np.ascontiguousarray(rows[:, place])
        table = _added_by_a_byte(width - 1 - place)
        # The upper bytes of most fields are the same in all batches.
        found ^= table[column[0]] if (column == column[0]).all() else table.take(column)
    return found


def followed_by(before: Checksums, length: int, after: int) -> Checksums:
    """Return the checksums of what ``before`` are of, followed by ``length`` bytes whose own checksum is ``after``."""
    carried = np.full(len(before), after, dtype=np.uint32)
    for number, table in enumerate(_carried_past(length)):
        carried ^= table[before >> np.uint32(8 * number) & np.uint32(0xFF)]
    return carried


@lru_cache(maxsize=64)
def zeros_checksum(length: int) -> int:
    """Return the checksum of ``length`` zeros: what the holes of a sparse file are read as."""
    nothing = np.zeros(1, dtype=np.uint32)  # of no bytes at all
    ones = np.uint32(0xFFFFFFFF)
    return int(_apply(_past_zeros(length), nothing ^ ones)[0] ^ ones)


@cache
def _added_by_a_byte(following: int) -> Checksums:
    """Return what a byte of each value adds to the checksum of a row in which ``following`` bytes come after it."""
    return _apply(_past_zeros(following), _past_a_byte(np.arange(_BYTE_VALUES, dtype=np.uint32)))


@lru_cache(maxsize=64)
def _carried_past(length: int) -> tuple[Checksums, ...]:
    """Return four tables, one for each byte of a checksum, of its value ``length`` bytes later."""
    operator = _past_zeros(length)
    values = np.arange(_BYTE_VALUES, dtype=np.uint32)
    return tuple(_apply(operator, values << np.uint32(8 * number)) for number in range(_BYTES_OF_A_CHECKSUM))


@lru_cache(maxsize=256)
def _past_zeros(length: int) -> Checksums:
    """Return the images of the 32 bits of a register after ``length`` zero bytes."""
    done = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = _past_a_byte(done)
    while length:
        if length & 1:
            done = _apply(power, done)
        power = _apply(power, power)
        length >>= 1
    return done


def _past_a_byte(registers: Checksums) -> Checksums:
    for _ in range(8):
        registers = np.where(registers & 1, registers >> 1 ^ np.uint32(POLYNOMIAL), registers >> 1)
    return registers


def _apply(operator: Checksums, registers: Checksums) -> Checksums:
    """Return the image of each register: the exclusive or of the images of its bits."""
    images = np.zeros(len(registers), dtype=np.uint32)
    for bit in range(32):
        images ^= np.where(registers >> np.uint32(bit) & 1, operator[bit], np.uint32(0))
    return images
