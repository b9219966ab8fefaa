"""Checks that a log dir may be changed: its broker was shut down cleanly, and no process uses it.

A killed broker recovers at its next start, and creates or deletes snapshots then; so its current files are not
reliable. The mark of a clean shutdown is read, never written: a starting broker removes it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.storage.disk import digest_of_file, dress_of
from resnap.storage.errors import LogDirError
from resnap.storage.log.log_dir import CLEAN_SHUTDOWN
from resnap.storage.log.log_dir_lock import in_use, lock_holder, locked, refuse_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resnap.storage.disk import FileDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownMark:
    """The mark of the clean shutdown before the installation; a broker that has run leaves another one, or none."""

    digest: FileDigest
    mtime_ns: int


@contextmanager
def lock_stopped_broker(log_dir: Path) -> Iterator[ShutdownMark]:
    """Hold the lock of ``log_dir`` while the context lasts; yield the mark of the clean shutdown.

    Raises:
        LogDirInUseError: a broker runs there, or another run of ours.
        LogDirError: the broker was not shut down cleanly, or the log dir may not be changed.

    """
    # First ask without the lock: if the mark is missing, the likely reason is that the broker runs.
    refuse_running(log_dir)
    shutdown_mark(log_dir)
    with locked(log_dir):
        yield shutdown_mark(log_dir)


def shutdown_mark(log_dir: Path) -> ShutdownMark:
    """Return the mark that the broker left at its clean shutdown.

    Raises:
        LogDirError: there is no mark, or it cannot be read.

    """
    mark = find_shutdown_mark(log_dir)
    if mark is None:
        raise LogDirError(
            f"{log_dir}: the broker was not shut down cleanly, {CLEAN_SHUTDOWN} is not there",
            hint="start the broker, so that it recovers its logs, and stop it once more with SIGTERM "
            "(kafka-server-stop.sh); then run the same command again",
        )
    return mark


def find_shutdown_mark(log_dir: Path) -> ShutdownMark | None:
    """Return the mark that the broker left at its clean shutdown; None if there is none.

    Raises:
        LogDirError: it cannot be read.

    """
    path = log_dir / CLEAN_SHUTDOWN
    digest = digest_of_file(path)
    return None if digest is None else ShutdownMark(digest=digest, mtime_ns=dress_of(path).mtime_ns or 0)


def refuse_running(log_dir: Path) -> None:
    """Refuse a log dir that is in use, or that root must not change, without taking its lock.

    Raises:
        LogDirInUseError: a broker runs there, or another run of ours.
        LogDirError: the lock cannot be tested, or root would work where others may write.

    """
    refuse_root(log_dir)
    holder = lock_holder(log_dir)
    if holder is not None:
        raise in_use(log_dir, holder.description)
