"""One run at a time at one log dir of this machine: a ``flock`` on the directory itself.

Nothing is written, and a broker, which locks a file in it in another way, neither sees the lock nor minds it. It ends
with the process, however that ends. Where a file system knows no locks on directories there is none.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage.errors import LockedError
from storage.log.partition_dir import readable
from storage.processes import started_at

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCKS: Final = Path("/proc/locks")


@contextmanager
def at_work_on(log_dir: Path) -> Iterator[None]:
    """Be the one run at work on ``log_dir`` for as long as the context lasts.

    Raises:
        LockedError: another run is.
        LogDirError: the directory cannot be opened.

    """
    with readable(log_dir):
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
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            return
        raise LockedError(
            f"{log_dir}: another run is at work on it: {_holder(os.fstat(descriptor))}", hint="wait until it is done"
        ) from error


def _holder(status: os.stat_result) -> str:
    """Return who holds the lock, and since when that process runs, as far as this machine tells."""
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError, IndexError, StopIteration):
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and file in fields:
                process = int(fields[4])
                return f"process {process}, started at {started_at(process)}"
    return "a process that this machine does not tell"
