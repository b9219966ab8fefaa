"""Directories for the time of one run, which do not stay for ever where a run was killed.

A process that is killed removes nothing. So every directory is locked by the process that it belongs to, which the
system undoes whatever way that process ends, and the next run removes those that nobody holds any more. A lock, unlike
a process id, means the same in every container that shares the temporary directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Give a new directory ``resnap-<purpose>-...`` in the system's temporary one, and remove it at the end.

    Removes, too, what killed runs have left there for the same purpose.

    Raises:
        OSError: it cannot be made.

    """
    prefix = f"resnap-{purpose}-"
    sweep(Path(tempfile.gettempdir()), prefix)
    directory, lock = _make(prefix)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def sweep(parent: Path, prefix: str) -> None:
    """Remove the directories of this user in ``parent`` whose names begin so and whose owners have ended."""
    for directory in parent.glob(f"{prefix}*"):
        # Somebody else may be sweeping, too.
        with suppress(OSError):
            if directory.lstat().st_uid == os.geteuid():
                _remove_unless_held(directory)


def _make(prefix: str) -> tuple[Path, int]:
    """Return a new directory with the lock on it; somebody who sweeps may get hold of it before we do."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _lock(directory)
            if directory.is_dir():
                return directory, lock
            os.close(lock)


def _remove_unless_held(directory: Path) -> None:
    with suppress(BlockingIOError):
        lock = _lock(directory)
        try:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def _lock(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
