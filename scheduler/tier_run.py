"""Tiering, run by run: what is left to ship, and shipping it once its replay is done."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from replay.scratch import scratch_directory
from scheduler.work_items import TierOrder
from storage.remote.urls import open_store
from tiering.eligibility import before_replay
from tiering.remainder import remainder
from tiering.shipment import PartitionShipment, Shipper
from tiering.uploader import Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replay.window import ReplayRules
    from scheduler.engines import Engine
    from scheduler.progress import Progress
    from scheduler.remembering import Remembering
    from scheduler.sources import Sighted
    from scheduler.work_items import Replayed
    from storage.remote.object_store import ObjectStore
    from tiering.shipped import ShippedTopic

STAGING_PREFIX: Final = ".staging"


@dataclass(frozen=True, slots=True)
class TierRun:
    """One run of ``tier``, under the rules that go into its manifests."""

    rules: ReplayRules
    engine: Engine
    version: str
    remembering: Remembering | None

    def order(self, sighted: Sighted, shipped: ShippedTopic, store_url: str, high_watermark: int | None) -> TierOrder:
        """Return what is left to ship of a partition, and what an earlier run has said of it."""
        candidates = before_replay(sighted.inventory, high_watermark=high_watermark)
        left = remainder(candidates, shipped)
        recollection = None
        if self.remembering is not None and left.candidates.segments:
            recollection = self.remembering.recall(sighted.inventory)
        return TierOrder(
            sighted=sighted,
            store_url=store_url,
            recollection=recollection,
            settled=recollection.refused(left.candidates, store_url) if recollection is not None else None,
            provenance=self._provenance(sighted),
            candidates=left.candidates,
            already=left.already,
            failures=left.failures,
        )

    def _provenance(self, sighted: Sighted) -> Provenance:
        inventory = sighted.inventory
        return Provenance(
            cluster_id=sighted.log_dir.cluster_id,
            broker_id=sighted.log_dir.broker_id,
            log_directory=str(sighted.log_dir.path),
            topic_partition=sighted.topic_partition,
            topic_id=inventory.partition.topic_id,
            compaction_assumption=f"{inventory.compaction}: {inventory.compaction_origin}",
            resnap_version=self.version,
        )

    def ship(
        self,
        orders: list[TierOrder],
        store: ObjectStore,
        replay: Callable[[str, Progress], Iterator[Replayed]],
        now_ms: Callable[[], int],
        *,
        replaying: Progress,
        shipping: Progress,
    ) -> Iterator[PartitionShipment]:
        """Ship what is eligible of each partition as soon as its replay, to a sink at the URL given, is through."""
        by_partition = {order.sighted.topic_partition: order for order in orders}
        for order in orders:
            if order.settled is not None:
                yield PartitionShipment(
                    topic_partition=order.sighted.topic_partition, eligibility=order.settled, already=order.already
                )
        with _staging(store, is_remote=self.engine.is_remote) as staging_url:
            staged = open_store(staging_url, self.engine.s3)
            shipper = Shipper(
                store=store,
                staged=staged,
                rules=self.rules,
                sources=self.engine.reading.sources,
                now_ms=now_ms,
                expect=shipping.expect,
                progress=shipping.advance,
            )
            for replayed in replay(staging_url, replaying):
                order = by_partition[replayed.result.topic_partition]
                shipping.at_work("shipping", 1)
                shipment = shipper.ship_partition(order.provenance, order.candidates, replayed.result)
                recollection = replayed.planned.recollection
                if self.remembering is not None and recollection is not None:
                    self.remembering.keep_shipment(recollection, replayed.result, shipment, order)
                shipment.already += order.already
                yield shipment
                if shipment.failures:
                    return


@contextmanager
def _staging(store: ObjectStore, *, is_remote: bool) -> Iterator[str]:
    """Give the URL of the place where a run's snapshots wait to be shipped, and empty it afterwards.

    A directory of this machine, or, where other machines write, a part of the destination.
    """
    if not is_remote:
        with scratch_directory("staging") as directory:
            yield directory.as_uri()
        return
    prefix = f"{STAGING_PREFIX}/{uuid4()}/"
    try:
        yield f"{store.url}/{prefix.rstrip('/')}"
    finally:
        for info in list(store.list(prefix)):
            store.delete(info.key)
