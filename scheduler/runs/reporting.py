"""Receives the reports of a run: progress at most once a second, finished partitions, errors.

Work reports from any thread. A cancelled run is notified by its next report, which raises an error that no part of the
work treats as a failure of its own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.output.progress import ProgressState, TrackedProgress, progress_row
from resnap.scheduler.runs.run import ReportedError
from resnap.scheduler.settings.redaction import redact
from resnap.scheduler.telemetry.logs import logger
from resnap.storage.errors import CancelledError, ResnapError, fault_of_machine

if TYPE_CHECKING:
    from resnap.replay.watching import Progress
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.run import PartitionOutcome, Row

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
