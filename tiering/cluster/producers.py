"""Requests for producer state and transactions (KIP-664), to any replica and to transaction coordinators.

Every replica, also a follower, returns its own state, so that replicas can be compared; brokers from 2.8 on support
this. Coordinators are queried by ListTransactions and DescribeTransactions, which brokers from 3.0 on support;
transactional ids that the user may not describe are missing.

Source: ``ReplicaManager.activeProducerState``, ``DescribeProducersResponse``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ClusterError
from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import error_name
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState
from resnap.tiering.controller.transactions.state_log import TransactionStates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from resnap.tiering.cluster.client import Cluster

_TIMEOUT_MS: Final = 60_000
_ATTEMPTS: Final = 30
_PAUSE_S: Final = 1.0
"""A broker without ids requests a block from the controller, and returns this error until it has one."""


class ActiveProducer(NamedTuple):
    """One entry of a partition's producer state."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1 where its epoch has written no data yet."""
    last_timestamp: int
    """Milliseconds since the epoch."""
    coordinator_epoch: int
    """Of the last marker; -1 where there was none."""
    current_transaction_start_offset: int | None
    """First offset of its open transaction; None if none is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProducers:
    """The response of one replica."""

    producers: tuple[ActiveProducer, ...] = ()
    """By producer id."""
    error: str | None = None
    """Kafka's name of the error, such as ``NOT_LEADER_OR_FOLLOWER`` of a broker without a replica; None for none."""


def describe_producers(
    cluster: Cluster, broker_id: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ReplicaProducers]:
    """Return the producer state of broker ``broker_id`` for each of ``partitions``, in one request.

    Raises:
        ClusterError: it does not answer, or is too old to be asked.

    """
    from kafka.protocol.admin.transactions import DescribeProducersRequest as Request

    numbers: dict[str, list[int]] = defaultdict(list)
    for one in partitions:
        numbers[one.topic].append(one.partition)
    if not numbers:
        return {}
    topics = [Request.TopicRequest(name=topic, partition_indexes=found) for topic, found in numbers.items()]
    answer = cluster.ask(f"cannot describe the producers of broker {broker_id}", Request(topics=topics), broker_id)
    return {
        TopicPartition(topic.name, one.partition_index): ReplicaProducers(
            producers=tuple(
                sorted(
                    ActiveProducer(
                        producer_id=entry.producer_id,
                        producer_epoch=entry.producer_epoch,
                        last_sequence=entry.last_sequence,
                        last_timestamp=entry.last_timestamp,
                        coordinator_epoch=entry.coordinator_epoch,
                        current_transaction_start_offset=None
                        if entry.current_txn_start_offset < 0
                        else entry.current_txn_start_offset,
                    )
                    for entry in one.active_producers or ()
                )
            ),
            error=error_name(one.error_code) if one.error_code else None,
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def next_producer_id(cluster: Cluster) -> int:
    """Return a newly allocated producer id, which no other producer gets.

    Raises:
        ClusterError: no broker answers, or none allocates an id.

    """
    from kafka.protocol.producer import InitProducerIdRequest as Request

    what = "cannot get the next producer id"
    request = Request(transactional_id=None, transaction_timeout_ms=_TIMEOUT_MS, producer_id=-1, producer_epoch=-1)
    for _ in range(_ATTEMPTS):
        answer = cluster.ask(what, request)
        if answer.error_code != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            break
        time.sleep(_PAUSE_S)
    if answer.error_code:
        raise ClusterError(f"{what}: {error_name(answer.error_code)}", hint="run the same command again")
    return int(answer.producer_id)


_STATES = {state.kafka_name: state for state in TransactionState}


def describe_transactions(cluster: Cluster, producer_ids: Collection[int]) -> TransactionStates:
    """Return the transactional ids that use ``producer_ids`` now.

    Raises:
        ClusterError: the cluster does not answer, or is too old for the request.

    """
    found = {
        name: TransactionMetadata(
            transactional_id=name,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            timeout_ms=one.transaction_timeout_ms,
            state=_STATES[one.state.value],
            partitions=frozenset(TopicPartition(*place) for place in one.topic_partitions),
            start_ms=one.transaction_start_time_ms,
        )
        for name, one in cluster.transactions(producer_ids).items()
        if one.state.value in _STATES
    }
    return TransactionStates(transactions=found)
