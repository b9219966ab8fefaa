from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import LogDirError
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import ProducerEntry, load_snapshot, snapshot_bytes
from resnap.tiering.judging.inventory import (
    BoundaryStatus,
    Compaction,
    CompactionOrigin,
    PartitionInventory,
    SnapshotState,
    take_inventory,
    take_partition_inventory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

BASES = (0, 10, 20, 30)
"""Boundaries are 10, 20 and 30; the segment that begins at 30 is active."""


def a_snapshot(entries: int) -> bytes:
    return snapshot_bytes(ProducerEntry(pid, 0, 4, 4, 4, 1_700_000_000_000, -1, -1) for pid in range(entries))


def a_directory(
    log_dir: Path, snapshots: dict[int, bytes], *, name: str = "payments-0", bases: tuple[int, ...] = BASES
) -> Path:
    directory = log_dir / name
    directory.mkdir(parents=True)
    for base in bases:
        (directory / segment_name(base, "log")).write_bytes(b"x")
    for offset, body in snapshots.items():
        (directory / segment_name(offset, "snapshot")).write_bytes(body)
    return directory


def status_of(log_dir: Path, body: bytes) -> BoundaryStatus:
    """Take the inventory of a directory with ``body`` as the snapshot at offset 10; return that boundary."""
    partition = load_partition_dir(a_directory(log_dir, {10: body}))
    return take_partition_inventory(partition).boundaries[0]


def inventories(data: Path, cleanup_policies: dict[str, str] | None = None) -> dict[str, PartitionInventory]:
    inventory = take_inventory(load_log_dir(data), cleanup_policies=cleanup_policies)
    return {str(found.partition.topic_partition): found for found in inventory.partitions}


@pytest.mark.parametrize("name", ["dash-ed.topic_1-0", "legacy-0", "payments-0", "payments-1"])
def test_a_2_7_broker_leaves_the_last_two_bases_and_the_log_end(
    name: str, fixture_set: Callable[[str], FixtureSet]
) -> None:
    found = inventories(fixture_set("kafka-2.7.2").data)[name]
    missing = [boundary.offset for boundary in found.boundaries if boundary.state is SnapshotState.MISSING]
    assert tuple(missing) == found.partition.boundaries[:-2]
    assert found.lost == len(missing) > 0
    assert [boundary.offset for boundary in found.boundaries] == list(found.partition.boundaries)
    assert all(boundary.segment.next_base_offset == boundary.offset for boundary in found.boundaries)
    assert found.log_end is not None
    assert found.log_end.offset > found.partition.segments[-1].base_offset
    assert found.strays == ()


def test_what_a_broker_left_is_counted_entry_by_entry(fixture_set: Callable[[str], FixtureSet]) -> None:
    there = [
        boundary
        for found in inventories(fixture_set("kafka-2.7.2").data).values()
        for boundary in found.boundaries
        if boundary.path is not None
    ]
    assert {boundary.state for boundary in there} <= {SnapshotState.PRESENT, SnapshotState.EMPTY}
    assert {boundary.path: boundary.entries for boundary in there} == {
        boundary.path: len(load_snapshot(Path(boundary.path))) for boundary in there if boundary.path is not None
    }
    assert sum(boundary.entries or 0 for boundary in there) > 0


def test_snapshots_of_a_log_without_producers_are_empty_and_usable(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    for found in inventories(fixture_set("kafka-2.7.2-no-producers").data).values():
        tail = found.boundaries[-2:]
        assert [(boundary.state, boundary.entries) for boundary in tail] == [(SnapshotState.EMPTY, 0)] * 2
        assert found.lost == len(found.boundaries) - 2


def test_an_upgraded_partition_lacks_only_what_the_old_broker_deleted(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    found = inventories(fixture_set("kafka-2.7.2-then-3.9.1").data)["payments-0"]
    states = [boundary.state.is_usable for boundary in found.boundaries]
    assert states == sorted(states), "the missing ones come first"
    assert 0 < found.lost < len(found.boundaries)


def test_killing_a_broker_leaves_no_snapshot_at_the_log_end(fixture_set: Callable[[str], FixtureSet]) -> None:
    found = inventories(fixture_set("kafka-2.7.2-killed").data)
    assert found
    assert {partition.log_end for partition in found.values()} == {None}


@pytest.mark.parametrize(
    ("body", "state", "entries"),
    [
        pytest.param(a_snapshot(3), SnapshotState.PRESENT, 3, id="entries"),
        pytest.param(a_snapshot(0), SnapshotState.EMPTY, 0, id="no entries"),
        pytest.param(b"", SnapshotState.ZERO_BYTE, None, id="no byte"),
        pytest.param(a_snapshot(3)[:-1], SnapshotState.CORRUPT, None, id="cut short"),
        pytest.param(a_snapshot(3) + b"\0", SnapshotState.CORRUPT, None, id="trailing byte"),
        pytest.param(b"\0\2" + a_snapshot(3)[2:], SnapshotState.CORRUPT, None, id="another version"),
        pytest.param(a_snapshot(3)[:-1] + b"\0", SnapshotState.CORRUPT, None, id="flipped byte"),
        pytest.param(bytes(100), SnapshotState.CORRUPT, None, id="zeros"),
        pytest.param(b"\0\1", SnapshotState.CORRUPT, None, id="two bytes"),
    ],
)
def test_a_snapshot_is_judged_by_its_bytes(
    body: bytes, state: SnapshotState, entries: int | None, tmp_path: Path
) -> None:
    found = status_of(tmp_path, body)
    assert (found.state, found.entries) == (state, entries)
    assert found.path == str(tmp_path / "payments-0" / segment_name(10, "snapshot"))
    assert (found.detail is not None) == (state is SnapshotState.CORRUPT)


def test_the_status_of_a_corrupt_snapshot_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    detail = status_of(tmp_path, a_snapshot(1) + b"more").detail
    assert detail == "producer snapshot length at byte 56: expected 56 bytes for 1 entry, found 60 bytes"


def test_a_missing_snapshot_has_neither_path_nor_entries(tmp_path: Path) -> None:
    inventory = take_partition_inventory(load_partition_dir(a_directory(tmp_path, {20: a_snapshot(1)})))
    states = [boundary.state for boundary in inventory.boundaries]
    assert states == [SnapshotState.MISSING, SnapshotState.PRESENT, SnapshotState.MISSING]
    assert (inventory.boundaries[0].path, inventory.boundaries[0].entries) == (None, None)
    assert inventory.lost == 2


def test_of_the_snapshots_at_no_base_only_the_newest_can_be_that_of_the_log_end(tmp_path: Path) -> None:
    snapshots = dict.fromkeys((15, 20, 33, 37), a_snapshot(1))
    found = take_partition_inventory(load_partition_dir(a_directory(tmp_path, snapshots)))
    assert found.log_end is not None
    assert found.log_end.offset == 37
    assert [stray.offset for stray in found.strays] == [15, 33]


def test_the_newest_snapshot_below_the_active_segment_is_a_stray(tmp_path: Path) -> None:
    found = take_partition_inventory(load_partition_dir(a_directory(tmp_path, {25: a_snapshot(1)})))
    assert (found.log_end, [stray.offset for stray in found.strays]) == (None, [25])


def test_the_snapshot_at_the_first_base_is_neither_boundary_nor_stray(tmp_path: Path) -> None:
    directory = a_directory(tmp_path, {10: a_snapshot(1)}, bases=(10, 20))
    found = take_partition_inventory(load_partition_dir(directory))
    assert [boundary.offset for boundary in found.boundaries] == [20]
    assert (found.log_end, found.strays) == (None, ())


def test_a_directory_without_segments_has_no_boundaries(tmp_path: Path) -> None:
    found = take_partition_inventory(load_partition_dir(a_directory(tmp_path, {5: a_snapshot(0)}, bases=())))
    assert (found.boundaries, found.lost, found.strays) == ((), 0, ())
    assert found.log_end is not None


def test_a_snapshot_deleted_since_it_was_listed_is_missing(tmp_path: Path) -> None:
    partition = load_partition_dir(a_directory(tmp_path, {10: a_snapshot(1)}))
    Path(partition.snapshots[0].path).unlink()
    assert take_partition_inventory(partition).boundaries[0].state is SnapshotState.MISSING


def test_a_snapshot_that_cannot_be_read_sets_its_partition_apart_and_no_other(tmp_path: Path) -> None:
    a_directory(tmp_path, {10: a_snapshot(1)}, name="orders-0")
    a_directory(tmp_path, {10: a_snapshot(1)}, name="payments-0")
    log_dir = load_log_dir(tmp_path)
    unreadable = Path(log_dir.partitions[0].snapshots[0].path)
    unreadable.unlink()
    unreadable.mkdir()  # opens, and gives an error when read, also to root
    inventory = take_inventory(log_dir)
    assert [str(found.partition.topic_partition) for found in inventory.partitions] == ["payments-0"]
    (problem,) = inventory.problems
    assert problem.path == tmp_path / "orders-0"
    assert isinstance(problem.error, LogDirError)
    assert str(unreadable) in str(problem.error)


def test_problems_of_the_log_dir_are_carried_along(tmp_path: Path) -> None:
    a_directory(tmp_path, {})
    (tmp_path / "replication-offset-checkpoint").write_text("7\n")
    log_dir = load_log_dir(tmp_path)
    assert take_inventory(log_dir).problems == log_dir.problems != ()


def test_the_cleaners_checkpoint_shows_compaction_and_its_silence_only_suggests_there_is_none(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    found = inventories(fixture_set("kafka-2.7.2").data)
    compacted = found.pop("compacted-0")
    assert compacted.compaction is Compaction.COMPACTED
    assert compacted.compaction_origin is CompactionOrigin.CLEANER_CHECKPOINT
    assert {(other.compaction, other.compaction_origin) for other in found.values()} == {
        (Compaction.ASSUMED_NOT, CompactionOrigin.NONE)
    }


@pytest.mark.parametrize(
    ("policy", "compaction"),
    [
        ("delete", Compaction.NOT_COMPACTED),
        ("compact", Compaction.COMPACTED),
        ("delete, compact", Compaction.COMPACTED),
        ("", Compaction.NOT_COMPACTED),
    ],
)
def test_the_topics_configuration_outweighs_the_cleaners_checkpoint(
    policy: str, compaction: Compaction, fixture_set: Callable[[str], FixtureSet]
) -> None:
    policies = {"compacted": policy, "payments": policy}
    found = inventories(fixture_set("kafka-2.7.2").data, cleanup_policies=policies)
    for name in ("compacted-0", "payments-0"):
        assert found[name].compaction is compaction
        assert found[name].compaction_origin is CompactionOrigin.TOPIC_CONFIGURATION
    assert found["orders-0"].compaction is Compaction.ASSUMED_NOT


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_compacted_by_nature(topic: str, tmp_path: Path) -> None:
    partition = load_partition_dir(a_directory(tmp_path, {}, name=f"{topic}-7"))
    found = take_partition_inventory(partition, cleanup_policy="delete")
    assert (found.compaction, found.compaction_origin) == (Compaction.COMPACTED, CompactionOrigin.INTERNAL_TOPIC)
