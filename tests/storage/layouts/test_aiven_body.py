from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.crc32c import crc32c
from resnap.storage.encryption import KeyRing, RsaKey, new_cipher
from resnap.storage.errors import VerificationError
from resnap.storage.key_file import KeyFile
from resnap.storage.layouts.aiven.pieces import is_compressed_already, original_piece, stored_log
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import SegmentFile
from tests.builders import a_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet


def a_log(data: bytes) -> SegmentFile:
    return SegmentFile(
        kind=ObjectKind.LOG, open_body=lambda: io.BytesIO(data), size_bytes=len(data), crc32c=crc32c(data), sha256=""
    )


@pytest.fixture(scope="module")
def public(fixture_set: Callable[[str], FixtureSet]) -> RsaKey:
    keys = fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys"
    return RsaKey("key1", KeyFile.read(keys / "public.pem"))


@given(
    data=st.binary(min_size=1, max_size=3000),
    chunk_size=st.integers(1, 4000).filter(lambda size: size > 50),
    compresses=st.booleans(),
    encrypts=st.booleans(),
    block=st.integers(1, 5000),
)
def test_a_body_is_its_chunks_however_it_is_read_and_as_often(
    *, public: RsaKey, data: bytes, chunk_size: int, compresses: bool, encrypts: bool, block: int
) -> None:
    cipher = new_cipher(public)[0] if encrypts else None
    stored = stored_log(a_log(data), chunk_size, is_compressed=compresses, cipher=cipher)
    for _ in range(2):
        with stored.open_body() as opened:
            body = b"".join(iter(lambda: opened.read(block), b""))
        assert (len(body), crc32c(body)) == (stored.size_bytes, stored.crc32c)
        assert stored.chunks.stored_size == len(body)
    made = b""
    for chunk in stored.chunks.chunks():
        piece = body[chunk.stored_position : chunk.stored_position + chunk.stored_size]
        made += original_piece(piece, chunk.size, is_compressed=compresses, cipher=cipher)
    assert made == data


@pytest.mark.parametrize("now", [b"cut o", b"cut off and changed", b"cut offx"])
def test_a_changed_log_is_reported(now: bytes) -> None:
    log = replace(a_log(b"cut off!"), open_body=lambda: io.BytesIO(now))
    with pytest.raises(VerificationError, match="CRC-32C"):
        stored_log(log, 3, is_compressed=True, cipher=None)


def test_the_first_batch_shows_whether_a_segment_is_compressed() -> None:
    plain = a_batch()
    assert not is_compressed_already(lambda: io.BytesIO(plain + b"more"))
    for unreadable in (b"", plain[:40], plain[:-1] + b"\xff"):
        assert is_compressed_already(lambda data=unreadable: io.BytesIO(data))


def test_what_is_sealed_opens_for_the_private_key(public: RsaKey, fixture_set: Callable[[str], FixtureSet]) -> None:
    keys = fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys"
    cipher, wrapped = new_cipher(public)
    ring = KeyRing((RsaKey("key1", KeyFile.read(keys / "private.pem")),))
    stored = stored_log(a_log(b"something"), 4, is_compressed=True, cipher=cipher)
    with stored.open_body() as opened:
        body = opened.read()
    opener = ring.cipher(wrapped)
    found = [
        original_piece(body[at : at + size], original, is_compressed=True, cipher=opener)
        for _, original, at, size in stored.chunks.chunks()
    ]
    assert found == [b"some", b"thin", b"g"]
