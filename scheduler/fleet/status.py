"""The status of a whole cluster at one moment: the reports of all services, and the cluster itself if configured.

A service collects it in the background, as long as it is requested: the last collection is returned with its time.
Before the first one, and if the last one is too old, every broker is unknown.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final

from typing_extensions import TypedDict

from resnap.scheduler.fleet.collecting import Collector
from resnap.scheduler.job.wiring import cluster_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.errors import ClusterError, ConfigurationError, ResnapError
from resnap.tiering.broker_releases import releases_of
from resnap.tiering.cluster.live_replicas import LiveBrokers
from resnap.tiering.fleet import BrokerReplicas, topic_answers
from resnap.tiering.judging.inventory import NEVER_TIERED
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.selection import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.settings.service import FleetEntry
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.broker_releases import BrokerReleases
    from resnap.tiering.fleet import TopicAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """The sums over all replicas, and the services that did not answer."""

    brokers: Sequence[BrokerReplicas]
    """In the order of the ``[[fleet]]`` tables."""
    topics: Sequence[TopicAnswer]
    """The topics by name."""
    unanswered: str | None
    """Why the cluster has not answered, if it was asked."""
    releases: BrokerReleases | None = None
    """The releases of its brokers; None where the cluster was not asked."""
    at_ms: int | None = None
    """When a service has collected it; None where nothing was collected yet."""

    @property
    def by_verdict(self) -> dict[Verdict, list[str]]:
        """The names of topics by verdict."""
        return {verdict: [one.topic for one in self.topics if one.verdict is verdict] for verdict in Verdict}

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
    brokers, places, unanswered, releases = collect_reports(settings, collector), None, None, None
    if settings.bootstrap_server is not None:
        try:
            with cluster_of(settings) as cluster:
                places = LiveBrokers(cluster=cluster, wants=lambda _: True, warn=warn).partitions()
                releases = releases_of(settings.kafka_version, settings.metadata, cluster)
        except ClusterError as error:
            unanswered = str(error)
    answers = topic_answers(brokers, places, unanswered=unanswered, wants=is_selected(settings))
    return FleetStatus(brokers=brokers, topics=list(answers), unanswered=unanswered, releases=releases)


def collect_reports(settings: Settings, collector: Collector) -> Sequence[BrokerReplicas]:
    """Return the report of each configured service.

    Raises:
        ConfigurationError: it names none.

    """
    if not settings.fleet:
        hint = "give --config FILE with a [[fleet]] table for each broker; docs/fleet.md has an example"
        raise ConfigurationError("no [[fleet]] table names the service of a broker", hint=hint)
    return collector.collect(settings.fleet)


def is_selected(settings: Settings) -> Callable[[str], bool]:
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


EVERY_S: Final = 60.0
"""From the end of a collection to the next."""
LINGER_S: Final = 900.0
"""How long it continues after the last request."""
OLD_S: Final = 600.0
"""What was collected so long ago is not known any more."""
FIRST_S: Final = 3.0
"""How long the first question waits, so that quick services have answered."""


@dataclass(slots=True, kw_only=True)
class FleetWatch:
    """Collects the status of the cluster as long as it is requested. Thread-safe."""

    settings: Callable[[], Settings]
    """The settings in force."""
    clock: Clock
    warn: Callable[[str], None]
    _collector: Collector = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _has_any: threading.Event = field(default_factory=threading.Event)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _asked_s: float = 0.0
    _last: tuple[tuple[FleetEntry, ...], float, FleetStatus] | None = None
    """The last status: of which services, when, and what."""

    def __post_init__(self) -> None:
        self._collector = Collector(now_ms=self.clock.now_ms)

    def collected(self) -> FleetStatus:
        """Return the last collection, and keep collecting from now on."""
        with self._lock:
            self._asked_s = self.clock.monotonic_s()
            known = self._recent()
            if (self._thread is None or not self._thread.is_alive()) and not self._is_over.is_set():
                self._has_any.clear()
                self._thread = threading.Thread(target=self._go_on, name="resnap-fleet-watch", daemon=True)
                self._thread.start()
        if known is None:
            self._has_any.wait(FIRST_S)
            known = self._recent()
        return known or self._nothing("not asked yet")

    def stop(self) -> None:
        """Stop collecting."""
        self._is_over.set()

    def _recent(self) -> FleetStatus | None:
        if self._last is None:
            return None
        entries, at_s, last = self._last
        is_old = self.clock.monotonic_s() - at_s > OLD_S
        return None if is_old or entries != self.settings().fleet else last

    def _go_on(self) -> None:
        while not self._is_over.is_set() and self.clock.monotonic_s() - self._asked_s < LINGER_S:
            settings = self.settings()
            try:
                status = fleet_status(settings, self._collector, self.warn)
            except ResnapError as error:  # the cluster cannot be queried with this configuration
                status = self._nothing(str(error))
            self._last = settings.fleet, self.clock.monotonic_s(), replace(status, at_ms=self.clock.now_ms())
            self._has_any.set()
            self._is_over.wait(EVERY_S)

    def _nothing(self, why: str) -> FleetStatus:
        brokers = [
            BrokerReplicas(broker_id=one.broker, error=f"broker {one.broker}: {why}") for one in self.settings().fleet
        ]
        return FleetStatus(brokers=brokers, topics=(), unanswered=None)
