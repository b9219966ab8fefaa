"""Measuring: contenders take turns, and of each the best time counts.

What else runs on a machine only ever slows a run down, so the best of several is nearest to the truth; and taking
turns, every other time in reverse order, spreads what changes slowly over all of them. No time is ever asserted.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.benchmarks.machine import block_device, cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SECTOR_BYTES = 512


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one run reports."""

    seconds: float | None = None
    """Where the clock to trust is the contender's own."""
    asked_bytes: int | None = None
    """Read from the log through system calls or mappings, if it keeps count."""
    says: str = ""


@dataclass(slots=True, kw_only=True)
class Contender:
    """A program that does the job."""

    name: str
    run: Callable[[], Outcome | None]
    cores: int = 1
    covered_bytes: int = 0
    """Of the log that one run deals with."""
    cold: Sequence[Path] | None = None
    """Files that must not be in the page cache when a run begins; None to have everything there."""
    rehearsed: bool = False
    """Whether a run that does not count comes first: what compiles, or starts workers, is warm then."""


@dataclass(slots=True)
class Result:
    """The best run of a contender."""

    contender: Contender
    all_seconds: list[float] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    disk_bytes: int | None = None

    @property
    def seconds(self) -> float:
        """Of the best run."""
        return min(self.all_seconds)


def contest(contenders: Sequence[Contender], *, rounds: int, on_disk: Path) -> dict[str, Result]:
    """Let each contender run ``rounds`` times, in turns; ``on_disk`` is any path on the disk they read from."""
    results = {contender.name: Result(contender) for contender in contenders}
    for contender in contenders:
        if contender.rehearsed:
            contender.run()
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            _run_once(results[contender.name], on_disk)
            report(f"  {contender.name}: {results[contender.name].all_seconds[-1]:.3f} s")
    return results


def _run_once(result: Result, on_disk: Path) -> None:
    contender = result.contender
    drop_from_cache(contender.cold or ())
    before = disk_read_bytes(on_disk)
    with pinned(contender.cores):
        started = time.perf_counter()
        outcome = contender.run() or Outcome()
        elapsed = time.perf_counter() - started
    after = disk_read_bytes(on_disk)
    took = elapsed if outcome.seconds is None else outcome.seconds
    if not result.all_seconds or took < result.seconds:
        result.outcome = outcome
        result.disk_bytes = None if before is None or after is None else after - before
    result.all_seconds.append(took)


@contextmanager
def pinned(count: int) -> Iterator[None]:
    """Leave this process, and those it starts, only so many processors."""
    before = cores()
    os.sched_setaffinity(0, before[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def disk_read_bytes(path: Path) -> int | None:
    """Return what the disk under ``path`` has read since the machine started, for whomever."""
    device = block_device(path)
    if device is None:
        return None
    return int((device / "stat").read_text(encoding="utf-8").split()[2]) * SECTOR_BYTES


def drop_from_cache(files: Sequence[Path]) -> None:
    """Have the kernel forget what it holds of ``files``; asks for no privilege, and works for what is on disk."""
    for path in files:
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(files: Sequence[Path]) -> None:
    """Bring ``files`` into the page cache; skip the holes of sparse ones."""
    block = bytearray(8 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            for start, end in _stretches(file.fileno(), path.stat().st_size):
                file.seek(start)
                left = end - start
                while left > 0 and (read := file.readinto(memoryview(block)[: min(left, len(block))])):
                    left -= read


def _stretches(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data; one that is all hole has none."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:
            return
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, position


def report(line: str) -> None:
    """Say how far things are, on standard error: standard output is for the tables."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
