"""Durable allocation of producer id blocks: each is written to a metadata log before it is returned.

A kill between the append and the response wastes a block. No kill allocates one twice, because the next run begins from
the log. The log has Kafka's format, and is held under the lock of its log dir.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.image import TransactionOutcome
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    AbortTransactionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from resnap.tiering.controller.metadata.writer import MetadataLogWriter, open_metadata_log
from resnap.tiering.controller.producer_ids.allocation import ProducerIdAllocation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resnap.tiering.controller.metadata.image import MetadataImage
    from resnap.tiering.controller.producer_ids.allocation import ProducerIdsBlock


class DurableAllocation:
    """Allocates blocks, for one thread at a time; ``open_allocation`` makes one.

    Attributes:
        broker_epochs: epoch of each registered broker, as the log has it; ``register_broker`` adds to them.

    """

    def __init__(self, writer: MetadataLogWriter, image: MetadataImage) -> None:
        """Continue from ``image``; DataError if it allocates ids twice."""
        self.broker_epochs = {broker.broker_id: broker.epoch for broker in image.brokers.values()}
        self._incarnations = {broker.broker_id: broker.incarnation_id for broker in image.brokers.values()}
        self._writer = writer
        self._one_at_a_time = threading.Lock()
        self._allocation = ProducerIdAllocation(self.broker_epochs)
        for block in image.producer_id_blocks:
            self._allocation.replay(
                ProducerIdsRecord(
                    broker_id=NO_BROKER if block.broker_id is None else block.broker_id,
                    next_producer_id=block.next_producer_id,
                )
            )

    def register_broker(self, broker_id: int, incarnation_id: str, timestamp: int) -> int:
        """Register a broker and return its epoch, the offset of its record; on return it is durable.

        A registered incarnation keeps its epoch, so a broker may repeat its request; another incarnation replaces it,
        and requests of the old one are refused from then on. The caller must know that the old one has ended: Kafka
        refuses a second one as long as the first sends heartbeats.

        Args:
            broker_id: of the broker.
            incarnation_id: a UUID in Kafka's base64 form, new at each start of the broker.
            timestamp: of the record, milliseconds.

        Raises:
            LogDirError: the write failed; nothing is registered until the log is opened again.

        Source: ``ClusterControlManager.registerBroker``.
        """
        with self._one_at_a_time:
            if self._incarnations.get(broker_id) == incarnation_id:
                return self.broker_epochs[broker_id]
            epoch = self._writer.end_offset
            record = RegisterBrokerRecord(
                broker_id=broker_id, incarnation_id=incarnation_id, broker_epoch=epoch, end_points=(), features=(),
                rack=None,
            )  # fmt: skip
            self._writer.append([record], timestamp)
            self.broker_epochs[broker_id], self._incarnations[broker_id] = epoch, incarnation_id
        return epoch

    def allocate(self, broker_id: int, broker_epoch: int, timestamp: int) -> ProducerIdsBlock:
        """Allocate the next block to a broker; on return it is durable.

        Args:
            broker_id: of the broker that asks.
            broker_epoch: under which it is registered.
            timestamp: of the record, milliseconds.

        Raises:
            RefusedError: as ``ProducerIdAllocation.allocate``; nothing was written.
            LogDirError: the write failed; nothing is allocated until the log is opened again.

        """
        with self._one_at_a_time:
            block, record = self._allocation.allocate(broker_id, broker_epoch)
            # Before the append: an interruption may leave a block unused, but never gives one block to two brokers.
            self._allocation.replay(record)
            self._writer.append([record], timestamp)
        return block


@contextmanager
def open_allocation(directory: Path, *, leader_id: int, timestamp: int) -> Iterator[DurableAllocation]:
    """Open the metadata log at ``directory``, read the allocated blocks, and continue after them.

    Args:
        directory: the log, ``__cluster_metadata-0`` of a log dir.
        leader_id: node id of the leader that appends.
        timestamp: of the beginning of its leader epoch, milliseconds.

    Raises:
        As ``open_metadata_log`` and ``load_image``; DataError where the log gives ids away twice.

    """
    with open_metadata_log(directory, leader_id=leader_id, timestamp=timestamp) as writer:
        image = load_image(directory).relying_on(ProducerIdsRecord)
        if any(one.outcome is TransactionOutcome.OPEN for one in image.transactions):
            # Every new leader does this: otherwise the next append would become part of it.
            writer.append([AbortTransactionRecord(reason="its controller has gone")], timestamp)
        yield DurableAllocation(writer, image)
