"""Asks the replicas of a partition for their producer state, compares them until nothing is open, and makes findings.

Every replica, also a follower, returns its own state (KIP-664); brokers from 2.8 on support this. Transaction
coordinators are queried by ListTransactions and DescribeTransactions, which brokers from 3.0 on support; transactional
ids that the user may not describe are missing.

All replicas of a partition append the same batches, so their states differ only in what one of them

- has not fetched yet: the same difference must remain after an in-sync replica has fetched it;
- has expired earlier than the other: producers that expire by now are not a loss;
- could not fetch, because retention had deleted it before the replica was created, or the cleaner had removed its
  markers.

Any other difference is a loss. Stock brokers from 3.6 on lose the state of the segments that they do not read when a
replica starts from remote storage: they delete the snapshot that they have fetched.

Source: ``ProducerStateManager.isProducerExpired``, ``TierStateMachine.buildProducerSnapshotFile``, ``LogCleaner``;
``ReplicaManager.activeProducerState``, ``DescribeProducersResponse``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from resnap.storage.errors import ClusterError
from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.client import error_name
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState
from resnap.tiering.controller.transactions.state_log import TransactionStates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

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
    """The epoch of the coordinator of the last marker; -1 where there was none."""
    current_transaction_start_offset: int | None
    """First offset of its open transaction; None if none is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProducers:
    """The response of one replica."""

    producers: tuple[ActiveProducer, ...] = ()
    """The producers by id."""
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
    for partition in partitions:
        numbers[partition.topic].append(partition.partition)
    if not numbers:
        return {}
    topics = [Request.TopicRequest(name=topic, partition_indexes=found) for topic, found in numbers.items()]
    answer = cluster.ask(f"cannot describe the producers of broker {broker_id}", Request(topics=topics), broker_id)
    return {
        TopicPartition(topic.name, partition.partition_index): ReplicaProducers(
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
                    for entry in partition.active_producers or ()
                )
            ),
            error=error_name(partition.error_code) if partition.error_code else None,
        )
        for topic in answer.topics
        for partition in topic.partitions
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
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            timeout_ms=transaction.transaction_timeout_ms,
            state=_STATES[transaction.state.value],
            partitions=frozenset(TopicPartition(*place) for place in transaction.topic_partitions),
            start_ms=transaction.transaction_start_time_ms,
        )
        for name, transaction in cluster.transactions(producer_ids).items()
        if transaction.state.value in _STATES
    }
    return TransactionStates(transactions=found)


SEQUENCES: Final = 1 << 31
"""Sequence numbers wrap around to 0."""
_MOST_SKEW_MS: Final = 60_000
"""How far the clocks of brokers may differ from each other, and from ours."""


class Loss(StrEnum):
    """The part of a producer's state that a replica lacks."""

    PRODUCER = "producer"
    """The producer itself: a batch sent again is appended again."""
    EPOCH = "epoch"
    """Its newest epoch: an instance that was fenced may write."""
    SEQUENCE = "sequence"
    """Its newest batches: one that is sent again is appended again, or its next one is refused."""
    COORDINATOR_EPOCH = "coordinator-epoch"
    """Its coordinator epoch: a marker of an older coordinator is accepted."""
    TRANSACTION = "transaction"
    """Its open transaction, or the beginning of it: records are served as committed if it is aborted."""


class LostProducer(NamedTuple):
    """A producer whose state a replica lacks in part."""

    known: ActiveProducer
    """As the other replica has it."""
    found: ActiveProducer | None
    """As the replica has it; None where it does not know it."""
    losses: tuple[Loss, ...]


class DeletedRecords(NamedTuple):
    """The records that a new replica of a partition can no longer fetch."""

    below: int = 0
    """Offset below which records are deleted for good; 0 if a new replica gets what it needs from remote storage."""
    markers: bool = False
    """Whether the cleaner removes markers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The differences between states of a partition that are not a loss.

    Attributes:
        now_ms: time of the request for the states.
        expiration_ms: the shortest ``producer.id.expiration.ms`` of the replicas.
        deleted: the records that could no longer be fetched.

    """

    now_ms: int
    expiration_ms: int
    deleted: DeletedRecords

    def expires(self, producer: ActiveProducer) -> bool:
        """Whether some replica may have expired ``producer`` by now; one with an open transaction does not expire."""
        if producer.current_transaction_start_offset is not None:
            return False
        skew_ms = min(_MOST_SKEW_MS, self.expiration_ms // 10)
        return self.now_ms - producer.last_timestamp >= self.expiration_ms - skew_ms

    def allows(self, loss: Loss, known: ActiveProducer) -> bool:
        """Whether ``loss`` has a harmless cause."""
        match loss:
            case Loss.EPOCH:
                return False
            case Loss.TRANSACTION:
                return (known.current_transaction_start_offset or 0) < self.deleted.below
            case Loss.COORDINATOR_EPOCH:
                return self.deleted.markers or self.deleted.below > 0
            case _:
                return self.deleted.below > 0 or self.expires(known)


def lost_producers(
    before: Iterable[ActiveProducer],
    found: Iterable[ActiveProducer],
    after: Iterable[ActiveProducer],
) -> Iterator[LostProducer]:
    """Yield what a replica lacks in ``found`` that another one has had since ``before`` the request.

    Args:
        before: an earlier response of the other replica; the older it is, the less of it can be missing for lack of
            time.
        found: the replica's response.
        after: the other replica's current response.

    """
    late, there = _by_id(after), _by_id(found)
    for then in before:
        now = late.get(then.producer_id)
        if now is None:
            continue  # it has expired since
        other = there.get(then.producer_id)
        losses = tuple(_losses(then, other, now))
        if losses:
            yield LostProducer(known=now, found=other, losses=losses)


def _losses(then: ActiveProducer, other: ActiveProducer | None, now: ActiveProducer) -> Iterator[Loss]:
    """Yield what ``other`` lacks. Epochs only grow, so one lower than ``then`` is too low in any case."""
    if other is None:
        yield Loss.PRODUCER
    elif other.producer_epoch < then.producer_epoch:
        yield Loss.EPOCH
    elif (then.producer_epoch, then.last_sequence) == (now.producer_epoch, now.last_sequence) and _is_behind(
        other, then
    ):
        yield Loss.SEQUENCE
    if other is not None and other.coordinator_epoch < then.coordinator_epoch and not _may_have_come_back(other):
        yield Loss.COORDINATOR_EPOCH
    begins = then.current_transaction_start_offset
    if begins is not None and begins == now.current_transaction_start_offset:
        known = None if other is None else other.current_transaction_start_offset
        if known is None or known > begins:
            yield Loss.TRANSACTION


def _may_have_come_back(producer: ActiveProducer) -> bool:
    """Whether the replica may have expired it, and relearned it from its open transaction, before a marker."""
    return producer.coordinator_epoch < 0 and producer.current_transaction_start_offset is not None


def _is_behind(other: ActiveProducer, known: ActiveProducer) -> bool:
    """Whether ``other`` has older batches of the same epoch; -1 stands for none."""
    if other.producer_epoch != known.producer_epoch or known.last_sequence < 0:
        return False
    ahead = (known.last_sequence - other.last_sequence) % SEQUENCES
    return other.last_sequence < 0 or 0 < ahead < SEQUENCES // 2


def _by_id(producers: Iterable[ActiveProducer]) -> dict[int, ActiveProducer]:
    return {producer.producer_id: producer for producer in producers}


_TRIES: Final = 2
"""How often a replica that answers with an error is queried: its leader may just have changed."""

_Producers: TypeAlias = "tuple[ActiveProducer, ...]"
_Losses: TypeAlias = "dict[tuple[int, int, Loss], LostProducer]"
"""Losses by broker, producer id, and what of it is lost."""


class PartitionReplicas(NamedTuple):
    """The replicas of a partition and their state in the cluster."""

    topic_partition: TopicPartition
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error: str | None = None
    """Why the cluster does not say where they are: Kafka's name of an error of the whole topic."""

    def finding(self, broker_id: int | None, state: ReplicaState, why: str | None = None) -> ReplicaFinding:
        """Return the finding for one of them."""
        return ReplicaFinding(place=self, broker_id=broker_id, state=state, why=why)

    def not_compared(self) -> Iterator[ReplicaFinding]:
        """Yield the replicas that are out of sync, or have no leader to compare with."""
        if self.leader is None:
            yield self.finding(None, ReplicaState.UNKNOWN, self.error or "the partition has no leader")
            return
        for broker_id in sorted(set(self.replicas) - set(self.in_sync)):
            yield self.finding(broker_id, ReplicaState.LAGGING)


class ReplicaState(StrEnum):
    """The problem of a replica."""

    LOST = "lost"
    """It lacks producer state that another replica has."""
    LAGGING = "lagging"
    """It is not in sync, so what it lacks is not known."""
    UNKNOWN = "unknown"
    """It did not answer, or could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFinding:
    """One replica with a problem."""

    place: PartitionReplicas
    broker_id: int | None
    """None where the partition has no leader, so that none of its replicas was compared."""
    state: ReplicaState
    lost: tuple[LostProducer, ...] = ()
    """The losses by producer id."""
    why: str | None = None
    """Why it is unknown."""
    replayed_to: int | None = None
    """Where the replay of the log ends that the replica was compared with; None where with another replica."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its partition."""
        return self.place.topic_partition

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader, and so answers clients."""
        return self.broker_id is not None and self.broker_id == self.place.leader


@dataclass(slots=True, kw_only=True)
class WatchedPartition:
    """A partition whose replicas are compared until nothing is open."""

    place: PartitionReplicas
    brokers: frozenset[int]
    """Whose replicas are compared."""
    first: dict[int, _Producers] = field(default_factory=dict)
    """What they said first, under this leader."""
    since_s: float = 0.0
    """When they said it."""
    losses: _Losses = field(default_factory=dict)
    """What every answer since has said."""
    errors: dict[int, str] = field(default_factory=dict)
    """The errors of brokers that answered with one the last time."""
    tries: int = 0

    @property
    def is_open(self) -> bool:
        """Whether its replicas must be queried again."""
        return bool(self.losses or self.errors)

    def take(self, answers: Mapping[int, ReplicaProducers], now_s: float) -> None:
        """Add one response of every replica."""
        self.errors = {broker_id: replica.error for broker_id, replica in answers.items() if replica.error is not None}
        self.tries += bool(self.errors)
        said = {broker_id: replica.producers for broker_id, replica in answers.items() if replica.error is None}
        if said.keys() != self.first.keys():
            self.first, self.since_s = said, now_s
            self.losses = self._compared(said)
        else:
            now = self._compared(said)
            self.losses = {key: now[key] for key in self.losses.keys() & now.keys()}

    def _compared(self, said: dict[int, _Producers]) -> _Losses:
        """Return what the leader lacks of each follower's state, and each follower of the leader's."""
        leader = self.place.leader
        if leader is None or leader not in said:
            return {}
        found: _Losses = {}
        for follower in said.keys() - {leader}:
            for lacking, other in ((follower, leader), (leader, follower)):
                if said[lacking] == said[other]:
                    break
                for lost in lost_producers(self.first[other], said[lacking], said[other]):
                    found |= {(lacking, lost.known.producer_id, loss): lost for loss in lost.losses}
        return found

    def drop_allowed(self, tolerance: Tolerance) -> None:
        """Drop what is not a loss."""
        self.losses = {key: lost for key, lost in self.losses.items() if not tolerance.allows(key[2], lost.known)}

    def give_up(self) -> Iterator[ReplicaFinding]:
        """Yield the replicas that have answered with errors often enough; all, if the leader has."""
        if self.tries < _TRIES:
            return
        leader_said = None if self.place.leader is None else self.errors.get(self.place.leader)
        for broker_id in sorted(self.brokers if leader_said is not None else self.errors):
            why = self.errors.get(broker_id) or f"its leader, broker {self.place.leader}, did not answer: {leader_said}"
            yield self.place.finding(broker_id, ReplicaState.UNKNOWN, why)
        self.brokers = frozenset() if leader_said is not None else self.brokers - self.errors.keys()
        self.errors = {}

    def lost(self) -> Iterator[ReplicaFinding]:
        """Yield the replicas that lost state."""
        found: dict[int, dict[int, LostProducer]] = defaultdict(dict)
        for (broker_id, producer_id, loss), producer in sorted(self.losses.items(), key=lambda item: item[0]):
            before = found[broker_id].get(producer_id)
            losses = (*(before.losses if before else ()), loss)
            found[broker_id][producer_id] = producer._replace(losses=losses)
        for broker_id, producers in found.items():
            yield replace(self.place.finding(broker_id, ReplicaState.LOST), lost=tuple(producers.values()))
