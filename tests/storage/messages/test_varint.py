from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.messages.wire import read_varint, read_varlong, write_varint

KNOWN = [
    (0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (8191, "fe7f"),
    (2**31 - 1, "feffffff0f"), (-(2**31), "ffffffff0f"),
]  # fmt: skip
KNOWN_LONG = [(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]


@pytest.mark.parametrize(("value", "encoded"), KNOWN)
def test_known_integers_are_written_and_read_as_kafka_does(value: int, encoded: str) -> None:
    data = bytes.fromhex(encoded)
    assert write_varint(value) == data
    assert read_varint(data, 0) == read_varlong(data, 0) == (value, len(data))


@pytest.mark.parametrize(("value", "encoded"), KNOWN_LONG)
def test_long_integers_reach_64_bits(value: int, encoded: str) -> None:
    assert write_varint(value) == bytes.fromhex(encoded)
    assert read_varlong(bytes.fromhex(encoded), 0) == (value, 10)


@given(value=st.integers(-(2**63), 2**63 - 1), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_integer_survives_the_round_trip_at_any_position(value: int, before: bytes, after: bytes) -> None:
    encoded = write_varint(value)
    assert read_varlong(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@pytest.mark.parametrize("encoded", ["8080808010", "8080808080", "808080808001", "feffffffffffffffff01"])
def test_more_than_32_bits_are_refused(encoded: str) -> None:
    with pytest.raises(FormatError, match="integer at byte 70: expected at most 32 bits"):
        read_varint(bytes.fromhex(encoded), 0, at=70)


@pytest.mark.parametrize("encoded", ["80808080808080808002", "8080808080808080808001"])
def test_more_than_64_bits_are_refused(encoded: str) -> None:
    with pytest.raises(FormatError, match="integer at byte 70: expected at most 64 bits"):
        read_varlong(bytes.fromhex(encoded), 0, at=70)


def test_integer_cut_short_names_the_missing_byte() -> None:
    with pytest.raises(FormatError, match="cut short at byte 72"):
        read_varint(b"\x80\x80", 0, at=70)
