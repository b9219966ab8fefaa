"""One verdict per topic of a cluster, merged from the scans of the services beside its brokers.

A topic is ready only if each of its replicas is: any of them may become leader, and leaders tier. A broker whose
service does not answer, or has not scanned a replica, makes the topic unknown, unless another replica blocks it anyway.
The running cluster lists the replicas; if it was not asked, a broker without an answer may have replicas of every
topic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from resnap.tiering.judging.readiness import Verdict, topic_verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster.replica_comparison import PartitionReplicas
    from resnap.tiering.judging.refusal import UnblockedBy

_WORST_LAST: Final = (Verdict.READY, Verdict.NEVER, Verdict.UNKNOWN, Verdict.BLOCKED)


class Replica(NamedTuple):
    """A replica as a service has scanned it."""

    verdict: Verdict
    unblocked_by: UnblockedBy | None
    reason: str | None
    detail: str
    hint: str
    missing: int
    """Boundaries without a usable snapshot."""

    def or_worse(self, other: Replica) -> Replica:
        """Return the worse of two scans of one replica, as from two log dirs."""
        return max(self, other, key=lambda one: _WORST_LAST.index(one.verdict))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReplicas:
    """The replicas that the service beside one broker reports."""

    broker_id: int
    topics: Mapping[str, Mapping[int, Replica]] = field(default_factory=dict)
    """Replicas by topic and partition."""
    error: str | None = None
    """Why nothing is known of the broker; None where its service has answered."""
    scanned: str | None = None
    """When the scan ended that was longest ago, in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A reason why replicas of a topic cannot be tiered, with the message for the first of them."""

    reason: str
    detail: str
    hint: str
    broker_id: int
    partition: int
    """Of the first."""
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
    blockers: tuple[Blocker, ...]
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


_Seen: TypeAlias = "Mapping[int, Mapping[int, Replica]]"
"""Replicas of one topic by broker and partition."""
_Found: TypeAlias = "tuple[int, int, Replica]"
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
    seen: dict[str, dict[int, Mapping[int, Replica]]] = defaultdict(dict)
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
    tally = _Tally()
    for broker, found in sorted(seen.items()):
        for number, one in found.items():
            tally.add(broker, number, one)
    partitions = {number for found in seen.values() for number in found}
    return TopicAnswer(
        topic=topic,
        partitions=len(partitions),
        verdicts=tally.verdicts,
        missing=tally.missing,
        blockers=_blockers(tally.blocked),
        unknown=unknown,
    )


def _as_placed(
    topic: str, places: Sequence[PartitionReplicas], seen: _Seen, silent: Mapping[int, str], asked: set[int]
) -> TopicAnswer:
    """Return the answer for the replicas that the cluster has, ignoring other directories on disk."""
    tally, blocked_leaders = _Tally(), 0
    missed: dict[int, list[TopicPartition]] = defaultdict(list)
    nothing: Mapping[int, Replica] = {}
    for place in places:
        number = place.topic_partition.partition
        for broker in place.replicas:
            one = seen.get(broker, nothing).get(number)
            if one is None:
                missed[broker].append(place.topic_partition)
            elif tally.add(broker, number, one) and broker == place.leader:
                blocked_leaders += 1
    leaderless = [place.topic_partition for place in places if place.leader is None]
    unknown = [_why_unknown(broker, missed[broker], silent, asked) for broker in sorted(missed)]
    return TopicAnswer(
        topic=topic,
        partitions=len(places),
        verdicts=tally.verdicts,
        missing=tally.missing,
        blockers=_blockers(tally.blocked),
        unknown=(*unknown, *((f"without a leader: {first_of(leaderless)}",) if leaderless else ())),
        offline=len(leaderless),
        under_replicated=sum(len(place.in_sync) < len(place.replicas) for place in places),
        blocked_leaders=blocked_leaders,
    )


@dataclass(slots=True)
class _Tally:
    """Sums over replicas; there may be a million of them."""

    verdicts: dict[Verdict, int] = field(default_factory=dict)
    missing: int = 0
    blocked: list[_Found] = field(default_factory=list)

    def add(self, broker: int, number: int, one: Replica) -> bool:
        """Count a replica; return whether it is blocked."""
        self.verdicts[one.verdict] = self.verdicts.get(one.verdict, 0) + 1
        self.missing += one.missing
        if one.verdict is not Verdict.BLOCKED:
            return False
        self.blocked.append((broker, number, one))
        return True


def _why_unknown(broker: int, missed: Sequence[TopicPartition], silent: Mapping[int, str], asked: set[int]) -> str:
    if broker in silent:
        return silent[broker]
    if broker not in asked:
        return f"broker {broker} has no [[fleet]] entry"
    return f"broker {broker}: its service has not seen {first_of(missed)}"


def _blockers(replicas: Sequence[_Found]) -> tuple[Blocker, ...]:
    """Return the blockers of replicas, by reason, the most frequent first."""
    by_reason: dict[str, list[_Found]] = defaultdict(list)
    for found in replicas:
        by_reason[found[2].reason or found[2].verdict.value].append(found)
    return tuple(
        Blocker(
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


def first_of(partitions: Sequence[TopicPartition]) -> str:
    """Return the first of several partitions, by name, and how many more there are."""
    more = f" and {len(partitions) - 1:,} more" if len(partitions) > 1 else ""
    return f"{min(partitions)}{more}"
