"""Encodes and decodes the pieces of objects in the layout ``aiven``: chunks of a segment, and indexes.

A chunk may be a zstd frame with its content size, without a dictionary or a checksum. Any piece may be encrypted: ``IV
(12) || ciphertext || tag (16)``, AES-256 in GCM, under the segment's data key and an IV of its own.

Source: ``CompressionChunkEnumeration``, ``EncryptionChunkEnumeration`` of the plugin; RFC 8878 (zstd).

``stored_log`` builds the ``.log`` object of a segment: cut, compressed and encrypted, chunk by chunk.
The length, checksum and chunk positions of an object must be known before it is sent, and it may have to be sent again.
So the segment is read twice and nothing is kept: encrypting it again gives the same bytes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.encryption import OVERHEAD_BYTES
from resnap.storage.errors import FormatError, VerificationError
from resnap.storage.layouts.aiven.chunks import ChunkIndex, FixedSizes, ListedSizes, chunk_count
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, LOG_OVERHEAD, MAGIC_POSITION, MAGIC_V2, check_crc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.encryption import SegmentCipher
    from resnap.storage.layouts.segments import SegmentFile
    from resnap.storage.stores.protocol import BodyOpener

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


def compressed(data: bytes) -> bytes:
    """Return ``data`` as one zstd frame with its content size."""
    import pyarrow as pa  # noqa: PLC0415 - takes a while, and a plain store never needs it

    frame: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(data, asbytes=True)
    return frame


def decompressed(frame: bytes, size: int) -> bytes:
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
    piece = compressed(data) if is_compressed else data
    return piece if cipher is None else cipher.seal(piece, place)


def original_piece(piece: bytes, size: int | None, *, is_compressed: bool, cipher: SegmentCipher | None) -> bytes:
    """Return the bytes that were stored as ``piece``, which are ``size`` bytes if that is known.

    Raises:
        FormatError: it is damaged, or has another size.

    """
    data = piece if cipher is None else cipher.open(piece)
    if is_compressed:
        data = decompressed(data, frame_content_size(data) if size is None else size)
    if size is not None and len(data) != size:
        raise FormatError("chunk", position=0, expected=f"{size} bytes", found=len(data))
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLog:
    """Length, checksums and chunks of a ``.log`` object before it is stored."""

    chunks: ChunkIndex
    open_body: BodyOpener
    size_bytes: int
    crc32c: int


def stored_log(log: SegmentFile, chunk_size: int, *, is_compressed: bool, cipher: SegmentCipher | None) -> StoredLog:
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
    stored = ListedSizes(tuple(sizes)) if is_compressed else _fixed(sizes, chunk_size, cipher)
    return StoredLog(
        chunks=ChunkIndex(chunk_size, log.size_bytes, stored),
        open_body=lambda: io.BufferedReader(_Pieces(piece for _, piece in pieces()), _BUFFER_BYTES),
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


def _fixed(sizes: list[int], chunk_size: int, cipher: SegmentCipher | None) -> FixedSizes:
    overhead = 0 if cipher is None else OVERHEAD_BYTES
    return FixedSizes(len(sizes), chunk_size + overhead, sizes[-1] if sizes else 0)


class _Pieces(io.RawIOBase):
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
