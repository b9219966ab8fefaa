from __future__ import annotations

import zlib
from random import Random

import pyarrow as pa
import pytest

from tests.logs.stored_frames import GZIP, LZ4, NONE, SNAPPY, ZSTD, stored

LENGTHS = (0, 1, 60, 61, 127, 128, 32_767, 32_768, 32_769, 65_536, 65_537, 131_072, 131_073, 300_000)


def decompress(codec: int, blob: bytes, size: int) -> bytes:
    match codec:
        case 1:
            return zlib.decompress(blob, wbits=31)
        case 2:
            return b"".join(xerial_blocks(blob))
        case 3:
            return bytes(pa.decompress(blob, decompressed_size=size, codec="lz4", asbytes=True))
        case 4:
            return bytes(pa.decompress(blob, decompressed_size=size, codec="zstd", asbytes=True))
        case _:
            return blob


def xerial_blocks(blob: bytes) -> list[bytes]:
    assert blob[:16] == bytes.fromhex("82534e41505059000000000100000001")
    blocks, position = [], 16
    while position < len(blob):
        start = position + 4
        position = start + int.from_bytes(blob[position:start], "big")
        block = blob[start:position]
        groups = next(index for index, byte in enumerate(block) if byte < 0x80) + 1
        size = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(block[:groups]))
        blocks.append(pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
    return blocks


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_library_of_the_codec_gives_the_bytes_back(codec: int, length: int) -> None:
    data = Random(length).randbytes(length)
    assert decompress(codec, stored(codec, data), length) == data
