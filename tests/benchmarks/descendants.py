"""Processor time and memory of the processes that were started below this one, as Linux counts them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_FORGET_PEAK: Final = "5"


class Process(NamedTuple):
    """One that runs."""

    number: int
    parent: int
    processor_s: float
    """Its own, and that of its children that have ended."""

    @property
    def is_python(self) -> bool:
        """Whether it runs Python, as Spark's workers do."""
        with suppress(OSError):
            return Path(f"/proc/{self.number}/exe").resolve().name.startswith("python")
        return False

    @property
    def peak_bytes(self) -> int:
        """The largest resident size since ``forget_peaks``; 0 if it has ended."""
        with suppress(OSError):
            status = Path(f"/proc/{self.number}/status").read_text(encoding="utf-8")
            return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)
        return 0


def descendants() -> list[Process]:
    """Return the processes below this one that run now."""
    running = [process for path in Path("/proc").glob("[0-9]*/stat") if (process := _read(path))]
    below, numbers = list[Process](), {os.getpid()}
    while more := [process for process in running if process.parent in numbers]:
        below += more
        numbers = {process.number for process in more}
    return below


def processor_s() -> float:
    """Return the processor time of all processes below this one."""
    ended = os.times()
    return ended.children_user + ended.children_system + sum(process.processor_s for process in descendants())


def forget_peaks() -> None:
    """Let the peaks of memory begin at what is resident now."""
    for process in descendants():
        with suppress(OSError):
            Path(f"/proc/{process.number}/clear_refs").write_text(_FORGET_PEAK, encoding="ascii")


def python_peak_bytes() -> int:
    """Return the largest peak of a process below this one that runs Python."""
    return max((process.peak_bytes for process in descendants() if process.is_python), default=0)


def _read(path: Path) -> Process | None:
    try:
        fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:  # ended meanwhile
        return None
    return Process(int(path.parent.name), int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_A_SECOND)
