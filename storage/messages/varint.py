"""Variable-length integers: base 128, least significant group first; zigzag in records of magic 2, else unsigned.

Source: ``ByteUtils.readVarint``, ``readVarlong`` and ``readUnsignedVarint`` in Kafka's clients module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError

if TYPE_CHECKING:
    from resnap.storage.crc32c import Buffer

_MORE_FOLLOW: Final = 0x80
"""The bit of a byte that says so."""


def read_varint(buffer: Buffer, position: int, *, at: int = 0) -> tuple[int, int]:
    """Return the 32-bit integer at ``position`` of ``buffer``, and the position after it.

    Raises:
        FormatError: the integer is cut short or does not fit; ``at`` is the file position of ``buffer[0]``.

    """
    value, end = _read(buffer, position, at, bits=32)
    return value >> 1 ^ -(value & 1), end


def read_varlong(buffer: Buffer, position: int, *, at: int = 0) -> tuple[int, int]:
    """Return the 64-bit integer at ``position`` of ``buffer``, and the position after it.

    Raises:
        FormatError: the integer is cut short or does not fit; ``at`` is the file position of ``buffer[0]``.

    """
    value, end = _read(buffer, position, at, bits=64)
    return value >> 1 ^ -(value & 1), end


def read_unsigned_varint(buffer: Buffer, position: int, *, at: int = 0) -> tuple[int, int]:
    """Return the unsigned 32-bit integer at ``position`` of ``buffer``, and the position after it.

    Raises:
        FormatError: the integer is cut short or does not fit; ``at`` is the file position of ``buffer[0]``.

    """
    return _read(buffer, position, at, bits=32)


def write_varint(value: int) -> bytes:
    """Return ``value`` in its shortest form, which is the same for 32 and 64 bits."""
    return write_unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def write_unsigned_varint(value: int) -> bytes:
    """Return ``value``, which is not negative, in its shortest form."""
    rest = value
    groups = bytearray()
    while rest > 0x7F:  # noqa: PLR2004 - seven bits to a byte, the eighth says that more follow
        groups.append(rest & 0x7F | 0x80)
        rest >>= 7
    groups.append(rest)
    return bytes(groups)


def _read(buffer: Buffer, position: int, at: int, *, bits: int) -> tuple[int, int]:
    if position < len(buffer) and (only := buffer[position]) < _MORE_FOLLOW:
        return only, position + 1  # nearly all of them are this short
    value = 0
    for shift in range(0, bits, 7):
        here = position + shift // 7
        if here >= len(buffer):
            raise FormatError("variable-length integer cut short", position=at + here, expected="another byte")
        byte = buffer[here]
        value |= (byte & 0x7F) << shift
        if byte == byte & 0x7F:
            if value >> bits:
                break
            return value, here + 1
    raise FormatError("variable-length integer", position=at + position, expected=f"at most {bits} bits")
