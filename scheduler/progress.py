"""How far a long piece of work has come, in segments and bytes: a bar on a terminal, a line now and then elsewhere.

Whoever works calls ``advance`` with what is newly done, from any thread. Progress goes to standard error, so that it
never mixes with the answer.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from scheduler.rendering import human_bytes, human_count, human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from scheduler.clock import Clock

LINE_INTERVAL_S: Final = 10.0


class Progress(Protocol):
    """What work reports to."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to what there is to do in all."""
        ...

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to what is done."""
        ...


class SilentProgress:
    """Tells nobody."""

    def expect(self, segments: int, size_bytes: int) -> None:
        """Ignore it."""

    def advance(self, segments: int, size_bytes: int) -> None:
        """Ignore it."""


class LineProgress:
    """A line at intervals, and one at the end; as JSON objects where the answer is JSON."""

    def __init__(self, task: str, stream: TextIO, clock: Clock, *, as_json: bool = False) -> None:
        self._task, self._stream, self._clock, self._as_json = task, stream, clock, as_json
        self._lock = threading.Lock()
        self._segments = self._size_bytes = self._all_segments = self._all_bytes = 0
        self._began_s = self._told_s = clock.monotonic_s()

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to what there is to do in all."""
        with self._lock:
            self._all_segments += segments
            self._all_bytes += size_bytes

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to what is done, and say so if the last line is long ago."""
        with self._lock:
            self._segments += segments
            self._size_bytes += size_bytes
            now_s = self._clock.monotonic_s()
            if now_s - self._told_s >= LINE_INTERVAL_S:
                self._told_s = now_s
                self._tell()

    def finish(self) -> None:
        """Say how far it came; nothing where there was nothing to do."""
        with self._lock:
            if self._all_segments or self._segments:
                self._tell()

    def _tell(self) -> None:
        elapsed_s = self._clock.monotonic_s() - self._began_s
        if self._as_json:
            told = {
                "task": self._task,
                "segments": self._segments,
                "segmentsTotal": self._all_segments,
                "bytes": self._size_bytes,
                "bytesTotal": self._all_bytes,
                "elapsedMs": round(elapsed_s * 1000),
            }
            text = json.dumps({"progress": told})
        else:
            text = (
                f"{self._task}: {human_count(self._segments)}/{human_count(self._all_segments)} segments,"
                f" {human_bytes(self._size_bytes)}/{human_bytes(self._all_bytes)}, {human_duration(elapsed_s)}"
            )
        self._stream.write(f"{text}\n")
        self._stream.flush()


class BarProgress:
    """A bar of rich's."""

    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._lock = threading.Lock()
        self._segments = self._all_segments = self._all_bytes = 0

    def expect(self, segments: int, size_bytes: int) -> None:
        """Add to what there is to do in all."""
        with self._lock:
            self._all_segments += segments
            self._all_bytes += size_bytes
            self._bar.update(self._task, total=self._all_bytes, segments=self._segments_text())

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to what is done."""
        with self._lock:
            self._segments += segments
            self._bar.update(self._task, advance=size_bytes, segments=self._segments_text())

    def _segments_text(self) -> str:
        return f"{human_count(self._segments)}/{human_count(self._all_segments)} segments"


@contextmanager
def show_progress(
    tasks: Sequence[str], stream: TextIO, clock: Clock, *, quiet: bool, as_json: bool
) -> Iterator[list[Progress]]:
    """Give what to report to while ``tasks`` last, one for each, in the form that suits ``stream``."""
    if quiet:
        yield [SilentProgress() for _ in tasks]
    elif stream.isatty() and not as_json:
        with _bars(tasks, stream) as bars:
            yield bars
    else:
        lines = [LineProgress(task, stream, clock, as_json=as_json) for task in tasks]
        try:
            yield list(lines)
        finally:
            for line in lines:
                line.finish()


@contextmanager
def _bars(tasks: Sequence[str], stream: TextIO) -> Iterator[list[Progress]]:
    # Commands that show no bar need not wait for rich.
    from rich import progress as rich_progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[segments]}"),
        rich_progress.DownloadColumn(binary_units=True),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(file=stream)) as bar:
        yield [BarProgress(bar, bar.add_task(task, total=0, segments="")) for task in tasks]
