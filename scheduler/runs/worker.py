"""Executes queued runs one after the other, and stores their outcomes.

There are two lanes: what takes seconds, such as a scan, must not wait for replays, which take hours.
Within a lane runs are executed in the order of their requests, so that two never work on one log dir; the locks of the
shipping code exclude other processes.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.runs.execution import RunReport, public_error
from resnap.scheduler.runs.run import OTHER_FAILURES, ReportedError, Run, RunEnd, RunState
from resnap.scheduler.state.database import StateError
from resnap.scheduler.telemetry.logs import bound
from resnap.storage.errors import CancelledError, ResnapError
from resnap.storage.spans import span
from resnap.storage.threads import CHECK
from resnap.storage.words import agreeing, some

if TYPE_CHECKING:
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.runs.execution import Execution
    from resnap.scheduler.runs.history import History
    from resnap.scheduler.runs.observation import Observation
    from resnap.scheduler.runs.run import Ids, Row, RunRequest

RETRY_AFTER_S: Final = 30
"""When to try again if the queue is full."""
STOPPED: Final = ReportedError(
    code="ServiceStopped",
    message="the service was stopped while the run was going on",
    hint="ask for it again, or wait for the schedule: finished work is kept",
    exit_code=130,
)


class QueueFullError(ResnapError):
    """The queue of runs is full."""

    transient = True


class StoppingError(QueueFullError):
    """The service is stopping, and takes no more runs."""


_Lane: TypeAlias = "queue.SimpleQueue[str | None]"
"""Ids of runs that wait; None ends the thread that executes them."""


class Worker:
    """Executes runs; ``start`` it, and ``stop`` it at the end."""

    def __init__(
        self, history: History, execution: Execution, ids: Ids, clock: Clock, observer: Observation, *, queue_size: int
    ) -> None:
        self._history, self._execution, self._ids = history, execution, ids
        self._clock, self._observer, self.queue_size = clock, observer, queue_size
        self._lanes: dict[str, _Lane] = {"scan": queue.SimpleQueue(), "work": queue.SimpleQueue()}
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"resnap-{name}", daemon=True)
            for name, lane in self._lanes.items()
        ]
        self._lock = threading.Lock()
        self._at_work: dict[str, RunReport] = {}
        self._awaited: dict[str, Future[RunState]] = {}
        self._unkept: dict[str, RunEnd] = {}
        """Ends that the history could not keep."""
        self._is_stopping = False

    def start(self) -> None:
        """Start to work."""
        for thread in self._threads:
            thread.start()

    def submit(self, request: RunRequest, *, origin: str, principal: str, retry_of: str | None = None) -> Run:
        """Queue a run.

        Raises:
            QueueFullError: the queue is full.
            StoppingError: the service is stopping.

        """
        run = Run(
            id=self._ids.make(),
            request=request,
            state=RunState.QUEUED,
            origin=origin,
            principal=principal,
            created_ms=self._clock.now_ms(),
            retry_of=retry_of,
        )
        with self._lock:
            if self._is_stopping:
                raise StoppingError("the service is stopping", hint="try again when it runs")
            if len(self._awaited) - len(self._at_work) >= self.queue_size:
                hint = f"try again in {RETRY_AFTER_S} s, or cancel a waiting run"
                wait = agreeing(self.queue_size, "waits", "wait")
                raise QueueFullError(f"{some(self.queue_size, 'run')} {wait}, and no more are accepted", hint=hint)
            self._awaited[run.id] = Future()
        try:
            self._history.add(run)
        except BaseException:
            self._settle(run.id, RunState.FAILED)
            raise
        self._lane(request).put(run.id)
        return run

    def take_up(self, run: Run) -> None:
        """Queue a run that a previous service has accepted and not started, beyond any limit."""
        with self._lock:
            self._awaited[run.id] = Future()
        self._lane(run.request).put(run.id)

    def wait(self, run_id: str) -> RunState:
        """Wait until a run has ended, and return how."""
        with self._lock:
            future = self._awaited.get(run_id)
        if future is not None:
            return future.result()
        run = self._history.get(run_id)
        return RunState.CANCELLED if run is None else run.state

    def cancel(self, run_id: str) -> bool:
        """Cancel a run, running or queued; False if it has already ended.

        Raises:
            StateError: that could not be stored; a running run is cancelled nevertheless.

        """
        report = None
        try:
            if self._history.cancelled_before_it_began(run_id):
                self._settle(run_id, RunState.CANCELLED)
                return True
            is_at_work = self._history.cancelling(run_id)
        finally:
            with self._lock:
                report = self._at_work.get(run_id)
            if report is not None:
                report.cancel()
        return is_at_work or report is not None

    @property
    def waiting(self) -> int:
        """Number of queued runs."""
        with self._lock:
            return len(self._awaited) - len(self._at_work)

    @property
    def is_full(self) -> bool:
        """Whether no more runs are queued for now."""
        return self.waiting >= self.queue_size

    @property
    def running(self) -> int:
        """Number of running runs."""
        with self._lock:
            return len(self._at_work)

    def begin_to_stop(self) -> None:
        """Accept no more runs, and cancel the running ones; does not wait."""
        with self._lock:
            self._is_stopping = True
            reports = list(self._at_work.values())
        for report in reports:
            report.cancel()

    def stop(self, grace_s: float) -> bool:
        """Accept no more runs, wait for the running ones to end, and keep the queued ones; False after a timeout.

        Queued runs stay in the history, and are executed after the next start.
        """
        self.begin_to_stop()
        for lane in self._lanes.values():
            lane.put(None)
        ends_s = self._clock.monotonic_s() + grace_s
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(0.0, ends_s - self._clock.monotonic_s()))
        with self._lock:
            left = [*self._awaited]
        for run_id in left:  # a thread that waits for them would wait for ever
            self._settle(run_id, RunState.FAILED)
        return not any(thread.is_alive() for thread in self._threads)

    def keep_ends(self) -> None:
        """Store the ends of runs that could not be stored at first: the disk was full, and may have space again.

        Raises:
            StateError: it has not.

        """
        with self._lock:
            unkept = list(self._unkept.items())
        for run_id, end in unkept:
            self._history.ended(run_id, end)
            with self._lock:
                self._unkept.pop(run_id, None)

    def _lane(self, request: RunRequest) -> _Lane:
        return self._lanes["scan" if verb_of(request.kind).is_short else "work"]

    def _work(self, lane: _Lane) -> None:
        while (run_id := lane.get()) is not None and not self._is_stopping:
            with bound(run=run_id):
                try:
                    self._carry_out(run_id)
                except Exception as error:  # noqa: BLE001 - the lane must live on, also where its file cannot be written
                    self._could_not_keep(run_id, error)

    def _carry_out(self, run_id: str) -> None:
        report = RunReport(run_id, self._history, self._clock)
        with self._lock:
            if self._is_stopping:
                return
            self._at_work[run_id] = report
        run = self._history.get(run_id) if self._history.began(run_id) else None
        if run is None:  # cancelled while it waited
            self._settle(run_id, RunState.CANCELLED)
            return
        CHECK.set(report.check)
        self._observer.run_began(run)
        began_s = self._clock.monotonic_s()
        with span(f"run {run.kind}", **{"resnap.run": run_id, "resnap.origin": run.origin}) as add:
            end = self._end_of(run, report)
            add("resnap.state", end.state.value)
        try:
            report.flush()
            self._history.ended(run_id, end)
        except StateError as error:
            self._could_not_keep(run_id, error, end)
        self._settle(run_id, end.state)
        self._observer.run_ended(run, end, self._clock.monotonic_s() - began_s)

    def _could_not_keep(self, run_id: str, error: Exception, end: RunEnd | None = None) -> None:
        """Keep the end of a run that the history did not accept; a run that was not started has failed."""
        if isinstance(error, StateError):
            self._observer.warn(f"the end of run {run_id} is kept as soon as there is room: {error}")
        else:
            self._observer.bug(error)
        with self._lock:
            self._unkept[run_id] = end or RunEnd(state=RunState.FAILED, totals={}, errors=(public_error(error),))
        self._settle(run_id, RunState.FAILED)

    def _end_of(self, run: Run, report: RunReport) -> RunEnd:
        """Execute a run, and return how it ended; if the service is stopping, that is the first error."""
        first: tuple[ReportedError, ...] = ()
        try:
            totals = self._execution.carry_out(run, report)
            state = _state_of(report)
        except CancelledError:
            totals, state = _counts_of(report), RunState.CANCELLED
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this run and no more
            if not isinstance(error, ResnapError):
                self._observer.bug(error)
            report.failed_apart += 1
            totals, state = _counts_of(report), _state_of(report)
            first = (public_error(error),)
        if self._is_stopping and state is not RunState.SUCCEEDED:
            state = RunState.FAILED if state is RunState.CANCELLED else state
            first = (STOPPED, *first)
        others: Row = {OTHER_FAILURES: report.failed_apart} if report.failed_apart else {}
        return RunEnd(state=state, totals={**totals, **others}, errors=(*first, *report.errors))

    def _settle(self, run_id: str, state: RunState) -> None:
        with self._lock:
            self._at_work.pop(run_id, None)
            future = self._awaited.pop(run_id, None)
        if future is not None:
            future.set_result(state)


def _counts_of(report: RunReport) -> Row:
    return {"partitionsDone": report.done, "partitionsFailed": report.failed}


def _state_of(report: RunReport) -> RunState:
    if not (report.failed or report.failed_apart or report.errors):
        return RunState.SUCCEEDED
    return RunState.PARTIALLY_FAILED if report.done else RunState.FAILED
