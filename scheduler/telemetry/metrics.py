"""The service's metrics by what its configuration names, and the output for Prometheus.

A value that was not announced, such as a directory that was named in a request, counts as ``other``, or has no series,
so that the configuration alone decides how many there are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from resnap.scheduler.settings.values import shown
from resnap.scheduler.telemetry.series import OTHER, Series, one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.tiering.quota.quota_manager import Series as QuotaSeries

RESULTS: Final = ("ok", "failed", "skipped")
STATUSES: Final = ("2xx", "3xx", "4xx", "5xx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the configuration says there is; each of it has series from the start.

    Attributes:
        sources: cluster id and log dir, the latter a path or a URL.
        schedules: names.
        queue_limit: runs that may wait.

    """

    sources: tuple[tuple[str, str], ...] = ()
    schedules: tuple[str, ...] = ()
    queue_limit: int = 0

    @property
    def clusters(self) -> frozenset[str]:
        """The clusters that the sources are of."""
        return frozenset(cluster for cluster, _ in self.sources)


class Metrics(Series):
    """The series of one service, and what depends on its configuration. Thread-safe."""

    def __init__(self, watched: Watched, *, version: str, revision: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter, of no use here
        super().__init__()
        self.build.info({"version": version, "revision": revision})
        ProcessCollector(registry=self.registry)
        self._guard = threading.Lock()
        self.watched = Watched()
        self._routes: frozenset[tuple[str, str]] = frozenset()
        self._of_sources = (
            self.segments_missing_snapshot, self.oldest_segment_not_in_remote_seconds, self.partition_producers_max,
        )  # fmt: skip
        self.segments_scanned.labels(OTHER, OTHER)
        self.config_last_reload_success.set(True)
        self.watch(watched)

    def watch(self, watched: Watched) -> None:
        """Take what the configuration says now: what is new has series, what is gone has none."""
        with self._guard:
            before, self.watched = self.watched, watched
            for gone in set(before.sources) - set(watched.sources):
                for gauge in self._of_sources:
                    gauge.remove(*_labels(gone))
            for schedule in set(before.schedules) - set(watched.schedules):
                self.schedule_last_success.remove(schedule)
        for source in watched.sources:
            for series in (self.segments_scanned, *self._of_sources):
                series.labels(*_labels(source))
        for schedule in watched.schedules:
            self.schedule_last_success.labels(schedule)
        for cluster in (*watched.clusters, OTHER):
            for result in (*RESULTS, OTHER):
                self.snapshots_written.labels(cluster, result)
        self.queue_limit_runs.set(watched.queue_limit)

    def routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """Take the routes there are, as method and path with ``{names}`` in it; any other request is ``other``."""
        self._routes = frozenset(routes)
        for method, route in (*self._routes, (OTHER, OTHER)):
            self.http_request_duration_seconds.labels(route)
            for status in STATUSES:
                self.http_requests.labels(route, method, status)

    def quota(self, read: Callable[[], Iterable[QuotaSeries]]) -> None:
        """Show the quota of producer ids, too: what ``quota_metrics.series`` yields at the moment of a scrape.

        It is called once here, for the names. How many users are named has a bound of its own.
        """
        self.registry.register(_QuotaCollector(read))

    def scan_seen(self, log_dir: str, *, segments: int, producers: int) -> None:
        """Count the segments that a scan saw of one source; note the most producers that one partition has there."""
        source = next((one for one in self.watched.sources if one[1] == log_dir), None)
        if source is not None:
            self.partition_producers_max.labels(*_labels(source)).set(producers)
        self.segments_scanned.labels(*((OTHER, OTHER) if source is None else _labels(source))).inc(segments)

    def segments_missing(self, by_log_dir: Mapping[str, int]) -> None:
        """Note how many segments of each watched source lack a snapshot, by its last scan."""
        with self._guard:
            for source in self.watched.sources:
                self.segments_missing_snapshot.labels(*_labels(source)).set(by_log_dir.get(source[1], 0))

    def segments_waiting(self, by_log_dir: Mapping[str, int]) -> None:
        """Note for how many milliseconds the oldest segment of each watched source has waited to be copied."""
        with self._guard:
            for source in self.watched.sources:
                seconds = by_log_dir.get(source[1], 0) / 1000
                self.oldest_segment_not_in_remote_seconds.labels(*_labels(source)).set(seconds)

    def snapshots(self, cluster: str, result: str, count: int) -> None:
        """Count snapshots of a cluster that were written, could not be, or needed not be (``RESULTS``)."""
        known = self.watched.clusters
        self.snapshots_written.labels(one_of(cluster, known), one_of(result, RESULTS)).inc(count)

    def run_ended(self, kind: str, state: str, seconds: float, at_ms: int, *, schedule: str | None = None) -> None:
        """Count a run that ended at ``at_ms``, ``seconds`` after it began; of a schedule, if one asked for it."""
        self.runs.of(kind, state).inc()
        self.run_duration_seconds.of(kind).observe(seconds)
        if state == "succeeded":
            self.succeeded(at_ms, schedule=schedule)

    def succeeded(self, at_ms: int, *, schedule: str | None = None) -> None:
        """Note when a run last succeeded; at the start, what the history knows of earlier processes."""
        self.last_success.set(at_ms / 1000)
        with self._guard:
            if schedule in self.watched.schedules:
                self.schedule_last_success.labels(schedule).set(at_ms / 1000)

    def http_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered; ``route`` has ``{names}`` in it, never the values."""
        if (method, route) not in self._routes:
            method = route = OTHER
        self.http_requests.labels(route, method, f"{status // 100}xx").inc()
        self.http_request_duration_seconds.labels(route).observe(seconds)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all series and their content type: OpenMetrics for who accepts it, else Prometheus' own text."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _QuotaCollector(Collector):
    """Asks the quota at each scrape; it keeps its numbers itself."""

    def __init__(self, read: Callable[[], Iterable[QuotaSeries]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for one in self._read():
            family = families.setdefault(one.name, Metric(one.name, one.help, one.kind))
            family.add_sample(f"{one.name}_total" if one.kind == "counter" else one.name, dict(one.labels), one.value)
        yield from families.values()


def _labels(source: tuple[str, str]) -> tuple[str, str]:
    """Return cluster and log dir as labels; a URL may carry credentials."""
    cluster, log_dir = source
    return cluster, str(shown(log_dir))
