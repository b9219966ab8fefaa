"""`resnap fleet status|gate`: may tiering be turned on in a whole cluster, and may a broker be stopped now?

``status`` gives one verdict per topic over all replicas; ``gate`` is meant to be repeated until the answer is yes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.failures import MISSING_FOUND, OK
from resnap.scheduler.cli.flags import CLUSTER, TOPIC
from resnap.scheduler.fleet.collecting import Collector
from resnap.scheduler.fleet.status import (
    FleetBrokerRow,
    FleetStatus,
    FleetTopicRow,
    collect_reports,
    fleet_status,
    is_selected,
)
from resnap.scheduler.job.contract import Reported, Request, Result, Verb, View
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.answer import answer_of, fault_rows_if, faults_line, turn_on_lines, why_of
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.scheduler.verbs.replicas import check_of
from resnap.storage.errors import ClusterError, UsageError
from resnap.storage.words import human_count, some
from resnap.tiering.cluster.live_replicas import LiveBrokers
from resnap.tiering.fleet import Gate
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.selection import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.broker_releases import BrokerReleases
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.replica_comparison import PartitionReplicas, ReplicaFinding
    from resnap.tiering.fleet import FleetBlocker, TopicAnswer
    from resnap.tiering.judging.refusal import Stop


SILENT_HINT: Final = (
    "a topic is ready only if all its replicas are known to be ready: check that the services run, and their addresses "
    "and tokens in the [[fleet]] tables"
)


class StatusRequest(Request):
    """Say for each topic of a whole cluster whether tiering can be turned on, and what stops it.

    Asks the services beside the brokers, which the [[fleet]] tables of the configuration file name, and with
    --bootstrap-server the cluster, which replicas there are. A topic is ready only if each of its replicas is known to
    be. Ends with 0 if every topic that Kafka tiers is ready, with 4 if one is blocked, and with 16 if none is known to
    be and a broker, its service or the cluster did not answer.
    """


def run_status(_: StatusRequest, context: Context, report: Report) -> None:
    """Report the result of each topic of the cluster, then the brokers, and which of them did not answer.

    Raises:
        ConfigurationError: no service is named, or the cluster cannot be asked as is said.
        UsageError: all have answered, and there is no such topic.

    """
    status = fleet_status(context.settings, Collector(now_ms=context.clock.now_ms), context.warn)
    if context.settings.topics and not status.topics and not status.silent:
        raise UsageError("no broker has any of the requested topics", hint="without --topic all topics are shown")
    for answer in status.topics:
        report(Reported(what=answer))
    faults = tuple(ClusterError(why, hint=SILENT_HINT) for why in status.silent)
    report(Reported(what=status, faults=faults))


@dataclass(slots=True, kw_only=True)
class FleetView(View["Reported[TopicAnswer | FleetStatus]"]):
    """A row per topic."""

    kind = "topic"
    columns = (*columns_of(FleetTopicRow), Column(key="why", title="WHY", of=why_of))

    settings: Settings
    _by_verdict: dict[Verdict, list[str]] = field(default_factory=lambda: {verdict: [] for verdict in Verdict})
    """Topics."""
    _blocker: tuple[str, FleetBlocker] | None = None
    """The first, and its topic."""
    _brokers: list[Row] = field(default_factory=list)
    _releases: BrokerReleases | None = None
    _verdict: Verdict | None = None
    """The one in all, once everything was seen."""

    def row(self, result: Reported[TopicAnswer | FleetStatus]) -> Row | None:
        """Return the row of a topic, and count it."""
        told = result.what
        if isinstance(told, FleetStatus):
            self._brokers = [row_of(FleetBrokerRow, broker) for broker in told.brokers]
            self._verdict, self._releases = told.verdict, told.releases
            return None
        self._by_verdict[told.verdict].append(told.topic)
        if self._blocker is None and told.verdict is Verdict.BLOCKED:
            self._blocker = told.topic, told.blockers[0]
        return row_of(FleetTopicRow, told)

    @property
    def exit_code(self) -> int:
        """The exit code of the verdict; 0 without one, since an error then has its own."""
        codes = {Verdict.BLOCKED: MISSING_FOUND, Verdict.UNKNOWN: ClusterError.exit_code}
        return OK if self._verdict is None else codes.get(self._verdict, OK)

    def totals(self) -> Row:
        """Return the verdict in all, topics by verdict, and the brokers."""
        return {
            "verdict": (self._verdict or Verdict.UNKNOWN).value,
            "topics": sum(map(len, self._by_verdict.values())),
            **{verdict.value: len(topics) for verdict, topics in self._by_verdict.items()},
            "brokers": self._brokers,
            "knownFaults": fault_rows_if(self._releases),
        }

    def closing(self) -> Iterable[str]:
        """Yield the answer in words, and what to do next."""
        silent = sum(broker["error"] is not None for broker in self._brokers)
        asked = f"{some(len(self._brokers), 'broker')}{f', {human_count(silent)} not known' if silent else ''}"
        yield ""
        yield from map(str, answer_of(self._by_verdict, silent=silent).sentences)
        yield f"Asked: {asked}."
        if self._releases is not None:
            yield faults_line(self._releases)
        word, ready = "Next", self._by_verdict[Verdict.READY]
        if ready:
            yield "Next: turn tiering on:"
            yield from (f"  {line}" for line in turn_on_lines(ready, self.settings))
            word = "Then"
        if self._blocker is not None:
            topic, one = self._blocker
            yield f"{word}: broker {one.broker_id}: {topic}-{one.partition}: {one.hint}."
        elif silent or self._by_verdict[Verdict.UNKNOWN]:
            yield f"{word}: {SILENT_HINT}."
        elif not ready:
            yield "Next: nothing is left to do: Kafka tiers none of these topics."


STATUS = Verb(
    takes=(TOPIC, CLUSTER),
    request=StatusRequest,
    run=run_status,
    view=lambda _, context: FleetView(settings=context.settings),
)


_GATE_HINT: Final = "make sure that it answers, then run this command again: without its answer, do not stop the broker"
_MIN: Final = "min.insync.replicas"


class GateRequest(Request):
    """Say whether a broker may be stopped now, as for an installation of snapshots; made to be called in a loop.

    No partition may go offline or fall below min.insync.replicas by it, no other broker may be down, the snapshots that
    its replicas lack must be made, and no replica that has lost its producer state may take over the lead. Asks the
    services that the [[fleet]] tables name, and the cluster. --topic says for which topics snapshots must be made. Ends
    with 0 if it may be stopped, with 4 if it may not, and with 16 if nothing is known to be against it, and a broker,
    its service or the cluster did not answer.
    """

    broker: Annotated[int, typer.Option(metavar="ID", min=0, help="Node id of the broker to be stopped.")]


def run_gate(request: GateRequest, context: Context, report: Report) -> None:
    """Report what is against stopping the broker now, then what is not known.

    Raises:
        ConfigurationError: no service is named, or no cluster, or it cannot be asked as is said.
        UsageError: no ``[[fleet]]`` table is of the broker, or no topic is meant.
        ClusterError: the cluster does not answer.

    """
    settings = context.settings
    brokers = collect_reports(settings, Collector(now_ms=context.clock.now_ms))
    if request.broker not in {broker.broker_id for broker in brokers}:
        known = ", ".join(str(broker.broker_id) for broker in brokers)
        raise UsageError(f"no [[fleet]] table names broker {request.broker}", hint=f"the tables name {known}")
    with cluster_of(settings) as cluster:
        # What takes longest comes first, so that where replicas are is as it was a moment ago.
        findings = _findings(cluster, request.broker, context)
        places = _places(cluster, context)
        check_topics(settings.topics, places)
        topics = {place.topic_partition.topic for place in places if request.broker in place.replicas}
        described = cluster.topic_settings(topics)
        gate = Gate(
            broker_id=request.broker,
            running=frozenset(cluster.broker_ids()),
            brokers=brokers,
            places=places,
            min_in_sync={name: int(one[_MIN]) for name, one in described.items() if one.get(_MIN, "").isdecimal()},
            findings=findings,
            wants=is_selected(settings),
        )
    report_all(report, gate.obstacles(), gate.unknown())


def check_topics(globs: Sequence[str], places: Sequence[PartitionReplicas]) -> None:
    """Make sure that ``globs``, where there are any, mean a topic of the cluster: else no snapshot would be asked for.

    Raises:
        UsageError: they mean none.

    """
    if globs and not any(matches(place.topic_partition.topic, globs) for place in places):
        named = " ".join(f"--topic {glob}" for glob in globs)
        raise UsageError(f"no topic of the cluster matches {named}", hint="without --topic all topics count")


def report_all(report: Report, obstacles: Iterable[Stop], unknown: Iterable[str]) -> None:
    """Report each reason against it, then what is not known."""
    for obstacle in obstacles:
        report(Reported(what=obstacle))
    report(Result(faults=tuple(ClusterError(f"not known: {why}", hint=_GATE_HINT) for why in unknown)))


def _places(cluster: Cluster, context: Context) -> Sequence[PartitionReplicas]:
    return LiveBrokers(cluster=cluster, wants=lambda _: True, warn=context.warn).partitions()


def _findings(cluster: Cluster, broker_id: int, context: Context) -> list[ReplicaFinding]:
    """Return what the replicas lack whose lead would be taken over."""
    led: set[TopicPartition] = {
        place.topic_partition for place in _places(cluster, context) if place.leader == broker_id
    }
    return list(check_of(cluster, led.__contains__, context).findings())


class GateRow(TypedDict):
    """One reason of `resnap fleet gate` against stopping a broker."""

    reason: Annotated[str, Column(title="REASON")]
    detail: Annotated[str, Column(title="DETAIL")]
    hint: Annotated[str, Column(title="WHAT TO DO")]


@dataclass(slots=True, kw_only=True)
class GateView(View[Result]):
    """A row per reason."""

    broker_id: int
    kind = "reason"
    columns = columns_of(GateRow)
    _reasons: int = 0
    _unknown: list[str] = field(default_factory=list)

    def row(self, result: Result) -> Row | None:
        """Return the row of a reason, and count it."""
        self._unknown += [str(fault) for fault in result.faults]
        if not isinstance(result, Reported):
            return None
        self._reasons += 1
        return row_of(GateRow, result.what)

    @property
    def exit_code(self) -> int:
        """What to do about the reasons against it, even if something else is not known."""
        if self._reasons:
            return MISSING_FOUND
        return ClusterError.exit_code if self._unknown else OK

    def totals(self) -> Row:
        """Return the answer."""
        return {"broker": self.broker_id, "mayStop": self.exit_code == OK, "unknown": self._unknown}

    def closing(self) -> Iterable[str]:
        """Yield the answer in words."""
        if self.exit_code == OK:
            yield f"Broker {self.broker_id} may be stopped now."
            yield "Next: stop it, `resnap install` what was made for it, and start it again."
        elif self._reasons:
            yield ""
            yield f"Broker {self.broker_id} may not be stopped now."
            yield "Next: the same command again, once what stands under WHAT TO DO is done."
        else:
            yield f"Whether broker {self.broker_id} may be stopped is not known."
            yield "Next: the same command again, once the errors named here are repaired."


GATE = Verb(
    takes=(TOPIC, CLUSTER),
    request=GateRequest,
    run=run_gate,
    view=lambda request, _: GateView(broker_id=request.broker),
)
