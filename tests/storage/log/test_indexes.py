from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.indexes import (
    SCAN_BLOCK_BYTES,
    AbortedTxn,
    OffsetIndexEntry,
    TimeIndexEntry,
    check_offset_index,
    last_time_index_entries,
    read_offset_index,
    read_time_index,
    read_transaction_index,
    trimmed_length,
    write_offset_index,
    write_time_index,
    write_transaction_index,
)
from tests.storage.log import golden

if TYPE_CHECKING:
    from pathlib import Path

PRE_ALLOCATED_BYTES = 10_485_760
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)

rising_offsets = st.lists(INT32, unique=True, max_size=30).map(sorted)
offset_indexes = rising_offsets.flatmap(
    lambda offsets: st.lists(st.integers(1, 2**31 - 1), min_size=len(offsets), max_size=len(offsets), unique=True).map(
        lambda positions: [OffsetIndexEntry(*pair) for pair in zip(offsets, sorted(positions), strict=True)]
    )
)


def last_timestamp(data: bytes) -> int | None:
    entries = last_time_index_entries(lambda start, end: data[start:end], len(data))
    return entries[-1].timestamp if entries else None


time_indexes = st.lists(INT64.filter(bool), unique=True, max_size=30).flatmap(
    lambda timestamps: st.lists(INT32, min_size=len(timestamps), max_size=len(timestamps)).map(
        lambda offsets: [TimeIndexEntry(*pair) for pair in zip(sorted(timestamps), sorted(offsets), strict=True)]
    )
)
transaction_indexes = st.lists(st.integers(1, 2**63 - 1), unique=True, max_size=30).flatmap(
    lambda markers: st.tuples(*[
        st.builds(AbortedTxn, INT64, st.integers(0, marker - 1), st.just(marker), INT64) for marker in sorted(markers)
    ]).map(list)
)  # fmt: skip


@pytest.mark.parametrize(("name", "entries"), golden.PARTITION_OFFSET_INDEXES.items())
def test_golden_offset_index_reads_and_writes_byte_by_byte(name: str, entries: list[OffsetIndexEntry]) -> None:
    data = golden.PARTITION[name]
    assert read_offset_index(data) == entries
    assert write_offset_index(entries) == data
    check_offset_index(entries, len(golden.PARTITION[name.replace(".index", ".log")]))


@pytest.mark.parametrize(("name", "entries"), golden.PARTITION_TIME_INDEXES.items())
def test_golden_time_index_reads_and_writes_byte_by_byte(name: str, entries: list[TimeIndexEntry]) -> None:
    data = golden.PARTITION[name]
    assert read_time_index(data) == entries
    assert write_time_index(entries) == data
    assert last_timestamp(data) == entries[-1].timestamp


def test_golden_transaction_index_reads_and_writes_byte_by_byte() -> None:
    data = golden.PARTITION["00000000000000000007.txnindex"]
    assert read_transaction_index(data) == golden.PARTITION_ABORTED
    assert write_transaction_index(golden.PARTITION_ABORTED) == data


@pytest.mark.parametrize(("name", "entries"), golden.PARTITION_OFFSET_INDEXES.items())
def test_golden_positions_are_those_of_the_batches_with_these_last_offsets(
    name: str, entries: list[OffsetIndexEntry]
) -> None:
    headers = golden.PARTITION_HEADERS[name.replace(".index", ".log")]
    batches, position = set(), 0
    for header in headers:
        batches.add((header.last_offset - headers[0].base_offset, position))
        position += header.size_bytes
    assert batches.issuperset(entries)


@given(entries=offset_indexes, padding=st.integers(2, 40))
def test_offset_index_survives_the_round_trip_padded_or_not(entries: list[OffsetIndexEntry], padding: int) -> None:
    data = write_offset_index(entries)
    assert read_offset_index(data) == entries
    assert read_offset_index(data + bytes(8 * padding)) == entries
    assert trimmed_length(data + bytes(8 * padding), 8) == len(data)
    check_offset_index(entries, 2**31)


@given(entries=time_indexes, padding=st.integers(2, 40))
def test_time_index_survives_the_round_trip_padded_or_not(entries: list[TimeIndexEntry], padding: int) -> None:
    data = write_time_index(entries)
    assert read_time_index(data) == entries
    assert read_time_index(data + bytes(12 * padding)) == entries
    assert trimmed_length(data + bytes(12 * padding), 12) == len(data)


@given(aborted=transaction_indexes)
def test_transaction_index_survives_the_round_trip(aborted: list[AbortedTxn]) -> None:
    assert read_transaction_index(write_transaction_index(aborted)) == aborted


def test_empty_index_has_no_entries() -> None:
    assert not read_offset_index(b"")
    assert not read_time_index(b"")
    assert not read_transaction_index(b"")
    assert read_offset_index(bytes(PRE_ALLOCATED_BYTES)) == []
    assert trimmed_length(b"", 8) == trimmed_length(bytes(16), 8) == 0
    check_offset_index([], 0)


def test_zeros_at_the_end_of_the_last_entry_belong_to_it() -> None:
    assert trimmed_length(bytes.fromhex("0100000000000000") + bytes(800), 8) == 8
    assert read_time_index(bytes.fromhex("000001000000000000000000") + bytes(24)) == [TimeIndexEntry(2**40, 0)]


def test_lone_record_with_timestamp_0_is_an_entry_and_not_padding(tmp_path: Path) -> None:
    path = tmp_path / "0.timeindex"
    path.write_bytes(write_time_index([TimeIndexEntry(0, 0)]))
    assert read_time_index(path.read_bytes()) == [TimeIndexEntry(0, 0)]
    assert last_timestamp(path.read_bytes()) == 0


@pytest.mark.parametrize(("entries", "message"), [
    ([(5, 10), (5, 20)], "offset index relative offset at byte 8: expected 6 or more, found 5"),
    ([(5, 10), (7, 20), (2, 30)], "offset index relative offset at byte 16: expected 8 or more, found 2"),
    ([(-1, 10)], "offset index relative offset at byte 0: expected 0 or more, found -1"),
    ([(5, 10), (0, 0), (7, 20)], "offset index relative offset at byte 8: expected 6 or more, found 0"),
])  # fmt: skip
def test_offset_index_whose_offsets_do_not_rise_is_refused(entries: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_offset_index(write_offset_index(map(OffsetIndexEntry._make, entries)))


@pytest.mark.parametrize(("positions", "message"), [
    ([100, 100], "position at byte 12: expected 101 or more, found 100"),
    ([100, 90], "position at byte 12: expected 101 or more, found 90"),
    ([-1], "position at byte 4: expected 0 or more, found -1"),
    ([1000], "position at byte 4: expected less than 1000, the size of the log, found 1000"),
    ([100, 999, 1000, 1001], "position at byte 20: expected less than 1000, the size of the log, found 1000"),
])  # fmt: skip
def test_position_outside_the_log_or_out_of_order_is_refused(positions: list[int], message: str) -> None:
    entries = [OffsetIndexEntry(offset, position) for offset, position in enumerate(positions)]
    assert read_offset_index(write_offset_index(entries)) == entries
    with pytest.raises(FormatError, match=f"offset index {message}"):
        check_offset_index(entries, 1000)


@pytest.mark.parametrize(("entries", "message"), [
    ([(50, 1), (50, 2)], "time index timestamp at byte 12: expected 51 or more, found 50"),
    ([(50, 1), (40, 2)], "time index timestamp at byte 12: expected 51 or more, found 40"),
    ([(-1, 1)], "time index timestamp at byte 0: expected 0 or more, found -1"),
    ([(50, 3), (60, 3), (70, 2)], "time index relative offset at byte 32: expected 3 or more, found 2"),
    ([(50, -3)], "time index relative offset at byte 8: expected 0 or more, found -3"),
])  # fmt: skip
def test_time_index_out_of_order_is_refused(entries: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_time_index(write_time_index(map(TimeIndexEntry._make, entries)))


@pytest.mark.parametrize(("aborted", "message"), [
    ([(1, 0, 5, 6), (2, 0, 5, 6)], "transaction index last offset at byte 52: expected 6 or more, found 5"),
    ([(-1, 0, 5, 6)], "transaction index entry at byte 0: expected producer id >= 0"),
    ([(1, -1, 5, 6)], "transaction index entry at byte 0"),
    ([(1, 0, 5, 6), (1, 9, 8, 9)], "transaction index entry at byte 34: .*first_offset=9, last_offset=8"),
    ([(1, 0, 5, 6), (1, 9, 9, 9)], "transaction index entry at byte 34: .*first_offset=9, last_offset=9"),
    ([(1, -1, -1, 0)], "transaction index entry at byte 0"),
    ([(0, 0, 0, 0)], "transaction index entry at byte 0"),
])  # fmt: skip
def test_transaction_no_log_can_have_is_refused(aborted: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_transaction_index(write_transaction_index(map(AbortedTxn._make, aborted)))


def test_a_transaction_that_was_aborted_before_any_batch_begins_with_its_marker() -> None:
    written_by_2_7_2 = bytes.fromhex("0000 000000000000000a 0000000000000008 0000000000000008 0000000000000000")
    assert read_transaction_index(written_by_2_7_2) == [AbortedTxn(10, 8, 8, 0)]


def test_transaction_index_of_another_version_is_refused() -> None:
    data = golden.PARTITION["00000000000000000007.txnindex"]
    with pytest.raises(FormatError, match="version at byte 34: expected 0, found 1"):
        read_transaction_index(data + b"\0\1" + data[2:])


def test_size_that_is_not_a_multiple_of_the_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000007.timeindex"
    path.write_bytes(bytes(31))
    with pytest.raises(FormatError, match="offset index size at byte 24: expected a multiple of 8, found 31"):
        read_offset_index(bytes(31))
    with pytest.raises(FormatError, match="time index size at byte 24: expected a multiple of 12, found 31"):
        read_time_index(bytes(31))
    with pytest.raises(FormatError, match="transaction index size at byte 34: expected a multiple of 34, found 35"):
        read_transaction_index(bytes(35))
    with pytest.raises(FormatError, match="time index size at byte 24"):
        last_timestamp(path.read_bytes())


@pytest.mark.parametrize(
    "padded_to", [0, 24, 36, SCAN_BLOCK_BYTES, SCAN_BLOCK_BYTES + 24, SCAN_BLOCK_BYTES + 36, PRE_ALLOCATED_BYTES]
)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4096])
def test_the_last_two_entries_are_found_under_any_padding(count: int, padded_to: int) -> None:
    entries = [TimeIndexEntry((n + 1) << 16, n) for n in range(count)]
    data = write_time_index(entries)
    data = data.ljust(padded_to - padded_to % 12, b"\0")
    assert last_time_index_entries(lambda start, end: data[start:end], len(data)) == entries[-2:]


@pytest.mark.parametrize("entry", [TimeIndexEntry(-5, 1), TimeIndexEntry(5, -1)])
def test_last_entry_below_0_is_refused(tmp_path: Path, entry: TimeIndexEntry) -> None:
    path = tmp_path / "0.timeindex"
    path.write_bytes(write_time_index([TimeIndexEntry(1, 1), entry]) + bytes(24))
    with pytest.raises(FormatError, match="time index entry at byte 12: expected timestamp and offset"):
        last_timestamp(path.read_bytes())


def test_a_time_index_that_has_become_shorter_is_refused() -> None:
    data = write_time_index([TimeIndexEntry(1, 1), TimeIndexEntry(2, 2)])
    with pytest.raises(FormatError, match="time index size at byte 19: expected 24, found less"):
        last_time_index_entries(lambda start, end: data[:19][start:end], 24)
