"""Allows one run at a time on a log dir of this machine, by a ``flock`` on the directory itself.

Nothing is written. A broker locks a file in the directory in another way, so it neither sees the lock nor is blocked by
it. The lock ends with the process, however that ends. File systems without locks on directories have none.

Any user who may open a directory may lock it, so a lock counts only if its holder is root, this user, the directory's
owner, or unknown: other users' locks are ignored. Their runs are still kept apart by leases in the store.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.storage.disk import readable
from resnap.storage.errors import LockedError
from resnap.storage.file_lock import lock_holder, named

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def at_work_on(log_dir: Path) -> Iterator[None]:
    """Hold the work lock of ``log_dir`` for as long as the context lasts.

    Raises:
        LockedError: another run holds it.
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
        status = os.fstat(descriptor)
        holder = lock_holder(status)
        if error.errno not in {errno.EAGAIN, errno.EACCES} or _is_another_user(holder, status):
            return
        raise LockedError(
            f"{log_dir}: another run is at work on it: {named(holder)}", hint="wait until it is done"
        ) from error


def _is_another_user(holder: int | None, status: os.stat_result) -> bool:
    with suppress(OSError):
        return holder is not None and Path(f"/proc/{holder}").stat().st_uid not in {0, os.geteuid(), status.st_uid}
    return False
