"""How a controller answers ``AllocateProducerIds``: who may ask, how often, who may answer, and which error means what.

KIP-730 wants the request limited, and an authorization error to end the broker that asks. Kafka has neither as written:
the general quota of requests delays the answers, and a broker only logs an error and asks again. Here whoever embeds it
gives the delay, and ``broker_ids`` says which error is to end the broker.

Source: ``ControllerApis.handleAllocateProducerIdsRequest``, ``KafkaController.allocateProducerIds``; KIP-730.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.tiering.controller.producer_ids.block import ProducerIdsBlock
from resnap.tiering.controller.producer_ids.requests import AllocateProducerIdsRequest, AllocateProducerIdsResponse

Allocate: TypeAlias = Callable[[int, int], ProducerIdsBlock]
"""Broker id and epoch in, a block out, or a ``RefusedError``: ``DurableAllocation.allocate`` at some time."""


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
            authorization are exempt. ``tiering.quota.request_throttle`` has one.

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
    """Return what a controller with ZooKeeper says where the epoch does not fit; KRaft does not say the two apart."""
    return KafkaError.STALE_BROKER_EPOCH if is_registered else KafkaError.BROKER_ID_NOT_REGISTERED
