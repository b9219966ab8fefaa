"""Decides whether a broker may be stopped now, from its replicas, the in-sync replicas, and its service's scans.

No partition may go offline or fall below ``min.insync.replicas`` by it, no other broker may be down, missing snapshots
must be staged, so that they can be installed while the broker is stopped, and no replica that has lost its producer
state may become leader. The new leader is the first in-sync replica in the order of the assignment.

Source: ``PartitionChangeBuilder.electLeader`` (the first replica in the order of the assignment that is in sync).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.tiering.cluster.replica_comparison import ReplicaState
from resnap.tiering.fleet.topics import first_of
from resnap.tiering.judging.refusal import Reason, UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster.replica_comparison import PartitionReplicas, ReplicaFinding
    from resnap.tiering.fleet.topics import BrokerReplicas, Replica


class GateReason(StrEnum):
    """Why a broker may not be stopped now."""

    BROKER_DOWN = "broker-down"
    """Another broker does not run."""
    OFFLINE = "offline"
    """No other replica of a partition is in sync."""
    BELOW_MIN_IN_SYNC = "below-min-insync"
    """Too few others are in sync for producers with ``acks=all``."""
    UNDER_REPLICATED = "under-replicated"
    """Another replica of a partition is not in sync yet."""
    NOT_STAGED = "not-staged"
    """A replica on it lacks snapshots, and none are made."""
    LOST_STATE_WOULD_LEAD = "lost-state-would-lead"
    """A replica without its producer state would take over the lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """The facts that the answer depends on."""

    broker_id: int
    running: frozenset[int]
    """Brokers that run."""
    brokers: Sequence[BrokerReplicas]
    """What each service reports, including that of ``broker_id``."""
    places: Sequence[PartitionReplicas]
    """All partitions of the cluster."""
    min_in_sync: Mapping[str, int]
    """``min.insync.replicas`` by topic; without those that the cluster does not describe."""
    findings: Sequence[ReplicaFinding]
    """What is not as it should be with replicas of the partitions that the broker leads."""
    wants: Callable[[str], bool] = field(default=lambda _: True)
    """Whether snapshots of a topic must exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason against stopping the broker."""

    reason: GateReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """Whether the broker may be stopped: only without any obstacle or unknown."""

    obstacles: tuple[Obstacle, ...]
    unknown: tuple[str, ...]


HINTS: Final = {
    GateReason.BROKER_DOWN: "wait until it runs, or take it out of the [[fleet]] tables and of the topics' replicas",
    GateReason.OFFLINE: "wait until another replica is in sync; a topic with one replica goes offline in any case",
    GateReason.BELOW_MIN_IN_SYNC: "wait until more replicas are in sync, or lower min.insync.replicas of the topic",
    GateReason.UNDER_REPLICATED: "wait until all replicas are in sync",
    GateReason.NOT_STAGED: "have the broker's own service make them, or exclude the topic with --exclude-topic",
    GateReason.LOST_STATE_WOULD_LEAD: "move leadership to another replica first; docs/lost-producer-state.md",
}


def gate(facts: GateFacts) -> GateAnswer:
    """Return whether the broker may be stopped now, and the reasons against it."""
    own = [place for place in facts.places if facts.broker_id in place.replicas]
    judged = _Judged(facts=facts, own=own)
    obstacles = [*judged.down(), *judged.in_sync(), *judged.not_staged(), *judged.lost_state_would_lead()]
    return GateAnswer(obstacles=tuple(obstacles), unknown=tuple(dict.fromkeys(judged.unknown())))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Applies the rules to the partitions with a replica on the broker."""

    facts: GateFacts
    own: Sequence[PartitionReplicas]

    def down(self) -> Iterator[Obstacle]:
        known = {broker for place in self.facts.places for broker in place.replicas}
        known |= {one.broker_id for one in self.facts.brokers}
        for broker in sorted(known - self.facts.running - {self.facts.broker_id}):
            yield Obstacle(reason=GateReason.BROKER_DOWN, detail=f"broker {broker} does not run")

    def in_sync(self) -> Iterator[Obstacle]:
        """Yield the partitions that would have too few in-sync replicas without it; each counts once."""
        found: dict[GateReason, list[TopicPartition]] = {
            reason: [] for reason in (GateReason.OFFLINE, GateReason.BELOW_MIN_IN_SYNC, GateReason.UNDER_REPLICATED)
        }
        for place in self.own:
            left = len(self._left(place))
            others = len(place.replicas) - 1
            if not left:
                found[GateReason.OFFLINE].append(place.topic_partition)
            elif left < self.facts.min_in_sync.get(place.topic_partition.topic, 0):
                found[GateReason.BELOW_MIN_IN_SYNC].append(place.topic_partition)
            elif left < others:
                found[GateReason.UNDER_REPLICATED].append(place.topic_partition)
        for reason, partitions in found.items():
            if partitions:
                yield Obstacle(reason=reason, detail=f"{_IN_SYNC[reason]}: {first_of(partitions)}")

    def not_staged(self) -> Iterator[Obstacle]:
        lacking = [
            place.topic_partition
            for place, replica in self._seen()
            if replica is not None and replica.missing and replica.unblocked_by not in _STAGED
        ]
        if lacking:
            detail = f"snapshots are missing, and none are made: {first_of(lacking)}"
            yield Obstacle(reason=GateReason.NOT_STAGED, detail=detail)

    def lost_state_would_lead(self) -> Iterator[Obstacle]:
        lost = {(one.topic_partition, one.broker_id) for one in self.facts.findings if one.state is ReplicaState.LOST}
        by_id = {one.broker_id: one for one in self.facts.brokers}
        found: dict[int, list[TopicPartition]] = {}
        for place, successor in self._successions():
            name, broker = place.topic_partition, by_id.get(successor)
            replica = None if broker is None else broker.topics.get(name.topic, {}).get(name.partition)
            if (name, successor) in lost or (replica is not None and replica.reason == Reason.LOST_PRODUCER_STATE):
                found.setdefault(successor, []).append(name)
        for successor, partitions in sorted(found.items()):
            detail = f"broker {successor} has lost producer state, and would lead {first_of(partitions)}"
            yield Obstacle(reason=GateReason.LOST_STATE_WOULD_LEAD, detail=detail)

    def unknown(self) -> Iterator[str]:
        """Yield what is unknown: services that do not answer, replicas that were not scanned, or not compared."""
        yield from (one.error for one in self.facts.brokers if one.error is not None)
        if all(one.error is None for one in self.facts.brokers if one.broker_id == self.facts.broker_id):
            unseen = [place.topic_partition for place, replica in self._seen() if replica is None]
            if unseen:
                yield f"broker {self.facts.broker_id}: its service has not seen {first_of(unseen)}"
        topics = {place.topic_partition.topic for place in self.own} - self.facts.min_in_sync.keys()
        if topics:
            yield f"the cluster does not report min.insync.replicas of {min(topics)}"
        successors = {place.topic_partition: successor for place, successor in self._successions()}
        for one in self.facts.findings:
            concerned = {None, self.facts.broker_id, successors.get(one.topic_partition)}
            if one.state is ReplicaState.UNKNOWN and one.topic_partition in successors and one.broker_id in concerned:
                yield f"producer state of {one.topic_partition}: {one.why}"

    def _left(self, place: PartitionReplicas) -> list[int]:
        """Return the in-sync replicas without the broker, in the order in which they become leader."""
        gone = {self.facts.broker_id}
        return [one for one in place.replicas if one in place.in_sync and one in self.facts.running and one not in gone]

    def _successions(self) -> Iterator[tuple[PartitionReplicas, int]]:
        """Yield the partitions that it leads, with their next leader."""
        for place in self.own:
            left = self._left(place)
            if place.leader == self.facts.broker_id and left:
                yield place, left[0]

    def _seen(self) -> Iterator[tuple[PartitionReplicas, Replica | None]]:
        """Yield its replicas of the selected topics, as its service has scanned them."""
        topics = next((one.topics for one in self.facts.brokers if one.broker_id == self.facts.broker_id), {})
        for place in self.own:
            name = place.topic_partition
            if self.facts.wants(name.topic):
                yield place, topics.get(name.topic, {}).get(name.partition)


_STAGED: Final = {None, UnblockedBy.INSTALL, UnblockedBy.ANNOUNCE}
"""Of a replica that is not blocked, or whose missing snapshots exist elsewhere."""
_IN_SYNC: Final = {
    GateReason.OFFLINE: "no other replica is in sync",
    GateReason.BELOW_MIN_IN_SYNC: "too few others are in sync for min.insync.replicas",
    GateReason.UNDER_REPLICATED: "another replica is not in sync",
}
