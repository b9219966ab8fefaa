from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError
from resnap.storage.log.producer_snapshot import (
    CHUNK_ENTRIES,
    ENTRY,
    ENTRY_DTYPE,
    HEADER,
    ProducerEntry,
    SnapshotDigest,
    load_snapshot,
    read_snapshot,
    read_snapshot_array,
    snapshot_arrays,
    snapshot_bytes,
    store_snapshot,
    store_snapshot_arrays,
)
from tests.cases import each
from tests.storage.log import golden

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = {
    "empty": (golden.EMPTY_SNAPSHOT, []),
    "one entry": (golden.ONE_ENTRY_SNAPSHOT, [golden.ONE_ENTRY]),
    "marker only": (golden.MARKER_ONLY_SNAPSHOT, [golden.MARKER_ONLY_ENTRY]),
    **{name: (golden.PARTITION[name], entries) for name, entries in golden.PARTITION_SNAPSHOTS.items()},
}
golden_snapshots = pytest.mark.parametrize(("data", "entries"), GOLDEN.values(), ids=GOLDEN)
PARTITION_SNAPSHOT = golden.PARTITION["00000000000000000012.snapshot"]


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


entries_of_any_kind = st.builds(
    ProducerEntry, signed(64), signed(16), signed(32), signed(64), signed(32), signed(64), signed(32), signed(64)
)
states = st.lists(entries_of_any_kind, max_size=20, unique_by=lambda entry: entry.producer_id)


def many_entries(count: int) -> Iterator[ProducerEntry]:
    return (ProducerEntry(3 * n, n % 7, n, 10 * n, n % 5, golden.NOON + n, -1, -1) for n in range(count))


def sealed(body: bytes, count: int, version: int = 1) -> bytes:
    checksum = crc32c(count.to_bytes(4, "big", signed=True) + body)
    return HEADER.pack(version, checksum, count) + body


def streamed(data: bytes) -> list[tuple[int, ...]]:
    """Read ``data`` piece by piece; nothing may be asked for twice, nor much at once."""
    asked = 0

    def read(position: int, length: int) -> bytes:
        nonlocal asked
        assert position == asked
        assert length <= CHUNK_ENTRIES * ENTRY.size
        asked += length
        return data[position : position + length]

    return [entry for array in snapshot_arrays(read, len(data)) for entry in array.tolist()]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@golden_snapshots
def test_golden_snapshot_reads_entry_by_entry(data: bytes, entries: list[ProducerEntry]) -> None:
    assert list(read_snapshot(data).values()) == entries
    assert list(read_snapshot(data)) == [entry.producer_id for entry in entries]
    assert read_snapshot_array(memoryview(data)).tolist() == [tuple(entry) for entry in entries]


@golden_snapshots
def test_golden_snapshot_is_written_byte_by_byte(data: bytes, entries: list[ProducerEntry]) -> None:
    in_file_order = b"".join(ENTRY.pack(*entry) for entry in entries)
    assert sealed(in_file_order, len(entries)) == data
    if sorted(entries) == entries:
        assert snapshot_bytes(entries) == data


def test_open_transaction_shows() -> None:
    at_7, at_12 = (read_snapshot(golden.PARTITION[name]) for name in golden.PARTITION_SNAPSHOTS)
    assert at_7[50].has_open_transaction
    assert not at_12[50].has_open_transaction


def test_equal_states_are_equal_bytes_in_any_order() -> None:
    entries = golden.PARTITION_SNAPSHOTS["00000000000000000012.snapshot"]
    canonical = snapshot_bytes(entries)
    assert canonical == snapshot_bytes(reversed(entries))
    assert list(read_snapshot(canonical)) == [7, 8, 50]


@given(entries=states)
def test_state_survives_the_round_trip(entries: list[ProducerEntry]) -> None:
    data = snapshot_bytes(entries)
    assert read_snapshot(data) == {entry.producer_id: entry for entry in entries}
    assert read_snapshot_array(data).tolist() == [tuple(entry) for entry in sorted(entries)]


def test_array_is_the_bytes_themselves() -> None:
    array = read_snapshot_array(PARTITION_SNAPSHOT)
    assert ENTRY_DTYPE.itemsize == ENTRY.size == 46
    assert ENTRY_DTYPE.names == ProducerEntry._fields
    assert np.shares_memory(array, np.frombuffer(PARTITION_SNAPSHOT, np.uint8))


def test_later_entry_of_a_producer_id_wins_as_in_a_broker() -> None:
    twice = [golden.ONE_ENTRY, golden.ONE_ENTRY._replace(producer_epoch=4)]
    data = sealed(b"".join(ENTRY.pack(*entry) for entry in twice), 2)
    assert read_snapshot(data) == {4242: twice[1]}
    assert len(read_snapshot_array(data)) == 2


def test_producer_id_that_comes_twice_is_never_written() -> None:
    with pytest.raises(AssertionError, match="producer id 4242 is listed twice"):
        snapshot_bytes([golden.ONE_ENTRY, golden.MARKER_ONLY_ENTRY])


@each(("data", "message"), [
    (b"", "header cut short at byte 0: expected 10 bytes, found 0 bytes"),
    (PARTITION_SNAPSHOT[:9], "header cut short at byte 9: expected 10 bytes, found 9 bytes"),
    (PARTITION_SNAPSHOT[:-1], "length at byte 147: expected 148 bytes for 3 entries, found 147 bytes"),
    (PARTITION_SNAPSHOT[:10], "length at byte 10: expected 148 bytes for 3 entries, found 10 bytes"),
    (PARTITION_SNAPSHOT + bytes(46), "length at byte 148: expected 148 bytes for 3 entries, found 194 bytes"),
    (golden.EMPTY_SNAPSHOT + bytes(390), "length at byte 10: expected 10 bytes for 0 entries, found 400 bytes"),
    (bytes(10), "version at byte 0: expected 1, found 0"),
    (sealed(b"", 0, version=2), "version at byte 0: expected 1, found 2"),
    (sealed(b"", -1), "entry count at byte 6: expected 0 or more, found -1"),
    (sealed(b"", 2**31 - 1), "length at byte 10: expected 98784247772 bytes for 2147483647 entries, found 10"),
    (golden.EMPTY_SNAPSHOT[:5] + bytes(5), r"checksum \(CRC-32C\) at byte 2: expected 48674b00, found 48674bc7"),
])  # fmt: skip
def test_file_a_broker_would_not_load_is_refused(data: bytes, message: str) -> None:
    for read in (read_snapshot, read_snapshot_array, streamed):
        with pytest.raises(FormatError, match=f"producer snapshot {message}"):
            read(data)


def test_any_flipped_bit_is_found() -> None:
    for position in range(len(golden.ONE_ENTRY_SNAPSHOT)):
        broken = bytearray(golden.ONE_ENTRY_SNAPSHOT)
        broken[position] ^= 0x10
        with pytest.raises(FormatError):
            read_snapshot(broken)


def test_loading_names_the_file_that_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000012.snapshot"
    path.write_bytes(PARTITION_SNAPSHOT)
    assert load_snapshot(path) == read_snapshot(PARTITION_SNAPSHOT)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"^/.*/00000000000000000012.snapshot: producer snapshot header cut short"):
        load_snapshot(path)


@pytest.mark.parametrize("count", [0, 1, CHUNK_ENTRIES, CHUNK_ENTRIES + 1, 50_000])
def test_stored_file_is_the_canonical_one_and_its_digest_shows_it(tmp_path: Path, count: int) -> None:
    path = tmp_path / "00000000000000000012.snapshot"
    digest = store_snapshot(path, many_entries(count), count)
    data = path.read_bytes()
    assert data == snapshot_bytes(many_entries(count))
    assert digest == SnapshotDigest(
        size_bytes=10 + 46 * count, crc32c=crc32c(data), sha256=hashlib.sha256(data).hexdigest()
    )  # fmt: skip
    assert names_in(tmp_path) == [path.name]
    assert streamed(data) == read_snapshot_array(data).tolist()


def test_a_file_that_grows_shorter_while_it_is_read_is_refused() -> None:
    data = snapshot_bytes(many_entries(CHUNK_ENTRIES + 10))
    arrays = snapshot_arrays(lambda position, length: data[position : min(position + length, 754_000)], len(data))
    assert len(next(arrays)) == CHUNK_ENTRIES
    with pytest.raises(FormatError, match="length at byte 754000: expected 754134 bytes, found an end"):
        next(arrays)


def test_arrays_of_any_lengths_make_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000012.snapshot"
    array = read_snapshot_array(snapshot_bytes(many_entries(1000)))
    store_snapshot_arrays(path, [array[:1], array[1:1], array[1:700], array[700:]], 1000)
    assert path.read_bytes() == snapshot_bytes(many_entries(1000))


def test_data_is_on_disk_before_the_rename_and_the_rename_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "7.snapshot", []

    def watched(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), path.exists()))
        fsync(descriptor)

    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", watched)
    store_snapshot(path, many_entries(3), 3)
    assert synced == [(tmp_path / "7.snapshot.tmp", False), (tmp_path, True)]


def test_longer_file_of_the_same_name_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000012.snapshot"
    for leftover in (path, path.with_name(f"{path.name}.tmp")):
        leftover.write_bytes(bytes(400))
    store_snapshot(path, [], 0)
    assert path.read_bytes() == golden.EMPTY_SNAPSHOT
    assert names_in(tmp_path) == [path.name]


@pytest.mark.parametrize(("entries", "count", "message"), [
    ([golden.ONE_ENTRY], 2, "1 entries were given, 2 were announced"),
    ([golden.ONE_ENTRY], 0, "1 entries were given, 0 were announced"),
    (golden.PARTITION_SNAPSHOTS["00000000000000000012.snapshot"], 3, "ascending order of producer id"),
    ([golden.ONE_ENTRY, golden.ONE_ENTRY], 2, "ascending order of producer id"),
    ([*many_entries(CHUNK_ENTRIES), golden.ONE_ENTRY], CHUNK_ENTRIES + 1, "ascending order of producer id"),
])  # fmt: skip
def test_caller_that_breaks_its_word_leaves_what_was_there(
    tmp_path: Path, entries: list[ProducerEntry], count: int, message: str
) -> None:
    path = tmp_path / "00000000000000000012.snapshot"
    path.write_bytes(PARTITION_SNAPSHOT)
    with pytest.raises(AssertionError, match=message):
        store_snapshot(path, entries, count)
    assert path.read_bytes() == PARTITION_SNAPSHOT
    assert names_in(tmp_path) == [path.name]


def test_array_of_another_byte_order_is_refused(tmp_path: Path) -> None:
    native = read_snapshot_array(PARTITION_SNAPSHOT)[:1].astype(ENTRY_DTYPE.newbyteorder("<"))
    with pytest.raises(AssertionError, match="instead of"):
        store_snapshot_arrays(tmp_path / "7.snapshot", [native], 1)
    assert names_in(tmp_path) == []


def test_failing_source_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[ProducerEntry]:
        yield from many_entries(2 * CHUNK_ENTRIES)
        assert names_in(tmp_path) == ["7.snapshot.tmp"]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store_snapshot(tmp_path / "7.snapshot", failing(), 5 * CHUNK_ENTRIES)
    assert names_in(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "7.snapshot"
    path.write_bytes(PARTITION_SNAPSHOT)
    path.with_name("7.snapshot.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        store_snapshot(path, many_entries(50_000), 50_000)
    assert path.read_bytes() == PARTITION_SNAPSHOT
    assert names_in(tmp_path) == [path.name]


def test_missing_directory_is_an_operating_system_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store_snapshot(tmp_path / "gone" / "7.snapshot", [], 0)
