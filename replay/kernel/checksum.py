"""CRC-32C, compiled: by the processor's instruction on three streams at a time, or by a table.

The instruction takes eight bytes per cycle but has a latency of three cycles, so long data is cut into three streams
whose registers advance in parallel. Registers can be joined because the checksum is linear: the checksum of data
followed by more data is its register advanced through as many zero bytes, and a table gives the effect of a kilobyte of
zeros on each byte of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from resnap.replay.kernel.compiling import inlined
from resnap.replay.kernel.machine import HAS_CRC32C, crc32_8, crc32_64, load_8

IntTable = npt.NDArray[np.int64]

STREAM_BYTES: Final = 1024
_POLYNOMIAL: Final = 0x82F63B78
_ALL_ONES: Final = 0xFFFFFFFF


def _byte_table() -> IntTable:
    """Return the register after its low byte was shifted out, by that byte."""
    table = np.arange(256, dtype=np.int64)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1)
    return table


BYTE_TABLE: Final = _byte_table()


def _zeros_table(length: int) -> IntTable:
    """Return the effect of ``length`` zero bytes on a register, by the place and value of each of its four bytes."""
    registers: IntTable = np.arange(256, dtype=np.int64)[None, :] << np.array([0, 8, 16, 24])[:, None]
    for _ in range(length):
        registers = registers >> 8 ^ BYTE_TABLE[registers & 0xFF]
    return registers


ZEROS_TABLE: Final = _zeros_table(STREAM_BYTES)


@inlined
def crc32c(address: int, length: int, checksum: int) -> int:
    """Return the checksum of ``length`` bytes at ``address``, continued from ``checksum``."""
    register = checksum ^ _ALL_ONES
    register = by_instruction(address, length, register) if HAS_CRC32C else by_table(address, length, register)
    return register ^ _ALL_ONES


@inlined
def by_instruction(address: int, length: int, register: int) -> int:
    """Return ``register`` updated with ``length`` bytes at ``address``, by the processor's instruction."""
    end = address + length
    while end - address >= 3 * STREAM_BYTES:
        second, third = 0, 0
        stop = address + STREAM_BYTES
        while address < stop:
            register = crc32_64(register, address)
            second = crc32_64(second, address + STREAM_BYTES)
            third = crc32_64(third, address + 2 * STREAM_BYTES)
            address += 8
        register = _through_zeros(register) ^ second
        register = _through_zeros(register) ^ third
        address += 2 * STREAM_BYTES
    while end - address >= 8:  # noqa: PLR2004 - the instruction's width in bytes
        register = crc32_64(register, address)
        address += 8
    while address < end:
        register = crc32_8(register, address)
        address += 1
    return register


@inlined
def _through_zeros(register: int) -> int:
    joined: int = (
        ZEROS_TABLE[0, register & 0xFF]
        ^ ZEROS_TABLE[1, register >> 8 & 0xFF]
        ^ ZEROS_TABLE[2, register >> 16 & 0xFF]
        ^ ZEROS_TABLE[3, register >> 24 & 0xFF]
    )
    return joined


@inlined
def by_table(address: int, length: int, register: int) -> int:
    """Return ``register`` updated with ``length`` bytes at ``address``."""
    for position in range(length):
        register = register >> 8 ^ BYTE_TABLE[(register ^ load_8(address, position)) & 0xFF]
    return register
