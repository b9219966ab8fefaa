"""Records events of the service as metrics and log lines. Called from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.runs.run import FINAL, RunState
from resnap.scheduler.telemetry.logs import logger
from resnap.storage.errors import StoreError
from resnap.tiering.cluster.replica_comparison import ReplicaState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.run import Run, RunEnd
    from resnap.scheduler.telemetry.metrics import Metrics

_log = logger(__name__)
_LAST_RUNS: Final = 100
"""How many runs of a kind are searched for one that counts."""


class Observation:
    """Counts and logs the outcomes of runs, schedules and requests."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self.metrics, self._clock = metrics, clock
        self._lock = threading.Lock()
        self._stores: dict[str | None, str] = {}
        """The result of each schedule's last run that needed a store, and of the last run that a caller requested."""

    @property
    def stores(self) -> str:
        """The worst outcome of runs with their stores: a success with one store hides no other that is down."""
        with self._lock:
            said = [*self._stores.values()]
        return next((state for state in said if state != _REACHED), _REACHED) if said else "unknown"

    def schedules_are(self, names: Collection[str]) -> None:
        """Drop the outcomes of deleted schedules."""
        with self._lock:
            self._stores = {name: said for name, said in self._stores.items() if name is None or name in names}

    def run_began(self, run: Run) -> None:
        """Log that a run has started."""
        _log.info("run began", run=run.id, kind=run.kind, origin=run.origin, principal=run.principal)

    def run_ended(self, run: Run, end: RunEnd, seconds: float) -> None:
        """Count and log how a run ended."""
        at_ms, schedule = self._clock.now_ms(), _schedule_of(run)
        counts = {key: value for key, value in end.totals.items() if isinstance(value, int)}
        self.metrics.run_ended(run.kind, end.state.value, seconds, at_ms, schedule=schedule)
        if run.kind == "scan":
            if run.is_of_everything:
                self.metrics.last_scan_success.set(end.state is RunState.SUCCEEDED)
        else:
            self._count(run, end, counts)
        _log.info("run ended", run=run.id, state=end.state.value, seconds=round(seconds, 3), **counts)
        for error in end.errors:
            _log.error(error.message, run=run.id, code=error.code, hint=error.hint)

    def bug(self, error: BaseException) -> None:
        """Log an error that is a bug, with its traceback."""
        _log.error("a bug in resnap", exc_info=error)

    def warn(self, text: str) -> None:
        """Log a warning."""
        _log.warning(text)

    def note(self, text: str, **values: object) -> None:
        """Log an information."""
        _log.info(text, **values)

    def scheduler_event(self, event: str, schedule: str, detail: str = "") -> None:
        """Count and log a problem of a schedule: missed time, last run still active, an error, a full queue."""
        self.metrics.scheduler_events.of(event).inc()
        _log.warning("schedule could not run", schedule=schedule, event_kind=event, detail=detail)

    def orphaned(self, runs: Sequence[Run]) -> None:
        """Count and log runs that the previous service left unfinished."""
        self.metrics.runs_orphaned.inc(len(runs))
        for run in runs:
            _log.warning("run was left unfinished by the last service", run=run.id, kind=run.kind)

    def load_last_runs(self, history: History) -> None:
        """Load what metrics say of the last runs from the history, oldest first."""
        origins = [f"schedule:{name}" for name in self.metrics.watched.schedules]
        succeeded = (RunState.SUCCEEDED,)
        found = [run for origin in (*origins, None) for run in history.page(states=succeeded, origin=origin, limit=1)]
        for run in sorted(found, key=lambda run: run.finished_ms or 0):
            self.metrics.succeeded(run.finished_ms or 0, schedule=_schedule_of(run))
        scans, checks = (
            [run for run in history.page(kinds=(kind,), states=FINAL, limit=_LAST_RUNS) if run.is_of_everything]
            for kind in ("scan", "replicas")
        )
        for scan in scans[:1]:
            self.metrics.last_scan_success.set(scan.state is RunState.SUCCEEDED)
        for check in [run for run in checks if "lost" in run.totals][:1]:
            self.replicas({state: check.totals[state] for state in ReplicaState})

    def replicas(self, states: Mapping[str, int]) -> None:
        """Note how many replicas are in each state, by the last check of them."""
        for state in ReplicaState:
            self.metrics.replicas.of(state).set(states.get(state, 0))

    def _count(self, run: Run, end: RunEnd, counts: Mapping[str, int]) -> None:
        verb = verb_of(run.kind)
        ships = verb.to is not None and verb.to_url
        self.metrics.batches_replayed.inc(counts.get("batches", 0))
        self.metrics.replay_bytes.inc(counts.get("bytesRead", 0))
        failures = [error for error in end.errors if error.exit_code == _STORE]
        is_through = end.state in (RunState.SUCCEEDED, RunState.PARTIALLY_FAILED)
        with self._lock:
            if failures:
                self._stores[_schedule_of(run)] = failures[0].code
            elif is_through and (verb.reads == "store" or ships) and not run.request.is_dry:
                self._stores[_schedule_of(run)] = _REACHED
        if ships:
            self.metrics.upload_bytes.inc(counts.get("bytes", 0))
            for error in failures:
                self.metrics.upload_failures.of(error.code).inc()


_STORE: Final = StoreError.exit_code
_REACHED: Final = "ok"


def _schedule_of(run: Run) -> str | None:
    kind, _, name = run.origin.partition(":")
    return name if kind == "schedule" else None
