from __future__ import annotations

import gzip
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.compression import decompress, decompress_into

CONTENTS = st.one_of(st.binary(max_size=500), st.binary(min_size=1, max_size=9).map(lambda one: one * 30_000))


def compressed(content: bytes, codec: str) -> bytes:
    """Return ``content`` as Kafka's producers write it; snappy in blocks of 32 KiB, with xerial's header."""
    if codec == "none":
        return content
    if codec == "gzip":
        return gzip.compress(content)
    if codec != "snappy":
        return bytes(pa.Codec(codec).compress(content, asbytes=True))
    blocks = [
        pa.Codec("snappy").compress(content[at : at + 32768], asbytes=True) for at in range(0, len(content), 32768)
    ]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(one)) + one for one in blocks)


@given(content=CONTENTS)
def test_what_is_compressed_comes_back(content: bytes) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert bytes(decompress(compressed(content, codec), codec)) == content, codec
    assert decompress(pa.Codec("snappy").compress(content, asbytes=True), "snappy") == content


@given(content=CONTENTS, more=st.integers(-9, 9))
def test_what_fits_comes_back_where_it_is_wanted(content: bytes, more: int) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        target = memoryview(bytearray(max(len(content) + more, 0)))
        size = decompress_into(target, compressed(content, codec), codec)
        if more > 0:
            assert target[:size] == content, codec
        else:
            assert size is None, codec


def test_the_header_checksum_of_an_lz4_frame_may_be_wrong() -> None:
    frame = bytearray(compressed(b"abc" * 100, "lz4"))
    frame[6] ^= 0xFF
    assert decompress(frame, "lz4") == b"abc" * 100


@given(damage=st.binary(max_size=60), cut=st.integers(0, 40), content=CONTENTS)
def test_damage_is_an_error_of_the_format(damage: bytes, cut: int, content: bytes) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        for data in (damage, compressed(content, codec)[: -cut - 1] + damage):
            try:
                found = decompress(data, codec, at=70)
            except FormatError:
                found = None
            target = memoryview(bytearray(1 << 16))
            try:
                size = decompress_into(target, data, codec)
            except FormatError:
                assert found is None
            else:  # what does not fit is not read to its end
                fits = size is not None
                assert found == target[:size] if fits else found is None or len(found) >= len(target)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_cut_stream_is_refused(codec: str) -> None:
    with pytest.raises(FormatError, match="compressed records at byte 70"):
        decompress(compressed(b"abc" * 9000, codec)[:-9], codec, at=70)
    with pytest.raises(FormatError, match="compressed records"):
        decompress_into(memoryview(bytearray(1 << 16)), compressed(b"abc" * 9000, codec)[:-9], codec)


def test_an_unknown_codec_and_an_absurd_length_are_refused() -> None:
    with pytest.raises(FormatError, match=r"expected none, gzip, snappy, lz4 or zstd, found unknown\(5\)"):
        decompress(b"", "unknown(5)")
    with pytest.raises(FormatError, match="a block of 6 bytes for 4294967295"):
        decompress(b"\xff\xff\xff\xff\x0f\0", "snappy")
