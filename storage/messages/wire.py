"""Reads and writes values as Kafka's generated messages do: a cursor over bytes, and one class per type.

Lengths are unsigned varints, one more than the length, so that 0 can be null. In versions that are not flexible they
are numbers of 2 bytes for strings and 4 for arrays, and -1 is null. No length is trusted before it is checked against
the remaining bytes.

Source: KIP-482; ``ByteBufferAccessor`` in Kafka's clients module.

Variable-length integers: base 128, least significant group first; zigzag in records of magic 2, else unsigned.

Source: ``ByteUtils.readVarint``, ``readVarlong`` and ``readUnsignedVarint`` in Kafka's clients module.
"""

from __future__ import annotations

import base64
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from resnap.storage.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.crc32c import Buffer

MAX_STRING_BYTES: Final = 0x7FFF
UUID_BYTES: Final = 16
UUID_CHARACTERS: Final = 22
ZERO_UUID: Final = "A" * UUID_CHARACTERS
"""The text of no id; reserved by Kafka."""
_MORE_FOLLOW: Final = 0x80
"""The bit of a varint's byte that says so."""
_NULL: Final = -1
"""Length of null."""
_STRING_LENGTH_BYTES: Final = 2
_ARRAY_LENGTH_BYTES: Final = 4


class Cursor:
    """A position in bytes that are read from front to back.

    Attributes:
        position: of the next byte, within the buffer.
        unknown_tags: tagged fields that were skipped because they are unknown, by tag.

    """

    def __init__(self, buffer: Buffer, *, at: int = 0) -> None:
        """Begin at the front of ``buffer``; ``at`` is the file position of its first byte, for messages."""
        self.position = 0
        self.unknown_tags: list[int] = []
        self._view = memoryview(buffer)
        self._size = len(self._view)
        self._at = at

    @property
    def remaining(self) -> int:
        """Number of remaining bytes."""
        return self._size - self.position

    def version(self, what: str) -> int:
        """Read the version, of two bytes, that keys and values of internal topics begin with; raises as ``take``."""
        return int.from_bytes(self.take(2, what), "big", signed=True)

    def take(self, size: int, what: str) -> memoryview:
        """Return the next ``size`` bytes; ``what`` names them in a message.

        Raises:
            FormatError: fewer remain.

        """
        start = self.position
        end = start + size
        if not start <= end <= self._size:
            raise self.wrong(what, f"{size} bytes", f"{self.remaining} left")
        self.position = end
        return self._view[start:end]

    def unsigned(self) -> int:
        """Return the next unsigned varint.

        Raises:
            FormatError: it is cut short, or larger than 32 bits.

        """
        if self.position < self._size and (byte := self._view[self.position]) < _MORE_FOLLOW:
            self.position += 1  # nearly all of them are this short
            return byte
        value, self.position = read_unsigned_varint(self._view, self.position, at=self._at)
        return value

    @contextmanager
    def exactly(self, size: int, what: str) -> Iterator[None]:
        """Check that the context reads exactly ``size`` bytes.

        Raises:
            FormatError: it reads fewer or more.

        """
        end = self.position + size
        if size > self.remaining:
            raise self.wrong(what, f"{size} bytes", f"{self.remaining} left")
        yield
        if self.position != end:
            raise self.wrong(what, f"an end after {size} bytes", f"one after {self.position - end + size}")

    def wrong(self, what: str, expected: object, found: object) -> FormatError:
        """Return the error for an invalid value at the current position."""
        return FormatError(what, position=self._at + self.position, expected=expected, found=found)


class Wire(Protocol):
    """Reads and writes values of one type."""

    def read(self, cursor: Cursor, version: int) -> object:
        """Return the next value, as a message of ``version`` encodes it."""

    def write(self, value: object, version: int) -> bytes:
        """Return the bytes of ``value``; ValueError where the type cannot hold it."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of fixed size, big endian."""

    layout: struct.Struct

    def read(self, cursor: Cursor, version: int) -> object:  # noqa: ARG002 - numbers are the same in all versions
        """Return the number."""
        return self.layout.unpack(cursor.take(self.layout.size, "number"))[0]

    def write(self, value: object, version: int) -> bytes:  # noqa: ARG002
        """Return the bytes of the number."""
        try:
            return self.layout.pack(value)
        except struct.error as error:
            raise ValueError(f"{value!r} does not fit {self.layout.format}: {error}") from error


@dataclass(frozen=True, slots=True)
class Text:
    """A string in UTF-8."""

    length_bytes: int | None = None
    """The size of its length, in versions that are not flexible."""

    def read(self, cursor: Cursor, version: int) -> object:  # noqa: ARG002
        """Return the string."""
        text = cursor.take(_length(cursor, "string", MAX_STRING_BYTES, self.length_bytes), "string")
        try:
            return str(text, "utf-8")
        except UnicodeDecodeError as error:
            raise cursor.wrong("string", "UTF-8", bytes(text[:40])) from error

    def write(self, value: object, version: int) -> bytes:  # noqa: ARG002
        """Return length and bytes of the string."""
        data = str(value).encode()
        if len(data) > MAX_STRING_BYTES:
            raise ValueError(f"a string of {len(data)} bytes; at most {MAX_STRING_BYTES} are possible")
        return _written_length(len(data), self.length_bytes) + data


@dataclass(frozen=True, slots=True)
class Octets:
    """Bytes of any kind."""

    def read(self, cursor: Cursor, version: int) -> object:  # noqa: ARG002
        """Return the bytes."""
        return bytes(cursor.take(_length(cursor, "bytes", cursor.remaining), "bytes"))

    def write(self, value: object, version: int) -> bytes:  # noqa: ARG002
        """Return length and bytes."""
        if not isinstance(value, bytes):
            raise TypeError(f"{value!r} is not bytes")
        return write_unsigned_varint(len(value) + 1) + value


@dataclass(frozen=True, slots=True)
class Identifier:
    """A UUID, as 22 characters of base64url, which is how Kafka shows it."""

    def read(self, cursor: Cursor, version: int) -> object:  # noqa: ARG002
        """Return the UUID as text."""
        return uuid_text(bytes(cursor.take(UUID_BYTES, "uuid")))

    def write(self, value: object, version: int) -> bytes:  # noqa: ARG002
        """Return the 16 bytes of the UUID."""
        return uuid_bytes(str(value))


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence of values of one type, as a tuple."""

    item: Wire
    length_bytes: int | None = None
    """The size of the count, in versions that are not flexible."""

    def read(self, cursor: Cursor, version: int) -> object:
        """Return the values."""
        # Every value takes at least a byte, so the number of values is bounded before any is read.
        count = _length(cursor, "array", cursor.remaining, self.length_bytes)
        if isinstance(self.item, Number):
            layout = self.item.layout
            return tuple(value for (value,) in layout.iter_unpack(cursor.take(count * layout.size, "numbers")))
        return tuple([self.item.read(cursor, version) for _ in range(count)])

    def write(self, value: object, version: int) -> bytes:
        """Return count and values."""
        if not isinstance(value, tuple):
            raise TypeError(f"{value!r} is not a tuple")
        return _written_length(len(value), self.length_bytes) + b"".join(
            self.item.write(item, version) for item in value
        )


@dataclass(frozen=True, slots=True)
class Nullable:
    """A string, bytes or array, or null."""

    inner: Wire
    length_bytes: int | None = None
    """The size of the length, in versions that are not flexible."""

    def read(self, cursor: Cursor, version: int) -> object:
        """Return the value, or None."""
        before = cursor.position
        if _read_length(cursor, self.length_bytes) == _NULL:
            return None
        cursor.position = before
        return self.inner.read(cursor, version)

    def write(self, value: object, version: int) -> bytes:
        """Return the bytes of the value, or of null."""
        return _written_length(_NULL, self.length_bytes) if value is None else self.inner.write(value, version)


@lru_cache(maxsize=1 << 14)
def uuid_text(data: bytes) -> str:
    """Return a UUID of 16 bytes as Kafka shows it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a UUID.

    Raises:
        ValueError: not 22 characters of base64url.

    """
    if len(text) != UUID_CHARACTERS:
        raise ValueError(f"{text!r} is not a uuid: it has {len(text)} characters instead of {UUID_CHARACTERS}")
    return base64.b64decode(text + "==", altchars=b"-_", validate=True)


def before_flexible(wire: Wire) -> Wire:
    """Return the equivalent of ``wire`` in versions that are not flexible."""
    match wire:
        case Text():
            return Text(_STRING_LENGTH_BYTES)
        case Array(item):
            return Array(before_flexible(item), _ARRAY_LENGTH_BYTES)
        case Nullable(inner):
            return Nullable(before_flexible(inner), _STRING_LENGTH_BYTES if inner == Text() else _ARRAY_LENGTH_BYTES)
    return wire


def _length(cursor: Cursor, what: str, most: int, length_bytes: int | None = None) -> int:
    length = _read_length(cursor, length_bytes)
    if not 0 <= length <= most:
        raise cursor.wrong(f"length of a {what}", f"0 to {most}", "null" if length == _NULL else length)
    return length


def _read_length(cursor: Cursor, length_bytes: int | None) -> int:
    if length_bytes is None:
        return cursor.unsigned() - 1
    return int.from_bytes(cursor.take(length_bytes, "length"), "big", signed=True)


def _written_length(length: int, length_bytes: int | None) -> bytes:
    if length_bytes is None:
        return write_unsigned_varint(length + 1)
    return length.to_bytes(length_bytes, "big", signed=True)


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
