"""Blocks of producer ids in ZooKeeper, as brokers before KRaft take them, and the way from there to a metadata log.

Each broker takes its next block by itself: it reads the znode, and writes the block after it on condition that nobody
wrote in between. The znode says which block was taken last; a block may end at the very last id, which KRaft leaves.

Source: ``ZkProducerIdManager``, ``ProducerIdBlockZNode`` and ``ZkMigrationClient``, as in 3.9; KIP-866.
"""

from __future__ import annotations

import json
from typing import Final, Protocol

from resnap.storage.errors import DataError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    ProducerIdsRecord,
)
from resnap.tiering.controller.producer_ids.allocation import (
    MAX_PRODUCER_ID,
    ClaimedBlock,
    ProducerIdsBlock,
)

PATH: Final = "/latest_producer_id_block"
MAX_INT: Final = 2**31 - 1


class BlockNode(Protocol):
    """The znode at ``PATH``, which brokers make at their start, empty."""

    def read(self) -> tuple[bytes | None, int]:
        """Return its data, None for none, and its version."""

    def write(self, data: bytes, version: int) -> bool:
        """Write ``data`` if the znode still has ``version``; say whether it had."""


def block_json(block: ProducerIdsBlock) -> bytes:
    """Return what is in the znode for ``block``; the ids are text, as Kafka writes them."""
    fields = {
        "version": 1, "broker": block.broker_id, "block_start": str(block.first), "block_end": str(block.last),
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


def read_block_json(data: bytes) -> ProducerIdsBlock:
    """Return the block that the znode holds.

    Raises:
        DataError: it is not what Kafka writes; the version is not looked at, as Kafka does not either.

    """
    try:
        fields = json.loads(data)
        broker_id, start, end = fields["broker"], fields["block_start"], fields["block_end"]
        if type(broker_id) is not int or type(start) is not str or type(end) is not str:
            raise DataError(f"{PATH}: the broker is to be a number, and both ids text", hint=_NOT_KAFKAS)
        first, size = int(start), int(end) - int(start) + 1
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{PATH} holds no block of producer ids: {error}", hint=_NOT_KAFKAS) from error
    block = ProducerIdsBlock(broker_id=broker_id, first=first, size=size)
    # Kafka would accept a block that ends before it begins, and would give the next block twice.
    if not (block.last <= MAX_PRODUCER_ID and block.first >= 0 and 0 <= block.size <= MAX_INT):
        raise DataError(f"{PATH} holds a block from {start} to {end}, which are no ids", hint=_NOT_KAFKAS)
    return block


_NOT_KAFKAS: Final = "something other than Kafka wrote it; brokers cannot start with it either"


def take_block(node: BlockNode, broker_id: int) -> ProducerIdsBlock:
    """Take the next block for a broker; another that wrote in between has taken one, and the next one is tried.

    Raises:
        RefusedError: UNKNOWN_SERVER_ERROR where there are no ids left.
        DataError: the znode holds no block.

    """
    while True:
        data, version = node.read()
        block = _block_after(read_block_json(data) if data else None, broker_id)
        if node.write(block_json(block), version):
            return block


def _block_after(taken: ProducerIdsBlock | None, broker_id: int) -> ProducerIdsBlock:
    if taken is None:
        return ProducerIdsBlock(broker_id=broker_id, first=0)
    if taken.last > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        why = f"no producer ids are left: the last block ends at {taken.last}"
        raise RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, why)
    return ProducerIdsBlock(broker_id=broker_id, first=taken.next_first)


class ZooKeeperProducerIds:
    """The producer ids of one broker, from ZooKeeper: the first block at once, the next when none is left."""

    def __init__(self, node: BlockNode, broker_id: int) -> None:
        """Take a first block; errors as ``take_block``, and then the broker does not start."""
        self._node = node
        self._broker_id = broker_id
        self._current = ClaimedBlock(take_block(node, broker_id))

    def generate(self) -> int:
        """Return the next id; errors as ``take_block``."""
        producer_id = self._current.claim()
        while producer_id is None:
            self._current = ClaimedBlock(take_block(self._node, self._broker_id))
            producer_id = self._current.claim()
        return producer_id


def records_to_migrate(data: bytes | None) -> tuple[ProducerIdsRecord, ...]:
    """Return the records that the metadata log begins with for what the znode holds; none for nothing."""
    if not data:
        return ()
    block = read_block_json(data)
    return (
        ProducerIdsRecord(
            broker_id=block.broker_id, broker_epoch=NO_BROKER_EPOCH, next_producer_id=block.next_first
        ),
    )  # fmt: skip


def block_to_write_back(next_producer_id: int) -> bytes:
    """Return what a controller in migration writes to the znode: the *next* block, which is not taken yet.

    Who goes back to ZooKeeper begins after it. That skips a block, and gives none away twice.
    """
    return block_json(ProducerIdsBlock(broker_id=NO_BROKER, first=next_producer_id))


def must_write_back(data: bytes | None, next_producer_id: int) -> bool:
    """Tell whether a controller in migration writes the znode again; -1 means that the metadata log has no ids.

    What was written back names the next block, and so never agrees: Kafka writes the same again, and so does this.
    """
    if next_producer_id < 0:
        return False
    return not data or read_block_json(data).next_first != next_producer_id
