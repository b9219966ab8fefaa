from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.record import (
    ABORT,
    COMMIT,
    LEADER_CHANGE,
    NO_COORDINATOR_EPOCH,
    SNAPSHOT_HEADER,
    ControlRecord,
    read_control_record,
    write_marker_batch,
)
from resnap.storage.log.record_batch import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    RecordBatchHeader,
    check_crc,
    read_header,
    seal,
)
from resnap.storage.messages.wire import write_varint
from tests.cases import each
from tests.storage.log import golden

ABORT_KEY = struct.pack(">hh", 0, ABORT)
EPOCH_11 = struct.pack(">hi", 0, 11)


def a_record(
    key: bytes | None = ABORT_KEY, value: bytes | None = EPOCH_11, *, delta: int = 0, rest: bytes = b"\0"
) -> bytes:
    fields = [write_varint(-1) if field is None else write_varint(len(field)) + field for field in (key, value)]
    body = b"\0" + write_varint(delta) + b"\0" + b"".join(fields) + rest
    return write_varint(len(body)) + body


def a_batch(records: bytes, **changes: int) -> bytes:
    return seal(golden.MARKER_HEADER._replace(**changes), records)


def read(batch: bytes, *, at: int = 0) -> ControlRecord | None:
    return read_control_record(batch, read_header(batch), at=at)


@pytest.mark.parametrize(("batch", "kind"), [(golden.COMMIT_BATCH, COMMIT), (golden.ABORT_BATCH, ABORT)])
def test_golden_marker_reads_and_writes_byte_by_byte(batch: bytes, kind: int) -> None:
    assert read(batch) == ControlRecord(type=kind, coordinator_epoch=11, timestamp=golden.NOON + 9)
    written = write_marker_batch(
        offset=102,
        producer_id=4242,
        producer_epoch=3,
        coordinator_epoch=11,
        timestamp=golden.NOON + 9,
        commit=kind == COMMIT,
        leader_epoch=7,
    )
    assert written == batch


def test_marker_of_the_golden_partition_aborts() -> None:
    log, header = golden.PARTITION["00000000000000000007.log"], golden.PARTITION_HEADERS["00000000000000000007.log"][1]
    batch = log[94 : 94 + header.size_bytes]
    assert read_control_record(memoryview(batch), header) == golden.PARTITION_MARKER
    written = write_marker_batch(
        offset=10, producer_id=50, producer_epoch=0, coordinator_epoch=3, timestamp=golden.NOON + 25, commit=False
    )
    assert written == batch


@given(
    offset=st.integers(0, 2**63 - 1),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    coordinator_epoch=st.integers(-(2**31), 2**31 - 1),
    timestamp=st.integers(-1, 2**63 - 1),
    commit=st.booleans(),
    leader_epoch=st.integers(-1, 2**31 - 1),
)
def test_marker_survives_the_round_trip(
    *,
    offset: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    commit: bool,
    leader_epoch: int,
) -> None:
    batch = write_marker_batch(
        offset=offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp,
        commit=commit,
        leader_epoch=leader_epoch,
    )
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (offset, offset, leader_epoch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, producer_epoch, -1)
    assert read(batch) == ControlRecord(COMMIT if commit else ABORT, coordinator_epoch, timestamp)


def test_batch_emptied_by_compaction_says_nothing() -> None:
    assert read(a_batch(b"", records_count=0)) is None


def test_emptied_batch_is_checked_like_any_other() -> None:
    batch = bytearray(a_batch(b"", records_count=0))
    batch[30] ^= 1
    with pytest.raises(FormatError, match="CRC-32C"):
        read(bytes(batch))


@pytest.mark.parametrize("batch", [golden.COMMIT_BATCH, golden.ABORT_BATCH])
def test_one_flipped_bit_under_the_checksum_is_found(batch: bytes) -> None:
    for position in range(17, len(batch)):
        for bit in range(8):
            broken = bytearray(batch)
            broken[position] ^= 1 << bit
            header = RecordBatchHeader._make(HEADER.unpack_from(broken))
            with pytest.raises(FormatError, match=r"CRC-32C.* at byte 300"):
                read_control_record(broken, header, at=300)


def test_timestamp_is_the_base_plus_the_delta() -> None:
    assert read(a_batch(a_record(delta=-42))) == ControlRecord(ABORT, 11, golden.NOON + 9 - 42)


def test_timestamp_is_the_largest_of_the_batch_under_log_append_time() -> None:
    batch = a_batch(a_record(delta=77), attributes=0x30 | LOG_APPEND_TIME, max_timestamp=5)
    assert read(batch) == ControlRecord(ABORT, 11, 5)


def test_timestamp_beyond_64_bits_is_refused() -> None:
    with pytest.raises(FormatError, match="timestamp at byte 61: expected 64 bits"):
        read(a_batch(a_record(delta=1), base_timestamp=2**63 - 1))


def test_later_versions_with_more_fields_are_read() -> None:
    key, value = struct.pack(">hhq", 4, COMMIT, 1), struct.pack(">hiq", 1, 12, 2)
    assert read(a_batch(a_record(key, value))) == ControlRecord(COMMIT, 12, golden.NOON + 9)


@pytest.mark.parametrize("kind", [LEADER_CHANGE, SNAPSHOT_HEADER, 6, 7, -1, 32767])
def test_other_types_are_passed_on_without_a_coordinator_epoch(kind: int) -> None:
    for value in (b"", None, EPOCH_11):
        record = read(a_batch(a_record(struct.pack(">hh", 0, kind), value)))
        assert record == ControlRecord(kind, NO_COORDINATOR_EPOCH, golden.NOON + 9)
        assert not record.is_marker


def test_first_of_several_records_speaks() -> None:
    records = a_record(struct.pack(">hh", 0, SNAPSHOT_HEADER)) + a_record(struct.pack(">hh", 0, 5))
    assert read(a_batch(records, records_count=2)) == ControlRecord(SNAPSHOT_HEADER, -1, golden.NOON + 9)


@pytest.mark.parametrize(("codec", "name"), [
    (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"), (5, r"unknown\(5\)"),
])  # fmt: skip
def test_compressed_control_batch_is_refused_by_name(codec: int, name: str) -> None:
    with pytest.raises(FormatError, match=f"compression at byte 321: expected none, found {name}"):
        read(a_batch(a_record(), attributes=0x30 | codec), at=300)


def test_data_batch_is_refused() -> None:
    with pytest.raises(FormatError, match="attributes at byte 321: expected bit 0x20, found 0x0010"):
        read(golden.TRANSACTIONAL_BATCH, at=300)


@pytest.mark.parametrize("batch", [golden.ABORT_BATCH[:-1], golden.ABORT_BATCH[:61], golden.ABORT_BATCH + b"\0"])
def test_batch_of_another_length_than_its_header_says_is_refused(batch: bytes) -> None:
    with pytest.raises(FormatError, match=f"length at byte 300: expected 78 bytes, found {len(batch)}"):
        read(batch, at=300)


@each(("records", "count", "message"), [
    (b"", 1, "integer cut short at byte 361"),
    (write_varint(0), 1, "record length at byte 361: expected 1 to 0, found 0"),
    (write_varint(-5), 1, "record length at byte 361.* found -5"),
    (write_varint(400) + bytes(20), 1, "record length at byte 361: expected 1 to 20, found 400"),
    (a_record(None), 1, "key cut short at byte 366: expected 4 bytes, found 0"),
    (a_record(b"\0\0\0"), 1, "key cut short at byte 366: expected 4 bytes, found 3"),
    (a_record(struct.pack(">hh", -1, ABORT)), 1, "key version at byte 366: expected 0 or more, found -1"),
    (a_record(value=None), 1, "marker cut short at byte 371: expected 6 bytes, found 0"),
    (a_record(value=EPOCH_11[:5]), 1, "marker cut short at byte 371: expected 6 bytes, found 5"),
    (a_record(value=struct.pack(">hi", -2, 0)), 1, "marker version at byte 371: expected 0 or more, found -2"),
    (a_record(rest=b"\2\2a\2b"), 1, "record at byte 377: expected no headers"),
    (a_record(rest=b"\0more"), 1, "record at byte 377: .* found 0 headers and 4 more bytes"),
    (a_record(rest=b""), 1, "integer cut short at byte 377"),
    (write_varint(5) + b"\0\0\0" + write_varint(30) + b"k", 1, "key length at byte 365: expected -1 to 1, found 30"),
    (write_varint(5) + b"\0\0\0" + write_varint(-2) + b"k", 1, "key length at byte 365: expected -1 to 1, found -2"),
    (a_record() + b"!", 1, "one record at byte 378: expected its end, found 1 more bytes"),
    (a_record(), 0, "records count at byte 357: expected one to fill 17 bytes, found 0"),
    (a_record(), -1, "records count at byte 357: .* found -1"),
])  # fmt: skip
def test_record_that_does_not_fit_its_lengths_is_refused(records: bytes, count: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(a_batch(records, records_count=count), at=300)


@given(
    records=st.binary(max_size=40) | st.builds(a_record, st.binary(max_size=8), st.binary(max_size=8)),
    count=st.integers(-1, 3),
    attributes=st.integers(0, 127).map(lambda bits: bits | CONTROL),
)
def test_any_records_under_a_good_checksum_raise_only_format_errors(
    records: bytes, count: int, attributes: int
) -> None:
    batch = a_batch(records, records_count=count, attributes=attributes)
    check_crc(batch)
    try:
        record = read(batch)
    except FormatError:
        return
    assert (record is None) == (count == 0)
