"""The job ``replicas``: which replicas of a running cluster lack producer state that others have; reads no log."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import CLUSTER, TOPIC
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.job.contract import Caller, PartitionState, Result, View
from resnap.scheduler.job.reports import identity
from resnap.scheduler.job.sources import Scope
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.rendering import PARTITION, Column, human_count, some
from resnap.storage.errors import ClusterError, LostProducerStateError, UsageError
from resnap.tiering.cluster.live_replicas import LiveBrokers
from resnap.tiering.cluster.replica_check import ReplicaCheck
from resnap.tiering.cluster.replica_comparison import ReplicaState
from resnap.tiering.cluster.replica_state import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster.producers import ActiveProducer
    from resnap.tiering.cluster.replica_comparison import ReplicaFinding

CALLERS: Final[frozenset[Caller]] = frozenset({"shell", "api", "schedule"})
_LOSSES: Final = {
    Loss.PRODUCER: "lostProducers",
    Loss.EPOCH: "lostEpochs",
    Loss.SEQUENCE: "lostSequences",
    Loss.COORDINATOR_EPOCH: "lostCoordinatorEpochs",
    Loss.TRANSACTION: "lostTransactions",
}
"""Names of the counts in rows."""
_HEAL: Final = (
    "keep it from leading, and move leadership away if it leads; docs/lost-producer-state.md says what clients notice,"
    " and how to heal it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which partitions are to be checked; no source is read."""

    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked(Result):
    """What is to be said of replicas of one partition."""

    replicas: tuple[ReplicaFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Result):
    """What the check comes to."""

    partitions: int
    replicas: int


def run(request: Request, context: Context) -> Iterator[Checked | Ended]:
    """Yield the partitions with replicas that are not as they should be, then how many were asked.

    Raises:
        ConfigurationError: no cluster is named, or what it is to be reached by cannot be used.
        ClusterError: it does not answer at all.
        UsageError: it has no such topic.

    """
    with cluster_of(context.settings) as cluster:
        check = ReplicaCheck(
            brokers=LiveBrokers(cluster=cluster, wants=request.scope.wants_partition, warn=context.warn),
            now_ms=context.clock.now_ms,
            monotonic_s=context.clock.monotonic_s,
            pause=time.sleep,
            check=context.check,
        )
        found = list(check.findings())
    if not check.partitions:
        raise UsageError("the cluster has no partition that is asked for", hint="without --topic all are checked")
    states = Counter(one.state for one in found)
    context.observer.replicas({state.value: states[state] for state in ReplicaState})
    yield from results(found, check.partitions, check.replicas)


def results(found: Sequence[ReplicaFinding], partitions: int, replicas: int) -> Iterator[Checked | Ended]:
    """Yield what was found, by partition, and what it comes to."""
    by_partition: dict[TopicPartition, list[ReplicaFinding]] = defaultdict(list)
    for one in found:
        by_partition[one.topic_partition].append(one)
    for topic_partition, of_partition in sorted(by_partition.items()):
        is_lagging = all(one.state is ReplicaState.LAGGING for one in of_partition)
        yield Checked(
            topic_partition=topic_partition,
            state=PartitionState.DONE if is_lagging else PartitionState.FAILED,
            replicas=tuple(of_partition),
        )
    yield Ended(
        state=PartitionState.DONE,
        partitions=partitions,
        replicas=replicas,
        faults=tuple(_not_known(found)),
        findings=tuple(_lost(found)),
    )


def _not_known(found: Sequence[ReplicaFinding]) -> Iterator[ClusterError]:
    """Yield why replicas are not known, once for each reason and broker."""
    reasons: dict[tuple[int | None, str], list[ReplicaFinding]] = defaultdict(list)
    for one in found:
        if one.state is ReplicaState.UNKNOWN:
            reasons[one.broker_id, str(one.why)].append(one)
    for (broker_id, why), replicas in reasons.items():
        more = f" and {human_count(len(replicas) - 1)} more" if len(replicas) > 1 else ""
        who = "" if broker_id is None else f" on broker {broker_id}"
        yield ClusterError(
            f"not known: {replicas[0].topic_partition}{more}{who}: {why}",
            hint="brokers answer from 2.8 on, to who may read the topic",
        )


def _lost(found: Sequence[ReplicaFinding]) -> Iterator[LostProducerStateError]:
    lost = [one for one in found if one.state is ReplicaState.LOST]
    if lost:
        leading = human_count(sum(one.leads for one in lost))
        what = f"{some(len(lost), 'replica')} without producer state that another replica of the partition has"
        yield LostProducerStateError(f"{what}; leading now: {leading}", hint=_HEAL)


def _replica_row(one: ReplicaFinding) -> Row:
    counts = Counter(loss for lost in one.lost for loss in lost.losses)
    return {
        **identity(one.topic_partition),
        "brokerId": one.broker_id,
        "leader": one.leader,
        "leads": one.leads,
        "state": one.state.value,
        **{name: counts[loss] for loss, name in _LOSSES.items()},
        "reason": one.why,
        "producers": [
            {
                "losses": [loss.value for loss in lost.losses],
                "known": _producer_row(lost.known),
                "found": None if lost.found is None else _producer_row(lost.found),
            }
            for lost in one.lost
        ],
    }


def _producer_row(one: ActiveProducer) -> Row:
    return {
        "producerId": one.producer_id,
        "producerEpoch": one.producer_epoch,
        "lastSequence": one.last_sequence,
        "lastTimestamp": one.last_timestamp,
        "coordinatorEpoch": one.coordinator_epoch,
        "currentTransactionStartOffset": one.current_transaction_start_offset,
    }


def _in_words(one: ReplicaFinding) -> str:
    """Return what is to be said of one replica, for people."""
    who = f"broker {one.broker_id}{', which leads,' if one.leads else ''}"
    match one.state:
        case ReplicaState.LOST:
            ids = ", ".join(str(lost.known.producer_id) for lost in one.lost[:_MOST_NAMED])
            more = f" and {human_count(len(one.lost) - _MOST_NAMED)} more" if len(one.lost) > _MOST_NAMED else ""
            return f"{who} has lost state of the producers {ids}{more}"
        case ReplicaState.LAGGING:
            return f"{who} is out of sync, so what it lacks is not known"
        case ReplicaState.UNKNOWN:
            return f"not known: {one.why}" if one.broker_id is None else f"{who} is not known: {one.why}"


_MOST_NAMED: Final = 5


def _lost_count(loss: Loss, title: str) -> Column:
    return Column(key=_LOSSES[loss], title=title, right=True, show=lambda count: str(count or ""))


class ReplicasView(View["Checked | Ended"]):
    """A row per replica that is not as it should be."""

    name = "replicas"
    kind = "replica"
    columns: ClassVar[Sequence[Column]] = (
        PARTITION,
        Column(key="brokerId", title="BROKER", right=True),
        Column(key="leads", title="LEADS", show=lambda leads: "yes" if leads else ""),
        Column(key="state", title="STATE"),
        _lost_count(Loss.PRODUCER, "PRODUCERS"),
        _lost_count(Loss.EPOCH, "EPOCHS"),
        _lost_count(Loss.SEQUENCE, "SEQUENCES"),
        _lost_count(Loss.COORDINATOR_EPOCH, "COORDINATORS"),
        _lost_count(Loss.TRANSACTION, "TRANSACTIONS"),
    )

    def __init__(self) -> None:
        self._totals = {"partitions": 0, "replicas": 0, **{state.value: 0 for state in ReplicaState}}

    @property
    def exit_code(self) -> int:
        """What replicas that lost state call for, whatever else was not known."""
        return LostProducerStateError.exit_code if self._totals[ReplicaState.LOST.value] else OK

    def rows(self, result: Checked | Ended) -> Iterator[Row]:
        """Yield the rows of a partition's replicas."""
        self.row(result)
        if isinstance(result, Checked):
            yield from map(_replica_row, result.replicas)

    def row(self, result: Checked | Ended) -> Row | None:
        """Return the row of a partition, and count its replicas."""
        if isinstance(result, Ended):
            self._totals |= {"partitions": result.partitions, "replicas": result.replicas}
            return None
        for one in result.replicas:
            self._totals[one.state.value] += 1
        said = "; ".join(map(_in_words, result.replicas))
        return {"reason": said, "replicas": [_replica_row(one) for one in result.replicas]}

    def totals(self) -> Row:
        """Return how many replicas there are in each state."""
        return self._totals

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        known = self._totals
        yield ""
        yield (
            f"{some(known['replicas'], 'replica')} of {some(known['partitions'], 'partition')}:"
            f" {human_count(known['lost'])} lost state, {human_count(known['lagging'])} lagging,"
            f" {human_count(known['unknown'])} not known."
        )


@with_settings(TOPIC, CLUSTER)
def replicas(context: Invocation) -> int:
    """Find replicas that lack producer state which another replica has: they must not become leaders.

    Asks every replica of the cluster that --bootstrap-server names (DescribeProducers, brokers from 2.8 on) and reads
    no log. A difference counts once replicas in sync have had the time to catch up. Exits with 4 if replicas lost
    state, and with 16 if none is known to have and some did not answer.
    """
    view = ReplicasView()
    scope = Scope(sources=(), topics=context.settings.topics)
    context.show(run(Request(scope=scope), context), view)
    return view.exit_code
