"""Builds the ``.log`` object of a segment in the layout ``aiven``: cut, compressed and encrypted, chunk by chunk.

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
from resnap.storage.layouts.aiven.pieces import stored_piece
from resnap.storage.log.record_batch import ATTRIBUTES_POSITION, LOG_OVERHEAD, MAGIC_POSITION, MAGIC_V2, check_crc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.encryption import SegmentCipher
    from resnap.storage.layouts.segments import SegmentFile
    from resnap.storage.stores.protocol import BodyOpener

_BUFFER_BYTES: Final = 1 << 16
_LENGTH: Final = slice(8, LOG_OVERHEAD)
_LEGACY_ATTRIBUTES: Final = 17
_CODEC: Final = 7
"""The bits of a batch's attributes that say how it is compressed."""


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
