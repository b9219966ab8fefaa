from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.record_batch import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    TRANSACTIONAL,
    RecordBatchHeader,
    check_crc,
    read_header,
    seal,
    wrap_sequence,
    write_header,
)
from tests.storage.log import golden

WHOLE_BATCHES = {
    "transactional": (golden.TRANSACTIONAL_BATCH, golden.TRANSACTIONAL_HEADER),
    "commit": (golden.COMMIT_BATCH, golden.MARKER_HEADER),
    "abort": (golden.ABORT_BATCH, golden.MARKER_HEADER._replace(crc=golden.ABORT_CRC)),
    "compacted to nothing": (golden.COMPACTED_BATCH, golden.COMPACTED_HEADER),
}
golden_batches = pytest.mark.parametrize(("batch", "header"), WHOLE_BATCHES.values(), ids=WHOLE_BATCHES)
golden_logs = pytest.mark.parametrize("name", golden.PARTITION_HEADERS)


def signed(bits: int, smallest: int | None = None) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)) if smallest is None else smallest, 2 ** (bits - 1) - 1)


headers = st.builds(
    RecordBatchHeader,
    base_offset=signed(64, 0),
    batch_length=signed(32, 49),
    partition_leader_epoch=signed(32),
    magic=st.just(2),
    crc=st.integers(0, 2**32 - 1),
    attributes=signed(16),
    last_offset_delta=signed(32, 0),
    base_timestamp=signed(64),
    max_timestamp=signed(64),
    producer_id=signed(64),
    producer_epoch=signed(16),
    base_sequence=signed(32),
    records_count=signed(32),
)


@golden_batches
def test_golden_batch_reads_field_by_field(batch: bytes, header: RecordBatchHeader) -> None:
    assert read_header(batch) == header
    assert header.size_bytes == len(batch)


@golden_batches
def test_golden_batch_is_written_byte_by_byte(batch: bytes, header: RecordBatchHeader) -> None:
    assert write_header(header) + batch[HEADER.size :] == batch
    assert seal(header._replace(batch_length=0, crc=0), batch[HEADER.size :]) == batch


@golden_batches
def test_golden_batch_fits_its_checksum(batch: bytes, header: RecordBatchHeader) -> None:
    check_crc(batch)
    check_crc(seal(header, b"other records"))


@golden_logs
def test_golden_segment_is_a_chain_of_batches(name: str) -> None:
    log = golden.PARTITION[name]
    found, position = [], 0
    while position < len(log):
        found.append(read_header(log, position))
        check_crc(log[position : position + found[-1].size_bytes], at=position)
        position += found[-1].size_bytes
    assert found == golden.PARTITION_HEADERS[name]
    assert position == len(log)


@golden_batches
def test_one_flipped_bit_after_the_checksum_is_found(batch: bytes, header: RecordBatchHeader) -> None:
    for position in range(21, len(batch)):
        broken = bytearray(batch)
        broken[position] ^= 0x04
        with pytest.raises(FormatError, match=f"CRC-32C.* at byte 9000: expected {header.crc:08x}"):
            check_crc(broken, at=9000)


def test_checksum_leaves_out_what_a_broker_assigns() -> None:
    moved = golden.TRANSACTIONAL_HEADER._replace(base_offset=7_000_000, partition_leader_epoch=12)
    check_crc(write_header(moved) + golden.TRANSACTIONAL_BATCH[HEADER.size :])


def test_last_offset_and_sequence_come_from_the_delta() -> None:
    assert golden.COMPACTED_HEADER.last_offset == 104
    assert golden.COMPACTED_HEADER.last_sequence == 13


def test_sequence_starts_again_at_0_after_the_largest() -> None:
    header = golden.TRANSACTIONAL_HEADER._replace(base_sequence=MAX_SEQUENCE - 1)
    assert header._replace(last_offset_delta=1).last_sequence == MAX_SEQUENCE
    assert header._replace(last_offset_delta=2).last_sequence == 0
    assert header._replace(last_offset_delta=9).last_sequence == 7


def test_batch_without_base_sequence_has_no_last_sequence() -> None:
    assert golden.MARKER_HEADER._replace(last_offset_delta=5).last_sequence == NO_SEQUENCE


@given(base=signed(32, 0), delta=signed(32, 0))
def test_wrapped_sequence_is_the_sum_modulo_2_to_the_31(base: int, delta: int) -> None:
    assert wrap_sequence(base + delta) == (base + delta) % 2**31


@pytest.mark.parametrize(("bit", "name"), [
    (CONTROL, "is_control"), (TRANSACTIONAL, "is_transactional"), (LOG_APPEND_TIME, "is_log_append_time"),
])  # fmt: skip
def test_attribute_bit_is_its_property_alone(bit: int, name: str) -> None:
    names = ("is_control", "is_transactional", "is_log_append_time")
    header = golden.COMPACTED_HEADER._replace(attributes=bit)
    assert [getattr(header, other) for other in names] == [other == name for other in names]


def test_codec_is_named_also_where_it_is_unknown() -> None:
    named = [golden.COMPACTED_HEADER._replace(attributes=0x30 | codec).compression for codec in range(8)]
    assert named == ["none", "gzip", "snappy", "lz4", "zstd", "unknown(5)", "unknown(6)", "unknown(7)"]


def test_producer_id_0_is_a_producer_and_minus_1_is_none() -> None:
    assert golden.COMPACTED_HEADER._replace(producer_id=0).has_producer
    assert not golden.COMPACTED_HEADER._replace(producer_id=-1).has_producer


@given(header=headers, before=st.binary(max_size=100), after=st.binary(max_size=100))
def test_header_survives_the_round_trip_at_any_position(header: RecordBatchHeader, before: bytes, after: bytes) -> None:
    assert read_header(memoryview(before + write_header(header) + after), len(before)) == header


@given(header=headers, records=st.binary(max_size=300))
def test_sealed_batch_fits_its_length_and_checksum(header: RecordBatchHeader, records: bytes) -> None:
    batch = seal(header, records)
    check_crc(batch)
    sealed = read_header(batch)
    assert sealed.size_bytes == len(batch)
    assert sealed == header._replace(batch_length=sealed.batch_length, crc=sealed.crc)


@pytest.mark.parametrize("length", [0, 1, 60])
def test_header_cut_short_says_how_much_is_there(length: int) -> None:
    with pytest.raises(FormatError, match=f"cut short at byte 1007: expected 61 bytes, found {length}"):
        read_header(bytes(7) + golden.COMMIT_BATCH[:length], 7, at=1000)


@pytest.mark.parametrize(("change", "message"), [
    ({"magic": 1}, "magic at byte 516: expected 2, found 1"),
    ({"magic": -1}, "magic at byte 516: expected 2, found -1"),
    ({"batch_length": 48}, "length at byte 508: expected at least 49, found 48"),
    ({"batch_length": -1}, "length at byte 508"),
    ({"base_offset": -1}, "offsets at byte 500: .* found -1 and 1"),
    ({"last_offset_delta": -3}, "offsets at byte 500: .* found 100 and -3"),
])  # fmt: skip
def test_header_no_batch_can_have_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_header(write_header(golden.TRANSACTIONAL_HEADER._replace(**change)), at=500)
