"""A client that sends what no client library would: batches and transactions as a test wants them."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.record import write_data_batch
from resnap.tiering.controller.producer_ids.allocation import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    read_body,
    write_body,
)
from tests.kafka.brokers import eventually
from tests.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.names import TopicPartition

_PRODUCE, _FIND_COORDINATOR, _ADD_PARTITIONS = 0, 10, 24
_BEFORE_V2: Final = 7
"""Of the produce request: with it a broker adds no partition to a transaction by itself."""
_PASSING: Final = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
}
"""What a broker says for a while after its start."""


class RawClient:
    """The producer of one transactional id at one broker, with the requests of transactions before v2."""

    def __init__(self, port: int, name: str, *, timeout_ms: int = 600_000) -> None:
        """Get a producer id and an epoch for the transactional id ``name``."""
        self._port, self._name = port, name
        self._ask(_FIND_COORDINATOR, 1, _short(name) + b"\x01")  # which makes __transaction_state
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
        )

        def error() -> KafkaError:
            answer = self._ask(INIT_PRODUCER_ID, 1, write_body(request, 1))
            made = read_body(InitProducerIdResponse, answer, 1)
            self.producer_id, self.producer_epoch = made.producer_id, made.producer_epoch
            return made.error_code

        self._until_taken(error)

    def add(self, partition: TopicPartition) -> None:
        """Say to the coordinator that the transaction has a partition; it begins with the first."""
        body = _short(self._name) + struct.pack(">qhi", self.producer_id, self.producer_epoch, 1)
        body += _short(partition.topic) + struct.pack(">ii", 1, partition.partition)
        self._until_taken(lambda: KafkaError(struct.unpack(">h", self._ask(_ADD_PARTITIONS, 2, body)[-2:])[0]))

    def produce(self, partition: TopicPartition, sequence: int = 0) -> None:
        """Send one record of the transaction."""
        batch = write_data_batch(
            offset=0, timestamps=int(time.time() * 1000), producer_id=self.producer_id,
            producer_epoch=self.producer_epoch, base_sequence=sequence, transactional=True, values=[b"one"],
        )  # fmt: skip
        body = _short(self._name) + struct.pack(">hii", -1, 30_000, 1) + _short(partition.topic)
        body += struct.pack(">iii", 1, partition.partition, len(batch)) + batch
        at = 4 + len(_short(partition.topic)) + 8
        self._until_taken(lambda: KafkaError(struct.unpack_from(">h", self._ask(_PRODUCE, _BEFORE_V2, body), at)[0]))

    def _ask(self, key: int, version: int, body: bytes) -> bytes:
        with Wire(self._port) as wire:
            return wire.ask(key, version, body, flexible=False)

    def _until_taken(self, ask: Callable[[], KafkaError]) -> None:
        def is_taken() -> bool:
            error = ask()
            assert error in _PASSING or error is KafkaError.NONE, error
            return error is KafkaError.NONE

        eventually(is_taken, "the broker goes on to refuse")


def _short(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
