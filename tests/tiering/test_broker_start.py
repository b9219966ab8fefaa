"""What a broker deletes when it starts: the figures are those of ``tests/kafka/test_damaged_topics.py``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.sources.files import PLAIN
from resnap.tiering.judging.broker_blockers import broker_blockers, lost_records
from resnap.tiering.judging.broker_start import broker_start
from resnap.tiering.judging.eligibility import before_replay
from resnap.tiering.judging.file_damage import damage_in_files
from resnap.tiering.judging.inventory import take_inventory, take_partition_inventory
from resnap.tiering.judging.refusal import Reason
from tests.scheduler.files import file_at

if TYPE_CHECKING:
    from pathlib import Path

BATCH_BYTES = 1_570


def a_log(tmp_path: Path) -> Path:
    """Write a log of nine segments with ten batches each, and their offset indexes; return its directory."""
    path = tmp_path / "payments-0"
    path.mkdir()
    for base in range(0, 90, 10):
        batches = (struct.pack(">qiiBIhi", base + number, BATCH_BYTES - 12, 0, 2, 0, 0, 0) for number in range(10))
        file_at(path, base, "log").write_bytes(b"".join(batch.ljust(BATCH_BYTES, b"\1") for batch in batches))
        file_at(path, base, "index").write_bytes(struct.pack(">iiii", 4, 4 * BATCH_BYTES, 8, 8 * BATCH_BYTES))
    return path


def deleted(path: Path) -> list[int]:
    start = broker_start(load_partition_dir(path), PLAIN)
    return [offset for offset in range(10, 90, 10) if start.deletes(offset) is not None]


def entries(*last_offsets: int, version: int = 0) -> bytes:
    return b"".join(struct.pack(">hqqqq", version, 7, 1, last, 1) for last in last_offsets)


@pytest.mark.parametrize(
    ("without", "expected"), [((), []), ((20,), [40, 50, 60]), ((10, 40), [60]), ((60,), []), ((80,), [])]
)
def test_snapshots_above_a_segment_without_an_offset_index_are_deleted(
    tmp_path: Path, without: tuple[int, ...], expected: list[int]
) -> None:
    path = a_log(tmp_path)
    for base in without:
        file_at(path, base, "index").unlink()
    assert deleted(path) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", []), (entries(13) + b"odd", []), (entries(3), [30, 40, 50, 60]), (entries(13, 3), [30, 40, 50, 60])],
)
def test_so_are_those_above_a_transaction_index_that_ends_below_its_segment(
    tmp_path: Path, content: bytes, expected: list[int]
) -> None:
    path = a_log(tmp_path)
    file_at(path, 10, "txnindex").write_bytes(content)
    assert deleted(path) == expected


def test_a_transaction_index_that_ends_below_its_segment_is_not_called_a_missing_offset_index(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    file_at(path, 10, "txnindex").write_bytes(entries(3))
    inventory = take_inventory(load_log_dir(tmp_path)).partitions[0]
    found = broker_blockers(inventory, start=broker_start(inventory.partition, PLAIN)).found
    hint = next(one.hint for one in found if one.reason is Reason.INDEX_UNUSABLE)
    assert "recovers the segment with its indexes" in hint


def test_an_entry_of_another_version_ends_the_start_of_the_broker(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    file_at(path, 10, "txnindex").write_bytes(entries(13, version=1))
    (refusal,) = broker_start(load_partition_dir(path), PLAIN).refusals
    assert (refusal.base_offset, refusal.reason) == (10, Reason.INDEX_UNUSABLE)
    assert "version 1 at byte 0" in refusal.detail


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("0\n1\n0 0\n", []),
        ("0\n1\n0 25\n", []),
        ("0\n2\n0 0\n1 31\n", [40, 50, 60, 70]),
        ("0\n2\n0 0\n1 70\n", [70]),
        ("0\n2\n0 0\n1 71\n", []),
        ("0\n1\n3 30\n", [30, 40, 50, 60, 70]),
        ("0\n3\n0 0\n2 20\n5 45\n", [20, 30, 40, 50, 60, 70]),
    ],
)
def test_segments_of_other_leader_epochs_than_the_checkpoint_are_named(
    tmp_path: Path, said: str, wrong: list[int]
) -> None:
    path = a_log(tmp_path)
    (path / "leader-epoch-checkpoint").write_text(said)
    found = list(damage_in_files(load_partition_dir(path), PLAIN))
    assert [one.base_offset for one in found] == wrong
    assert {one.reason for one in found} <= {Reason.LEADER_EPOCHS_WRONG}


def test_the_leader_epoch_is_that_at_the_first_batch_that_a_cleaner_has_left(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    (path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 55\n")
    log = bytearray(file_at(path, 50, "log").read_bytes())
    struct.pack_into(">q4xi", log, 0, 57, 3)
    file_at(path, 50, "log").write_bytes(log)
    found = {
        one.base_offset
        for one in damage_in_files(load_partition_dir(path), PLAIN)
        if one.reason is Reason.LEADER_EPOCHS_WRONG
    }
    assert found == {60, 70}


def test_one_segment_of_another_leader_epoch_between_right_ones_is_named(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    log = bytearray(file_at(path, 50, "log").read_bytes())
    struct.pack_into(">i", log, 12, 3)
    file_at(path, 50, "log").write_bytes(log)
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (50, Reason.LEADER_EPOCHS_WRONG)


def test_offsets_that_are_missing_between_two_segments_are_named(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    assert list(damage_in_files(load_partition_dir(path), PLAIN)) == []
    for suffix in ("log", "index"):
        file_at(path, 30, suffix).unlink()
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (20, Reason.MISSING_OFFSETS)
    assert "offsets 30 to 39 are missing" in refusal.detail


@pytest.mark.parametrize(
    "more", [b"\7" * 100, bytes(100), bytes(9_000), struct.pack(">qiiBIhi", 39, 88, 0, 2, 0, 0, 0).ljust(100, b"\1")]
)
def test_what_follows_the_last_batch_of_a_closed_log_is_damage(tmp_path: Path, more: bytes) -> None:
    path = a_log(tmp_path)
    log = file_at(path, 30, "log")
    whole = log.read_bytes()
    log.write_bytes(whole + more)
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (30, Reason.DAMAGED)
    assert f"goes on at byte {len(whole)} with what is no batch" in refusal.detail


@pytest.mark.parametrize(
    ("at", "written", "expected"),
    [
        (16, b"\7", "record batch magic at byte 16: expected 0, 1 or 2, found 7"),
        (8, b"\1", f"ends at byte {10 * BATCH_BYTES}, inside the batch that begins at byte 0"),
        (8, bytes(4), "record batch length at byte 8: expected at least 49, found 0"),
        (0, bytes(10 * BATCH_BYTES), "goes on at byte 0 with what is no batch"),
    ],
)
@pytest.mark.parametrize("index", [None, b"", bytes(800), struct.pack(">ii", 8, 8 * BATCH_BYTES)])
def test_a_closed_log_that_begins_with_no_whole_batch_is_damage_whatever_its_index_says(
    tmp_path: Path, at: int, written: bytes, expected: str, index: bytes | None
) -> None:
    path = a_log(tmp_path)
    log = bytearray(file_at(path, 30, "log").read_bytes())
    log[at : at + len(written)] = written
    file_at(path, 30, "log").write_bytes(log)
    file_at(path, 30, "index").unlink() if index is None else file_at(path, 30, "index").write_bytes(index)
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (30, Reason.DAMAGED)
    assert expected in refusal.detail


def test_an_emptied_offset_index_of_a_large_log_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "payments-0"
    path.mkdir()
    batches = (struct.pack(">qiiBIhi", number, BATCH_BYTES - 12, 0, 2, 0, 0, 0) for number in range(1_000))
    file_at(path, 0, "log").write_bytes(b"".join(batch.ljust(BATCH_BYTES, b"\1") for batch in batches))
    file_at(path, 0, "index").write_bytes(b"")
    file_at(path, 2_000, "log").write_bytes(b"")
    assert list(damage_in_files(load_partition_dir(path), PLAIN)) == []


def test_a_log_without_a_byte_is_damage_but_where_a_cleaner_may_have_left_it(tmp_path: Path) -> None:
    path = a_log(tmp_path)
    file_at(path, 30, "log").write_bytes(b"")
    for expected in (Reason.DAMAGED, Reason.MISSING_OFFSETS):
        inventory = take_partition_inventory(load_partition_dir(path))
        refused = {refusal.reason for refusal in before_replay(inventory, high_watermark=90).refusals}
        assert (Reason.DAMAGED in refused) == (expected is Reason.DAMAGED)
        found = (*lost_records(inventory), *damage_in_files(inventory.partition, PLAIN))
        assert [(one.base_offset, one.reason) for one in found] == [(30, expected)]
        file_at(path, 30, "index").write_bytes(b"")


def changed(path: Path, base: int, number: int, by: int, delta: int) -> None:
    """Change the base offset of a batch of a log, and the last one."""
    log = bytearray(file_at(path, base, "log").read_bytes())
    struct.pack_into(">q", log, number * BATCH_BYTES, base + number + by)
    struct.pack_into(">i", log, number * BATCH_BYTES + 23, delta)
    file_at(path, base, "log").write_bytes(log)


@pytest.mark.parametrize(
    ("number", "by", "delta", "expected"),
    [
        (9, 0, 1, "the batch at byte 14130 ends at offset 40, and the next segment begins at 40"),
        (9, 5, 0, "goes on at byte 14130 with what is no batch of its offsets"),
        (8, 50, 0, "goes on at byte 12560 with what is no batch of its offsets"),
        (0, -1, 0, "begins with a batch of offset 29, and holds 30 to 39"),
        (0, 50, 0, "begins with a batch of offset 80"),
    ],
)
def test_a_first_or_last_batch_of_other_offsets_is_damage(
    tmp_path: Path, number: int, by: int, delta: int, expected: str
) -> None:
    path = a_log(tmp_path)
    changed(path, 30, number, by, delta)
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (30, Reason.DAMAGED)
    assert expected in refusal.detail


def test_offsets_that_are_missing_at_the_beginning_of_a_segment_are_named_unless_a_cleaner_was_there(
    tmp_path: Path,
) -> None:
    path = a_log(tmp_path)
    log = file_at(path, 30, "log")
    log.write_bytes(log.read_bytes()[2 * BATCH_BYTES :])
    file_at(path, 30, "index").write_bytes(struct.pack(">ii", 8, 6 * BATCH_BYTES))
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (30, Reason.MISSING_OFFSETS)
    assert "offsets 30 to 31 are missing at the beginning of" in refusal.detail
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\npayments 0 60\n")
    (cleaned,) = load_log_dir(tmp_path).partitions
    assert list(damage_in_files(cleaned, PLAIN)) == []


@pytest.mark.parametrize("entry", [(8, 8 * BATCH_BYTES - 7), (8, 9 * BATCH_BYTES), (7, 8 * BATCH_BYTES)])
def test_an_offset_index_that_ends_where_no_batch_has_its_offset_cannot_be_read_from_remote_storage(
    tmp_path: Path, entry: tuple[int, int]
) -> None:
    path = a_log(tmp_path)
    file_at(path, 30, "index").write_bytes(struct.pack(">iiii", 4, 4 * BATCH_BYTES, *entry))
    (refusal,) = damage_in_files(load_partition_dir(path), PLAIN)
    assert (refusal.base_offset, refusal.reason) == (30, Reason.INDEX_UNUSABLE)
    assert f"an entry of offset {30 + entry[0]} at byte {entry[1]}, where no batch has it" in refusal.detail


@pytest.mark.parametrize("content", [entries(25), entries(15, 13), entries(13) + b"odd"])
def test_a_transaction_index_that_cannot_be_right_is_said_though_brokers_ship_it(
    tmp_path: Path, content: bytes
) -> None:
    path = a_log(tmp_path)
    file_at(path, 10, "txnindex").write_bytes(content)
    inventory = take_inventory(load_log_dir(tmp_path)).partitions[0]
    start = broker_start(inventory.partition, PLAIN)
    assert (start.refusals, dict(start.recovered)) == ((), {})
    warnings = broker_blockers(inventory, start=start).shipped_as_is
    assert [(one.base_offset, one.reason) for one in warnings] == [(10, Reason.INDEX_UNUSABLE)]
