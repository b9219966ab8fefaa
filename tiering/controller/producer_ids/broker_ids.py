"""The broker's side of producer id allocation: from a controller's blocks (KIP-730), and from ZooKeeper before KRaft.

A controller's blocks are prefetched, and each request gets one id. There is a current block and room for the next. When
90 % of the current one are used, or none is left, the caller must send a request; there is one at a time. Until the
block arrives, requests for an id get COORDINATOR_LOAD_IN_PROGRESS, and clients retry: no thread waits. So the very
first request always fails. After a failure 50 ms pass before the next request, but not after a timeout.

Nothing is sent from here: ``Generated.wants_block`` says that a request must be sent, and ``on_response`` or
``on_timeout`` receive its outcome. Methods may be called from several threads.

After an authorization error KIP-730 stops the broker, because it is misconfigured; Kafka's brokers log it and retry.
Both are possible here: a broker that follows the KIP stops on ``is_unauthorized``.

Source: ``RPCProducerIdManager`` of 3.6 to 4.4, ``NodeToControllerChannelManager``.

With ZooKeeper, and until a migration to a metadata log, each broker takes its next block itself: it reads the znode,
and writes the next block if no other broker wrote in between. The znode records the last block taken; a block may end
at the very last id, which KRaft does not use.

Source: ``ZkProducerIdManager``, ``ProducerIdBlockZNode`` and ``ZkMigrationClient``, as in 3.9; KIP-866.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from resnap.storage.errors import DataError
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    ProducerIdsRecord,
)
from resnap.tiering.controller.producer_ids.allocation import EMPTY, MAX_PRODUCER_ID, ClaimedBlock, ProducerIdsBlock

if TYPE_CHECKING:
    from resnap.tiering.controller.producer_ids.allocation import AllocateProducerIdsResponse

PREFETCH_PERCENT: Final = 90
RETRY_BACKOFF_MS: Final = 50
MOST_SWAPS: Final = 3
FIRST_TO_ASK: Final = 3
"""``inter.broker.protocol.version`` of this major version and later: 3.0-IV0 is the first of all."""
_PROTOCOL: Final = re.compile(r"(?P<major>\d+)\.\d+(\.\d+)*(-IV\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The result of requesting an id."""

    producer_id: int | None = None
    error: KafkaError = KafkaError.NONE
    wants_block: bool = False
    """Whether the caller is to send ``AllocateProducerIds`` now."""


class BrokerProducerIds:
    """The producer ids that one broker allocates to producers.

    Attributes:
        is_unauthorized: whether the controller's last response was CLUSTER_AUTHORIZATION_FAILED.

    """

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.is_unauthorized = False
        self._lock = Lock()
        self._current = ClaimedBlock(EMPTY)
        self._next: ProducerIdsBlock | None = None
        self._in_flight = False
        self._backoff_until_ms: int | None = None

    def generate(self, now_ms: int) -> Generated:
        """Take an id; without one, the error is the response to clients."""
        with self._lock:
            for _ in range(MOST_SWAPS):
                producer_id = self._current.claim()
                if producer_id is not None:
                    return self._next_id(producer_id, now_ms)
                if self._next is None:
                    return self._nothing(wants_block=self._may_request(now_ms))
                self._current, self._next, self._in_flight = ClaimedBlock(self._next), None, False
            # Blocks without ids came in a row; Kafka gives up here as well, and keeps the last of them.
            return self._nothing(wants_block=False)

    def on_response(self, response: AllocateProducerIdsResponse, now_ms: int) -> bool:
        """Process a response; return whether it brought a block. An invalid one counts as a failure."""
        with self._lock:
            self.is_unauthorized = response.error_code is KafkaError.CLUSTER_AUTHORIZATION_FAILED
            if response.error_code is KafkaError.NONE and self._is_sane(response):
                self._next = ProducerIdsBlock(
                    broker_id=self.broker_id, first=response.producer_id_start, size=response.producer_id_len
                )
                return True  # and the request counts as in flight until the block is in use
            self._backoff_until_ms = now_ms + RETRY_BACKOFF_MS
            self._in_flight = False
            return False

    def on_timeout(self) -> None:
        """Record that no response came; the next request without an id may send again at once.

        A KRaft broker gives a request up after 60 s, one with ZooKeeper after ``request.timeout.ms``.
        """
        with self._lock:
            self._in_flight = False

    def _next_id(self, producer_id: int, now_ms: int) -> Generated:
        block = self._current.block
        is_threshold = producer_id == block.first + block.size * PREFETCH_PERCENT // 100
        return Generated(producer_id=producer_id, wants_block=is_threshold and self._may_request(now_ms))

    def _nothing(self, *, wants_block: bool) -> Generated:
        return Generated(error=KafkaError.COORDINATOR_LOAD_IN_PROGRESS, wants_block=wants_block)

    def _may_request(self, now_ms: int) -> bool:
        backs_off = self._backoff_until_ms is not None and now_ms < self._backoff_until_ms
        if backs_off or self._next is not None or self._in_flight:
            return False
        self._in_flight, self._backoff_until_ms = True, None
        return True

    def _is_sane(self, response: AllocateProducerIdsResponse) -> bool:
        first, size = response.producer_id_start, response.producer_id_len
        # A block may be empty, as in Kafka; before 4.3 it might also begin with the last id in use, given twice then.
        return first > self._current.block.last and first >= 0 and 0 <= size <= MAX_PRODUCER_ID - first


def asks_the_controller(inter_broker_protocol: str) -> bool:
    """Return whether a broker with ZooKeeper sends ``AllocateProducerIds``; one below 3.0-IV0 takes blocks itself.

    Source: ``MetadataVersion.isAllocateProducerIdsSupported``; in KRaft all brokers ask.

    Raises:
        ValueError: it is not a version, such as ``2.8`` or ``3.0-IV1``.

    """
    found = _PROTOCOL.fullmatch(inter_broker_protocol)
    if found is None:
        raise ValueError(f'expected a version such as "3.0" or "3.0-IV1", found {inter_broker_protocol!r}')
    return int(found["major"]) >= FIRST_TO_ASK


PATH: Final = "/latest_producer_id_block"
MAX_INT: Final = 2**31 - 1


class BlockNode(Protocol):
    """The znode at ``PATH``, which brokers create, empty, when they start."""

    def read(self) -> tuple[bytes | None, int]:
        """Return its data, None if it has none, and its version."""

    def write(self, data: bytes, version: int) -> bool:
        """Write ``data`` if the znode still has ``version``; return whether it had. DataError if it does not exist."""


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
        DataError: the znode holds no block, or does not exist.

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
