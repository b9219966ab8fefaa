"""Progress of a Spark job: what its tasks have added up so far, told at intervals while the driver waits."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import Accumulator

INTERVAL_S: Final = 0.5
_SEGMENT: Final = 1 << 48
"""One accumulator carries both counts: segments above this bit, bytes below it."""


def progress_of(size_bytes: int, *, ends_segment: bool) -> int:
    """Return what a task adds to the accumulator for one split."""
    return size_bytes + (_SEGMENT if ends_segment else 0)


@contextmanager
def report_progress(done: Accumulator[int], progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Call ``progress`` with the (segments, bytes) that were added to ``done`` since the last call.

    Tasks report when they end, so a task that Spark repeats may be counted twice: good enough to look at.
    """
    if progress is None:
        yield
        return
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(done, progress, ended), name="resnap-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


def _report(done: Accumulator[int], progress: Callable[[int, int], None], ended: threading.Event) -> None:
    told = 0
    while not ended.wait(INTERVAL_S) or told < done.value:
        now = done.value
        if now > told:
            progress(now // _SEGMENT - told // _SEGMENT, now % _SEGMENT - told % _SEGMENT)
            told = now
        if ended.is_set():
            break
