"""Whether a broker has a log dir in use, asked without taking anything.

A broker holds ``.lock`` as a POSIX record lock while it runs, as Java's ``FileChannel.tryLock`` takes it; ``flock`` is
another kind of lock and would report it free. Record locks belong to a process: this one's own are never reported.
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage.log.partition_dir import readable

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FILE: Final = ".lock"
_RECORD_LOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length (0: to the end), process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A process that has the log dir in use."""

    process_id: int
    """As seen from here; 0 or less for a process of another container."""


def lock_holder(log_dir: Path) -> LockHolder | None:
    """Return who holds the lock of ``log_dir``; None if nobody does, or there is no lock file.

    Raises:
        LogDirError: the lock file may not be opened.

    """
    path = log_dir / LOCK_FILE
    if not path.exists():
        return None
    with readable(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        wanted = _RECORD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process_id = _RECORD_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else LockHolder(process_id=process_id)
