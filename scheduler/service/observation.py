"""What happens in the service, as metrics and log lines. Called from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from resnap.scheduler.observing.logs import logger
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.run import RunKind, RunState
from resnap.storage.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job.contract import Mismatch
    from resnap.scheduler.observing.metrics import Metrics
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.run import Run, RunEnd

_log = logger(__name__)


class Observation:
    """Hears of runs, schedules and requests."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self.metrics, self._clock = metrics, clock
        self._lock = threading.Lock()
        self._streams = 0
        self._stores: dict[str | None, str] = {}
        """How the last run of each schedule fared that needed a store, and the last that somebody asked for."""

    @property
    def stores(self) -> str:
        """The worst of how runs fared with their stores: a good run into one store hides no other that is down."""
        said = list(self._stores.values())
        return next((one for one in said if one != _REACHED), _REACHED) if said else "unknown"

    def schedules_are(self, names: Collection[str]) -> None:
        """Forget how schedules fared that are gone."""
        self._stores = {name: said for name, said in self._stores.items() if name is None or name in names}

    def run_began(self, run: Run) -> None:
        """Hear that a run is at work."""
        _log.info("run began", run=run.id, kind=run.kind.value, origin=run.origin, principal=run.principal)

    def run_ended(self, run: Run, end: RunEnd, seconds: float) -> None:
        """Hear how a run ended."""
        at_ms, schedule = self._clock.now_ms(), _schedule_of(run)
        self.metrics.run_ended(run.kind.value, end.state.value, seconds, at_ms, schedule=schedule)
        if run.kind is RunKind.SCAN:
            self.metrics.scan_tried(succeeded=end.state is RunState.SUCCEEDED)
        else:
            self._count(run, end)
        counts = {key: value for key, value in end.totals.items() if isinstance(value, int)}
        _log.info("run ended", run=run.id, state=end.state.value, seconds=round(seconds, 3), **counts)
        for error in end.errors:
            _log.error("in this run", run=run.id, code=error.code, error=error.message, hint=error.hint)

    def scanned(self, cluster: str, log_dir: str, *, segments: int, missing: int) -> None:
        """Hear what a look at one source showed."""
        self.metrics.scan_seen(cluster, log_dir, segments=segments, missing=missing)

    def snapshots(self, cluster: str, *, made: int, failed: int, skipped: int) -> None:
        """Hear what became of the snapshots of one partition."""
        for result, count in (("ok", made), ("failed", failed), ("skipped", skipped)):
            self.metrics.snapshots(cluster, result, count)

    def mismatch(self, kind: Mismatch) -> None:
        """Hear of something that a store holds otherwise than it should."""
        self.metrics.verify_mismatch(kind, 1)

    def replicas(self, states: Mapping[str, int]) -> None:
        """Hear how many replicas of the running cluster are in a state other than in order."""
        self.metrics.replicas(states)

    def bug(self, error: BaseException) -> None:
        """Hear of an error that nobody meant to raise."""
        _log.error("a bug in resnap", exc_info=error)

    def warn(self, text: str) -> None:
        """Hear of what may lead to trouble."""
        _log.warning(text)

    def note(self, text: str, **values: object) -> None:
        """Hear of what is as it should be."""
        _log.info(text, **values)

    def scheduler_event(self, event: str, schedule: str, detail: str = "") -> None:
        """Hear of a schedule that could not do as it should."""
        self.metrics.scheduler_event(event)
        _log.warning("schedule could not run", schedule=schedule, event_kind=event, detail=detail)

    def orphaned(self, runs: Sequence[Run]) -> None:
        """Hear of runs that the last service left unfinished."""
        self.metrics.orphaned(len(runs))
        for run in runs:
            _log.warning("run was left unfinished by the last service", run=run.id, kind=run.kind.value)

    def remember(self, history: History) -> None:
        """Hear when runs of earlier services last succeeded, oldest first, so that the newest of all stands."""
        origins = [f"schedule:{name}" for name in self.metrics.schedules]
        wanted = [RunFilter(states=(RunState.SUCCEEDED,), origin=origin) for origin in (*origins, None)]
        found = [run for one in wanted for run in history.page(one, limit=1)]
        for run in sorted(found, key=lambda run: run.finished_ms or 0):
            self.metrics.last_success(run.finished_ms or 0, schedule=_schedule_of(run))

    def event_stream(self, change: int) -> None:
        """Hear that a stream of events began or ended."""
        with self._lock:
            self._streams += change
            self.metrics.event_streams(self._streams)

    def measure(self, *, waiting: int, running: int, ready: int, not_ready: int) -> None:
        """Set what is measured when metrics are read: runs that wait and run, partitions by readiness."""
        self.metrics.queue(waiting=waiting, running=running)
        self.metrics.partitions(ready=ready, not_ready=not_ready)

    def _count(self, run: Run, end: RunEnd) -> None:
        total = {key: value for key, value in end.totals.items() if isinstance(value, int)}
        self.metrics.replayed(batches=total.get("batches", 0), size_bytes=total.get("bytesRead", 0))
        failures = [error for error in end.errors if error.exit_code == _STORE]
        if failures:
            self._stores[_schedule_of(run)] = failures[0].code
        elif _has_used_a_store(run, end):
            self._stores[_schedule_of(run)] = _REACHED
        if run.kind is RunKind.TIER:
            self.metrics.uploaded(size_bytes=total.get("bytes", 0))
            for error in failures:
                self.metrics.upload_failed(error.code)


_STORE: Final = StoreError.exit_code
_REACHED: Final = "ok"


def _has_used_a_store(run: Run, end: RunEnd) -> bool:
    """Whether a run that came to its end had to write to a store, or to read from one."""
    is_through = end.state in (RunState.SUCCEEDED, RunState.PARTIALLY_FAILED)
    return is_through and run.kind in (RunKind.TIER, RunKind.VERIFY) and not run.request.is_dry


def _schedule_of(run: Run) -> str | None:
    kind, _, name = run.origin.partition(":")
    return name if kind == "schedule" else None
