"""Producer id blocks in ZooKeeper, as brokers before KRaft take them, and their migration to a metadata log.

Each broker takes its next block itself: it reads the znode, and writes the next block if no other broker wrote in
between. The znode records the last block taken; a block may end at the very last id, which KRaft does not use.

Source: ``ZkProducerIdManager``, ``ProducerIdBlockZNode`` and ``ZkMigrationClient``, as in 3.9; KIP-866.
"""

from __future__ import annotations

import json
from threading import Lock
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
    """The znode at ``PATH``, which brokers create, empty, when they start."""

    def read(self) -> tuple[bytes | None, int]:
        """Return its data, None if it has none, and its version."""

    def write(self, data: bytes, version: int) -> bool:
        """Write ``data`` if the znode still has ``version``; return whether it had."""


def block_json(block: ProducerIdsBlock) -> bytes:
    """Return the znode's content for ``block``; the ids are strings, as Kafka writes them."""
    fields = {
        "version": 1, "broker": block.broker_id, "block_start": str(block.first), "block_end": str(block.last),
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


def read_block_json(data: bytes) -> ProducerIdsBlock:
    """Return the block in the znode's content.

    Raises:
        DataError: it is not what Kafka writes; like Kafka, this ignores the version.

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
        raise DataError(f"{PATH} holds a block from {start} to {end}, which are not ids", hint=_NOT_KAFKAS)
    return block


_NOT_KAFKAS: Final = "something other than Kafka wrote it; brokers cannot start with it either"


def take_block(node: BlockNode, broker_id: int) -> ProducerIdsBlock:
    """Take the next block for a broker; if another broker wrote in between, take the block after that.

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
    """The producer ids of one broker, from ZooKeeper: the first block at once, the next when it is used up.

    Methods may be called from several threads.
    """

    def __init__(self, node: BlockNode, broker_id: int) -> None:
        """Take a first block; errors as ``take_block``, and then the broker does not start."""
        self._node = node
        self._broker_id = broker_id
        self._lock = Lock()
        self._current = ClaimedBlock(take_block(node, broker_id))

    def generate(self) -> int:
        """Return the next id; errors as ``take_block``."""
        with self._lock:
            while (producer_id := self._current.claim()) is None:
                self._current = ClaimedBlock(take_block(self._node, self._broker_id))
            return producer_id


def records_to_migrate(data: bytes | None) -> tuple[ProducerIdsRecord, ...]:
    """Return the records with which the metadata log begins for the znode's content; none for an empty one."""
    if not data:
        return ()
    block = read_block_json(data)
    return (
        ProducerIdsRecord(
            broker_id=block.broker_id, broker_epoch=NO_BROKER_EPOCH, next_producer_id=block.next_first
        ),
    )  # fmt: skip


def block_to_write_back(next_producer_id: int) -> bytes:
    """Return the block that a migrating controller writes to the znode: the *next* one, which is not taken yet.

    After a return to ZooKeeper allocation continues after it. That skips a block, and allocates none twice.
    """
    return block_json(ProducerIdsBlock(broker_id=NO_BROKER, first=next_producer_id))


def must_write_back(data: bytes | None, next_producer_id: int) -> bool:
    """Return whether a migrating controller writes the znode again; -1 means the metadata log has no ids.

    A block that was written back is the next one, and so never matches: Kafka writes the same again, and so does this.
    """
    if next_producer_id < 0:
        return False
    return not data or read_block_json(data).next_first != next_producer_id
