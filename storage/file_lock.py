"""Takes ``flock`` locks with a bounded wait, and shows who holds one.

Any user who may open a file or directory for reading may lock it, for as long as he likes. So no lock is waited for
without an end: the error names the file and its holder.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from resnap.storage.errors import LockedError
from resnap.storage.processes import started_at
from resnap.storage.waiting import pause

_LOCKS: Final = Path("/proc/locks")
_AGAIN_S: Final = 0.05


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
            holder = named(lock_holder(os.fstat(descriptor)))
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


def named(process: int | None) -> str:
    """Return the holder of a lock, and since when that process runs, as far as this machine shows it."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        if process is not None:
            return f"process {process}, started at {started_at(process)}"
    return "a process that this machine does not show"
