"""Decompresses the records of a batch, and the messages inside a compressed message.

Snappy comes as blocks in the frame of xerial's library, or as one block alone, as librdkafka writes it. The header
checksum of lz4 is wrong in messages of magic 0 (KAFKA-3160); it is not looked at: batches and messages have their own.

Source: the codecs of ``org.apache.kafka.common.compress`` in Kafka's clients module.
"""

from __future__ import annotations

import gzip
import zlib
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from resnap.storage.errors import FormatError
from resnap.storage.messages.wire import read_unsigned_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.crc32c import Buffer

STREAMS: Final = frozenset({"lz4", "zstd"})
"""What Arrow decompresses as a stream, whose content may have any size."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_SIZE: Final = 16
_LENGTH_SIZE: Final = 4
_MOST_PER_BYTE: Final = 64
"""Three bytes of a snappy block copy 64 at most."""
_LZ4_HEADER_SIZE: Final = 7
_LZ4_LONGER: Final = 0x09
"""Flags of an lz4 frame that says its content size or a dictionary."""
_PRIMES: Final = {1: 0x9E3779B1, 2: 0x85EBCA77, 3: 0xC2B2AE3D, 5: 0x165667B1}
"""The primes of XXH32."""
_32_BITS: Final = 0xFFFFFFFF


def decompress(data: Buffer, codec: str, *, at: int = 0) -> Buffer:
    """Return the content of ``data``, which is compressed by the codec of that name (``compression_name``).

    Raises:
        FormatError: another codec, or damage; ``at`` is the file position of the batch.

    """
    if codec == "none":
        return data
    try:
        if codec == "gzip":
            return gzip.decompress(data)
        if codec == "snappy":
            return b"".join(map(_snappy_block, _snappy_blocks(bytes(data))))
        if codec in STREAMS:
            content: bytes = _stream(data, codec).read()
            return content
    except (OSError, EOFError, zlib.error, ValueError, pa.ArrowException) as error:
        raise FormatError("compressed records", position=at, expected=f"{codec} data", found=str(error)) from error
    raise FormatError("compression", position=at, expected="none, gzip, snappy, lz4 or zstd", found=codec)


def decompress_into(target: memoryview, data: Buffer, codec: str) -> int | None:
    """Write what ``decompress`` returns to ``target``; return its bytes, or None if it does not fit.

    What fills ``target`` to its end does not count as fitting. Raises as ``decompress`` does.
    """
    if codec not in STREAMS:
        content = decompress(data, codec)
        size = len(content)
        if size < len(target):
            target[:size] = content
    else:
        try:
            size = _stream(data, codec).readinto(target)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise FormatError("compressed records", position=0, expected=f"{codec} data", found=str(error)) from error
    return size if size < len(target) else None


def _stream(data: Buffer, codec: str) -> pa.CompressedInputStream:
    frame = _with_right_checksum(data) if codec == "lz4" else data
    return pa.CompressedInputStream(pa.BufferReader(frame), codec)


def _with_right_checksum(frame: Buffer) -> Buffer:
    """Return an lz4 ``frame`` with the right header checksum; that of a longer header is left alone."""
    if len(frame) < _LZ4_HEADER_SIZE or frame[4] & _LZ4_LONGER:
        return frame
    checksum = _header_checksum(bytes(frame[4:6]))
    return frame if frame[6] == checksum else b"".join((frame[:6], bytes([checksum]), frame[7:]))


@cache
def _header_checksum(flags_and_size: bytes) -> int:
    """Return the second byte of the XXH32 of two bytes."""
    value = _PRIMES[5] + 2
    for byte in flags_and_size:
        value = value + byte * _PRIMES[5] & _32_BITS
        value = (value << 11 | value >> 21) * _PRIMES[1] & _32_BITS
    for shift, prime in ((15, _PRIMES[2]), (13, _PRIMES[3]), (16, 1)):
        value = (value ^ value >> shift) * prime & _32_BITS
    return value >> 8 & 0xFF


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield data
        return
    position = _XERIAL_HEADER_SIZE
    while position < len(data):
        start = position + _LENGTH_SIZE
        position = start + int.from_bytes(data[position:start], "big")
        if position > len(data):
            raise ValueError(f"a block that ends {position - len(data)} bytes behind the data")
        yield data[start:position]


def _snappy_block(block: bytes) -> bytes:
    size, _ = read_unsigned_varint(block, 0)
    if size > len(block) * _MOST_PER_BYTE:
        raise ValueError(f"a block of {len(block)} bytes for {size}")
    content: bytes = pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)
    return content
