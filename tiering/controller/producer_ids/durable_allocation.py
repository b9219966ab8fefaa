"""Blocks that are given away for good: each is durable in a metadata log before anybody hears of it.

A kill between the append and the answer costs a block that nobody uses. No kill gives one away twice, since the next
run begins with what the log says. The log is Kafka's own, and is held under the lock of its log dir.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tiering.controller.metadata.batches import MetadataBatch
from tiering.controller.metadata.log_files import list_metadata_log, read_metadata_log
from tiering.controller.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from tiering.controller.metadata.writer import MetadataLogWriter, open_metadata_log
from tiering.controller.producer_ids.allocation import ProducerIdAllocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tiering.controller.producer_ids.block import ProducerIdsBlock


class BlockLedger:
    """What a metadata log says of producer ids and of the brokers that may ask for them."""

    def __init__(self) -> None:
        self.broker_epochs: dict[int, int] = {}
        self.allocation = ProducerIdAllocation(self.broker_epochs)
        self._transaction: list[object] | None = None
        """Records of the open metadata transaction, which count when it ends (KIP-868)."""

    def replay(self, message: object) -> None:
        """Take in the next record; those that concern neither are passed over.

        Raises:
            DataError: a record gives away ids that were given away before.

        """
        match message:
            case BeginTransactionRecord():
                self._transaction = []
            case AbortTransactionRecord():
                self._transaction = None
            case EndTransactionRecord():
                held, self._transaction = self._transaction or [], None
                for one in held:
                    self._apply(one)
            case _ if self._transaction is not None:
                self._transaction.append(message)
            case _:
                self._apply(message)

    def _apply(self, message: object) -> None:
        match message:
            case ProducerIdsRecord():
                self.allocation.replay(message)
            case RegisterBrokerRecord():
                self.broker_epochs[message.broker_id] = message.broker_epoch
            case UnregisterBrokerRecord():
                self.broker_epochs.pop(message.broker_id, None)


class DurableAllocation:
    """Gives away blocks; ``open_allocation`` makes one."""

    def __init__(self, ledger: BlockLedger, writer: MetadataLogWriter) -> None:
        self.ledger = ledger
        self._writer = writer

    def allocate(self, broker_id: int, broker_epoch: int, timestamp: int) -> ProducerIdsBlock:
        """Give the next block to a broker; on return it is durable.

        Args:
            broker_id: of the broker that asks.
            broker_epoch: under which it is registered.
            timestamp: of the record, milliseconds.

        Raises:
            RefusedError: as ``ProducerIdAllocation.allocate``; nothing was written.
            LogDirError: it could not be written; nothing more is given away until the log is opened again.

        """
        block, record = self.ledger.allocation.allocate(broker_id, broker_epoch)
        self._writer.append([record], timestamp)
        self.ledger.replay(record)
        return block


@contextmanager
def open_allocation(directory: Path, *, leader_id: int, timestamp: int) -> Iterator[DurableAllocation]:
    """Open the metadata log at ``directory``, read what was given away, and go on from there.

    Args:
        directory: the log, ``__cluster_metadata-0`` of a log dir.
        leader_id: node id of the leader that appends.
        timestamp: of the beginning of its leader epoch, milliseconds.

    Raises:
        As ``open_metadata_log``; DataError where the log gives ids away twice.

    """
    with open_metadata_log(directory, leader_id=leader_id, timestamp=timestamp) as writer:
        ledger = BlockLedger()
        for message in _messages(directory):
            ledger.replay(message)
        yield DurableAllocation(ledger, writer)


def _messages(directory: Path) -> Iterable[object]:
    for part in read_metadata_log(list_metadata_log(directory)):
        if isinstance(part, MetadataBatch):
            yield from (record.message for record in part.records)
