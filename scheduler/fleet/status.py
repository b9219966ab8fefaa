"""The status of a whole cluster at one moment: the reports of all services, and the cluster itself if configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typing_extensions import TypedDict

from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.errors import ClusterError, ConfigurationError
from resnap.tiering.broker_releases import releases_of
from resnap.tiering.cluster.live_replicas import LiveBrokers
from resnap.tiering.fleet import topic_answers
from resnap.tiering.judging.inventory import NEVER_TIERED
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.selection import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.scheduler.fleet.collecting import Collector
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.broker_releases import BrokerReleases
    from resnap.tiering.fleet import BrokerReplicas, TopicAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """The sums over all replicas, and the services that did not answer."""

    brokers: Sequence[BrokerReplicas]
    """In the order of the ``[[fleet]]`` tables."""
    topics: Sequence[TopicAnswer]
    """By name."""
    unanswered: str | None
    """Why the cluster has not answered, if it was asked."""
    releases: BrokerReleases | None = None
    """Of its brokers; None where it was not asked."""

    @property
    def silent(self) -> list[str]:
        """The services that did not answer, and why."""
        return [*filter(None, [self.unanswered]), *(one.error for one in self.brokers if one.error is not None)]

    @property
    def verdict(self) -> Verdict:
        """The overall verdict: blocked takes precedence over unknown."""
        return Verdict.of_all({*(topic.verdict for topic in self.topics), *([Verdict.UNKNOWN] if self.silent else [])})


def fleet_status(settings: Settings, collector: Collector, warn: Callable[[str], None]) -> FleetStatus:
    """Query all services, and the cluster if configured; a missing answer makes topics unknown.

    Raises:
        ConfigurationError: the configuration names no service, or cannot be used to query the cluster.

    """
    brokers, places, unanswered, releases = collected(settings, collector), None, None, None
    if settings.bootstrap_server is not None:
        try:
            with cluster_of(settings) as cluster:
                places = LiveBrokers(cluster=cluster, wants=lambda _: True, warn=warn).partitions()
                releases = releases_of(settings.kafka_version, settings.metadata, cluster)
        except ClusterError as error:
            unanswered = str(error)
    answers = topic_answers(brokers, places, unanswered=unanswered, wants=is_meant(settings))
    return FleetStatus(brokers=brokers, topics=list(answers), unanswered=unanswered, releases=releases)


def collected(settings: Settings, collector: Collector) -> Sequence[BrokerReplicas]:
    """Return the report of each configured service.

    Raises:
        ConfigurationError: it names none.

    """
    if not settings.fleet:
        hint = "give --config FILE with a [[fleet]] table for each broker; docs/fleet.md has an example"
        raise ConfigurationError("no [[fleet]] table names the service of a broker", hint=hint)
    return collector.collect(settings.fleet)


def is_meant(settings: Settings) -> Callable[[str], bool]:
    """Return whether the settings select a topic; unless they name topics, those that brokers never tier are not."""
    scope = Scope(sources=(), topics=settings.topics, exclude_topics=settings.exclude_topics)
    return lambda topic: scope.wants(topic) and (bool(scope.topics) or topic not in NEVER_TIERED)


class FleetBlockerRow(TypedDict):
    """What stops replicas of a topic: how many on which brokers, and the first of them."""

    reason: str
    replicas: int
    brokers: list[int]
    broker: Annotated[int, "broker_id"]
    partition: int
    detail: str
    hint: str


class FleetTopicRow(TypedDict):
    """One topic of `resnap fleet status`; what only the cluster can say is null where it has not."""

    topic: Annotated[str, Column(title="TOPIC")]
    verdict: Annotated[Verdict, Column(title="VERDICT", is_state=True)]
    partitions: Annotated[int, Column(title="PARTITIONS", right=True)]
    replicas: Annotated[int, lambda answer: sum(answer.verdicts.values()), Column(title="REPLICAS", right=True)]
    verdicts: Annotated[dict[Verdict, int], lambda answer: dict(sorted(answer.verdicts.items()))]
    missing: Annotated[int, Column(title="MISSING", right=True)]
    offline: int | None
    underReplicated: int | None
    blockedLeaders: int | None
    blockers: list[FleetBlockerRow]
    unknown: list[str]


class FleetBrokerRow(TypedDict):
    """A broker of the cluster: what its service has seen, or why nothing is known of it."""

    broker: Annotated[int, "broker_id"]
    replicas: Annotated[int | None, lambda one: sum(map(len, one.topics.values())) if one.error is None else None]
    scanned: str | None
    error: str | None
