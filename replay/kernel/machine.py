"""Low-level operations that numba lacks: big-endian loads, the processor's CRC-32C, prefetching, and file reads.

Addresses are not checked here: callers check every position against the available bytes before they load from it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import llvmlite.binding  # type: ignore[import-untyped]
from llvmlite import ir
from numba import from_dtype, types
from numba.core import config
from numba.extending import intrinsic

if sys.byteorder != "little" or not hasattr(ctypes.CDLL(None), "preadv2"):
    raise ImportError("machine code is made for little-endian processors and a C library with preadv2")

if TYPE_CHECKING:
    import numpy as np

Record: TypeAlias = Any
"""A record of a structured array, as machine code sees it: its fields are attributes."""

Intrinsic: TypeAlias = Any
"""A function that only machine code can call."""

HAS_CRC32C: Final = bool(
    not config.CPU_NAME  # type: ignore[attr-defined]
    and llvmlite.binding.get_host_cpu_features().get("sse4.2", False)
)
"""Whether the processor has an instruction for CRC-32C that can be used here."""

RWF_NOWAIT: Final = 0x00000008
"""``preadv2``: give what is in the page cache, and do not wait for the disk."""

_LONG = ir.IntType(64)

pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
"""``pread(descriptor, address, length, position)``: how many bytes came, or -1."""

preadv2: Any = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.int64, types.int32, types.int64, types.int32)
)
"""``preadv2(descriptor, address of one iovec, 1, position, flags)``: how many bytes came, or -1."""

memcpy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
"""``memcpy(target, source, length)``."""


def _big_endian(bits: int) -> Intrinsic:
    """Return a function that loads a signed big-endian number of so many bits from ``address + position``."""

    def load(typing: Any, address: Any, position: Any) -> Any:  # noqa: ANN401, ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
            pointer = builder.inttoptr(builder.add(*arguments), ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            value = value if bits == 8 else builder.bswap(value)  # noqa: PLR2004 - a byte has no order
            return value if bits == 64 else builder.sext(value, _LONG)  # noqa: PLR2004

        return types.int64(types.int64, types.int64), generate

    return intrinsic(load)


load_8 = _big_endian(8)
load_16 = _big_endian(16)
load_32 = _big_endian(32)
load_64 = _big_endian(64)


def _store_big_endian(bits: int) -> Intrinsic:
    """Return a function that stores the low bits of a number, big-endian, at ``address + position``."""

    def store(typing: Any, address: Any, position: Any, value: Any) -> Any:  # noqa: ANN401, ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
            pointer = builder.inttoptr(builder.add(*arguments[:2]), ir.IntType(bits).as_pointer())
            value = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))  # noqa: PLR2004
            builder.store(builder.bswap(value), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return intrinsic(store)


store_16 = _store_big_endian(16)
store_32 = _store_big_endian(32)
store_64 = _store_big_endian(64)


def record_at(dtype: np.dtype[np.void]) -> Intrinsic:
    """Return a function that returns record ``number`` of an array of ``dtype`` at ``address``.

    In machine code arrays are reference-counted, with an atomic operation for each change: a batch would take ten times
    as long. Records are bare pointers; the caller keeps the arrays alive.
    """
    kind = from_dtype(dtype)

    def locate(typing: Any, address: Any, number: Any) -> Any:  # noqa: ANN401, ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
            position = builder.mul(arguments[1], ir.Constant(_LONG, dtype.itemsize))
            return builder.inttoptr(builder.add(arguments[0], position), context.get_value_type(kind))

        return kind(types.int64, types.int64), generate

    return intrinsic(locate)


def _prefetch(typing: Any, address: Any) -> Any:  # noqa: ANN401, ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        for_reading, in_all_caches, data = (flag(number) for number in (0, 3, 1))
        builder.call(instruction, [builder.inttoptr(arguments[0], pointer), for_reading, in_all_caches, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


prefetch: Intrinsic = intrinsic(_prefetch)
"""``prefetch(address)``: the processor fetches that cache line meanwhile; nothing happens if there is no memory."""


def _crc32(bits: int) -> Intrinsic:
    """Return a function that adds so many bits at an address to a CRC-32C register."""

    def step(typing: Any, register: Any, address: Any) -> Any:  # noqa: ANN401, ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
            width = ir.IntType(64 if bits == 64 else 32)  # noqa: PLR2004
            value = builder.load(builder.inttoptr(arguments[1], ir.IntType(bits).as_pointer()), align=1)
            name = f"llvm.x86.sse42.crc32.{width.width}.{bits}"
            instruction = builder.module.declare_intrinsic(name, (), ir.FunctionType(width, [width, ir.IntType(bits)]))
            register = arguments[0] if bits == 64 else builder.trunc(arguments[0], width)  # noqa: PLR2004
            result = builder.call(instruction, [register, value])
            return result if bits == 64 else builder.zext(result, _LONG)  # noqa: PLR2004

        return types.int64(types.int64, types.int64), generate

    return intrinsic(step)


crc32_8 = _crc32(8)
crc32_64 = _crc32(64)
