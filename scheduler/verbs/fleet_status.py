"""The job ``fleet status``: may tiering be turned on in a whole cluster? One verdict per topic over all replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.scheduler.cli.failures import MISSING_FOUND, OK
from resnap.scheduler.cli.flags import CLUSTER, TOPIC
from resnap.scheduler.fleet.collecting import Collector
from resnap.scheduler.fleet.status import FleetBrokerRow, FleetStatus, FleetTopicRow, fleet_status
from resnap.scheduler.job.contract import Reported, Request, Verb, View
from resnap.scheduler.output.answer import answer_of, fault_rows_if, faults_line, turn_on_lines, why_of
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.errors import ClusterError, UsageError
from resnap.storage.words import human_count, some
from resnap.tiering.judging.readiness import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.broker_releases import BrokerReleases
    from resnap.tiering.fleet import FleetBlocker, TopicAnswer

SILENT_HINT: Final = (
    "a topic is ready only if all its replicas are known to be ready: check that the services run, and their addresses "
    "and tokens in the [[fleet]] tables"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Say for each topic of a whole cluster whether tiering can be turned on, and what stops it.

    Asks the services beside the brokers, which the [[fleet]] tables of the configuration file name, and with
    --bootstrap-server the cluster, which replicas there are. A topic is ready only if each of its replicas is known to
    be. Ends with 0 if every topic that Kafka tiers is ready, with 4 if one is blocked, and with 16 if none is known to
    be and a broker, its service or the cluster did not answer.
    """


def run(_: Asked, context: Context) -> Iterator[Reported[TopicAnswer | FleetStatus]]:
    """Yield the result of each topic of the cluster, then the brokers, and which of them did not answer.

    Raises:
        ConfigurationError: no service is named, or the cluster cannot be asked as is said.
        UsageError: all have answered, and there is no such topic.

    """
    status = fleet_status(context.settings, Collector(now_ms=context.clock.now_ms), context.warn)
    if context.settings.topics and not status.topics and not status.silent:
        raise UsageError("no broker has any of the requested topics", hint="without --topic all topics are shown")
    for answer in status.topics:
        yield Reported(what=answer)
    faults = tuple(ClusterError(why, hint=SILENT_HINT) for why in status.silent)
    yield Reported(what=status, faults=faults)


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
        """What the verdict calls for; where there is none, the error does that ended the run."""
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
        yield from map(str, answer_of(self._by_verdict).sentences)
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


VERB = Verb(
    takes=(TOPIC, CLUSTER),
    request=Asked,
    run=run,
    view=lambda _, context: FleetView(settings=context.settings),
    reads="other",
)
