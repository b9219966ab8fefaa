"""A cluster whose brokers append, replicate, expire, restart and move leadership as Kafka's do, without any process.

Every request and every pause takes time, in which such things happen. A follower that is in sync has everything that
is older than ``LAG_MS``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.live_replicas import BrokerTimes, ReplicaCheck
from resnap.tiering.cluster.replica_comparison import (
    ActiveProducer,
    DeletedRecords,
    PartitionReplicas,
    ReplicaProducers,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from resnap.tiering.cluster.facts import TopicFacts

LAG_MS: Final = 30_000
EXPIRATION_MS: Final = 600_000
START_MS: Final = 1_700_000_000_000
TOPIC: Final = "payments"


class Batch(NamedTuple):
    """One batch; a marker has the epoch of its coordinator."""

    producer_id: int
    epoch: int
    sequence: int
    at_ms: int
    coordinator_epoch: int = -1
    is_transactional: bool = False


@dataclass(slots=True)
class Replica:
    """What one broker has made of a partition's log."""

    applied: int = 0
    producers: dict[int, ActiveProducer] = field(default_factory=dict)

    def apply(self, batch: Batch) -> None:
        """Append a batch, as ``ProducerStateManager.update`` does."""
        before = self.producers.get(batch.producer_id)
        is_marker = batch.coordinator_epoch >= 0
        begins = None if before is None else before.current_transaction_start_offset
        if batch.is_transactional and not is_marker and begins is None:
            begins = self.applied
        self.producers[batch.producer_id] = ActiveProducer(
            producer_id=batch.producer_id,
            producer_epoch=batch.epoch,
            last_sequence=(before.last_sequence if before else -1) if is_marker else batch.sequence,
            last_timestamp=batch.at_ms,
            coordinator_epoch=batch.coordinator_epoch if is_marker else (before.coordinator_epoch if before else -1),
            current_transaction_start_offset=None if is_marker else begins,
        )
        self.applied += 1

    def expire(self, now_ms: int) -> None:
        """Forget who has written nothing for long, unless a transaction is open."""
        for producer in list(self.producers.values()):
            if producer.current_transaction_start_offset is None and now_ms - producer.last_timestamp >= EXPIRATION_MS:
                del self.producers[producer.producer_id]


@dataclass(slots=True, kw_only=True)
class Partition:
    """A partition with its log and replicas."""

    name: TopicPartition
    leader: int
    replicas: dict[int, Replica]
    in_sync: set[int]
    log: list[Batch] = field(default_factory=list)
    leader_epoch: int = 0
    error: str | None = None
    """Why its topic is not described."""

    def append(self, batch: Batch) -> None:
        """Append to the leader's log."""
        self.log.append(batch)
        self.replicas[self.leader].apply(batch)

    def fetch(self, broker_id: int, end: int) -> None:
        """Let a follower have the log up to ``end``."""
        replica = self.replicas[broker_id]
        for batch in self.log[replica.applied : end]:
            replica.apply(batch)

    def lead(self, broker_id: int) -> None:
        """Move leadership, once the new leader has everything."""
        self.fetch(broker_id, len(self.log))
        self.leader, self.leader_epoch = broker_id, self.leader_epoch + 1

    @property
    def place(self) -> PartitionReplicas:
        """What metadata say; -1 means no leader."""
        if self.error is not None:
            return PartitionReplicas(TopicPartition(self.name.topic, 0), None, -1, (), (), self.error)
        leader = None if self.leader < 0 else self.leader
        return PartitionReplicas(
            self.name, leader, self.leader_epoch, tuple(sorted(self.replicas)), tuple(sorted(self.in_sync))
        )


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Brokers that live on while they are asked."""

    cluster_partitions: list[Partition]
    chance: random.Random
    now_ms: int = START_MS
    down: dict[int, int] = field(default_factory=dict)
    """Brokers that do not answer, and until when."""
    requests: list[tuple[int, int]] = field(default_factory=list)
    """Brokers that were asked, and for how many partitions."""
    moves_leaders: bool = True
    restarts: bool = True
    is_quiet: bool = False
    """Whether nothing happens but that time passes."""
    next_producer: int = 1_000
    one_at_a_time: Lock = field(default_factory=Lock)
    """Brokers are asked by several threads, and each question lets time pass for all."""

    def check(self) -> ReplicaCheck:
        """Return a check of this cluster."""
        return ReplicaCheck(
            brokers=self,
            now_ms=lambda: self.now_ms,
            monotonic_s=lambda: self.now_ms / 1000,
            pause=lambda seconds: self.live(int(seconds * 1000)),
            check=lambda: None,
        )

    def partitions(self, topics: frozenset[str] | None = None) -> Sequence[PartitionReplicas]:
        self.live(self.chance.randrange(50))
        return [one.place for one in self.cluster_partitions if topics is None or one.name.topic in topics]

    def producers(self, broker_id: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ReplicaProducers]:
        with self.one_at_a_time:
            self.live(self.chance.randrange(50))
            self.requests.append((broker_id, len(partitions)))
            if broker_id in self.down:
                raise ClusterError(f"broker {broker_id} does not answer")
            known = {partition.name: partition.replicas.get(broker_id) for partition in self.cluster_partitions}
            return {name: _answer(known.get(name)) for name in partitions}

    def topics(self, _names: Collection[str]) -> dict[str, TopicFacts]:
        return {}

    def deleted(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, DeletedRecords]:
        return dict.fromkeys(partitions, DeletedRecords())

    def times(self) -> BrokerTimes:
        return BrokerTimes(lag_ms=LAG_MS, expiration_ms=EXPIRATION_MS)

    def live(self, ms: int) -> None:
        """Let time pass, and things happen in it."""
        self.now_ms += ms
        if self.is_quiet:
            return
        chance = self.chance
        for broker_id in [one for one, until_ms in self.down.items() if until_ms <= self.now_ms]:
            del self.down[broker_id]
        brokers = sorted({broker_id for partition in self.cluster_partitions for broker_id in partition.replicas})
        if self.restarts and not self.down and chance.random() < 0.03:
            self.down[chance.choice(brokers)] = self.now_ms + chance.randrange(1_000, 60_000)
        for partition in self.cluster_partitions:
            self._live_on(partition)

    def _live_on(self, partition: Partition) -> None:
        chance = self.chance
        up = [broker_id for broker_id in partition.in_sync if broker_id not in self.down]
        if up and (partition.leader in self.down or (self.moves_leaders and chance.random() < 0.01)):
            partition.lead(chance.choice(up))
        if partition.leader not in self.down:
            for _ in range(chance.randrange(3)):
                partition.append(self._batch(partition))
        for broker_id, replica in partition.replicas.items():
            if broker_id in self.down:
                partition.in_sync.discard(broker_id)
                continue
            late = next((at for at, one in enumerate(partition.log) if one.at_ms > self.now_ms - LAG_MS // 2),
                        len(partition.log))  # fmt: skip
            if broker_id != partition.leader:
                eager = len(partition.log) if chance.random() < 0.2 else 0
                partition.fetch(broker_id, max(late, eager))
            partition.in_sync.add(broker_id)
            if chance.random() < 0.1:
                replica.expire(self.now_ms)

    def _batch(self, partition: Partition) -> Batch:
        """Return what some producer writes next, a new one among them."""
        chance = self.chance
        known = [one for one in partition.replicas[partition.leader].producers.values() if one.producer_id >= 1_000]
        if not known or chance.random() < 0.3:
            self.next_producer += 1
            return Batch(self.next_producer, 0, 0, self.now_ms, is_transactional=chance.random() < 0.5)
        one = chance.choice(known)
        if one.current_transaction_start_offset is not None and chance.random() < 0.7:
            epoch = one.producer_epoch + chance.randrange(2)
            return Batch(one.producer_id, epoch, -1, self.now_ms, max(one.coordinator_epoch, chance.randrange(3)), True)
        sequence = (one.last_sequence + 1) % (1 << 31)
        return Batch(one.producer_id, one.producer_epoch, sequence, self.now_ms,
                     is_transactional=one.coordinator_epoch >= 0)  # fmt: skip


def _answer(replica: Replica | None) -> ReplicaProducers:
    if replica is None:
        return ReplicaProducers(error="NOT_LEADER_OR_FOLLOWER")
    return ReplicaProducers(producers=tuple(replica.producers[producer] for producer in sorted(replica.producers)))


def cluster_of(chance: random.Random, partitions: int = 3, brokers: int = 4, replicas: int = 3) -> Cluster:
    """Return a cluster that has lived for a while."""
    made = []
    for number in range(partitions):
        held = chance.sample(range(brokers), replicas)
        made.append(
            Partition(
                name=TopicPartition(TOPIC, number),
                leader=held[0],
                replicas={broker_id: Replica() for broker_id in held},
                in_sync=set(held),
            )
        )
    cluster = Cluster(cluster_partitions=made, chance=chance)
    for _ in range(chance.randrange(1, 60)):
        cluster.live(chance.randrange(30_000))
    return cluster


def quiet(partitions: int = 1, brokers: int = 3) -> Cluster:
    """Return a cluster in which nothing happens by itself any more, with a producer in each partition."""
    cluster = cluster_of(random.Random(1), partitions, brokers)
    cluster.moves_leaders = cluster.restarts = False
    cluster.down.clear()
    for partition in cluster.cluster_partitions:
        partition.append(Batch(5, 0, 9, cluster.now_ms))
        for broker_id in partition.replicas:
            partition.fetch(broker_id, len(partition.log))
            partition.in_sync.add(broker_id)
    cluster.is_quiet = True
    return cluster
