"""Replicas of one log, that cut it into segments at other offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.properties import MetaProperties
from resnap.tiering.judging.eligibility import before_replay
from resnap.tiering.judging.inventory import take_inventory
from resnap.tiering.judging.refusal import Reason
from resnap.tiering.shipping.remainder import Remainder, remainder
from resnap.tiering.shipping.shipped import ShippedTopic
from tests.builders import a_batch
from tests.logs.log_writer import PartitionWriter, write_log_dir_files
from tests.tiering.shipping import tier

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.shipping.shipment import PartitionShipment

LENGTH = 24
PARTITION = TopicPartition("payments", 0)
META = MetaProperties(version=0, cluster_id="AAAAAAAAQACAAAAAAAAAAQ", node_id=1, directory_id=None)


class Replica:
    """A log of one record an offset, cut into segments at ``cuts``; leader epoch n + 1 begins at ``elections[n]``."""

    def __init__(
        self,
        root: Path,
        cuts: Collection[int],
        length: int = LENGTH,
        elections: Sequence[int] = (7,),
        start: int = 0,
        *,
        producer_id: int = 7,
    ) -> None:
        self.data = root / "data"
        with PartitionWriter(self.data / str(PARTITION), first_offset=start) as writer:
            for offset in range(start, length):
                if offset in cuts and offset > start:
                    writer.roll()
                writer.leader_epoch = sum(election <= offset for election in elections)
                batch = a_batch(
                    offset=offset, producer_id=producer_id, base_sequence=offset, leader_epoch=writer.leader_epoch
                )
                writer.append_batch(batch)
        write_log_dir_files(self.data, meta=META, high_watermarks={PARTITION: length})
        self.closed_end = max((cut for cut in cuts if start < cut < length), default=start)
        self.staged = root / "staged"

    def ship(self, store: ObjectStore) -> list[PartitionShipment]:
        return tier(self.data, store, self.staged)

    def left(self, store: ObjectStore) -> Remainder:
        (inventory,) = take_inventory(load_log_dir(self.data)).partitions
        return remainder(before_replay(inventory), ShippedTopic(store, Flat(), META.cluster_id, "payments"))

    def conflicts(self, store: ObjectStore) -> list[int]:
        refusals = self.left(store).candidates.refusals
        return [refusal.base_offset for refusal in refusals if refusal.reason is Reason.LINEAGE_CONFLICT]
