"""How a controller answers ``AllocateProducerIds``: who may ask, how often, who may answer, and which error means what.

KIP-730 wants the request limited, and an authorization error to end the broker that asks. Kafka has neither as written:
the general quota of requests delays the answers, and a broker only logs an error and asks again. Here a token bucket
for each caller gives the delay, and ``broker_ids`` asks again as Kafka's brokers do.

Source: ``ControllerApis.handleAllocateProducerIdsRequest``, ``KafkaController.allocateProducerIds``; KIP-730.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, TypeAlias

from storage.kafka_errors import KafkaError, RefusedError
from tiering.controller.producer_ids.block import ProducerIdsBlock
from tiering.controller.producer_ids.requests import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tiering.quota.token_bucket import QuotaConfig, RateUnit, TokenBucket, throttle_ms

Allocate: TypeAlias = Callable[[int, int], ProducerIdsBlock]
"""Broker id and epoch in, a block out, or a ``RefusedError``: ``DurableAllocation.allocate`` at some time."""


MOST_CALLERS: Final = 10_000
"""Buckets that are kept at most: callers are brokers, and who else asks is not to fill the memory."""


class RequestThrottle:
    """How long to keep each caller waiting: ``requests_per_second`` are free, those of ``burst_s`` seconds at once."""

    def __init__(self, requests_per_second: float, *, burst_s: int = 10) -> None:
        """ValueError where a rate or a burst is not above 0."""
        if requests_per_second <= 0:
            raise ValueError(f"{requests_per_second} requests a second: must be above 0")
        self._rate = requests_per_second
        self._config = QuotaConfig(samples=burst_s, window_ms=1_000, unit=RateUnit.SECOND)
        self._buckets: dict[str, TokenBucket] = {}
        self._lock = Lock()

    def __call__(self, caller: str, now_ms: int) -> int:
        """Count a request of ``caller``; return for how many milliseconds its connection is to be muted."""
        with self._lock:
            bucket = self._buckets.get(caller)
            if bucket is None:
                self._make_room(now_ms)
                bucket = self._buckets[caller] = TokenBucket(self._config, self._rate, now_ms)
            return throttle_ms(-bucket.take(1, self._rate, now_ms), self._rate)

    def _make_room(self, now_ms: int) -> None:
        if len(self._buckets) >= MOST_CALLERS:
            self._buckets = {
                caller: bucket for caller, bucket in self._buckets.items() if not bucket.is_full(self._rate, now_ms)
            }
        while len(self._buckets) >= MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]


def answer_allocate(
    request: AllocateProducerIdsRequest,
    allocate: Allocate,
    *,
    is_authorized: bool = True,
    is_active: bool = True,
    throttle: Callable[[], int] = lambda: 0,
) -> AllocateProducerIdsResponse:
    """Return the answer of a KRaft controller.

    Args:
        request: from a broker, or from somebody who claims to be one.
        allocate: gives blocks away.
        is_authorized: whether whoever asks may CLUSTER_ACTION on the cluster; looked at before anything else.
        is_active: whether this controller leads, and is not waiting for a migration to begin.
        throttle: counts the request, and gives how long to mute the connection; as in Kafka, errors but that of
            authorization are exempt. A ``RequestThrottle`` for a caller at some time.

    """
    if not is_authorized:
        return AllocateProducerIdsResponse(
            error_code=KafkaError.CLUSTER_AUTHORIZATION_FAILED, throttle_time_ms=throttle()
        )
    if not is_active:
        return AllocateProducerIdsResponse(error_code=KafkaError.NOT_CONTROLLER)
    try:
        block = allocate(request.broker_id, request.broker_epoch)
    except RefusedError as error:
        return AllocateProducerIdsResponse(error_code=error.error)
    return AllocateProducerIdsResponse(
        producer_id_start=block.first, producer_id_len=block.size, throttle_time_ms=throttle()
    )


def refusal_by_zookeeper_controller(is_registered: bool) -> KafkaError:
    """Return what a controller with ZooKeeper says where the epoch does not fit; KRaft does not tell the two apart."""
    return KafkaError.STALE_BROKER_EPOCH if is_registered else KafkaError.BROKER_ID_NOT_REGISTERED
