"""Finds replicas of a running cluster that have lost producer state, by comparing the state that replicas report.

Every replica of every partition is queried once, many partitions per request, all brokers in parallel. Partitions whose
replicas agree are done. The others are queried again until the difference is gone, or has lasted so long that an
in-sync replica must have fetched everything that the other one had at first: twice ``replica.lag.time.max.ms``. A
replica has lost state only if every response shows it, and if it was in sync all the time, under one leader.

The requests need only the permissions to describe and to read topics; without the permission to describe settings,
Kafka's defaults are assumed.

Source: ``MetadataResponse``.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ClusterError
from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.broker_settings import describe_brokers, hidden_topics
from resnap.tiering.cluster.client import error_name
from resnap.tiering.cluster.replica_comparison import (
    DeletedRecords,
    PartitionReplicas,
    ReplicaProducers,
    ReplicaState,
    Tolerance,
    WatchedPartition,
    describe_producers,
)
from resnap.tiering.controller.expiration import EXPIRATION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import PartitionFacts, TopicFacts
    from resnap.tiering.cluster.replica_comparison import ReplicaFinding

_LAG: Final = "replica.lag.time.max.ms"
_DEFAULTS: Final = {_LAG: 30_000, EXPIRATION: 86_400_000}
PARTITIONS_A_REQUEST: Final = 50
_PARTITIONS_AT_ONCE: Final = 4_000
"""Number of partitions whose responses are held in memory."""
_BROKERS_AT_ONCE: Final = 32
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_SETTLED_LAGS: Final = 2
"""A replica that does not keep up is out of sync after at most one and a half times ``replica.lag.time.max.ms``."""
_MOST_SETTLINGS: Final = 3


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
        errors = {
            topic.name: error_name(topic.error_code)
            for topic in answer.topics
            if topic.error_code not in {KafkaError.NONE, KafkaError.UNKNOWN_TOPIC_OR_PARTITION}
        }
        if topics is None:
            errors |= hidden_topics(self.cluster, [topic.name for topic in answer.topics])
        failed = [
            PartitionReplicas(TopicPartition(topic, 0), None, -1, (), (), error=error)
            for topic, error in errors.items()
        ]
        return [partition for partition in failed if self.wants(partition.topic_partition)] + [
            PartitionReplicas(
                topic_partition=TopicPartition(topic.name, partition.partition_index),
                leader=partition.leader_id if partition.leader_id >= 0 else None,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                in_sync=tuple(partition.isr_nodes),
            )
            for topic in answer.topics
            if not topic.error_code
            for partition in topic.partitions
            if self.wants(TopicPartition(topic.name, partition.partition_index))
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
        topics = {partition.topic for partition in wanted}
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
            if (topic.name, number) in wanted and partition.leader not in facts.silent
        }

    def times(self) -> BrokerTimes:
        """Return the settings of the running brokers, with Kafka's defaults for missing ones."""
        found = describe_brokers(self.cluster, tuple(_DEFAULTS))
        if silent := next((broker.error for broker in found if broker.error is not None), None):
            self.warn(f"Kafka's defaults are used for {_LAG} and {EXPIRATION}: {silent}")
        known = [{name: int(one.values.get(name, default)) for name, default in _DEFAULTS.items()} for one in found]
        return BrokerTimes(lag_ms=max(one[_LAG] for one in known), expiration_ms=min(one[EXPIRATION] for one in known))


def _is_in_remote(topic: TopicFacts, partition: PartitionFacts) -> bool:
    """Whether a new replica may start from remote storage; also if the cluster does not exclude that.

    If nothing is tiered yet, it starts at the beginning of the log, as without tiered storage.
    """
    is_local = partition.local_start_offset is not None and partition.local_start_offset == partition.log_start_offset
    return not topic.settings or (topic.is_tiered and not (is_local and partition.remote_end_offset == 0))


@dataclass(slots=True, kw_only=True)
class ReplicaCheck:
    """One check of all replicas.

    Attributes:
        pause: waits for so many seconds.
        check: raises an error to end the check.
        partitions: number of partitions.
        places: where the replicas of the partitions were at first.
        names: names of the partitions.
        alone: number of partitions with a single in-sync replica, which cannot be compared.
        replicas: number of replicas queried.

    """

    brokers: LiveBrokers
    now_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    pause: Callable[[float], object]
    check: Callable[[], object]
    partitions: int = 0
    places: Sequence[PartitionReplicas] = ()
    names: frozenset[TopicPartition] = frozenset()
    alone: int = 0
    replicas: int = 0
    _silent: dict[int, str] = field(default_factory=dict)
    """Brokers that do not answer at all, and why."""

    def findings(self) -> Iterator[ReplicaFinding]:
        """Yield the replicas with a problem; partitions without one are omitted.

        Raises:
            ClusterError: the cluster does not list its replicas.

        """
        self.places = places = self.brokers.partitions()
        self.partitions, self.names = len(places), frozenset(place.topic_partition for place in places)
        self.alone = sum(place.leader is not None and len(place.in_sync) == 1 for place in places)
        unsettled: list[WatchedPartition] = []
        for begin in range(0, len(places), _PARTITIONS_AT_ONCE):
            some = places[begin : begin + _PARTITIONS_AT_ONCE]
            for place in some:
                yield from place.not_compared()
            unsettled += self._first_answers(some)
            self.check()
        yield from self._settle(unsettled)

    def _first_answers(self, places: Iterable[PartitionReplicas]) -> list[WatchedPartition]:
        """Return the open partitions after two responses, so that active producers cause no third round."""
        led = (place for place in places if place.leader is not None and len(place.in_sync) > 1)
        watched = [WatchedPartition(place=place, brokers=frozenset(place.in_sync)) for place in led]
        self.replicas += sum(len(replica.brokers) for replica in watched)
        self._ask(watched)
        differing = [replica for replica in watched if replica.losses and not replica.errors]
        self._ask(differing)
        return [replica for replica in watched if replica.is_open]

    def _settle(self, watched: list[WatchedPartition]) -> Iterator[ReplicaFinding]:
        """Query again until each loss is confirmed, or the replica has caught up."""
        if not watched:
            return
        times = self.brokers.times()
        deleted: dict[TopicPartition, DeletedRecords] = {}
        settled_s = _SETTLED_LAGS * times.lag_ms / 1000
        end_s, pause_s = self.monotonic_s() + _MOST_SETTLINGS * settled_s, _FIRST_PAUSE_S
        while watched:
            self.check()
            self.pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._silent.clear()
            yield from self._follow_leaders(watched)
            self._ask([replica for replica in watched if replica.brokers])
            deleted |= self.brokers.deleted(
                [name for one in watched if one.losses and (name := one.place.topic_partition) not in deleted]
            )
            for replica in watched:
                yield from replica.give_up()
                records = deleted.get(replica.place.topic_partition)
                tolerance = Tolerance(
                    now_ms=self.now_ms(), expiration_ms=times.expiration_ms, deleted=records or DeletedRecords()
                )
                replica.drop_allowed(tolerance)
                if replica.losses and records and self.monotonic_s() - replica.since_s >= settled_s:
                    yield from replica.lost()
                    replica.losses = {}
                elif replica.is_open and self.monotonic_s() >= end_s:
                    why = "its leader has changed too often meanwhile" if records else "its topic is not described"
                    yield replica.place.finding(None, ReplicaState.UNKNOWN, why)
                    replica.losses, replica.errors = {}, {}
            watched = [replica for replica in watched if replica.is_open]

    def _follow_leaders(self, watched: list[WatchedPartition]) -> Iterator[ReplicaFinding]:
        """Start again if the leader has changed; yield replicas out of sync, which are no longer compared."""
        topics = frozenset(replica.place.topic_partition.topic for replica in watched)
        found = self.brokers.partitions(topics)
        places = {place.topic_partition: place for place in found}
        failed = {place.topic_partition.topic: place for place in found if place.error is not None}
        for replica in watched:
            place = failed.get(replica.place.topic_partition.topic) or places.get(replica.place.topic_partition)
            if place is None or place.leader is None:
                replica.brokers, replica.losses, replica.errors = frozenset(), {}, {}
                if place is not None:
                    yield from place._replace(topic_partition=replica.place.topic_partition).not_compared()
                continue
            for broker_id in sorted(replica.brokers - set(place.in_sync)):
                yield place.finding(broker_id, ReplicaState.LAGGING)
            replica.brokers &= set(place.in_sync)
            if (place.leader, place.leader_epoch) != (replica.place.leader, replica.place.leader_epoch):
                replica.first, replica.losses = {}, {}
            replica.place = place

    def _ask(self, watched: Sequence[WatchedPartition]) -> None:
        """Query the replicas of all ``watched``."""
        wanted: dict[int, list[TopicPartition]] = defaultdict(list)
        for replica in watched:
            for broker_id in replica.brokers:
                wanted[broker_id].append(replica.place.topic_partition)
        requests = [
            (broker_id, partitions[begin : begin + PARTITIONS_A_REQUEST])
            for broker_id, partitions in wanted.items()
            for begin in range(0, len(partitions), PARTITIONS_A_REQUEST)
        ]
        answers: dict[TopicPartition, dict[int, ReplicaProducers]] = defaultdict(dict)
        with ThreadPoolExecutor(_BROKERS_AT_ONCE, thread_name_prefix="resnap-replicas") as threads:
            for (broker_id, partitions), said in zip(requests, threads.map(self._answer, requests), strict=True):
                for partition in partitions:
                    answers[partition][broker_id] = said.get(partition) or ReplicaProducers(error="no answer")
        now_s = self.monotonic_s()
        for replica in watched:
            replica.take(answers[replica.place.topic_partition], now_s)

    def _answer(self, request: tuple[int, Sequence[TopicPartition]]) -> Mapping[TopicPartition, ReplicaProducers]:
        """Return a broker's response; one that does not answer is queried again only with all others."""
        broker_id, partitions = request
        if broker_id not in self._silent:
            try:
                return self.brokers.producers(broker_id, partitions)
            except ClusterError as error:
                self._silent[broker_id] = str(error)
        return dict.fromkeys(partitions, ReplicaProducers(error=self._silent[broker_id]))
