"""The controller's side: which block comes next, as records of the metadata log say it (KIP-730).

State is folded from records and nothing else: ``allocate`` says which record would give the next block, and only
``replay`` of that record moves on. Whoever embeds it makes the record durable in between (``durable_allocation``), or
replays at once and answers when the record has committed, as a quorum does.

Source: ``ProducerIdControlManager`` and ``ProducerIdsImage``, as in 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.errors import DataError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    ProducerIdsRecord,
)
from resnap.tiering.controller.producer_ids.block import (
    EMPTY,
    MAX_PRODUCER_ID,
    ProducerIdsBlock,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class ProducerIdAllocation:
    """Which producer ids have been given away.

    Attributes:
        next_block: the block that is given next; its broker is the one that asked last. ``EMPTY`` before any record.

    """

    def __init__(self, broker_epochs: Mapping[int, int]) -> None:
        """Begin with nothing given away.

        Args:
            broker_epochs: epoch of each registered broker, fenced ones too; kept, not copied.

        """
        self.next_block = EMPTY
        self._broker_epochs = broker_epochs

    def allocate(self, broker_id: int, broker_epoch: int) -> tuple[ProducerIdsBlock, ProducerIdsRecord]:
        """Return the next block for a broker, and the record that gives it; the block is its own once that is durable.

        Raises:
            RefusedError: STALE_BROKER_EPOCH where the broker is not registered under this epoch, and
                UNKNOWN_SERVER_ERROR where there are no ids left.

        """
        registered = self._broker_epochs.get(broker_id)
        if registered != broker_epoch:
            known = "is not registered" if registered is None else f"is registered under epoch {registered}"
            raise RefusedError(
                KafkaError.STALE_BROKER_EPOCH, f"broker {broker_id} with epoch {broker_epoch} {known}",
                hint="the broker registers first, and sends the epoch that it was given",
            )  # fmt: skip
        first = self.next_block.first
        if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
            why = f"no producer ids are left: the next block would begin at {first}"
            raise RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, why)
        block = ProducerIdsBlock(broker_id=broker_id, first=first)
        record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=block.next_first)
        return block, record

    def replay(self, record: ProducerIdsRecord) -> None:
        """Take in a record of the log; gaps are fine, and the first record may say anything.

        Raises:
            DataError: it goes back, or stays: two brokers would get the same ids.

        """
        if self.next_block is not EMPTY and record.next_producer_id <= self.next_block.first:
            raise DataError(
                f"a record gives away producer ids up to {record.next_producer_id}, but the one before it went up to"
                f" {self.next_block.first}",
                hint="the log is not one that a controller wrote",
            )
        self.next_block = ProducerIdsBlock(broker_id=record.broker_id, first=record.next_producer_id)

    def snapshot(self) -> tuple[ProducerIdsRecord, ...]:
        """Return the records of a checkpoint that say the same; who asked is not in them."""
        if self.next_block is EMPTY:
            return ()
        first = self.next_block.first
        return (ProducerIdsRecord(broker_id=NO_BROKER, broker_epoch=NO_BROKER_EPOCH, next_producer_id=first),)
