"""One partition whose replicas are compared until nothing is open, and what is to be said of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from resnap.tiering.cluster.replica_state import Loss, LostProducer, Tolerance, lost_producers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster.producers import ActiveProducer, ReplicaProducers

_TRIES: Final = 2
"""How often a replica is asked that answers with an error: its leader may just have changed."""

_Producers: TypeAlias = "tuple[ActiveProducer, ...]"
_Losses: TypeAlias = "dict[tuple[int, int, Loss], LostProducer]"
"""By broker, producer id, and what of it is lost."""


class PartitionReplicas(NamedTuple):
    """Where the replicas of a partition are."""

    topic_partition: TopicPartition
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    def finding(self, broker_id: int | None, state: ReplicaState, why: str | None = None) -> ReplicaFinding:
        """Return what is to be said of one of them."""
        return ReplicaFinding(
            topic_partition=self.topic_partition, broker_id=broker_id, leader=self.leader, state=state, why=why
        )

    def not_compared(self) -> Iterator[ReplicaFinding]:
        """Yield the replicas that are out of sync, or that there is no leader to compare with."""
        if self.leader is None:
            yield self.finding(None, ReplicaState.UNKNOWN, "the partition has no leader")
            return
        for broker_id in sorted(set(self.replicas) - set(self.in_sync)):
            yield self.finding(broker_id, ReplicaState.LAGGING)


class ReplicaState(StrEnum):
    """What is to be said of a replica that is not as it should be."""

    LOST = "lost"
    """It lacks producer state that another replica has."""
    LAGGING = "lagging"
    """It is not in sync, so nothing can be said of what it lacks."""
    UNKNOWN = "unknown"
    """It did not answer, or could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFinding:
    """One replica that is not as it should be."""

    topic_partition: TopicPartition
    broker_id: int | None
    """None where the partition has no leader, so that none of its replicas was compared."""
    leader: int | None
    state: ReplicaState
    lost: tuple[LostProducer, ...] = ()
    """By producer id."""
    why: str | None = None
    """Why it is unknown."""

    @property
    def leads(self) -> bool:
        """Whether clients get their answers from this replica."""
        return self.broker_id is not None and self.broker_id == self.leader


@dataclass(slots=True, kw_only=True)
class Watched:
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
    """Of those that answered with an error the last time."""
    tries: int = 0

    @property
    def is_open(self) -> bool:
        """Whether its replicas are to be asked again."""
        return bool(self.losses or self.errors)

    def hear(self, answers: Mapping[int, ReplicaProducers], now_s: float) -> None:
        """Take one answer of every replica."""
        self.errors = {broker_id: one.error for broker_id, one in answers.items() if one.error is not None}
        self.tries += bool(self.errors)
        said = {broker_id: one.producers for broker_id, one in answers.items() if one.error is None}
        if said.keys() != self.first.keys():
            self.first, self.since_s = said, now_s
            self.losses = self._compared(said)
        else:
            now = self._compared(said)
            self.losses = {key: now[key] for key in self.losses.keys() & now.keys()}

    def _compared(self, said: dict[int, _Producers]) -> _Losses:
        """Return what the leader lacks of each follower's state, and each of the leader's."""
        leader = self.place.leader
        if leader is None or leader not in said:
            return {}
        found: _Losses = {}
        for follower in said.keys() - {leader}:
            for one, other in ((follower, leader), (leader, follower)):
                if said[one] == said[other]:
                    break
                for lost in lost_producers(self.first[other], said[one], said[other]):
                    found |= {(one, lost.known.producer_id, loss): lost for loss in lost.losses}
        return found

    def forgive(self, tolerance: Tolerance) -> None:
        """Drop what is no loss."""
        self.losses = {key: lost for key, lost in self.losses.items() if not tolerance.allows(key[2], lost.known)}

    def give_up(self) -> Iterator[ReplicaFinding]:
        """Yield the replicas that have answered with errors often enough; without a leader's answer, all."""
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
        for (broker_id, producer_id, loss), one in sorted(self.losses.items(), key=lambda item: item[0]):
            before = found[broker_id].get(producer_id)
            losses = (*(before.losses if before else ()), loss)
            found[broker_id][producer_id] = one._replace(losses=losses)
        for broker_id, producers in found.items():
            yield replace(self.place.finding(broker_id, ReplicaState.LOST), lost=tuple(producers.values()))
