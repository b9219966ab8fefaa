"""What a run takes from earlier ones, and leaves to later ones; nothing, where there is no place to keep it.

Spark's executors on other machines do not see the state directory, so states to begin with are kept and used only
where this machine does the reading. Everything else is a matter of the driver alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resnap.replay.anchor import anchored
from resnap.replay.evidence import Evidence
from resnap.replay.plan import PartitionPlan
from resnap.replay.staging import digest_of, snapshot_key
from resnap.storage.errors import LogDirError, StoreError
from resnap.storage.stores.urls import open_store
from resnap.tiering.remembered.memory import known_looks
from resnap.tiering.remembered.recollection import learnt, recall, with_refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resnap.replay.results import PartitionResult
    from resnap.replay.window import ReplayRules
    from resnap.scheduler.use_cases.work_items import TierOrder
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, SnapshotFile
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.s3_settings import S3Settings
    from resnap.tiering.inventory import PartitionInventory, SnapshotLook
    from resnap.tiering.remembered.memory import KnownBoundary, Memory
    from resnap.tiering.remembered.memory_file import MemoryFiles
    from resnap.tiering.remembered.recollection import Recollection
    from resnap.tiering.shipping.shipment import PartitionShipment


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering:
    """Memories, as the runs of one command use them."""

    files: MemoryFiles | None
    rules: ReplayRules
    sources: Sources
    s3: S3Settings
    now_ms: Callable[[], int]
    fresh: bool = False
    """Find everything out anew; what is found is kept all the same."""
    states: bool = True
    """Whether those who read segments see the files of states."""

    def looks(self, partition: PartitionDir) -> dict[SnapshotFile, SnapshotLook]:
        """Return what earlier looks at the broker's snapshots of ``partition`` showed."""
        return {} if self.fresh or self.files is None else known_looks(self.files.load(partition), partition)

    def recall(self, inventory: PartitionInventory) -> Recollection:
        """Return what is known of a partition and still stands."""
        if self.fresh and self.files is not None:
            blank = recall(None, inventory, self.rules, self.sources)
            return replace(blank, stored=self.files.load(inventory.partition))
        return recall(self.files, inventory, self.rules, self.sources)

    def standing(self, recollection: Recollection, wanted: Iterable[int], url: str) -> tuple[KnownBoundary, ...]:
        """Return the boundaries of which the snapshot below ``url`` is the one that an earlier run made."""
        known = recollection.memory.boundaries
        topic_partition = recollection.partition.topic_partition
        return tuple(known[offset] for offset in wanted if offset in known and
                     self._is_intact(url, topic_partition, known[offset]))  # fmt: skip

    def _is_intact(self, url: str, topic_partition: TopicPartition, known: KnownBoundary) -> bool:
        try:
            body = open_store(url, self.s3).get(snapshot_key(topic_partition, known.offset))
        except (StoreError, LogDirError):
            return False
        return digest_of(body) == known.digest

    def begin(self, plan: PartitionPlan, recollection: Recollection) -> PartitionPlan:
        """Let ``plan`` begin at the nearest state that is known, and keep states for the next."""
        if self.files is None or not self.states:
            return plan
        begun = anchored(plan, recollection.memory.anchors)
        return replace(begun, keep_in=str(self.files.directory(recollection.partition)))

    def keep(self, recollection: Recollection, result: PartitionResult | None) -> None:
        """Keep what a replay gave; None where none was needed."""
        if self.files is not None:
            self._save(recollection, learnt(recollection, result, self.rules, self.now_ms(), self.sources))

    def _save(self, recollection: Recollection, memory: Memory) -> None:
        if self.files is not None and memory != recollection.stored:
            self.files.save(recollection.partition, memory, before=recollection.stored)

    def keep_shipment(
        self, recollection: Recollection, result: PartitionResult, shipment: PartitionShipment, order: TierOrder
    ) -> None:
        """Keep what a replay gave, and what is refused where all else has been shipped."""
        if self.files is None:
            return
        memory = learnt(recollection, result, self.rules, self.now_ms(), self.sources)
        if not shipment.failures:
            memory = with_refusals(
                memory, shipment.eligibility, order.candidates, store=order.store_url, now_ms=self.now_ms()
            )
        self._save(recollection, memory)


def nothing_to_read(topic_partition: TopicPartition, rules: ReplayRules) -> PartitionPlan:
    """Return the plan of a partition of which everything is known."""
    return PartitionPlan(
        topic_partition=topic_partition,
        segments=(),
        rules=rules,
        runs=(),
        idle=(),
        evidence=Evidence(),
        high_watermark=None,
    )
