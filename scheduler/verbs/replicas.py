"""The job ``replicas``: finds replicas of a running cluster that lack producer state that others have, or the log.

It reads no log, unless remote storage is named: then replicas are also compared with a replay (``leader_replay``).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import replace
from glob import has_magic
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, REMOTE, RULES, SPARK, STORE, TOPIC
from resnap.scheduler.job.contract import Door, PartitionState, Reported, Request, Result, Verb, View
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.reports import Identity
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.answer import connection_of, fault_rows_if, faults_line
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.errors import ClusterError, LostProducerStateError, UsageError
from resnap.storage.words import first_of, human_count, some
from resnap.tiering.broker_releases import releases_of
from resnap.tiering.cluster.live_replicas import LiveBrokers, ReplicaCheck
from resnap.tiering.cluster.replica_comparison import Loss, ReplicaState
from resnap.tiering.leader_replay import LeaderReplay
from resnap.tiering.lost_leader import heal_commands, move_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.broker_releases import BrokerReleases
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.replica_comparison import ReplicaFinding

_HEAL: Final = (
    "keep it from leading, and move leadership away if it leads; docs/lost-producer-state.md describes what clients "
    "notice, and how to repair it"
)


class ReplicasRequest(Request):
    """Find replicas that lack producer state which another replica, or the log, has: they must not become leaders.

    Asks every replica of the cluster that --bootstrap-server names (DescribeProducers, brokers from 2.8 on). A
    difference counts once replicas in sync have had the time to catch up. Exits with 4 if replicas lost state, and with
    16 if none is known to have and some did not answer.

    What all replicas have lost, or the only one, shows in the log alone. With --remote, replicas are compared with a
    replay of the partitions that --topic names, else of those whose remote snapshots have producers that replicas lack.
    """

    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG_DIR", help="Log dirs of brokers, read with --remote up to their last closed segment."
        ),
    ] = None

    def settled(self, context: Context) -> ReplicasRequest:  # noqa: ARG002 - as others do
        """Return the request with its log dirs as sources, of which a run of the service has none.

        Raises:
            UsageError: there are log dirs, and no remote storage to read them with.

        """
        if self.places and self.scope.remote is None:
            raise UsageError("log dirs are read with --remote alone", hint="give --remote URL, what brokers tier to")
        return replace(self, scope=replace(self.scope, sources=tuple(self.places or ())))


class ReplicaTotals(Result):
    """The totals of the check."""

    partitions: int
    replicas: int
    alone: int
    """Partitions with one replica in sync, so that there is nothing to compare it with."""
    not_replayed: int = 0
    """Partitions whose replicas may all have lost the same, since remote storage was not named."""
    releases: BrokerReleases | None = None
    """The releases of the brokers; None where they were not asked."""


def run(request: ReplicasRequest, context: Context, report: Report) -> None:
    """Report the partitions with replicas that are not as they should be, then how many were asked.

    Raises:
        ConfigurationError: no cluster is named, or what it is to be reached by cannot be used.
        ClusterError: it does not answer at all.
        UsageError: it has no such topic.

    """
    with cluster_of(context.settings) as cluster:
        check = check_of(cluster, request.scope.wants_partition, context)
        found = list(check.findings())
        replay = LeaderReplay(
            scope=request.scope,
            brokers=check.brokers,
            topics=check.brokers.topics({name.topic for name in check.names}),
            places=check.places,
        )
        not_replayed = 0
        if request.scope.remote is None:
            not_replayed = len(replay.partitions)
        elif replay.partitions:
            known = {(one.topic_partition, one.broker_id) for one in found if one.state is ReplicaState.LOST}
            by_log = replay.findings(planner_of(context), context.clock.now_ms(), context.progress)
            found += [finding for finding in by_log if (finding.topic_partition, finding.broker_id) not in known]
        releases = releases_of(context.settings.kafka_version, context.settings.metadata, cluster)
    if not check.partitions:
        hint = "without --topic all topics that the user may describe are checked"
        raise UsageError("the cluster has no requested partition, or does not show it", hint=hint)
    states = Counter(finding.state for finding in found)
    context.replicas({state.value: states[state] for state in ReplicaState})
    globs, partitions = request.scope.unmatched(check.names)
    unseen = [*globs, *sorted(set(partitions))]
    report_all(
        report,
        found,
        check.partitions,
        check.replicas,
        alone=check.alone,
        not_replayed=not_replayed,
        unseen=unseen,
        releases=releases,
    )


def check_of(cluster: Cluster, wants: Callable[[TopicPartition], bool], context: Context) -> ReplicaCheck:
    """Return the comparison of the replicas of those partitions of the cluster that ``wants`` names."""
    return ReplicaCheck(
        brokers=LiveBrokers(cluster=cluster, wants=wants, warn=context.warn),
        now_ms=context.clock.now_ms,
        monotonic_s=context.clock.monotonic_s,
        pause=time.sleep,
        check=context.check,
    )


def report_all(
    report: Report,
    found: Sequence[ReplicaFinding],
    partitions: int,
    replicas: int,
    *,
    alone: int = 0,
    not_replayed: int = 0,
    unseen: Sequence[str] = (),
    releases: BrokerReleases | None = None,
) -> None:
    """Report the findings by partition, then the totals; ``unseen`` are requested topics that do not exist."""
    by_partition: dict[TopicPartition, list[ReplicaFinding]] = defaultdict(list)
    for finding in found:
        by_partition[finding.topic_partition].append(finding)
    for topic_partition, of_partition in sorted(by_partition.items()):
        is_lagging = all(finding.state is ReplicaState.LAGGING for finding in of_partition)
        state = PartitionState.DONE if is_lagging else PartitionState.FAILED
        report(Reported(topic_partition=topic_partition, state=state, what=of_partition))
    report(
        ReplicaTotals(
            state=PartitionState.DONE,
            partitions=partitions,
            replicas=replicas,
            alone=alone,
            not_replayed=not_replayed,
            releases=releases,
            faults=(*_not_known(found), *(_not_there(topic) for topic in unseen if not has_magic(topic))),
            warnings=tuple(f"no topic that the cluster shows matches {glob}" for glob in unseen if has_magic(glob)),
            findings=tuple(_lost(found)),
        )
    )


def _not_there(name: str) -> ClusterError:
    return ClusterError(
        f"not known: {name}: the cluster has nothing of this name, or does not show it",
        hint="the user must be allowed to describe the topic",
    )


def _not_known(found: Sequence[ReplicaFinding]) -> Iterator[ClusterError]:
    """Yield why replicas are not known, once for each reason and broker."""
    reasons: dict[tuple[int | None, str], list[ReplicaFinding]] = defaultdict(list)
    for finding in found:
        if finding.state is ReplicaState.UNKNOWN:
            reasons[finding.broker_id, str(finding.why)].append(finding)
    for (broker_id, why), replicas in reasons.items():
        which = first_of([replica.topic_partition for replica in replicas], 1)
        who = "" if broker_id is None else f" on broker {broker_id}"
        yield ClusterError(
            f"not known: {which}{who}: {why}",
            hint="brokers from 2.8 on answer, to users that may read the topic",
        )


def _lost(found: Sequence[ReplicaFinding]) -> Iterator[LostProducerStateError]:
    lost = [finding for finding in found if finding.state is ReplicaState.LOST]
    if lost:
        leading = human_count(sum(finding.leads for finding in lost))
        what = f"{some(len(lost), 'replica')} without producer state that another replica, or the log, has"
        yield LostProducerStateError(f"{what}; leading now: {leading}", hint=_HEAL)


def _orders(lost: Sequence[ReplicaFinding]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return new replica orders with a right replica first, for partitions led by a replica that lost state."""
    without = {(finding.topic_partition, finding.broker_id) for finding in lost}
    orders = {}
    for one in lost:
        replicas = one.place.replicas
        fit = [broker_id for broker_id in replicas if broker_id in one.place.in_sync]
        first = next((broker_id for broker_id in fit if (one.topic_partition, broker_id) not in without), None)
        if one.leads and first is not None:
            orders[one.topic_partition] = (first, *(broker_id for broker_id in replicas if broker_id != first))
    return orders


def _in_words(one: ReplicaFinding) -> str:
    """Return the finding about one replica, for people."""
    who = f"broker {one.broker_id}{', which leads,' if one.leads else ''}"
    match one.state:
        case ReplicaState.LOST:
            ids = first_of([lost.known.producer_id for lost in one.lost], _MOST_NAMED)
            by = "" if one.replayed_to is None else f", by a replay of its log up to offset {one.replayed_to}"
            return f"{who} has lost state of the producers {ids}{by}"
        case ReplicaState.LAGGING:
            return f"{who} is out of sync, so what it lacks is not known"
        case ReplicaState.UNKNOWN:
            return f"not known: {one.why}" if one.broker_id is None else f"{who} is not known: {one.why}"


_MOST_NAMED: Final = 5


class ReplicaProducerRow(TypedDict):
    """What a broker says of a producer."""

    producerId: int
    producerEpoch: int
    lastSequence: int
    lastTimestamp: int
    coordinatorEpoch: int
    currentTransactionStartOffset: int | None


class LostProducerRow(TypedDict):
    """What a replica lacks of a producer: what another replica knows, and what is there; null for nothing."""

    losses: list[str]
    known: ReplicaProducerRow
    found: ReplicaProducerRow | None


def _number(loss: Loss) -> Callable[[ReplicaFinding], int]:
    """Return a function that counts the producers with this kind of loss."""
    return lambda finding: sum(loss in lost.losses for lost in finding.lost)


def _count(title: str) -> Column:
    return Column(title=title, right=True, show=lambda count: str(count or ""))


class ReplicaRow(Identity):
    """One replica of `resnap replicas` that is not as it should be."""

    brokerId: Annotated[int | None, Column(title="BROKER", right=True)]
    leader: Annotated[int | None, "place.leader"]
    leads: Annotated[bool, Column(title="LEADS", show=lambda leads: "yes" if leads else "")]
    state: Annotated[str, Column(title="STATE")]
    lostProducers: Annotated[int, _number(Loss.PRODUCER), _count("PRODUCERS")]
    lostEpochs: Annotated[int, _number(Loss.EPOCH), _count("EPOCHS")]
    lostSequences: Annotated[int, _number(Loss.SEQUENCE), _count("SEQUENCES")]
    lostCoordinatorEpochs: Annotated[int, _number(Loss.COORDINATOR_EPOCH), _count("COORDINATORS")]
    lostTransactions: Annotated[int, _number(Loss.TRANSACTION), _count("TRANSACTIONS")]
    reason: Annotated[str | None, "why"]
    replayedTo: int | None
    producers: Annotated[list[LostProducerRow], "lost"]


class ReplicasRow(TypedDict):
    """A partition of a run that compared replicas."""

    reason: str
    replicas: list[ReplicaRow]


class ReplicasView(View["Reported[Sequence[ReplicaFinding]] | ReplicaTotals"]):
    """A row per replica that is not as it should be."""

    kind = "replica"
    columns = columns_of(ReplicaRow)

    def __init__(self, connection: Sequence[str]) -> None:
        self._connection = connection
        self._lost: list[ReplicaFinding] = []
        counts = ("partitions", "notCompared", "notReplayed", "replicas")
        self._releases: BrokerReleases | None = None
        self._totals = dict.fromkeys((*counts, *(state.value for state in ReplicaState)), 0)

    @property
    def exit_code(self) -> int:
        """What to do about replicas that lost state, even if something else is not known."""
        return LostProducerStateError.exit_code if self._totals[ReplicaState.LOST.value] else OK

    def rows(self, result: Reported[Sequence[ReplicaFinding]] | ReplicaTotals) -> Iterator[Row]:
        """Yield the rows of a partition's replicas."""
        self.row(result)
        if isinstance(result, Reported):
            yield from (row_of(ReplicaRow, finding) for finding in result.what)

    def row(self, result: Reported[Sequence[ReplicaFinding]] | ReplicaTotals) -> Row | None:
        """Return the row of a partition, and count its replicas."""
        if isinstance(result, ReplicaTotals):
            self._releases = result.releases
            self._totals |= {
                "partitions": result.partitions,
                "notCompared": result.alone,
                "notReplayed": result.not_replayed,
                "replicas": result.replicas,
            }
            return None
        for finding in result.what:
            self._totals[finding.state.value] += 1
        self._lost += (finding for finding in result.what if finding.state is ReplicaState.LOST)
        said = "; ".join(map(_in_words, result.what))
        return {"reason": said, "replicas": [row_of(ReplicaRow, finding) for finding in result.what]}

    def totals(self) -> Row:
        """Return how many replicas there are in each state, and Kafka's known faults in the brokers' releases."""
        return {**self._totals, "knownFaults": fault_rows_if(self._releases)}

    def closing(self) -> Iterator[str]:
        """Yield the totals in words."""
        known = self._totals
        yield ""
        yield (
            f"{some(known['replicas'], 'replica')} of {some(known['partitions'], 'partition')}:"
            f" {human_count(known['lost'])} lost state, {human_count(known['lagging'])} lagging,"
            f" {human_count(known['unknown'])} not known."
        )
        if known["notCompared"]:
            one = some(known["notCompared"], "partition")
            yield f"Not compared: {one} with 1 replica in sync, which alone cannot show what it has lost."
        if known["notReplayed"]:
            one = some(known["notReplayed"], "tiered partition")
            yield (
                f"Not compared with the log: {one}, whose replicas may all have lost the same state, as"
                " after a move between two disks; give --remote URL, the store that brokers tier to."
            )
        if self._releases is not None:
            yield faults_line(self._releases)
        if self._lost:
            yield from self._what_next()
        elif known["unknown"] or known["lagging"] or self.is_cut_short:
            yield "Next: the same command again, once these replicas are in sync and their brokers answer."
        elif known["notCompared"] or known["notReplayed"]:
            yield "Next: what was not compared, as said above; of the others nothing is left to do."
        else:
            yield "Next: nothing is left to do: no replica lacks what another has."

    def _what_next(self) -> Iterator[str]:
        """Yield the commands that move leadership away from replicas that lost state, and that repair them."""
        orders = _orders(self._lost)
        if orders:
            yield "Next: move leadership away first, to replicas that have not lost state:"
            yield from (f"  {command}" for command in move_commands(orders, self._connection))
        stuck = [str(one.topic_partition) for one in self._lost if one.leads and one.topic_partition not in orders]
        if stuck:
            named = first_of(stuck, _MOST_NAMED)
            why = "since no other replica in sync is known to have its state"
            yield f"Leadership cannot be moved yet, {why}: {named}."
        brokers = ", ".join(map(str, sorted({one.broker_id for one in self._lost if one.broker_id is not None})))
        word = "Then" if orders else "Next:"
        yield f"{word} repair them: stop the broker ({brokers}; one after the other), and on its machine:"
        yield from (f"  {command}" for command in heal_commands({"LOG_DIR": None}))


VERB = Verb(
    takes=(TOPIC, CLUSTER, REMOTE, RULES, ENGINE, SPARK, STORE),
    request=ReplicasRequest,
    run=run,
    view=lambda _, context: ReplicasView(connection_of(context.settings)),
    reads="cluster",
    is_short=True,
    door=Door(
        path="/v1/replica-checks",
        summary="Compare the replicas of the cluster",
        does="Find replicas that lack producer state which others have; only in the cluster that the "
        "configuration names.",
        body="Which replicas of the service's running cluster to compare; all of them unless given.",
        asks=("topics", "exclude_topics", "partitions"),
    ),
    rows=(ReplicasRow,),
)
