"""Declares the series of ``/metrics``: names, labels, and what each counts. ``metrics.py`` updates them.

Names follow Prometheus' conventions (base units, ``_total``, one quantity each). No label takes its values from what a
cluster or a caller holds: topics, partitions, producer ids, principals, paths of requests. Those are in the API.

Source: https://prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge, Histogram, Info

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

RUN_BUCKETS_S: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""From a scan that finds everything known to a replay that takes a day."""
REQUEST_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10)
"""Few, since each is a series for each route, and they are most of what a scrape has."""
_SOURCE: Final = ("cluster", "log_dir")


class Series:
    """All series of one registry; each attribute is named as its series, without prefix and suffix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.build = Info("resnap_build", "The Resnap that runs.", registry=registry)
        self._of_scans()
        self._of_work()
        self._of_runs()
        self._of_http()

    def _of_scans(self) -> None:
        self.segments_scanned = self._counter("segments_scanned", "Segments that scans have looked at.", *_SOURCE)
        self.segments_missing_snapshot = self._gauge(
            "segments_missing_snapshot", "Segments without a usable producer snapshot, by the last scan.", *_SOURCE
        )
        self.partitions = self._gauge("partitions", "Partitions by whether tiering could be turned on now.", "state")
        self.last_scan_success = self._gauge("last_scan_success", "Whether the last scan succeeded.")

    def _of_work(self) -> None:
        self.snapshots_written = self._counter("snapshots_written", "Producer snapshots.", "cluster", "result")
        self.batches_replayed = self._counter("batches_replayed", "Record batches that were replayed.")
        self.replay_bytes = self._counter("replay_bytes", "Bytes of segments that were replayed.")
        self.upload_bytes = self._counter("upload_bytes", "Bytes sent to object stores.")
        self.upload_failures = self._counter("upload_failures", "Segments that could not be shipped.", "reason")
        self.replicas = self._gauge(
            "replicas", "Replicas of the running cluster that are not in order, by the last check of them.", "state"
        )
        self.remote_partitions_unfit = Gauge(
            "resnap_remote_partitions_unfit",
            "Partitions with unfit producer snapshots in a store, by the last verification of each schedule.",
            registry=self._registry,
        )
        self.verify_mismatches = self._counter("verify_mismatches", "Differences that a verification found.", "kind")

    def _of_runs(self) -> None:
        self.run_duration_seconds = Histogram(
            "resnap_run_duration_seconds",
            "From the start of a run to its end.",
            ("kind",),
            buckets=RUN_BUCKETS_S,
            registry=self._registry,
        )
        self.runs = self._counter("runs", "Runs that have ended.", "kind", "state")
        self.runs_orphaned = self._counter("runs_orphaned", "Runs that an earlier process left behind unfinished.")
        self.last_success = self._gauge("last_success_timestamp_seconds", "When a run last succeeded; 0 for never.")
        self.schedule_last_success = self._gauge(
            "schedule_last_success_timestamp_seconds", "When a schedule's run last succeeded; 0 for never.", "schedule"
        )
        self.queue_runs = self._gauge("queue_runs", "Runs that are not over.", "state")
        self.queue_limit_runs = self._gauge("queue_limit_runs", "Waiting runs beyond which requests are turned away.")
        self.scheduler_events = self._counter("scheduler_events", "Due runs that did not take place.", "event")
        self.config_last_reload_success = self._gauge(
            "config_last_reload_success", "Whether the configuration could be read when last asked to."
        )

    def _of_http(self) -> None:
        self.http_requests = self._counter("http_requests", "Requests answered.", "route", "method", "status")
        self.http_request_duration_seconds = Histogram(
            "resnap_http_request_duration_seconds",
            "From a request to its answer; of an event stream, to its first byte.",
            ("route",),
            buckets=REQUEST_BUCKETS_S,
            registry=self._registry,
        )
        self.event_streams = self._gauge("event_streams", "Event streams that are open.")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"resnap_{name}", meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"resnap_{name}", meaning, labels, registry=self._registry)
