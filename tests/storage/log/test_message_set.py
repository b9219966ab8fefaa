from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.message_set import LegacyMessage, check_legacy_crc, read_legacy_message
from tests.logs.batch_builder import write_legacy_message
from tests.storage.log import golden

golden_messages = pytest.mark.parametrize(("message", "header"), [
    (golden.V0_MESSAGE, golden.V0_HEADER), (golden.V1_MESSAGE, golden.V1_HEADER),
])  # fmt: skip


def a_wrapper(magic: int) -> bytes:
    """Return three messages at offsets 50 to 52 in a wrapper, as a broker stores them."""
    inner_offsets = (50, 51, 52) if magic == 0 else (0, 1, 2)
    inner = [
        write_legacy_message(offset=offset, magic=magic, key=b"k", value=b"v" * 500, timestamp=golden.NOON)
        for offset in inner_offsets
    ]
    packed = gzip.compress(b"".join(inner), mtime=0)
    return write_legacy_message(
        offset=52, magic=magic, key=None, value=packed, timestamp=golden.NOON + 7, attributes=1
    )  # fmt: skip


@golden_messages
def test_golden_message_reads_field_by_field(message: bytes, header: LegacyMessage) -> None:
    assert read_legacy_message(message) == header
    assert header.size_bytes == len(message)
    assert not header.is_compressed
    check_legacy_crc(message)


@golden_messages
def test_golden_message_is_written_byte_by_byte(message: bytes, header: LegacyMessage) -> None:
    written = write_legacy_message(
        offset=50, magic=header.magic, key=b"k", value=b"v", timestamp=golden.NOON
    )  # fmt: skip
    assert written == message


@golden_messages
def test_one_flipped_bit_under_the_checksum_is_found(message: bytes, header: LegacyMessage) -> None:
    for position in range(12, len(message)):
        broken = bytearray(message)
        broken[position] ^= 0x40
        with pytest.raises(FormatError, match=r"checksum \(CRC-32\) at byte 800"):
            check_legacy_crc(broken, at=800)
    moved = bytearray(message)
    moved[7] += 1
    check_legacy_crc(moved)
    assert read_legacy_message(moved) == header._replace(offset=51)


@pytest.mark.parametrize(("magic", "timestamp"), [(0, -1), (1, golden.NOON + 7)])
def test_wrapper_is_passed_over_without_its_value(magic: int, timestamp: int) -> None:
    wrapper = a_wrapper(magic)
    check_legacy_crc(wrapper)
    header = read_legacy_message(memoryview(wrapper)[:26])
    assert header.is_compressed
    assert (header.offset, header.size_bytes, header.timestamp) == (52, len(wrapper), timestamp)


def test_segment_of_both_magics_is_a_chain() -> None:
    segment = golden.V0_MESSAGE + a_wrapper(0) + golden.V1_MESSAGE + a_wrapper(1)
    found, position = [], 0
    while position < len(segment):
        found.append(read_legacy_message(segment, position))
        position += found[-1].size_bytes
    assert position == len(segment)
    assert [(header.magic, header.is_compressed) for header in found] == [(0, False), (0, True), (1, False), (1, True)]


@given(
    offset=st.integers(0, 2**63 - 1),
    magic=st.sampled_from([0, 1]),
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=50),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    attributes=st.integers(0, 15),
    before=st.binary(max_size=30),
)
def test_message_survives_the_round_trip_at_any_position(
    *, offset: int, magic: int, key: bytes | None, value: bytes | None, timestamp: int, attributes: int, before: bytes
) -> None:
    message = write_legacy_message(
        offset=offset, magic=magic, key=key, value=value, timestamp=timestamp, attributes=attributes
    )
    check_legacy_crc(message)
    header = read_legacy_message(before + message, len(before))
    assert header == LegacyMessage(
        offset, len(message) - 12, header.crc, magic, attributes, timestamp if magic else -1
    )  # fmt: skip
    assert header.is_compressed == bool(attributes % 8)


@pytest.mark.parametrize(("message", "enough"), [(golden.V0_MESSAGE, 18), (golden.V1_MESSAGE, 26)])
def test_header_needs_no_more_than_its_fields(message: bytes, enough: int) -> None:
    assert read_legacy_message(message[:enough]) == read_legacy_message(message)
    with pytest.raises(FormatError, match=f"header cut short at byte 90: expected {enough} bytes, found {enough - 1}"):
        read_legacy_message(message[: enough - 1], at=90)


@pytest.mark.parametrize(("position", "field", "message"), [
    (16, "02", "magic at byte 106: expected 0 or 1, found 2"),
    (16, "ff", "magic at byte 106: expected 0 or 1, found -1"),
    (8, "00000015", "size at byte 98: expected at least 22, found 21"),
    (8, "ffffffff", "size at byte 98: expected at least 22, found -1"),
    (0, "ff", "offset at byte 90: expected 0 or more"),
])  # fmt: skip
def test_header_no_message_can_have_is_refused(position: int, field: str, message: str) -> None:
    broken = bytearray(golden.V1_MESSAGE)
    broken[position : position + len(field) // 2] = bytes.fromhex(field)
    with pytest.raises(FormatError, match=message):
        read_legacy_message(broken, at=90)
