"""What ``tier`` holds of a segment, of which a run may have a million."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from resnap.replay.watching import Progress
from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.job.contract import Reported
from resnap.scheduler.verbs.tier import TierView
from resnap.storage.layouts.manifest import SnapshotHow
from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs
from resnap.storage.log.names import TopicPartition, segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.properties import MetaProperties
from resnap.storage.packed import _cached_values
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.engine import Engine
from resnap.tiering.judging.eligibility import Candidates
from resnap.tiering.planner import Planner
from resnap.tiering.selection import Scope
from resnap.tiering.shipping.shipment import PartitionShipment, Shipped
from resnap.tiering.tier import Left, TieredPartition, TierWork, left_to_ship
from tests.logs.log_writer import write_log_dir_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.planner import TierOrder

SEGMENTS = 1_000
PLACE = TopicPartition("payments", 0)


@contextmanager
def grown() -> Iterator[list[float]]:
    """Give a list that gets the bytes a segment by which what is held has grown."""
    found: list[float] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield found
        found.append((tracemalloc.get_traced_memory()[0] - before) / SEGMENTS)
    finally:
        tracemalloc.stop()


def log_dir_of_many(log_dir: Path) -> None:
    """Write one partition whose segments nobody reads."""
    directory = log_dir / str(PLACE)
    directory.mkdir(parents=True)
    for base_offset in range(0, (SEGMENTS + 1) * 1000, 1000):
        for suffix in ("log", "index", "timeindex"):
            (directory / segment_name(base_offset, suffix)).write_bytes(b"x" * (base_offset // 1000 + 1))
    (directory / LEADER_EPOCHS).write_bytes(write_leader_epochs([LeaderEpoch(0, 0)]))
    meta = MetaProperties(version=0, cluster_id="c1", node_id=1, directory_id=None)
    write_log_dir_files(log_dir, meta=meta, high_watermarks={PLACE: SEGMENTS * 1000})


def test_what_is_left_to_ship_holds_less_than_250_bytes_of_a_segment(tmp_path: Path) -> None:
    log_dir_of_many(tmp_path)
    planner = Planner(ReplayRules(as_of=AsOf(now_ms=2_000_000_000_000)), Engine())
    work = TierWork(planner=planner, store=MemoryObjectStore(str(tmp_path)), now_ms=lambda: 2_000_000_000_000)

    def left() -> Left:
        found = left_to_ship(Scope(sources=(str(tmp_path),)), work, None, Progress())
        assert [len(order.segments) for order in found.orders] == [SEGMENTS]
        _cached_values.cache_clear()  # of the last partitions only
        return found

    left()
    with grown() as bytes_each:
        held = left()
    (found,) = bytes_each
    assert found < 250
    assert held.orders


def test_rows_for_people_hold_less_than_100_bytes_of_a_segment_that_was_shipped() -> None:
    def shipment(number: int) -> PartitionShipment:
        place = TopicPartition(PLACE.topic, number)
        no_inventory = cast("PartitionInventory", None)
        shipped = [
            Shipped(
                base_offset=offset, next_base_offset=offset + 1, size_bytes=1 << 30, snapshot=SnapshotHow.REGENERATED,
                entries=offset, manifest_key=f"c1/payments/{offset}",
            )
            for offset in range(1000, 1100)
        ]  # fmt: skip
        candidates = Candidates(inventory=no_inventory, high_watermark=None, segments=(), refusals=())
        return PartitionShipment(topic_partition=place, eligibility=candidates, shipped=shipped)

    view = TierView(Scope(sources=()), "memory://store")
    with grown() as bytes_each:
        for number in range(SEGMENTS // 100):
            row = TieredPartition(cast("TierOrder", None), shipment(number))
            assert not list(view.table_rows(Reported(topic_partition=row.shipment.topic_partition, what=row)))
            del row
    (found,) = bytes_each
    assert found < 100
    (*_, last) = view.rest()
    shown = {column.title: column.cell(last) for column in view.columns}
    assert (shown["SHIPPED"], shown["SNAPSHOTS"]) == ("100", "100 regenerated")
