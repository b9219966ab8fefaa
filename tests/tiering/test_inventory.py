from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import LogDirError
from resnap.storage.log.log_dir import load_log_dir, load_partition_dir
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
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
