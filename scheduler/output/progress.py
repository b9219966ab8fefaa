"""Progress of long work, in segments and bytes: a bar on a terminal, else a line at intervals.

Work calls ``advance`` with newly finished amounts, from any thread; a ``ProgressState`` is shown, or sent elsewhere.
Progress goes to standard error, so that it never mixes with the output.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.replay.watching import Progress
from resnap.storage.words import human_bytes, human_count, human_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from resnap.replay.watching import Phase
    from resnap.scheduler.clock import Clock

LINE_INTERVAL_S: Final = 10.0
_LEAST_WORKED_S, _LEAST_SHARE = 60.0, 0.05
"""Before either is reached the time left is not told: the first segments wait for what is loaded."""
COMPILING: Final = "preparing machine code (first run only)"
PHASES: Final = {"waiting": "", "starting": "starting Spark …", "compiling": COMPILING}
"""Phases that people see in other words, or not at all."""
_SURVEYS: Final = frozenset({"check", "judge", "look", "plan", "scan", "select"})
"""Tasks that read no segments: they are over soon unless there are very many, and a bar would only flicker."""
_BEFORE_WORK: Final = ("starting", "compiling")
"""Phases in which nothing is counted: a line says so at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressState:
    """The progress of a piece of work at one moment.

    Attributes:
        task: its name, such as ``replay``.
        phase: the current phase.
        tasks_running: number of running tasks of the engine.
        segments: done, of ``segments_expected``.
        size_bytes: of segments done, of ``bytes_expected``; those of a segment count as done whatever of it is read.
        elapsed_s: since the work began.
        rate_bytes_s: since work on segments, or the first after machine code was made, began; None until then. Once all
            is read, it and the time stand.
        left_s: at that rate; None if unknown, as of the very first segments.

    """

    task: str
    phase: Phase
    tasks_running: int
    segments: int
    segments_expected: int
    size_bytes: int
    bytes_expected: int
    elapsed_s: float
    rate_bytes_s: float | None
    left_s: float | None

    @property
    def is_complete(self) -> bool:
        """Whether all that is expected was read; it may still be combined, or more may follow."""
        return 0 < self.segments_expected <= self.segments and self.bytes_expected <= self.size_bytes


class TrackedProgress(Progress):
    """Sums up, and passes the state after each report to ``report``, which one thread at a time calls."""

    def __init__(self, task: str, clock: Clock, report: Callable[[ProgressState], None]) -> None:
        self._task, self._clock, self._report = task, clock, report
        self._lock = threading.Lock()
        self._segments = self._all_segments = self._size_bytes = self._all_bytes = self._tasks = 0
        self._phase: Phase = "waiting"
        self._began_s = clock.monotonic_s()
        self._first_s: float | None = None
        """When work on segments began, which is later than the start of an engine."""
        self._first_bytes = 0
        """What was done by then: all that was read while machine code was made."""
        self._advanced_s = self._heard_s = self._began_s
        """When something was last read, and when anything was last reported."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to the total amount of work."""
        with self._lock:
            self._heard_s = self._clock.monotonic_s()
            self._all_segments += segments
            self._all_bytes += size_bytes
            self._report(self._state())

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to the finished amount."""
        with self._lock:
            self._advanced_s = self._heard_s = self._clock.monotonic_s()
            if self._first_s is None:
                self._first_s = self._began_s
            self._segments += segments
            self._size_bytes += size_bytes
            if self._phase == "compiling":
                self._phase, self._first_s, self._first_bytes = "scanning", self._advanced_s, self._size_bytes
            self._report(self._state())

    def at_work(self, phase: Phase, tasks: int) -> None:
        """Receive the current phase, and the number of running tasks."""
        with self._lock:
            self._heard_s = self._clock.monotonic_s()
            if self._first_s is None and phase != "starting":
                self._first_s = self._heard_s
            self._phase, self._tasks = phase, tasks
            self._report(self._state())

    def state(self) -> ProgressState:
        """Return the current state."""
        with self._lock:
            return self._state()

    def _state(self) -> ProgressState:
        now_s = self._clock.monotonic_s()
        state = self._state_at(now_s, now_s)
        return self._state_at(self._heard_s, self._advanced_s) if state.is_complete else state

    def _state_at(self, now_s: float, read_s: float) -> ProgressState:
        worked_s = 0.0 if self._first_s is None else read_s - self._first_s
        worked_bytes = self._size_bytes - self._first_bytes
        rate = worked_bytes / worked_s if worked_s > 0 and worked_bytes else None
        left_s = None if rate is None else max(0, self._all_bytes - self._size_bytes) / rate
        if not self._all_bytes and self._segments and worked_s > 0:  # nothing is read but names
            left_s = max(0, self._all_segments - self._segments) * worked_s / self._segments
        elif worked_s < _LEAST_WORKED_S and self._size_bytes < self._all_bytes * _LEAST_SHARE:
            left_s = None
        return ProgressState(
            task=self._task,
            phase=self._phase,
            tasks_running=self._tasks,
            segments=self._segments,
            segments_expected=self._all_segments,
            size_bytes=self._size_bytes,
            bytes_expected=self._all_bytes,
            elapsed_s=now_s - self._began_s,
            rate_bytes_s=rate,
            left_s=left_s,
        )


class LineProgress(TrackedProgress):
    """A line at intervals, and one at the end; as JSON objects if the output is JSON.

    Of work that reads no segments there is none at the end: it is over soon, unless there is very much of it.
    """

    def __init__(self, task: str, stream: TextIO, clock: Clock, *, as_json: bool = False) -> None:
        super().__init__(task, clock, self._write_sometimes)
        self._stream, self._as_json = stream, as_json
        self._written_s = 0.0
        """Since the beginning."""
        self._said_phase: Phase | None = None
        self._said_complete: tuple[int, int] | None = None
        """What was read of it when it was said to be complete."""

    def finish(self) -> None:
        """Print the final state, unless it was; nothing if there was nothing to do."""
        state = self.state()
        if state.bytes_expected or state.size_bytes or (state.segments and self._written_s):
            self._write_if_new(state, is_over=True)

    def _write_sometimes(self, state: ProgressState) -> None:
        if state.phase in _BEFORE_WORK and state.phase != self._said_phase:
            self._said_phase = state.phase
            self._write(state)
            return
        is_survey = state.task in _SURVEYS  # which may begin with a long listing
        if state.elapsed_s - self._written_s >= LINE_INTERVAL_S and (state.segments_expected or is_survey):
            self._written_s = state.elapsed_s
            self._write_if_new(state, is_over=False)

    def _write_if_new(self, state: ProgressState, *, is_over: bool) -> None:
        read = (state.segments, state.size_bytes)
        if not state.is_complete:
            self._write(state)
        elif state.phase == "combining" and not is_over:
            self._write(state, ", combining")
        elif read != self._said_complete:
            self._said_complete = read
            self._write(state)

    def _write(self, state: ProgressState, more: str = "") -> None:
        text = json.dumps({"progress": progress_row(state)}) if self._as_json else f"{_line(state)}{more}"
        with suppress(OSError):  # as where standard error is a file on a full disk
            self._stream.write(f"{text}\n")
            self._stream.flush()


class BarProgress(TrackedProgress):
    """A bar of rich's."""

    def __init__(self, task: str, clock: Clock, bar: RichProgress, bar_task: TaskID) -> None:
        super().__init__(task, clock, self._draw)
        self._bar, self._bar_task = bar, bar_task

    def _draw(self, state: ProgressState) -> None:
        self._bar.update(
            self._bar_task,
            total=state.bytes_expected,
            completed=state.size_bytes,
            figures=PHASES[state.phase] if state.phase in _BEFORE_WORK else _figures(state),
        )


def progress_row(state: ProgressState) -> dict[str, object]:
    """Return ``state`` in its JSON form; rate and time left only if known."""
    row: dict[str, object] = {
        "task": state.task,
        "phase": state.phase,
        "tasksRunning": state.tasks_running,
        "segments": state.segments,
        "segmentsTotal": state.segments_expected,
        "bytes": state.size_bytes,
        "bytesTotal": state.bytes_expected,
        "elapsedMs": round(state.elapsed_s * 1000),
    }
    if state.rate_bytes_s is not None:
        row["bytesPerSecond"] = round(state.rate_bytes_s)
    if state.left_s is not None:
        row["leftMs"] = round(state.left_s * 1000)
    return row


def _line(state: ProgressState) -> str:
    if state.phase in _BEFORE_WORK:
        waited = f", {human_duration(state.elapsed_s)}" if state.elapsed_s >= LINE_INTERVAL_S else ""
        return f"{state.task}: {PHASES[state.phase]}{waited}"
    if not state.segments_expected:
        return f"{state.task}: listing files, {human_duration(state.elapsed_s)}"
    return f"{state.task}: {_figures(state)}"


def _figures(state: ProgressState) -> str:
    parts = [f"{human_count(state.segments)}/{human_count(state.segments_expected)} segments"]
    if state.bytes_expected:
        parts.append(f"{human_bytes(state.size_bytes)}/{human_bytes(state.bytes_expected)}")
    parts.append(human_duration(state.elapsed_s))
    if state.rate_bytes_s is not None:
        parts.append(f"{human_bytes(round(state.rate_bytes_s))}/s")
    if state.left_s:
        parts.append(f"{human_duration(state.left_s)} left")
    return ", ".join(parts)


@contextmanager
def show_progress(
    tasks: Sequence[str], stream: TextIO, clock: Clock, *, quiet: bool, as_json: bool
) -> Iterator[list[Progress]]:
    """Yield a progress receiver for each of ``tasks``, in the form that suits ``stream``."""
    if quiet:
        yield [Progress() for _ in tasks]
    elif stream.isatty() and not as_json and not _SURVEYS.issuperset(tasks):
        with _bars(tasks, stream, clock) as bars:
            yield bars
    else:
        lines = [LineProgress(task, stream, clock, as_json=as_json) for task in tasks]
        try:
            yield list(lines)
        finally:
            for line in lines:
                line.finish()


@contextmanager
def _bars(tasks: Sequence[str], stream: TextIO, clock: Clock) -> Iterator[list[Progress]]:
    # Commands that show no bar need not wait for rich.
    from rich import progress as rich_progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[figures]}"),
    )
    with rich_progress.Progress(*columns, console=Console(file=stream)) as bar:
        yield [BarProgress(task, clock, bar, bar.add_task(task, total=0, figures="")) for task in tasks]
