"""Executes runs, with the same jobs as the shell commands, and keeps what they find, make and report.

The engine, with Spark if it was started, belongs to the service and is shared by all runs.

Work reports from any thread: progress at most once a second, finished partitions, errors. A cancelled run is notified
by its next report, which raises an error that no part of the work treats as a failure of its own.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from resnap.scheduler.job.contract import Context, PartitionState, Result, verb_of
from resnap.scheduler.output.progress import ProgressState, TrackedProgress, progress_row
from resnap.scheduler.output.records import row_of
from resnap.scheduler.runs.configuration import place_of, scanned_sources, scope_for
from resnap.scheduler.runs.run import BY_API, PartitionOutcome, ReportedError
from resnap.scheduler.settings.values import redact
from resnap.scheduler.telemetry.logs import logger
from resnap.scheduler.verbs.scan import ScanRow
from resnap.storage.errors import CancelledError, ResnapError, UsageError, fault_of_machine
from resnap.storage.log.producer_snapshot import entries_in, read_snapshot_array
from resnap.storage.stores.urls import is_store_url
from resnap.tiering.judging.planning import can_be_tiered, read_saved_plan
from resnap.tiering.judging.readiness import RunRepair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.watching import Progress
    from resnap.scheduler.access.admission import AdmissionControl
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job.contract import Report, View
    from resnap.scheduler.runs.configuration import Configuration
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.observation import Observation
    from resnap.scheduler.runs.plans import Plans
    from resnap.scheduler.runs.run import Row, Run
    from resnap.scheduler.runs.scans import Scans
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.engine import Engine
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.planner import PartitionScan
    from resnap.tiering.selection import Scope, SelectedPartition
    from resnap.tiering.store_check import Mismatch

UNKNOWN_CLUSTER: Final = "unknown"
_log = logger(__name__)
REPORT_INTERVAL_S: Final = 1.0
MOST_ERRORS: Final = 100
"""How many errors of one run are kept; the number of further ones is reported."""


class RunReport:
    """Receives the reports of one run."""

    def __init__(self, run_id: str, history: History, clock: Clock) -> None:
        self._run_id, self._history, self._clock = run_id, history, clock
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._progress: dict[str, Row] = {}
        self._reported_s = float("-inf")
        self._errors: list[ReportedError] = []
        self._unkept = 0
        self.failed = self.done = 0
        """Partitions."""
        self.failed_apart = 0
        """Failures that are none of a partition that is known by name."""

    def cancel(self) -> None:
        """Cancel the run at its next report."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise if the run was cancelled.

        Raises:
            CancelledError: it was.

        """
        if self._cancelled.is_set():
            raise CancelledError("the run was asked to end")

    def progress(self, task: str) -> Progress:
        """Return the progress receiver for ``task`` of this run."""
        return TrackedProgress(task, self._clock, self._report)

    def partition(self, outcome: PartitionOutcome) -> None:
        """Store the outcome of a partition."""
        self._history.partition_done(self._run_id, outcome)
        log = _log.warning if outcome.state is PartitionState.FAILED else _log.debug
        name = f"{outcome.topic}-{outcome.partition}"
        log("partition taken", run=self._run_id, partition=name, state=outcome.state.value)
        if outcome.state is PartitionState.FAILED:
            self.failed += 1
        else:
            self.done += 1
        self.check()

    def error(self, error: BaseException) -> None:
        """Store an error that concerns a part of the work."""
        if len(self._errors) < MOST_ERRORS:
            self._errors.append(public_error(error))
        else:
            self._unkept += 1

    def failure(self, error: BaseException) -> None:
        """Store an error without a known partition, which makes the run fail in part."""
        self.failed_apart += 1
        self.error(error)

    @property
    def errors(self) -> tuple[ReportedError, ...]:
        """All errors so far, and the number of errors beyond the limit."""
        if not self._unkept:
            return tuple(self._errors)
        more = ReportedError(
            code="More", message=f"{self._unkept} more errors", hint="the log has them all", exit_code=1
        )
        return (*self._errors, more)

    def flush(self) -> None:
        """Store the final progress."""
        with self._lock:
            progress = dict(self._progress)
        if progress:
            self._history.progressed(self._run_id, progress)

    def _report(self, state: ProgressState) -> None:
        with self._lock:
            self._progress[state.task] = progress_row(state)
            now_s = self._clock.monotonic_s()
            is_due = now_s - self._reported_s >= REPORT_INTERVAL_S
            if is_due:
                self._reported_s = now_s
        if is_due:
            self.flush()
        self.check()


def public_error(error: BaseException) -> ReportedError:
    """Return an error as others may see it; of a bug only its kind, because the log has the rest."""
    error = fault_of_machine(error) or error
    if isinstance(error, ResnapError):
        hint = None if error.hint is None else redact(error.hint)
        return ReportedError(
            code=type(error).__name__, message=redact(str(error)), hint=hint, exit_code=error.exit_code
        )
    return ReportedError(
        code="InternalError",
        message=f"a bug in resnap: {type(error).__name__}",
        hint="the log of the service has its traceback: report it",
        exit_code=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Executes runs, one by one, with what all of them share."""

    configuration: Configuration
    plans: Plans
    engine: Engine
    """With Spark once it runs; for one run after the other."""
    clock: Clock
    scans: Scans
    observer: Observation
    admission: AdmissionControl
    """Takes what replays cost those who asked for them."""

    def carry_out(self, run: Run, report: RunReport) -> Row:
        """Execute ``run``, and return its totals.

        Raises:
            ResnapError: it failed, or was not completed; ``CancelledError`` if it was cancelled.

        """
        settings = self.configuration.of(run.request)
        for warning in settings.metadata_warnings:
            self.observer.warn(warning)
        saved = self._saved_plan(run)
        scope = scope_for(settings, run.request, saved)
        context = RunContext(
            settings=settings,
            clock=self.clock,
            run=run,
            scope=scope,
            service=self,
            configured=scanned_sources(settings),
            report=report,
        )
        verb = verb_of(run.kind)
        destination = run.request.destination
        if verb.to is not None and destination is None:
            raise UsageError(f"a run of kind {run.kind} needs a destination", hint="give `destination`, a URL")
        to = {} if verb.to is None else {verb.to: destination}
        given = verb.given(run.request.settings)
        return context.keep(*verb.begin(context, scope=scope, saved=saved, separately=True, **to, **given))

    def _saved_plan(self, run: Run) -> SavedPlan | None:
        if run.request.plan is None:
            return None
        plan = self.plans.get(run.request.plan)
        if plan is None:
            raise UsageError(f"there is no plan {run.request.plan}", hint="make it again: POST /v1/plans")
        return read_saved_plan(plan.plan)


@dataclass(slots=True, kw_only=True)
class RunContext(Context):
    """What a job has at hand while the service runs it.

    It keeps what the run finds and makes, for the overview, the metrics and the quota of its principal.
    """

    settings: Settings
    clock: Clock
    run: Run
    scope: Scope
    service: Execution
    configured: tuple[str, ...]
    """Sources that are scanned regularly: of others nothing is kept but the run."""
    report: RunReport
    _silent: set[str] = field(default_factory=set)
    """Destinations of earlier runs that do not answer this one: each request to such a store may take minutes."""

    def _kept_as(self, source: str) -> str | None:
        """Return the configuration's name for ``source``, which may have been asked for by another; None without."""
        if source in self.configured:
            return source
        place = place_of(source)
        return next((known for known in self.configured if place_of(known) == place), None)

    def scanned(self, source: str, partitions: Sequence[PartitionScan], unread: str | None) -> None:
        """Keep what a scan of a whole source showed."""
        kept_as = self._kept_as(source)
        if kept_as is None:
            return
        for place in self.service.scans.check_repairs(kept_as, self.scope.wants_partition, cache(self._holds)):
            text = "what runs have put there does not count until a scan finds it: it is gone, or cannot be read"
            self.warn(f"{place}: {text}")
        self.service.scans.keep(kept_as, (row_of(ScanRow, scan) for scan in partitions), self._replaces, unread=unread)
        tierable = [scan.selected.inventory for scan in partitions if can_be_tiered(scan.selected.inventory)]
        segments = sum(len(inventory.partition.segments) for inventory in tierable)
        newest = (snapshot for scan in partitions for snapshot in scan.selected.inventory.partition.snapshots[-1:])
        most = max((entries_in(snapshot.size_bytes) for snapshot in newest), default=0)
        self.service.observer.metrics.scan_seen(kept_as, segments=segments, producers=most)

    def _replaces(self, partition: TopicPartition) -> bool:
        """Whether this scan decides what is kept of a partition; what the configuration excludes is forgotten."""
        by_run = "exclude_topics" in self.run.request.settings
        return self.scope.wants_partition(partition) or (not by_run and self.scope.excludes(partition.topic))

    def _holds(self, destination: str, prefix: str) -> bool | None:
        """Whether anything that can be read is where runs have put something; None if the store does not answer."""
        if destination in self._silent:
            return None
        url = destination if is_store_url(destination) else Path(destination).absolute().as_uri()
        try:
            return any(True for _ in self.service.engine.reading.sources.store(url).list(prefix))
        except ResnapError as error:
            if not error.transient:
                return False
            self._silent.add(destination)
            return None

    def not_scanned(self, source: str, error: ResnapError) -> None:
        """Keep that a source could not be read at all; what was found in it before stays."""
        kept_as = self._kept_as(source)
        if kept_as is not None:
            self.service.scans.keep_error(kept_as, str(error))

    def scanned_all(self) -> None:
        """Forget sources that are not scanned any more, unless the run is of what a caller named."""
        if self.run.origin != BY_API:
            self.service.scans.forget_others(self.configured)

    def snapshots(self, cluster_id: str | None, *, made: int, failed: int, unchanged: int) -> None:
        """Count the snapshots of one partition by result."""
        for result, count in (("ok", made), ("failed", failed), ("skipped", unchanged)):
            self.service.observer.metrics.snapshots(cluster_id or UNKNOWN_CLUSTER, result, count)

    def made(
        self,
        selected: SelectedPartition,
        how: Literal["regenerated", "shipped"],
        destination: str,
        offsets: frozenset[int],
    ) -> None:
        """Keep that there is a snapshot, or a shipped segment, for these boundaries of a partition now."""
        repair = RunRepair(
            how=how, destination=destination, offsets=offsets, run_id=self.run.id, at_ms=self.clock.now_ms()
        )
        topic, partition = selected.topic_partition
        for source in dict.fromkeys((*self.configured, *self.scope.sources)):
            found_by = str(selected.log_dir.path), str(selected.inventory.partition.path)
            as_given = source.rstrip("/") if is_store_url(source) else str(Path(source).absolute())
            if as_given in found_by or place_of(source) == place_of(found_by[0]):
                self.service.scans.repaired(source, topic, partition, repair)

    def activated(self, snapshot: bytes | str) -> None:
        """Charge the principal that asked for the run with the producers of a snapshot; a schedule pays nothing."""
        if self.run.origin != BY_API:
            return
        try:
            data = self.service.engine.reading.sources.read(snapshot) if isinstance(snapshot, str) else snapshot
        except ResnapError as error:
            self.warn(f"{snapshot!r} is not charged to {self.run.principal}: {error}")
        else:
            ids = read_snapshot_array(data)["producer_id"]
            self.service.admission.activated(self.run.principal, ids.tolist())

    def mismatches(self, kind: Mismatch, count: int) -> None:
        """Count what a store holds otherwise than it should."""
        self.service.observer.metrics.verify_mismatches.of(kind).inc(count)

    def replicas(self, states: Mapping[str, int]) -> None:
        """Note how many replicas of the running cluster are in a state other than in order."""
        if self.run.is_of_everything:
            self.service.observer.replicas(states)

    def engine(self, *, ahead: bool = False) -> Engine:  # noqa: ARG002 - Spark stays, once it runs
        """Return the engine that all runs share."""
        return self.service.engine

    def progress(self, *tasks: str) -> AbstractContextManager[list[Progress]]:
        """Return what stores the progress of each of ``tasks``."""
        return nullcontext([self.report.progress(task) for task in tasks])

    def warn(self, text: str) -> None:
        """Write it to the log."""
        self.service.observer.warn(text)

    def check(self) -> None:
        """Raise CancelledError if the run is to end."""
        self.report.check()

    def keep(self, work: Callable[[Report], None], view: View[Any]) -> Row:
        """Keep the result of each partition, and what is wrong, as it comes; return the totals."""

        def keep_one(result: Result) -> None:
            row = view.row(result)
            for fault in result.faults:
                self.report.failure(fault) if result.topic_partition is None else self.report.error(fault)
            for finding in result.findings:
                self.report.failure(finding)
            for text in result.warnings:
                self.warn(text)
            self._keep_state(result, row)

        work(keep_one)
        return view.totals()

    def _keep_state(self, result: Result, row: Row | None) -> None:
        if result.state is not None and result.topic_partition is not None:
            topic, partition = result.topic_partition
            self.report.partition(PartitionOutcome(topic=topic, partition=partition, state=result.state, row=row or {}))
        elif result.state is not None and not result.faults:
            self.report.done += 1
        self.report.check()
