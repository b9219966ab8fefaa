"""The chunk index of the layout ``aiven``: where each chunk of a segment lies in its ``.log`` object.

A segment is cut into chunks of one size, the last one shorter. Each is stored by itself, perhaps compressed, perhaps
encrypted, and stored chunks follow one another without framing: the chunk index of the manifest says their sizes.
Without compression two sizes are enough; else they are listed, in a binary form of their own, in a zstd frame.

Source: ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex``, ``ChunkSizesBinaryCodec`` of the plugin.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.json_values import INT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_SIZES_BYTES: Final = 10 << 20
"""Longest list of sizes in its binary form; the plugin reads no longer one."""

MAX_CHUNKS: Final = 1 << 21
"""Most chunks of a segment: no plugin cuts 2 GiB into chunks of less than 1 KiB, and each chunk costs memory."""

_COUNT: Final = struct.Struct(">i")
_ONE: Final = struct.Struct(">ii")
_FRONT: Final = struct.Struct(">iiB")
_WIDTHS: Final = (1, 2, 3, 4)


class Chunk(NamedTuple):
    """One chunk: its position and length in the segment, and as it is stored."""

    position: int
    size: int
    stored_position: int
    stored_size: int


@dataclass(frozen=True, slots=True)
class FixedSizes:
    """Stored chunk sizes of which only the last differs."""

    count: int
    whole: int
    last: int

    def __len__(self) -> int:
        return self.count

    def size(self, number: int) -> int:
        """Return the stored size of one chunk."""
        return self.last if number == self.count - 1 else self.whole

    def position(self, number: int) -> int:
        """Return the stored position of one chunk; that of the chunk after the last is the end."""
        return number * self.whole if number < self.count else (number - 1) * self.whole + self.last * (number > 0)


@dataclass(frozen=True)
class ListedSizes:
    """Stored sizes of compressed chunks."""

    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, number: int) -> int:
        """Return the stored size of one chunk."""
        return self.sizes[number]

    def position(self, number: int) -> int:
        """Return the stored position of one chunk; that of the chunk after the last is the end."""
        return self._positions[number]

    @cached_property
    def _positions(self) -> list[int]:
        return list(accumulate(self.sizes, initial=0))


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """All chunks of a segment of ``file_size`` bytes, cut at every ``chunk_size``."""

    chunk_size: int
    file_size: int
    stored: FixedSizes | ListedSizes
    """As many as there are chunks."""

    @property
    def stored_size(self) -> int:
        """Bytes of the whole ``.log`` object."""
        return self.stored.position(len(self.stored))

    def chunk(self, number: int) -> Chunk:
        """Return one chunk."""
        position = number * self.chunk_size
        size = min(self.chunk_size, self.file_size - position)
        return Chunk(position, size, self.stored.position(number), self.stored.size(number))

    def chunks(self) -> Iterator[Chunk]:
        """Yield every chunk, in order."""
        return map(self.chunk, range(len(self.stored)))

    def at(self, position: int) -> Chunk:
        """Return the chunk that holds ``position`` of the segment, which must be within it."""
        return self.chunk(position // self.chunk_size)


def chunk_count(chunk_size: int, file_size: int) -> int:
    """Return the number of chunks of a file."""
    return -(-file_size // chunk_size)


def encode_sizes(sizes: Sequence[int]) -> bytes:
    """Return the binary form of chunk sizes: what each has above the smallest, in as few bytes as suffice.

    The size of the last, shorter chunk is stored separately, in full.
    """
    if not sizes:
        return _COUNT.pack(0)
    *others, last = sizes
    if not others:
        return _ONE.pack(1, last)
    base = min(others)
    width = next(width for width in _WIDTHS if max(others) - base < 1 << 8 * width)
    values = b"".join((size - base).to_bytes(width, "big") for size in others)
    return _FRONT.pack(len(sizes), base, width) + values + _COUNT.pack(last)


def decode_sizes(data: bytes) -> tuple[int, ...]:
    """Return the chunk sizes that ``data`` lists.

    Raises:
        FormatError: it is cut short or too long, or a size is not valid; ``position`` is that in ``data``.

    """
    count = _unpacked(_COUNT, data, 0)[0]
    if count in (0, 1):
        _check_length(data, _COUNT.size * (1 + count))
        return () if count == 0 else (_size(_unpacked(_COUNT, data, _COUNT.size)[0], _COUNT.size),)
    if not 0 < count <= MAX_CHUNKS:
        raise FormatError("chunk sizes: count", position=0, expected=f"0 to {MAX_CHUNKS}", found=count)
    _, base, width = _unpacked(_FRONT, data, 0)
    if width not in _WIDTHS:
        raise FormatError("chunk sizes: bytes per value", position=_FRONT.size - 1, expected="1 to 4", found=width)
    start, end = _FRONT.size, _FRONT.size + (count - 1) * width
    _check_length(data, end + _COUNT.size)
    values = (int.from_bytes(data[at : at + width], "big") for at in range(start, end, width))
    others = tuple(_size(base + value, start) for value in values)
    return *others, _size(_COUNT.unpack_from(data, end)[0], end)


def _size(value: int, position: int) -> int:
    if not 0 < value <= INT_MAX:
        raise FormatError("chunk sizes: size", position=position, expected=f"1 to {INT_MAX}", found=value)
    return value


def _unpacked(form: struct.Struct, data: bytes, position: int) -> tuple[int, ...]:
    if len(data) < position + form.size:
        raise FormatError(
            "chunk sizes", position=position, expected=f"{form.size} bytes", found=max(len(data) - position, 0)
        )
    return form.unpack_from(data, position)


def _check_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise FormatError("chunk sizes: length", position=0, expected=f"{expected} bytes", found=len(data))
