"""The service's metrics: methods with plain values that its parts call, and the output for Prometheus.

Every series is there from the start, at 0, for each value of its labels that is known: an alert on a series that is
absent never fires. A value that was not announced, such as a directory that was named in a request, counts as
``other``, or has no series, so that the configuration alone decides how many there are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from resnap.scheduler.settings.values import shown
from resnap.scheduler.telemetry.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from resnap.tiering.quota.quota_metrics import Series as QuotaSeries

OTHER: Final = "other"
RESULTS: Final = ("ok", "failed", "skipped")
RUN_KINDS: Final = ("scan", "census", "regenerate", "tier", "verify", "replicas")
RUN_STATES: Final = ("succeeded", "partially_failed", "failed", "cancelled")
FINISHED_WELL: Final = "succeeded"
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
MISMATCHES: Final = ("snapshot", "object", "gap", "overlap")
"""What a store holds otherwise than it should (`Mismatch`)."""
REPLICA_STATES: Final = ("lost", "lagging", "unknown")
SCHEDULER_EVENTS: Final = ("missed", "max_instances", "error", "queue_full")
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


class Metrics:
    """All series of one service, on a registry of their own. Thread-safe."""

    def __init__(self, watched: Watched, *, version: str, revision: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter, of no use here
        self.registry = CollectorRegistry(auto_describe=True)
        self._series = Series(self.registry)
        self._series.build.info({"version": version, "revision": revision})
        ProcessCollector(registry=self.registry)
        self._guard = threading.Lock()
        self._watched = Watched()
        self._routes: frozenset[tuple[str, str]] = frozenset()
        self._begin_at_zero()
        self.watch(watched)

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those that are watched."""
        return self._watched.schedules

    def watch(self, watched: Watched) -> None:
        """Take what the configuration says now: what is new has series, what is gone has none."""
        series = self._series
        with self._guard:
            before, self._watched = self._watched, watched
            for gone in set(before.sources) - set(watched.sources):
                series.segments_missing_snapshot.remove(*_shown(gone))
            for schedule in set(before.schedules) - set(watched.schedules):
                series.schedule_last_success.remove(schedule)
        for source in watched.sources:
            series.segments_scanned.labels(*_shown(source))
            series.segments_missing_snapshot.labels(*_shown(source))
        for schedule in watched.schedules:
            series.schedule_last_success.labels(schedule)
        for cluster in (*watched.clusters, OTHER):
            for result in (*RESULTS, OTHER):
                series.snapshots_written.labels(cluster, result)
        series.queue_limit_runs.set(watched.queue_limit)

    def routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """Take the routes there are, as method and path with ``{names}`` in it; any other request is ``other``."""
        self._routes = frozenset(routes)
        for method, route in (*self._routes, (OTHER, OTHER)):
            self._series.http_request_duration_seconds.labels(route)
            for status in STATUSES:
                self._series.http_requests.labels(route, method, status)

    def quota(self, read: Callable[[], Iterable[QuotaSeries]]) -> None:
        """Show the quota of producer ids, too: what ``quota_metrics.series`` yields at the moment of a scrape.

        It is called once here, for the names. How many users are named has a bound of its own.
        """
        self.registry.register(_QuotaCollector(read))

    def scan_seen(self, log_dir: str, *, segments: int) -> None:
        """Count the segments that a scan saw of one source."""
        source = next((one for one in self._watched.sources if one[1] == log_dir), None)
        self._series.segments_scanned.labels(*((OTHER, OTHER) if source is None else _shown(source))).inc(segments)

    def segments_missing(self, by_log_dir: Mapping[str, int]) -> None:
        """Note how many segments of each watched source lack a snapshot, by its last scan."""
        with self._guard:
            for source in self._watched.sources:
                self._series.segments_missing_snapshot.labels(*_shown(source)).set(by_log_dir.get(source[1], 0))

    def scan_tried(self, *, succeeded: bool) -> None:
        """Note how the last scan ended."""
        self._series.last_scan_success.set(succeeded)

    def partitions(self, *, ready: int, not_ready: int) -> None:
        """Note how many partitions could be tiered now, and how many not."""
        self._series.partitions.labels("ready").set(ready)
        self._series.partitions.labels("not_ready").set(not_ready)

    def snapshots(self, cluster: str, result: str, count: int) -> None:
        """Count snapshots of a cluster that were written, could not be, or needed not be (``RESULTS``)."""
        known = self._watched.clusters
        self._series.snapshots_written.labels(_one_of(cluster, known), _one_of(result, RESULTS)).inc(count)

    def replayed(self, *, batches: int, size_bytes: int) -> None:
        """Count what was replayed."""
        self._series.batches_replayed.inc(batches)
        self._series.replay_bytes.inc(size_bytes)

    def uploaded(self, *, size_bytes: int) -> None:
        """Count bytes that a store has taken."""
        self._series.upload_bytes.inc(size_bytes)

    def upload_failed(self, reason: str) -> None:
        """Count a segment that was not shipped because of an error with the code ``reason``."""
        self._series.upload_failures.labels(_one_of(reason, UPLOAD_FAILURES)).inc()

    def verify_mismatch(self, kind: str, count: int) -> None:
        """Count differences of a kind of ``MISMATCHES``."""
        self._series.verify_mismatches.labels(_one_of(kind, MISMATCHES)).inc(count)

    def replicas(self, states: Mapping[str, int]) -> None:
        """Note how many replicas are in each state of ``REPLICA_STATES``, by the last check of them."""
        for state in REPLICA_STATES:
            self._series.replicas.labels(state).set(states.get(state, 0))

    def remote_unfit(self, partitions: int) -> None:
        """Note how many partitions have unfit snapshots in stores, by the last verification of each schedule."""
        self._series.remote_partitions_unfit.set(partitions)

    def run_ended(self, kind: str, state: str, seconds: float, at_ms: int, *, schedule: str | None = None) -> None:
        """Count a run that ended at ``at_ms``, ``seconds`` after it began; of a schedule, if one asked for it."""
        known = _one_of(kind, RUN_KINDS)
        self._series.runs.labels(known, _one_of(state, RUN_STATES)).inc()
        self._series.run_duration_seconds.labels(known).observe(seconds)
        if state == FINISHED_WELL:
            self.last_success(at_ms, schedule=schedule)

    def last_success(self, at_ms: int, *, schedule: str | None = None) -> None:
        """Note when a run last succeeded; at the start, what the history knows of earlier processes."""
        self._series.last_success.set(at_ms / 1000)
        with self._guard:
            if schedule in self._watched.schedules:
                self._series.schedule_last_success.labels(schedule).set(at_ms / 1000)

    def orphaned(self, count: int) -> None:
        """Count runs that an earlier process left unfinished."""
        self._series.runs_orphaned.inc(count)

    def queue(self, *, waiting: int, running: int) -> None:
        """Note how many runs wait, and how many are at work."""
        self._series.queue_runs.labels("waiting").set(waiting)
        self._series.queue_runs.labels("running").set(running)

    def scheduler_event(self, event: str) -> None:
        """Count a due run that did not take place, by ``SCHEDULER_EVENTS``."""
        self._series.scheduler_events.labels(_one_of(event, SCHEDULER_EVENTS)).inc()

    def config_reloaded(self, *, succeeded: bool) -> None:
        """Note whether the configuration could be read."""
        self._series.config_last_reload_success.set(succeeded)

    def http_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request that was answered; ``route`` has ``{names}`` in it, never the values."""
        if (method, route) not in self._routes:
            method = route = OTHER
        self._series.http_requests.labels(route, method, f"{status // 100}xx").inc()
        self._series.http_request_duration_seconds.labels(route).observe(seconds)

    def event_streams(self, count: int) -> None:
        """Note how many event streams are open."""
        self._series.event_streams.set(count)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all series and their content type: OpenMetrics for who accepts it, else Prometheus' own text."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _begin_at_zero(self) -> None:
        """Make the series whose labels have the same values everywhere."""
        series = self._series
        for kind in (*RUN_KINDS, OTHER):
            series.run_duration_seconds.labels(kind)
            for state in (*RUN_STATES, OTHER):
                series.runs.labels(kind, state)
        for reason in (*UPLOAD_FAILURES, OTHER):
            series.upload_failures.labels(reason)
        for mismatch in (*MISMATCHES, OTHER):
            series.verify_mismatches.labels(mismatch)
        for event in (*SCHEDULER_EVENTS, OTHER):
            series.scheduler_events.labels(event)
        series.segments_scanned.labels(OTHER, OTHER)
        self.partitions(ready=0, not_ready=0)
        self.replicas({})
        self.queue(waiting=0, running=0)
        self.config_reloaded(succeeded=True)


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


def _one_of(value: str, known: Collection[str]) -> str:
    return value if value in known else OTHER


def _shown(source: tuple[str, str]) -> tuple[str, str]:
    """Return cluster and log dir as labels; a URL may carry credentials."""
    cluster, log_dir = source
    return cluster, str(shown(log_dir))
