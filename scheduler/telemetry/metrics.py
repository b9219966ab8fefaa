"""The service's metrics: the declaration of each series, what changes it, and the output for Prometheus.

Every series is there from the start, at 0, for each value of its labels that is known: an alert on a series that is
absent never fires. Any other value, such as a directory that was named in a request, counts as ``other``, or has no
series, so that the configuration alone decides how many there are.

Names follow Prometheus' conventions (base units, ``_total``, one quantity each). No label takes its values from what a
cluster or a caller holds: topics, partitions, producer ids, principals, paths of requests. Those are in the API.

Source: https://prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from resnap.scheduler.registry import KINDS
from resnap.scheduler.settings.values import json_form
from resnap.tiering.cluster.replica_comparison import ReplicaState
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.store_check import Mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.tiering.quota.quota_manager import QuotaSeries


T = TypeVar("T", bound=Counter | Gauge | Histogram)

OTHER: Final = "other"
RUN_STATES: Final = ("succeeded", "partially_failed", "failed", "cancelled")
UPLOAD_FAILURES: Final = (
    "StoreAccessError",
    "StoreFullError",
    "StoreUnavailableError",
    "ObjectChangedError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "TooLargeError",
    "UnsupportedError",
    "UploadGoneError",
    "VerificationError",
)
"""The codes of errors, as the API gives them."""
SIZES: Final = {
    "tierable": "Bytes of closed segments that a broker can tier.",
    "blocked": "Bytes of closed segments that a broker does not get to.",
    "shipped": "Bytes of closed segments that are in remote storage already.",
    "freeable": "Bytes that a broker could delete from its disk once nothing is blocked that can be helped.",
}
"""The sizes of all scanned partitions, by the last scans."""
SCHEDULER_EVENTS: Final = ("missed", "max_instances", "error", "queue_full")
RUN_BUCKETS_S: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""From a scan that finds everything known to a replay that takes a day."""
REQUEST_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10)
"""Few, since each is a series for each route, and they are most of what a scrape has."""
_SOURCE: Final = ("cluster", "log_dir")


class Labelled(Generic[T]):
    """The series of one name, by labels whose values are known."""

    def __init__(self, metric: T, known: Sequence[Sequence[str]], others: Sequence[str] = (OTHER,)) -> None:
        self._metric, self._known = metric, known
        for values in product(*((*values_of, *others) for values_of in known)):
            metric.labels(*values)

    def of(self, *values: str) -> T:
        """Return the series of these values, of which each that is not known counts as ``other``."""
        known = (one_of(*both) for both in zip(values, self._known, strict=True))
        return self._metric.labels(*known)  # type: ignore[return-value] # of the class of the metric


class Series:
    """All series of one registry; each attribute is named as its series, without prefix and suffix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        counter, counters, gauge, gauges = self._counter, self._counters, self._gauge, self._gauges
        self.build = Info("resnap_build", "The Resnap that runs.", registry=self.registry)

        self.segments_scanned = counter("segments_scanned", "Segments that scans have seen.", *_SOURCE)
        self.segments_missing_snapshot = gauge(
            "segments_missing_snapshot", "Segments without a usable producer snapshot, by the last scan.", *_SOURCE
        )
        meaning = (
            "How long the oldest closed segment that is not in remote storage had waited, by the last scan; 0 for none."
        )
        self.oldest_segment_not_in_remote_seconds = gauge("oldest_segment_not_in_remote_seconds", meaning, *_SOURCE)
        meaning = "The most producers in the newest snapshot of one partition, by the last scan since the start."
        self.partition_producers_max = gauge("partition_producers_max", meaning, *_SOURCE)
        verdicts = tuple(Verdict)
        self.partitions = gauges("partitions", "Partitions by verdict, by the last scans.", verdict=verdicts)
        self.topics = gauges("topics", "Topics by verdict, by the last scans.", verdict=verdicts)
        self.sizes = {name: gauge(f"{name}_bytes", meaning) for name, meaning in SIZES.items()}
        self.last_scan_success = gauge("last_scan_success", "Whether the last scan succeeded.")

        self.snapshots_written = counter("snapshots_written", "Producer snapshots.", "cluster", "result")
        self.batches_replayed = counter("batches_replayed", "Record batches that were replayed.")
        self.replay_bytes = counter("replay_bytes", "Bytes of segments that were replayed.")
        self.upload_bytes = counter("upload_bytes", "Bytes sent to object stores.")
        meaning = "Segments that could not be shipped."
        self.upload_failures = counters("upload_failures", meaning, reason=UPLOAD_FAILURES)
        meaning = "Replicas of the running cluster that lost state, lag or are not known, by the last check of them."
        self.replicas = gauges("replicas", meaning, state=tuple(ReplicaState))
        meaning = "Partitions with unfit producer snapshots in a store, by the last verification of each schedule."
        self.remote_partitions_unfit = gauge("remote_partitions_unfit", meaning)
        meaning = "Differences that a verification found."
        self.verify_mismatches = counters("verify_mismatches", meaning, kind=tuple(Mismatch))

        meaning = "From the start of a run to its end."
        self.run_duration_seconds = Labelled(self._seconds("run", meaning, "kind", RUN_BUCKETS_S), [[*KINDS]])
        self.runs = counters("runs", "Runs that have ended.", kind=[*KINDS], state=RUN_STATES)
        self.runs_orphaned = counter("runs_orphaned", "Runs that an earlier process left behind unfinished.")
        self.last_success = gauge("last_success_timestamp_seconds", "When a run last succeeded; 0 for never.")
        self.schedule_last_success = gauge(
            "schedule_last_success_timestamp_seconds", "When a schedule's run last succeeded; 0 for never.", "schedule"
        )
        self.queue_runs = gauges("queue_runs", "Runs that have not ended.", state=("waiting", "running"))
        self.queue_limit_runs = gauge("queue_limit_runs", "How many runs may wait before requests are refused.")
        meaning = "Due runs that were not started."
        self.scheduler_events = counters("scheduler_events", meaning, event=SCHEDULER_EVENTS)
        meaning = "Whether the last reload of the configuration succeeded."
        self.config_last_reload_success = gauge("config_last_reload_success", meaning)

        self.http_requests = counter("http_requests", "Requests answered.", "route", "method", "status")
        meaning = "From a request to its answer; of an event stream, to its first byte."
        self.http_request_duration_seconds = self._seconds("http_request", meaning, "route", REQUEST_BUCKETS_S)
        self.event_streams = gauge("event_streams", "Event streams that are open.")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"resnap_{name}", meaning, labels, registry=self.registry)

    def _counters(self, name: str, meaning: str, **known: Sequence[str]) -> Labelled[Counter]:
        return Labelled(self._counter(name, meaning, *known), [*known.values()])

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"resnap_{name}", meaning, labels, registry=self.registry)

    def _gauges(self, name: str, meaning: str, **known: Sequence[str]) -> Labelled[Gauge]:
        return Labelled(self._gauge(name, meaning, *known), [*known.values()], others=())

    def _seconds(self, name: str, meaning: str, label: str, buckets: Sequence[float]) -> Histogram:
        full_name = f"resnap_{name}_duration_seconds"
        return Histogram(full_name, meaning, (label,), buckets=buckets, registry=self.registry)


def one_of(value: str, known: Collection[str]) -> str:
    """Return ``value`` if it is known, else ``other``."""
    return value if value in known else OTHER


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
        """Apply a changed configuration: add the series of new sources and schedules, remove those of old ones."""
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
        """Show the quota of producer ids, too: what ``quota_manager.series`` yields at the moment of a scrape.

        It is called once here, for the names. How many users are named has a bound of its own.
        """
        self.registry.register(_QuotaCollector(read))

    def scan_seen(self, log_dir: str, *, segments: int, producers: int) -> None:
        """Count the segments that a scan read in one source, and set the most producers of one of its partitions."""
        source = next((pair for pair in self.watched.sources if pair[1] == log_dir), None)
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
    return cluster, str(json_form(log_dir))
