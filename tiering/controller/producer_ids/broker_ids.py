"""The broker's side of producer id allocation: one id per request, from prefetched blocks (KIP-730).

There is a current block and room for the next. When 90 % of the current one are used, or none is left, the caller must
send a request; there is one at a time. Until the block arrives, requests for an id get COORDINATOR_LOAD_IN_PROGRESS,
and clients retry: no thread waits. So the very first request always fails. After a failure 50 ms pass before the next
request, but not after a timeout.

Nothing is sent from here: ``Generated.wants_block`` says that a request must be sent, and ``on_response`` or
``on_timeout`` receive its outcome. Methods may be called from several threads.

After an authorization error KIP-730 stops the broker, because it is misconfigured; Kafka's brokers log it and retry.
Both are possible here: a broker that follows the KIP stops on ``is_unauthorized``.

Source: ``RPCProducerIdManager`` of 3.6 to 4.4, ``NodeToControllerChannelManager``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from resnap.storage.kafka_errors import KafkaError
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
