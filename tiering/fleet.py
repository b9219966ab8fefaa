"""What the services beside a cluster's brokers say together: a verdict per topic, and whether a broker may be stopped.

A topic is ready only if each of its replicas is: any of them may become leader, and leaders tier. A broker whose
service does not answer, or has not scanned a replica, makes the topic unknown, unless another replica blocks it anyway.
The running cluster lists the replicas; if it was not asked, a broker without an answer may have replicas of every
topic.

A broker may be stopped now if no partition goes offline or falls below ``min.insync.replicas`` by it, no other broker
is down, missing snapshots are staged, so that they can be installed while the broker is stopped, and no replica that
has lost its producer state becomes leader. The new leader is the first in-sync replica in the order of the assignment.

Source: ``PartitionChangeBuilder.electLeader`` (the first replica in the order of the assignment that is in sync).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from resnap.storage.words import first_of
from resnap.tiering.cluster.replica_comparison import ReplicaState
from resnap.tiering.judging.readiness import Verdict, topic_verdict
from resnap.tiering.judging.refusal import Reason, Stop, UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster.replica_comparison import PartitionReplicas, ReplicaFinding

_WORST_LAST: Final = (Verdict.READY, Verdict.NEVER, Verdict.UNKNOWN, Verdict.BLOCKED)


class ScannedReplica(NamedTuple):
    """A replica as a service has scanned it."""

    verdict: Verdict
    unblocked_by: UnblockedBy | None
    reason: str | None
    detail: str
    hint: str
    missing: int
    """Boundaries without a usable snapshot."""

    def or_worse(self, other: ScannedReplica) -> ScannedReplica:
        """Return the worse of two scans of one replica, as from two log dirs."""
        return max(self, other, key=lambda one: _WORST_LAST.index(one.verdict))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReplicas:
    """The replicas that the service beside one broker reports."""

    broker_id: int
    topics: Mapping[str, Mapping[int, ScannedReplica]] = field(default_factory=dict)
    """Replicas by topic and partition."""
    error: str | None = None
    """Why nothing is known of the broker; None where its service has answered."""
    scanned: str | None = None
    """When the scan ended that was longest ago, in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBlocker:
    """A reason why replicas of a topic cannot be tiered, with the message for the first of them."""

    reason: str
    detail: str
    hint: str
    broker_id: int
    partition: int
    """The number of the first one."""
    replicas: int
    brokers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The verdict and the numbers of one topic."""

    topic: str
    partitions: int
    verdicts: Mapping[Verdict, int]
    """Replicas by verdict."""
    missing: int
    blockers: tuple[FleetBlocker, ...]
    unknown: tuple[str, ...]
    """Why replicas are not known."""
    offline: int | None = None
    """Partitions without a leader; None where the cluster has not reported them, as below."""
    under_replicated: int | None = None
    blocked_leaders: int | None = None
    """Partitions that are blocked where they are led now."""

    @property
    def verdict(self) -> Verdict:
        """Whether tiering can be turned on; blocked takes precedence over unknown."""
        found = topic_verdict(self.verdicts)
        is_open = found is Verdict.READY or not self.verdicts
        return Verdict.UNKNOWN if self.unknown and is_open else found


_Seen: TypeAlias = "Mapping[int, Mapping[int, ScannedReplica]]"
"""Replicas of one topic by broker and partition."""
_Found: TypeAlias = "tuple[int, int, ScannedReplica]"
"""Broker, partition, and the replica there."""


def topic_answers(
    brokers: Sequence[BrokerReplicas],
    places: Iterable[PartitionReplicas] | None,
    *,
    unanswered: str | None = None,
    wants: Callable[[str], bool] = lambda _: True,
) -> Iterator[TopicAnswer]:
    """Yield the answer for each wanted topic, by name.

    Args:
        brokers: the report of each service.
        places: all partitions of the running cluster; None if it was not asked, or has not answered.
        unanswered: why the cluster has not answered.
        wants: whether a topic is selected.

    """
    seen: dict[str, dict[int, Mapping[int, ScannedReplica]]] = defaultdict(dict)
    for broker in brokers:
        for topic, replicas in broker.topics.items() if broker.error is None else ():
            seen[topic][broker.broker_id] = replicas
    silent = {broker.broker_id: broker.error for broker in brokers if broker.error is not None}
    if places is None:
        unknown = (*((unanswered,) if unanswered is not None else ()), *silent.values())
        for topic in sorted(filter(wants, seen)):
            yield _as_seen(topic, seen[topic], unknown)
        return
    placed: dict[str, list[PartitionReplicas]] = defaultdict(list)
    for place in places:
        placed[place.topic_partition.topic].append(place)
    asked = {broker.broker_id for broker in brokers}
    for topic in sorted(filter(wants, placed)):
        yield _as_placed(topic, placed[topic], seen.get(topic, {}), silent, asked)


def _as_seen(topic: str, seen: _Seen, unknown: tuple[str, ...]) -> TopicAnswer:
    found = [(broker, number, one) for broker, replicas in sorted(seen.items()) for number, one in replicas.items()]
    return _answer(topic, len({number for _, number, _ in found}), found, unknown)


def _as_placed(
    topic: str, places: Sequence[PartitionReplicas], seen: _Seen, silent: Mapping[int, str], asked: set[int]
) -> TopicAnswer:
    """Return the answer for the replicas that the cluster has, ignoring other directories on disk."""
    found: list[_Found] = []
    blocked_leaders = 0
    missed: dict[int, list[TopicPartition]] = defaultdict(list)
    nothing: Mapping[int, ScannedReplica] = {}
    for place in places:
        number = place.topic_partition.partition
        for broker in place.replicas:
            one = seen.get(broker, nothing).get(number)
            if one is None:
                missed[broker].append(place.topic_partition)
            else:
                found.append((broker, number, one))
                blocked_leaders += one.verdict is Verdict.BLOCKED and broker == place.leader
    leaderless = [place.topic_partition for place in places if place.leader is None]
    unknown = [_why_unknown(broker, missed[broker], silent, asked) for broker in sorted(missed)]
    unknown += [f"without a leader: {first_of(sorted(leaderless), 1)}"] if leaderless else []
    return replace(
        _answer(topic, len(places), found, unknown),
        offline=len(leaderless),
        under_replicated=sum(len(place.in_sync) < len(place.replicas) for place in places),
        blocked_leaders=blocked_leaders,
    )


def _answer(topic: str, partitions: int, found: Sequence[_Found], unknown: Sequence[str]) -> TopicAnswer:
    """Return the sums over the replicas that were found."""
    return TopicAnswer(
        topic=topic,
        partitions=partitions,
        verdicts=Counter(one.verdict for _, _, one in found),
        missing=sum(one.missing for _, _, one in found),
        blockers=_blockers([item for item in found if item[2].verdict is Verdict.BLOCKED]),
        unknown=tuple(unknown),
    )


def _why_unknown(broker: int, missed: Sequence[TopicPartition], silent: Mapping[int, str], asked: set[int]) -> str:
    if broker in silent:
        return silent[broker]
    if broker not in asked:
        return f"broker {broker} has no [[fleet]] entry"
    return f"broker {broker}: its service has not seen {first_of(sorted(missed), 1)}"


def _blockers(replicas: Sequence[_Found]) -> tuple[FleetBlocker, ...]:
    """Return the blockers of replicas, by reason, the most frequent first."""
    by_reason: dict[str, list[_Found]] = defaultdict(list)
    for found in replicas:
        by_reason[found[2].reason or found[2].verdict.value].append(found)
    return tuple(
        FleetBlocker(
            reason=reason,
            detail=blocked[0][2].detail,
            hint=blocked[0][2].hint,
            broker_id=blocked[0][0],
            partition=blocked[0][1],
            replicas=len(blocked),
            brokers=tuple(sorted({broker for broker, _, _ in blocked})),
        )
        for reason, blocked in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    )


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


_HINTS: Final = {
    GateReason.BROKER_DOWN: "wait until it runs, or take it out of the [[fleet]] tables and of the topics' replicas",
    GateReason.OFFLINE: "wait until another replica is in sync; a topic with one replica goes offline in any case",
    GateReason.BELOW_MIN_IN_SYNC: "wait until more replicas are in sync, or lower min.insync.replicas of the topic",
    GateReason.UNDER_REPLICATED: "wait until all replicas are in sync",
    GateReason.NOT_STAGED: "have the broker's own service make them, or exclude the topic with --exclude-topic",
    GateReason.LOST_STATE_WOULD_LEAD: "move leadership to another replica first; docs/lost-producer-state.md",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Whether a broker may be stopped now: only without any obstacle, and if nothing is unknown."""

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

    def obstacles(self) -> list[Stop]:
        """Return the reasons against stopping the broker."""
        return [*self._down(), *self._in_sync(), *self._not_staged(), *self._lost_state_would_lead()]

    def unknown(self) -> tuple[str, ...]:
        """Return what is unknown of its partitions, each once."""
        return tuple(dict.fromkeys(self._unknown()))

    @property
    def _own(self) -> list[PartitionReplicas]:
        """The partitions with a replica on the broker."""
        return [place for place in self.places if self.broker_id in place.replicas]

    def _down(self) -> Iterator[Stop]:
        known = {broker for place in self.places for broker in place.replicas}
        known |= {broker.broker_id for broker in self.brokers}
        for broker in sorted(known - self.running - {self.broker_id}):
            yield _obstacle(GateReason.BROKER_DOWN, f"broker {broker} does not run")

    def _in_sync(self) -> Iterator[Stop]:
        """Yield the partitions that would have too few in-sync replicas without it; each counts once."""
        found: dict[GateReason, list[TopicPartition]] = {
            reason: [] for reason in (GateReason.OFFLINE, GateReason.BELOW_MIN_IN_SYNC, GateReason.UNDER_REPLICATED)
        }
        for place in self._own:
            left = len(self._remaining_isr(place))
            others = len(place.replicas) - 1
            if not left:
                found[GateReason.OFFLINE].append(place.topic_partition)
            elif left < self.min_in_sync.get(place.topic_partition.topic, 0):
                found[GateReason.BELOW_MIN_IN_SYNC].append(place.topic_partition)
            elif left < others:
                found[GateReason.UNDER_REPLICATED].append(place.topic_partition)
        for reason, partitions in found.items():
            if partitions:
                yield _obstacle(reason, f"{_IN_SYNC[reason]}: {first_of(sorted(partitions), 1)}")

    def _not_staged(self) -> Iterator[Stop]:
        lacking = [
            place.topic_partition
            for place, replica in self._replicas()
            if replica is not None and replica.missing and replica.unblocked_by not in _STAGED
        ]
        if lacking:
            detail = f"snapshots are missing, and none are made: {first_of(sorted(lacking), 1)}"
            yield _obstacle(GateReason.NOT_STAGED, detail)

    def _lost_state_would_lead(self) -> Iterator[Stop]:
        lost = {(one.topic_partition, one.broker_id) for one in self.findings if one.state is ReplicaState.LOST}
        by_id = {broker.broker_id: broker for broker in self.brokers}
        found: dict[int, list[TopicPartition]] = {}
        for place, successor in self._successions():
            name, broker = place.topic_partition, by_id.get(successor)
            replica = None if broker is None else broker.topics.get(name.topic, {}).get(name.partition)
            if (name, successor) in lost or (replica is not None and replica.reason == Reason.LOST_PRODUCER_STATE):
                found.setdefault(successor, []).append(name)
        for successor, partitions in sorted(found.items()):
            detail = f"broker {successor} has lost producer state, and would lead {first_of(sorted(partitions), 1)}"
            yield _obstacle(GateReason.LOST_STATE_WOULD_LEAD, detail)

    def _unknown(self) -> Iterator[str]:
        """Yield what is unknown: services that do not answer, replicas that were not scanned, or not compared."""
        yield from (broker.error for broker in self.brokers if broker.error is not None)
        if all(broker.error is None for broker in self.brokers if broker.broker_id == self.broker_id):
            unseen = [place.topic_partition for place, replica in self._replicas() if replica is None]
            if unseen:
                yield f"broker {self.broker_id}: its service has not seen {first_of(sorted(unseen), 1)}"
        topics = {place.topic_partition.topic for place in self._own} - self.min_in_sync.keys()
        if topics:
            yield f"the cluster does not report min.insync.replicas of {min(topics)}"
        successors = {place.topic_partition: successor for place, successor in self._successions()}
        for one in self.findings:
            concerned = {None, self.broker_id, successors.get(one.topic_partition)}
            if one.state is ReplicaState.UNKNOWN and one.topic_partition in successors and one.broker_id in concerned:
                yield f"producer state of {one.topic_partition}: {one.why}"

    def _remaining_isr(self, place: PartitionReplicas) -> list[int]:
        """Return the in-sync replicas without the broker, in the order in which they become leader."""
        others = (broker for broker in place.replicas if broker != self.broker_id)
        return [broker for broker in others if broker in place.in_sync and broker in self.running]

    def _successions(self) -> Iterator[tuple[PartitionReplicas, int]]:
        """Yield the partitions that it leads, with their next leader."""
        for place in self._own:
            left = self._remaining_isr(place)
            if place.leader == self.broker_id and left:
                yield place, left[0]

    def _replicas(self) -> Iterator[tuple[PartitionReplicas, ScannedReplica | None]]:
        """Yield its replicas of the selected topics, as its service has scanned them."""
        topics = next((broker.topics for broker in self.brokers if broker.broker_id == self.broker_id), {})
        for place in self._own:
            name = place.topic_partition
            if self.wants(name.topic):
                yield place, topics.get(name.topic, {}).get(name.partition)


def _obstacle(reason: GateReason, detail: str) -> Stop:
    return Stop(reason=reason, detail=detail, hint=_HINTS[reason])


_STAGED: Final = {None, UnblockedBy.INSTALL, UnblockedBy.ANNOUNCE}
"""What a replica waits for that is not blocked, or whose missing snapshots exist elsewhere."""
_IN_SYNC: Final = {
    GateReason.OFFLINE: "no other replica is in sync",
    GateReason.BELOW_MIN_IN_SYNC: "too few others are in sync for min.insync.replicas",
    GateReason.UNDER_REPLICATED: "another replica is not in sync",
}
