"""What a broker's producer state holds of the partitions that it has a replica of (KIP-664).

Any replica answers for itself, a follower too, so that replicas can be compared. Brokers from 2.8 on answer.

Source: ``ReplicaManager.activeProducerState``, ``DescribeProducersResponse``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import error_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.tiering.cluster.client import Cluster


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
    """Where its open transaction begins; None where none is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProducers:
    """What one replica answers."""

    producers: tuple[ActiveProducer, ...] = ()
    """By producer id."""
    error: str | None = None
    """Kafka's name of the error, such as ``NOT_LEADER_OR_FOLLOWER`` of a broker without a replica; None for none."""


def describe_producers(
    cluster: Cluster, broker_id: int, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ReplicaProducers]:
    """Return what broker ``broker_id`` holds of each of ``partitions``, asked in one request.

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
    answer = cluster.ask(f"cannot learn of producers from broker {broker_id}", Request(topics=topics), broker_id)
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
