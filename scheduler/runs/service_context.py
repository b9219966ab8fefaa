"""``ServiceContext``: the context of jobs in the service, which stores their results."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from resnap.scheduler.job.contract import Observer, Result
from resnap.scheduler.job.sources import is_of
from resnap.scheduler.jobs.scan import scan_row
from resnap.scheduler.runs.configuration import place_of
from resnap.scheduler.runs.run import BY_API, PartitionOutcome
from resnap.storage.errors import ResnapError
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.stores.urls import is_store_url
from resnap.tiering.planning import can_be_tiered
from resnap.tiering.readiness import Repair

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.scheduler.access.admission import AdmissionControl
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job.contract import Mismatch, View
    from resnap.scheduler.job.engines import Engine
    from resnap.scheduler.job.sources import Scope, SelectedPartition
    from resnap.scheduler.job.work_items import PartitionScan
    from resnap.scheduler.output.progress import Progress
    from resnap.scheduler.runs.observation import Observation
    from resnap.scheduler.runs.reporting import RunReport
    from resnap.scheduler.runs.run import Row, Run
    from resnap.scheduler.runs.scans import Scans
    from resnap.scheduler.settings.settings import Settings

R = TypeVar("R", bound=Result)
UNKNOWN_CLUSTER: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all runs share.

    Attributes:
        engine: with Spark once it runs; for one run after the other.
        observer: counts and logs what is found and made.
        admission: takes what replays cost those who asked for them.

    """

    engine: Engine
    clock: Clock
    scans: Scans
    observer: Observation
    admission: AdmissionControl


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObserver(Observer):
    """Keeps what a run finds and makes, for the overview, the metrics and the quota of its principal."""

    run: Run
    scope: Scope
    shared: Shared
    configured: tuple[str, ...]
    """Sources that are scanned regularly: of others nothing is kept but the run."""

    def _kept_as(self, source: str) -> str | None:
        """Return the configuration's name for ``source``, which may have been asked for by another; None without."""
        if source in self.configured:
            return source
        place = place_of(source)
        return next((one for one in self.configured if place_of(one) == place), None)

    def scanned(self, source: str, partitions: Sequence[PartitionScan], unread: str | None) -> None:
        """Keep what a scan of a whole source showed."""
        kept_as = self._kept_as(source)
        if kept_as is None:
            return
        self.shared.scans.check_repairs(kept_as, self.scope.wants_partition, cache(self._holds))
        self.shared.scans.keep(kept_as, map(scan_row, partitions), self.scope.wants_partition, unread=unread)
        tierable = [one.selected.inventory for one in partitions if can_be_tiered(one.selected.inventory)]
        segments = sum(len(inventory.partition.segments) for inventory in tierable)
        self.shared.observer.metrics.scan_seen(kept_as, segments=segments)

    def _holds(self, destination: str, prefix: str) -> bool:
        """Whether anything is at a place where runs have put something; False, with a warning, if it cannot be read."""
        url = destination if is_store_url(destination) else Path(destination).absolute().as_uri()
        why = "nothing is there any more"
        try:
            if any(True for _ in self.shared.engine.reading.sources.store(url).list(prefix)):
                return True
        except ResnapError as error:
            why = str(error)
        self.shared.observer.warn(f"what runs have put into {destination} is not counted: {why}")
        return False

    def not_scanned(self, source: str, error: ResnapError) -> None:
        """Keep that a source could not be read at all; what was found in it before stays."""
        kept_as = self._kept_as(source)
        if kept_as is not None:
            self.shared.scans.keep_error(kept_as, str(error))

    def snapshots(self, cluster_id: str | None, *, made: int, failed: int, unchanged: int) -> None:
        """Count the snapshots of one partition by result."""
        for result, count in (("ok", made), ("failed", failed), ("skipped", unchanged)):
            self.shared.observer.metrics.snapshots(cluster_id or UNKNOWN_CLUSTER, result, count)

    def made(
        self,
        selected: SelectedPartition,
        how: Literal["regenerated", "shipped"],
        destination: str,
        offsets: frozenset[int],
    ) -> None:
        """Keep that there is a snapshot, or a shipped segment, for these boundaries of a partition now."""
        repair = Repair(
            how=how,
            destination=destination,
            offsets=offsets,
            run_id=self.run.id,
            at_ms=self.shared.clock.now_ms(),
        )
        topic, partition = selected.topic_partition
        for source in dict.fromkeys((*self.configured, *self.scope.sources)):
            if is_of(selected, source) or place_of(source) == place_of(str(selected.log_dir.path)):
                self.shared.scans.repaired(source, topic, partition, repair)

    def activated(self, snapshot: bytes | str) -> None:
        """Charge the principal that asked for the run with the producers of a snapshot; a schedule pays nothing."""
        if self.run.origin != BY_API:
            return
        try:
            data = self.shared.engine.reading.sources.read(snapshot) if isinstance(snapshot, str) else snapshot
        except ResnapError as error:
            self.shared.observer.warn(f"{snapshot!r} is not charged to {self.run.principal}: {error}")
        else:
            ids = read_snapshot_array(data)["producer_id"]
            self.shared.admission.activated(self.run.principal, ids.tolist())

    def mismatch(self, kind: Mismatch) -> None:
        """Count something that a store holds otherwise than it should."""
        self.shared.observer.metrics.verify_mismatch(kind, 1)

    def replicas(self, states: Mapping[str, int]) -> None:
        """Note how many replicas of the running cluster are in a state other than in order."""
        if self.run.is_of_everything:
            self.shared.observer.metrics.replicas(states)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What a job has at hand while the service runs it."""

    settings: Settings
    observer: RunObserver
    report: RunReport
    shared: Shared

    @property
    def clock(self) -> Clock:
        """What time it is."""
        return self.shared.clock

    def engine(self, *, ahead: bool = False) -> Engine:  # noqa: ARG002 - Spark stays, once it runs
        """Return the engine that all runs share."""
        return self.shared.engine

    def progress(self, *tasks: str) -> AbstractContextManager[list[Progress]]:
        """Give what keeps how far each of ``tasks`` has come."""
        return nullcontext([self.report.progress(task) for task in tasks])

    def note(self, text: str) -> None:
        """Ignore it: it is in the results."""

    def warn(self, text: str) -> None:
        """Write it to the log."""
        self.shared.observer.warn(text)

    def error(self, error: ResnapError) -> None:
        """Keep what is wrong with a part of the work that no result describes."""
        self.report.failure(error)

    def check(self) -> None:
        """Raise CancelledError if the run is to end."""
        self.report.check()

    def keep(self, results: Iterable[R], view: View[R]) -> Row:
        """Keep the result of each partition, and what is wrong, as it comes; return the totals."""
        for result in results:
            row = view.row(result)
            for fault in result.faults:
                self.report.failure(fault) if result.topic_partition is None else self.report.error(fault)
            for finding in result.findings:
                self.report.failure(finding)
            for text in result.warnings:
                self.warn(text)
            self._keep_state(result, row)
        return view.totals()

    def _keep_state(self, result: Result, row: Row | None) -> None:
        if result.state is not None and result.topic_partition is not None:
            topic, partition = result.topic_partition
            self.report.partition(PartitionOutcome(topic=topic, partition=partition, state=result.state, row=row or {}))
        elif result.state is not None and not result.faults:
            self.report.done += 1
        self.report.check()
