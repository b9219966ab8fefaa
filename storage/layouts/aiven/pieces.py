"""The pieces of objects in the layout ``aiven``: encoding, decoding, and the index of the chunks of a segment.

A chunk may be a zstd frame with its content size, without a dictionary or a checksum. Any piece may be encrypted: ``IV
(12) || ciphertext || tag (16)``, AES-256 in GCM, under the segment's data key and an IV of its own.

Source: ``CompressionChunkEnumeration``, ``EncryptionChunkEnumeration`` of the plugin; RFC 8878 (zstd).

``stored_log`` builds the ``.log`` object of a segment: cut, compressed and encrypted, chunk by chunk.
The length, checksum and chunk positions of an object must be known before it is sent, and it may have to be sent again.
So the segment is read twice and nothing is kept: encrypting it again gives the same bytes.

The chunk index of the layout ``aiven``: where each chunk of a segment is in its ``.log`` object.

A segment is cut into chunks of one size, the last one shorter. Each is stored by itself, perhaps compressed, perhaps
encrypted, and stored chunks follow one another without framing: the chunk index of the manifest says their sizes.
Without compression two sizes are enough; else they are listed, in a binary form of their own, in a zstd frame.

Source: ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex``, ``ChunkSizesBinaryCodec`` of the plugin.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.crc32c import crc32c
from resnap.storage.encryption import OVERHEAD_BYTES
from resnap.storage.errors import FormatError, VerificationError
from resnap.storage.json_values import INT_MAX
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, LOG_OVERHEAD, MAGIC_POSITION, MAGIC_V2, check_crc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.encryption import SegmentCipher
    from resnap.storage.layouts.segments import SegmentFile
    from resnap.storage.stores.protocol import BodyOpener

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
    count = _unpack(_COUNT, data, 0)[0]
    if count in (0, 1):
        _check_length(data, _COUNT.size * (1 + count))
        return () if count == 0 else (_size(_unpack(_COUNT, data, _COUNT.size)[0], _COUNT.size),)
    if not 0 < count <= MAX_CHUNKS:
        raise FormatError("chunk sizes: count", position=0, expected=f"0 to {MAX_CHUNKS}", found=count)
    _, base, width = _unpack(_FRONT, data, 0)
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


def _unpack(form: struct.Struct, data: bytes, position: int) -> tuple[int, ...]:
    if len(data) < position + form.size:
        raise FormatError(
            "chunk sizes", position=position, expected=f"{form.size} bytes", found=max(len(data) - position, 0)
        )
    return form.unpack_from(data, position)


def _check_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise FormatError("chunk sizes: length", position=0, expected=f"{expected} bytes", found=len(data))


ZSTD_LEVEL: Final = 3
"""What the plugin compresses at, by default."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SIZE_BYTES: Final = (0, 2, 4, 8)
_SINGLE_SEGMENT: Final = 1 << 5
_RESERVED: Final = 1 << 3
_MOST_PER_BYTE: Final = 1 << 15
"""A block holds 128 KiB at most, and has 3 bytes of header and 1 of content at least."""
_SHORT_SIZE_FROM: Final = 256
"""A size in two bytes is counted from here: smaller ones take a single byte."""
_BUFFER_BYTES: Final = 1 << 16
_LENGTH: Final = slice(8, LOG_OVERHEAD)
_LEGACY_ATTRIBUTES: Final = 17
_CODEC: Final = 7
"""The bits of a batch's attributes that say how it is compressed."""


def compress(data: bytes) -> bytes:
    """Return ``data`` as one zstd frame with its content size."""
    import pyarrow as pa  # noqa: PLC0415 - takes a while, and a plain store never needs it

    frame: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(data, asbytes=True)
    return frame


def decompress(frame: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that ``frame`` holds, using no more memory than that.

    Raises:
        FormatError: it is not a zstd frame, has no content size or another one, or is damaged.

    """
    stated = frame_content_size(frame)
    if stated != size:
        raise FormatError("zstd frame: content size", position=0, expected=size, found=stated)
    if size > len(frame) * _MOST_PER_BYTE:
        raise FormatError("zstd frame: content size", position=0, expected=f"{len(frame) * _MOST_PER_BYTE} at most",
                          found=size)  # fmt: skip
    import pyarrow as pa  # noqa: PLC0415 - as above

    try:
        data: bytes = pa.Codec("zstd").decompress(frame, decompressed_size=size, asbytes=True)
    except (OSError, ValueError) as error:
        raise FormatError("zstd frame", position=0, expected=f"{size} bytes compressed", found="damage") from error
    return data


def frame_content_size(frame: bytes) -> int:
    """Return the content size that the zstd ``frame`` states.

    Raises:
        FormatError: it is not a zstd frame, or states no size: the plugin could not read it.

    """
    if frame[:4] != _ZSTD_MAGIC or len(frame) <= len(_ZSTD_MAGIC):
        raise FormatError(
            "zstd frame: magic", position=0, expected=_ZSTD_MAGIC.hex(), found=frame[:4].hex() or "nothing"
        )
    descriptor = frame[4]
    is_single = bool(descriptor & _SINGLE_SEGMENT)
    width = _SIZE_BYTES[descriptor >> 6] or int(is_single)
    start = 5 + int(not is_single) + _DICTIONARY_BYTES[descriptor & 3]
    if not width or descriptor & _RESERVED or len(frame) < start + width:
        raise FormatError("zstd frame: header", position=4, expected="one that says the content size",
                          found=f"descriptor {descriptor:#04x}")  # fmt: skip
    size = int.from_bytes(frame[start : start + width], "little")
    return size + _SHORT_SIZE_FROM if width == 2 else size  # noqa: PLR2004 - as above


def stored_piece(data: bytes, place: str, *, is_compressed: bool, cipher: SegmentCipher | None) -> bytes:
    """Return ``data`` as it is stored; ``place`` identifies it within its segment."""
    piece = compress(data) if is_compressed else data
    return piece if cipher is None else cipher.seal(piece, place)


def original_piece(piece: bytes, size: int | None, *, is_compressed: bool, cipher: SegmentCipher | None) -> bytes:
    """Return the bytes that were stored as ``piece``, which are ``size`` bytes if that is known.

    Raises:
        FormatError: it is damaged, or has another size.

    """
    data = piece if cipher is None else cipher.open(piece)
    if is_compressed:
        data = decompress(data, frame_content_size(data) if size is None else size)
    if size is not None and len(data) != size:
        raise FormatError("chunk", position=0, expected=f"{size} bytes", found=len(data))
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLog:
    """Length, checksums and chunks of a ``.log`` object before it is stored."""

    chunks: ChunkIndex
    open_body: BodyOpener
    size_bytes: int
    crc32c: int


def stored_log(log: SegmentFile, chunk_size: int, *, is_compressed: bool, cipher: SegmentCipher | None) -> ChunkedLog:
    """Read the segment ``log``, and return the ``.log`` object that it becomes.

    Raises:
        VerificationError: the segment has changed since it was first read.

    """

    def pieces() -> Iterator[tuple[bytes, bytes]]:
        with log.open_body() as body:
            for number in range(chunk_count(chunk_size, log.size_bytes)):
                data = body.read(min(chunk_size, log.size_bytes - number * chunk_size))
                yield data, stored_piece(data, f"log:{number}", is_compressed=is_compressed, cipher=cipher)

    original, checksum, sizes = 0, 0, []
    for data, piece in pieces():
        original, checksum = crc32c(data, original), crc32c(piece, checksum)
        sizes.append(len(piece))
    if original != log.crc32c:
        raise VerificationError(f"the log has the CRC-32C {original:08x} where it had {log.crc32c:08x}",
                                hint="run again")  # fmt: skip
    whole = chunk_size if cipher is None else chunk_size + OVERHEAD_BYTES
    fixed = FixedSizes(len(sizes), whole, sizes[-1] if sizes else 0)
    return ChunkedLog(
        chunks=ChunkIndex(chunk_size, log.size_bytes, ListedSizes(tuple(sizes)) if is_compressed else fixed),
        open_body=lambda: io.BufferedReader(_PieceStream(piece for _, piece in pieces()), _BUFFER_BYTES),
        size_bytes=sum(sizes),
        crc32c=checksum,
    )


def plain_chunks(size_bytes: int, chunk_size: int) -> ChunkIndex:
    """Return the chunks of a segment that is stored without compression and encryption."""
    count = chunk_count(chunk_size, size_bytes)
    last = size_bytes - (count - 1) * chunk_size if count else 0
    return ChunkIndex(chunk_size, size_bytes, FixedSizes(count, chunk_size, last))


def is_compressed_already(open_body: BodyOpener) -> bool:
    """Return whether the first batch of the segment is compressed, or cannot be read.

    Source: ``SegmentCompressionChecker`` of the plugin, which stores as it is what it cannot read.
    """
    with open_body() as body:
        front = body.read(LOG_OVERHEAD)
        batch = front + body.read(max(int.from_bytes(front[_LENGTH], "big", signed=True), 0))
    try:
        if batch[MAGIC_POSITION] < MAGIC_V2:
            return bool(batch[_LEGACY_ATTRIBUTES] & _CODEC)
        check_crc(batch)
        return bool(batch[ATTRIBUTES_POSITION + 1] & _CODEC)
    except (FormatError, IndexError):
        return True


class _PieceStream(io.RawIOBase):
    """A sequence of pieces as one stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` with the rest of the current piece, or with the next one."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size
