"""Temporary directories of one run, which a later run removes if the run was killed.

A killed process removes nothing. So every directory is locked by its process; the system releases the lock however that
process ends, and the next run removes directories without a lock. A lock, unlike a process id, means the same in every
container that shares the temporary directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import LogDirError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES: Final = 40
_PAUSE_S: Final = 0.05
_HINT: Final = "free some space, or let TMPDIR name a directory that can be written; then run the same command again"


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Make a new directory ``resnap-<purpose>-...`` in the system's temporary one, and remove it at the end.

    It also removes the directories that killed runs have left there for the same purpose.

    Raises:
        LogDirError: it cannot be made.

    """
    prefix = f"resnap-{purpose}-"
    sweep(_temporary(), prefix)
    directory, lock = _made(prefix)
    try:
        yield directory
    finally:
        _remove(directory)
        os.close(lock)


def _remove(directory: Path) -> None:
    """Remove ``directory``, and retry if ending processes still write into it."""
    for _ in range(_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(_PAUSE_S)


def sweep(parent: Path, prefix: str) -> None:
    """Remove this user's directories in ``parent`` with this prefix whose owners have ended."""
    for directory in parent.glob(f"{prefix}*"):
        # Another process may be sweeping, too.
        with suppress(OSError):
            if directory.lstat().st_uid == os.geteuid():
                _remove_unless_held(directory)


def _temporary() -> Path:
    """Return the system's temporary directory; Python tests by writing, so there may be none."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise LogDirError(f"no temporary directory can be written: {error.strerror}", hint=_HINT) from error


def _made(prefix: str) -> tuple[Path, int]:
    try:
        return _make(prefix)
    except OSError as error:
        what = f"{_temporary()}: no temporary directory can be made: {error.strerror}"
        raise LogDirError(what, hint=_HINT) from error


def _make(prefix: str) -> tuple[Path, int]:
    """Return a new, locked directory; a sweeping process may lock it before we do."""
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
