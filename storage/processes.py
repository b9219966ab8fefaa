"""Identifies processes of this machine, and reports whether they still run; for locks and leases.

``lock_within`` waits for a ``flock``, within bounds. Any user who may open a file or directory for reading may lock it,
for as long as he likes. So no lock is waited for without an end: the error names the file and its holder.

``at_work_on`` allows one run at a time on a log dir of this machine, by a ``flock`` on the directory itself. Nothing is
written. A broker locks a file in the directory in another way, so it neither sees the lock nor is blocked by it. The
lock ends with the process, however that ends. File systems without locks on directories have none.

Any user who may open a directory may lock it, so a lock counts only if its holder is root, this user, the directory's
owner, or unknown: other users' locks are ignored. Their runs are still kept apart by leases in the store.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import reading_given
from resnap.storage.errors import LockedError
from resnap.storage.threads import pause

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC: Final = Path("/proc")
_STATE_FIELD: Final = 0
_THREADS_FIELD: Final = 17
_START_FIELD: Final = 19
"""Fields of ``/proc/<pid>/stat``, counted after the name; the last: when it started, in ticks since the machine did."""
_LOCKS: Final = Path("/proc/locks")
_AGAIN_S: Final = 0.05


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
        A zombie has ended, once its threads have; where nobody waits for it, as in many containers, it stays.
        """
        if not self.machine or self.machine != _machine():
            return False
        stat = _stat(self.number)
        if not _is_there(self.number):
            return True
        is_zombie = stat[_STATE_FIELD : _STATE_FIELD + 1] == ["Z"] and int(stat[_THREADS_FIELD]) <= 1
        is_another = bool(stat) and self.started_ticks not in {-1, int(stat[_START_FIELD])}
        return is_zombie or is_another


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
    stat = _stat(number)
    return int(stat[_START_FIELD]) if stat else -1


def _stat(number: int) -> list[str]:
    """Return the fields of the process in ``/proc``; none if there is no such process, or it is hidden."""
    with suppress(OSError):
        return (_PROC / str(number) / "stat").read_text().rpartition(")")[2].split()
    return []


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


def lock_within(descriptor: int, path: Path, wait_s: float) -> None:
    """Lock the file or directory ``path``, open as ``descriptor``, until it is closed.

    Raises:
        LockedError: another process has held the lock for ``wait_s``, or this one is asked to stop.
        OSError: its file system has no locks.

    """
    give_up_s = time.monotonic() + wait_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() >= give_up_s or not pause(_AGAIN_S):
            holder = describe_holder(lock_holder(os.fstat(descriptor)))
            raise LockedError(
                f"{path} has been locked for {wait_s:g} s by another process: {holder}",
                hint="run again when it has ended; if it has no business there, end it, and its user's read access",
            )


def lock_holder(status: os.stat_result) -> int | None:
    """Return the process that holds the lock of a file; None if this machine does not show it."""
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError, IndexError):
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and file in fields:
                return int(fields[4])
    return None


def describe_holder(process: int | None) -> str:
    """Return the holder of a lock, and since when that process runs, as far as this machine shows it."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        if process is not None:
            return f"process {process}, started at {started_at(process)}"
    return "a process that this machine does not show"


@contextmanager
def at_work_on(log_dir: Path) -> Iterator[None]:
    """Hold the work lock of ``log_dir`` for as long as the context lasts.

    Raises:
        LockedError: another run holds it.
        LogDirError: the directory cannot be opened.

    """
    with reading_given(log_dir):
        descriptor = os.open(log_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _take(descriptor, log_dir)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, log_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        status = os.fstat(descriptor)
        holder = lock_holder(status)
        if error.errno not in {errno.EAGAIN, errno.EACCES} or _is_another_user(holder, status):
            return
        raise LockedError(
            f"{log_dir}: another run is at work on it: {describe_holder(holder)}", hint="wait until it is done"
        ) from error


def _is_another_user(holder: int | None, status: os.stat_result) -> bool:
    with suppress(OSError):
        return holder is not None and Path(f"/proc/{holder}").stat().st_uid not in {0, os.geteuid(), status.st_uid}
    return False
