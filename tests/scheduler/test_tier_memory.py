"""What ``tier`` holds of a segment, of which a run may have a million."""

from __future__ import annotations

import gc
import hashlib
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from resnap.replay.plan import Coverage
from resnap.replay.watching import Progress
from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.job.contract import Reported
from resnap.scheduler.verbs.tier import TierView
from resnap.storage.layouts.manifest import SnapshotHow
from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import TopicPartition, segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.producer_snapshot import SnapshotDigest
from resnap.storage.log.properties import MetaProperties
from resnap.storage.packed import _cached_values, _decompressed
from resnap.storage.sources.files import PLAIN
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from resnap.tiering.engine import Engine
from resnap.tiering.judging.eligibility import Candidates
from resnap.tiering.planner import Planner
from resnap.tiering.run_cache.results import CachedBoundary, CachedResults, mark_of, rules_key
from resnap.tiering.run_cache.run_cache import CacheFiles, RunCache
from resnap.tiering.selection import Scope
from resnap.tiering.shipping.shipment import PartitionShipment, Shipped
from resnap.tiering.tier import LeftToShip, TieredPartition, TierWork, left_to_ship
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
        gc.collect()
        found.append((tracemalloc.get_traced_memory()[0] - before) / SEGMENTS)
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log dir with one partition, whose segments nobody reads."""
    log_dir = tmp_path_factory.mktemp("many")
    directory = log_dir / str(PLACE)
    directory.mkdir(parents=True)
    for base_offset in range(0, (SEGMENTS + 1) * 1000, 1000):
        for suffix in ("log", "index", "timeindex"):
            (directory / segment_name(base_offset, suffix)).write_bytes(b"x" * (base_offset // 1000 + 1))
    (directory / LEADER_EPOCHS).write_bytes(write_leader_epochs([LeaderEpoch(0, 0)]))
    meta = MetaProperties(version=0, cluster_id="c1", node_id=1, directory_id=None)
    write_log_dir_files(log_dir, meta=meta, high_watermarks={PLACE: SEGMENTS * 1000})
    return log_dir


def test_what_is_left_to_ship_holds_less_than_250_bytes_of_a_segment(log_dir: Path, tmp_path: Path) -> None:
    planner = Planner(ReplayRules(as_of=AsOf(now_ms=2_000_000_000_000)), Engine())
    work = TierWork(planner=planner, store=MemoryObjectStore(str(tmp_path)), now_ms=lambda: 2_000_000_000_000)

    def left() -> LeftToShip:
        found = left_to_ship(Scope(sources=(str(log_dir),)), work, None, Progress())
        assert [len(order.segments) for order in found.orders] == [SEGMENTS]
        _cached_values.cache_clear()  # of the last partitions only
        return found

    left()
    with grown() as bytes_each:
        held = left()
    (found,) = bytes_each
    assert found < 250
    assert held.orders


def test_with_results_of_earlier_runs_it_holds_less_than_350_bytes_of_a_segment(log_dir: Path, tmp_path: Path) -> None:
    state_dir, now_ms = tmp_path / "state", 2_000_000_000_000
    rules = ReplayRules(as_of=AsOf(now_ms=now_ms))
    partition = load_partition_dir(log_dir / str(PLACE))
    known = CachedResults(
        rules=rules_key(rules),
        marks=tuple(mark for segment in partition.segments if (mark := mark_of(segment, PLAIN))),
        boundaries={offset: boundary_at(offset) for offset in partition.boundaries},
    )
    assert len(known.marks) == len(known.boundaries) == SEGMENTS
    CacheFiles(state_dir).save(partition, known, before=CachedResults())

    def left(cache: RunCache) -> LeftToShip:
        work = TierWork(
            planner=Planner(rules, Engine(), run_cache=cache),
            store=MemoryObjectStore(str(tmp_path)),
            now_ms=lambda: now_ms,
        )
        found = left_to_ship(Scope(sources=(str(log_dir),)), work, None, Progress())
        assert [len(order.segments) for order in found.orders] == [SEGMENTS]
        (cached,) = (order.cached for order in found.orders)
        assert cached is not None
        assert cached.results.boundaries == known.boundaries
        _cached_values.cache_clear()  # of the last partitions only
        _decompressed.cache_clear()
        return found

    def cache() -> RunCache:
        files = CacheFiles(state_dir, read_only=True)
        return RunCache(files=files, rules=rules, sources=PLAIN, s3=S3Settings(), now_ms=lambda: now_ms)

    left(cache())
    with grown() as bytes_each:
        run_cache = cache()
        held = left(run_cache)
    (found,) = bytes_each
    assert found < 350
    assert held.orders


def boundary_at(offset: int) -> CachedBoundary:
    """Return what an earlier run has found at a boundary: its numbers and digests repeat at no other one."""
    sha256 = hashlib.sha256(str(offset).encode()).hexdigest()
    return CachedBoundary(
        offset=offset, as_of_ms=1_999_999_000_000 + offset, made_ms=1_999_999_999_999, coverage=Coverage.WINDOW,
        window_start_offset=0, known_from_offset=0, entries=offset % 100_000,
        digest=SnapshotDigest(size_bytes=offset, crc32c=int(sha256[:8], 16), sha256=sha256), left_out=(), evidence="",
        proven=sha256[::-1],
    )  # fmt: skip


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
    (*_, last) = view.table_rest()
    shown = {column.title: column.cell(last) for column in view.columns}
    assert (shown["SHIPPED"], shown["SNAPSHOTS"]) == ("100", "100 regenerated")
