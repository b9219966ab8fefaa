"""The requests that ``replica_check`` sends to a running cluster.

They need only the permissions to describe and to read topics; without the permission to describe settings, Kafka's
defaults are assumed.

Source: ``MetadataResponse``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ClusterError
from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.broker_settings import describe_brokers
from resnap.tiering.cluster.client import error_name
from resnap.tiering.cluster.producers import describe_producers
from resnap.tiering.cluster.replica_comparison import DeletedRecords, PartitionReplicas
from resnap.tiering.controller.expiration import EXPIRATION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import PartitionFacts, TopicFacts
    from resnap.tiering.cluster.producers import ReplicaProducers

_LAG: Final = "replica.lag.time.max.ms"
_DEFAULTS: Final = {_LAG: 30_000, EXPIRATION: 86_400_000}


class BrokerTimes(NamedTuple):
    """Time settings of brokers."""

    lag_ms: int
    """The longest ``replica.lag.time.max.ms``."""
    expiration_ms: int
    """The shortest ``producer.id.expiration.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBrokers:
    """The brokers of a running cluster.

    Attributes:
        wants: whether a partition is to be checked.
        warn: called about facts that the cluster does not provide.

    """

    cluster: Cluster
    wants: Callable[[TopicPartition], bool]
    warn: Callable[[str], None]

    def partitions(self, topics: frozenset[str] | None = None) -> Sequence[PartitionReplicas]:
        """Return the partitions of ``topics``, or all wanted ones; one entry for a topic that cannot be described.

        Raises:
            ClusterError: the cluster does not answer.

        """
        from kafka.protocol.metadata import MetadataRequest as Request

        asked = None if topics is None else [Request.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
        request = Request(topics=asked, allow_auto_topic_creation=False)
        answer = self.cluster.ask("cannot describe where replicas are", request)
        failed = [
            PartitionReplicas(TopicPartition(topic.name, 0), None, -1, (), (), error=error_name(topic.error_code))
            for topic in answer.topics
            if topic.error_code not in {KafkaError.NONE, KafkaError.UNKNOWN_TOPIC_OR_PARTITION}
        ]
        return [one for one in failed if self.wants(one.topic_partition)] + [
            PartitionReplicas(
                topic_partition=TopicPartition(topic.name, one.partition_index),
                leader=one.leader_id if one.leader_id >= 0 else None,
                leader_epoch=one.leader_epoch,
                replicas=tuple(one.replica_nodes),
                in_sync=tuple(one.isr_nodes),
            )
            for topic in answer.topics
            if not topic.error_code
            for one in topic.partitions
            if self.wants(TopicPartition(topic.name, one.partition_index))
        ]

    def topics(self, names: Collection[str]) -> Mapping[str, TopicFacts]:
        """Return what the cluster says of topics, with offsets; with a warning nothing, if it does not say."""
        try:
            return self.cluster.facts(lambda name: name in names).topics
        except ClusterError as error:
            self.warn(f"which partitions are tiered is not known: {error}")
            return {}

    def producers(
        self, broker_id: int, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ReplicaProducers]:
        """Return a broker's producer state of each of ``partitions``.

        Raises:
            ClusterError: it does not answer, or is too old for the request.

        """
        return describe_producers(self.cluster, broker_id, partitions)

    def deleted(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, DeletedRecords]:
        """Return what new replicas of ``partitions`` cannot fetch; for tiered segments they have a snapshot.

        Partitions for which the cluster does not answer are omitted.
        """
        wanted = set(partitions)
        topics = {one.topic for one in wanted}
        if not topics:
            return {}
        try:
            facts = self.cluster.facts(lambda name: name in topics)
        except ClusterError as error:
            self.warn(f"trying again: {error}")
            return {}
        if any(not topic.settings for topic in facts.topics.values()):
            self.warn("the cluster does not report the settings of topics: what retention has deleted counts as lost")
        return {
            TopicPartition(topic.name, number): DeletedRecords(
                below=0 if _is_in_remote(topic, partition) else partition.log_start_offset or 0,
                markers=topic.is_compacted,
            )
            for topic in facts.topics.values()
            for number, partition in topic.partitions.items()
            if (topic.name, number) in wanted
        }

    def times(self) -> BrokerTimes:
        """Return the settings of the running brokers, with Kafka's defaults for missing ones."""
        found = describe_brokers(self.cluster, tuple(_DEFAULTS))
        if silent := next((one.error for one in found if one.error is not None), None):
            self.warn(f"Kafka's defaults are used for {_LAG} and {EXPIRATION}: {silent}")
        known = [{name: int(one.values.get(name, default)) for name, default in _DEFAULTS.items()} for one in found]
        return BrokerTimes(lag_ms=max(one[_LAG] for one in known), expiration_ms=min(one[EXPIRATION] for one in known))


def _is_in_remote(topic: TopicFacts, partition: PartitionFacts) -> bool:
    """Whether a new replica may start from remote storage; also if the cluster does not exclude that.

    If nothing is tiered yet, it starts at the beginning of the log, as without tiered storage.
    """
    is_local = partition.local_start_offset is not None and partition.local_start_offset == partition.log_start_offset
    return not topic.settings or (topic.is_tiered and not (is_local and partition.remote_end_offset == 0))
