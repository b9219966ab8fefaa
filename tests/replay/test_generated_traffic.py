"""The state that a generator kept while it wrote is what a replay of its log comes to, at every boundary."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resnap.replay.rebuild import rebuild_locally
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.log.log_dir import open_log_dir_or_partition
from resnap.storage.log.producer_snapshot import snapshot_array_parts
from resnap.tiering.judging.inventory import take_inventory
from resnap.tiering.judging.planning import load_facts, plan_replay
from tests.logs.bulk_log import BulkPartitionWriter
from tests.logs.traffic import Traffic
from tests.replay.memory_sink import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

LIFELIKE = Traffic(producers=300, records=2, linger_ms=2000, abort_share=0.1, fence_share=0.5, batches_per_leader=900)
KINDS = {
    "skewed": LIFELIKE,
    "uniform": replace(LIFELIKE, skew=0.0),
    "all transactional": replace(LIFELIKE, transactional_share=1.0, plain_share=0.0),
    "none transactional": replace(LIFELIKE, transactional_share=0.0),
    "fenced at every turn": replace(LIFELIKE, abort_share=1.0, fence_share=1.0, producers=30),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_comes_to_the_state_that_the_generator_kept(tmp_path: Path, kind: str) -> None:
    writer = BulkPartitionWriter(tmp_path / "orders-0", KINDS[kind], batch_bytes=300, seed=3)
    kept = {}
    for size_bytes in (5_000, 200_000, 100_000, 300_000, 1_000):
        if writer.next_offset:
            kept[writer.next_offset] = writer.snapshot()
        writer.write_segment(size_bytes)
    writer.close()
    (inventory,) = take_inventory(open_log_dir_or_partition(tmp_path / "orders-0")).partitions
    rules = ReplayRules(as_of=AsOf(now_ms=writer.last_timestamp), full=True, verify_crc=True)
    sink = MemorySink()
    (result,) = rebuild_locally([plan_replay(inventory, load_facts(inventory.partition), list(kept), rules)], sink)
    assert result.error is None
    made = {offset: b"".join(snapshot_array_parts(entries)) for (_, offset), entries in sink.snapshots.items()}
    assert made == kept
