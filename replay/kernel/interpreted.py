"""Pure-Python versions of the functions in ``machine``, for systems on which numba cannot compile."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from resnap.storage import crc32c as checksums

if TYPE_CHECKING:
    from collections.abc import Callable


def record_at(dtype: np.dtype[np.void]) -> Any:  # noqa: ANN401 - as in ``machine``
    """Return a function that returns record ``number`` of an array of ``dtype`` at ``address``."""
    kind: Any = np.ctypeslib.as_ctypes_type(dtype)  # type: ignore[arg-type] # its stubs know no structures

    def locate(address: int, number: int) -> Any:  # noqa: ANN401 - one class for each dtype
        return kind.from_address(int(address + number * dtype.itemsize))

    return locate


def _store_big_endian(size: int) -> Callable[[int, int, int], None]:
    """Return a function that stores a number of ``size`` bytes, big-endian, at ``address + position``."""

    def store(address: int, position: int, value: int) -> None:
        ctypes.memmove(address + position, value.to_bytes(size, "big", signed=True), size)

    return store


def load_8(address: int, position: int) -> int:
    """Return the signed byte at ``address + position``."""
    return ctypes.c_int8.from_address(address + position).value


def load_32(address: int, position: int) -> int:
    """Return the signed big-endian number of 4 bytes at ``address + position``."""
    return int.from_bytes(ctypes.string_at(address + position, 4), "big", signed=True)


def crc32c(address: int, length: int, checksum: int) -> int:
    """Return the checksum of ``length`` bytes at ``address``, continued from ``checksum``."""
    return checksums.crc32c(ctypes.string_at(address, length), checksum)


def prefetch(address: int) -> None:
    """Do nothing: the interpreter takes longer than the memory."""


memcpy: Any = ctypes.memmove
store_16: Any = _store_big_endian(2)
store_32: Any = _store_big_endian(4)
store_64: Any = _store_big_endian(8)
