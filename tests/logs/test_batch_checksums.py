"""Checksums by columns: equal to those of the bytes one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.crc32c import crc32c
from tests.logs.batch_checksums import checksums, followed_by, zeros_checksum

ROWS = st.integers(1, 60).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=1))


def rows_of(texts: list[bytes]) -> np.ndarray:
    return np.array([list(text) for text in texts], dtype=np.uint8)


@given(ROWS)
def test_each_row_has_the_checksum_of_its_bytes(texts: list[bytes]) -> None:
    assert checksums(rows_of(texts)).tolist() == [crc32c(text) for text in texts]


@given(ROWS, st.binary())
def test_a_checksum_is_carried_on_past_what_follows(texts: list[bytes], after: bytes) -> None:
    carried = followed_by(checksums(rows_of(texts)), len(after), crc32c(after))
    assert carried.tolist() == [crc32c(text + after) for text in texts]


def test_more_rows_than_are_read_together_are_all_there() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (20_000, 5), dtype=np.uint8)
    assert checksums(rows).tolist() == [crc32c(row.tobytes()) for row in rows]


def test_no_rows_have_no_checksums() -> None:
    assert checksums(np.zeros((0, 40), dtype=np.uint8)).tolist() == []


@given(st.integers(0, 1 << 21))
def test_zeros_need_not_be_there_to_have_a_checksum(length: int) -> None:
    assert zeros_checksum(length) == crc32c(bytes(length))
