"""Identifies processes of this machine, and reports whether they still run; for locks and leases."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_START_FIELD: Final = 19
"""Field of ``/proc/<pid>/stat``, counted after the name: when the process started, in ticks since the machine did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, distinct from all others with the same number before or after it."""

    machine: str
    """Identifies one boot of one machine, as one container sees it; empty if it is not known."""
    number: int
    started_ticks: int

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended; never true for another machine's process.

        ``/proc`` may hide processes of other users (``hidepid``, ``ProtectProc``), so a hidden process may still run.
        """
        if not self.machine or self.machine != _machine():
            return False
        seen = _started_ticks(self.number)
        if not _is_there(self.number):
            return True
        return seen != self.started_ticks and -1 not in {seen, self.started_ticks}


def this_process() -> Process:
    """Return the current process."""
    number = os.getpid()
    return Process(machine=_machine(), number=number, started_ticks=_started_ticks(number))


def uptime_ms() -> int:
    """Return a clock that is never set, and runs on while the machine is suspended, if the system has one."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


def started_at(number: int) -> str:
    """Return when a process of this machine started, in ISO 8601.

    Raises:
        OSError, ValueError: there is no such process, or this machine does not show it.

    """
    boot = next(line for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime"))
    seconds = _started_ticks(number) // os.sysconf("SC_CLK_TCK")
    return f"{datetime.fromtimestamp(int(boot.split()[1]) + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _started_ticks(number: int) -> int:
    """Return when the process started; -1 if there is none."""
    with suppress(OSError):
        return int((_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()[_START_FIELD])
    return -1


def _is_there(number: int) -> bool:
    """Whether a process has this number now; no signal is sent."""
    try:
        if number > 0:
            os.kill(number, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return number > 0


def _machine() -> str:
    """Return an id of this boot of this machine and of its PID namespace."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    return ""
