"""Compressed blobs that compress nothing: each codec's own frame around the bytes as they are.

Every codec of Kafka has a way to store what would not shrink. A writer of random payloads needs no more than that, and
so no library is needed: to inflate such a blob gives the bytes back.

Source: RFC 1952 (gzip), the xerial framing and the format description of snappy, the frame formats of LZ4 and zstd.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from resnap.storage.messages.wire import write_unsigned_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_XERIAL_HEADER = struct.pack(">8sii", b"\x82SNAPPY\0", 1, 1)
_SNAPPY_BLOCK_BYTES = 1 << 15
_LITERAL_WITH_LENGTH_OF_TWO_BYTES = 61 << 2

# Version 1, independent blocks of at most 64 KiB, no checksums; the last byte is the header's own.
_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")
_LZ4_BLOCK_BYTES = 1 << 16
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)

# Magic, then a descriptor that promises a content size of four bytes and no dictionary, window or checksum.
_ZSTD_HEADER = bytes.fromhex("28b52ffd a0")
_ZSTD_BLOCK_BYTES = 1 << 17


def stored(codec: int, data: bytes) -> bytes:
    """Return ``data`` as a blob of ``codec``, one of ``NONE`` to ``ZSTD`` as batch attributes count them."""
    return _FRAMES[codec](data)


def compressed(codec: str, data: bytes) -> bytes:
    """Return ``data`` compressed, unlike ``stored``: a frame as the Java client reads it, of at most 64 KiB by lz4.

    Above that pyarrow lets blocks of lz4 depend on each other, which Kafka refuses.
    """
    if codec == "none":
        return data
    blob: bytes = pa.compress(data, codec, asbytes=True)
    return _XERIAL_HEADER + struct.pack(">i", len(blob)) + blob if codec == "snappy" else blob


def _gzip(data: bytes) -> bytes:
    with_gzip_header = zlib.MAX_WBITS + 16
    return zlib.compress(data, level=0, wbits=with_gzip_header)


def _snappy(data: bytes) -> bytes:
    blocks = map(_snappy_block, _cut(data, _SNAPPY_BLOCK_BYTES))
    return _XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _snappy_block(data: bytes) -> bytes:
    return (
        write_unsigned_varint(len(data)) + struct.pack("<BH", _LITERAL_WITH_LENGTH_OF_TWO_BYTES, len(data) - 1) + data
    )


def _lz4(data: bytes) -> bytes:
    blocks = _cut(data, _LZ4_BLOCK_BYTES)
    return _LZ4_HEADER + b"".join(struct.pack("<I", len(block) | _LZ4_STORED) + block for block in blocks) + _LZ4_END


def _zstd(data: bytes) -> bytes:
    blocks = list(_cut(data, _ZSTD_BLOCK_BYTES)) or [b""]
    sizes = [len(block) << 3 for block in blocks]
    sizes[-1] |= 1  # the last block says so; type 0, stored, needs no bit
    framed = (size.to_bytes(3, "little") + block for size, block in zip(sizes, blocks, strict=True))
    return _ZSTD_HEADER + struct.pack("<I", len(data)) + b"".join(framed)


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


_FRAMES: Final[tuple[Callable[[bytes], bytes], ...]] = (bytes, _gzip, _snappy, _lz4, _zstd)
