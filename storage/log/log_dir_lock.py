"""The lock of a log dir: tested beside a running broker, and taken before anything in the log dir is changed.

A broker holds ``.lock`` as a POSIX record lock while it runs, as Java's ``FileChannel.tryLock`` takes it; ``flock`` is
another kind of lock and would report it free. Record locks belong to a process: a process never sees its own, and loses
them when it closes any descriptor of the file. So the locks of this process are recorded in ``_HELD``: none is taken
twice, and the lock file of none is opened again. Threads test and take locks one at a time (``_TURNS``).

A user with write access to a log dir can plant links there that redirect other processes. That is no risk to processes
of the same user, but it is to root. So root works only where no other user may write.

A log dir may be changed only if its broker was shut down cleanly, too. A killed broker recovers at its next start, and
creates or deletes snapshots then; so its current files are not reliable. The mark of a clean shutdown is read, never
written: a starting broker removes it.

Source: ``LogManager.lockLogDirs`` and ``FileLock``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shlex
import stat
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import attributes_of, digest_of_file, is_there, reading_given
from resnap.storage.errors import LogDirError, LogDirInUseError
from resnap.storage.log.log_dir import CLEAN_SHUTDOWN
from resnap.storage.whole_file import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.disk import FileDigest


LOCK_FILE: Final = ".lock"
_RECORD_LOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length (0: to the end), process."""
_LOCK_MODE: Final = 0o644
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_TAKEN: Final = {errno.EACCES, errno.EAGAIN}
"""What POSIX lets a system say of a lock that another process holds."""
_HELD: Final[set[tuple[int, int]]] = set()
"""Device and inode of each log dir whose lock this process holds, or is taking."""
_TURNS: Final[dict[tuple[int, int], threading.Lock]] = {}
"""One for each tested log dir: a disk that does not answer blocks no other one."""


def process_name(process_id: int) -> str:
    """Return a process for messages, with its name if the system shows it; 0 or less is one of another container."""
    if process_id <= 0:
        return "a process of another container or machine"
    with suppress(OSError):
        return f"process {process_id} ({Path(f'/proc/{process_id}/comm').read_text().strip()})"
    return f"process {process_id}"


def lock_holder(log_dir: Path) -> int | None:
    """Return the process that holds the lock of ``log_dir``; None if it is free, or there is no lock file.

    Raises:
        LogDirError: the lock file may not be opened.

    """
    path = log_dir / LOCK_FILE
    if not is_there(path):
        return None
    identity = _identity(log_dir)
    with _turn(identity):
        if identity in _HELD:
            return None
        with reading_given(path):
            descriptor = _open(path, os.O_RDONLY)
        try:
            return _holder(descriptor)
        finally:
            os.close(descriptor)


def refuse_root(log_dir: Path) -> None:
    """Refuse to change a log dir as root if another user may write into it or one of its partition directories.

    Raises:
        LogDirError: another user may write there, or that cannot be determined.

    """
    if os.geteuid() != 0:
        return
    with reading_given(log_dir):
        directories = [log_dir, *sorted(path for path in log_dir.iterdir() if path.is_dir())]
    for directory in directories:
        with reading_given(directory):
            status = directory.stat()
        if status.st_uid != 0 or status.st_mode & _OTHERS_MAY_WRITE:
            raise _not_for_root(directory, status)


def _not_for_root(directory: Path, status: os.stat_result) -> LogDirError:
    whose = f"may be written to by others (mode {status.st_mode & 0o777:o})"
    hint = "run the same command as the user that the broker runs as"
    if status.st_uid:
        try:
            name = pwd.getpwuid(status.st_uid).pw_name
            command = f"sudo -u {shlex.quote(name)}"
        except KeyError:  # sudo takes no user without an account
            name = f"user {status.st_uid}"
            command = f"setpriv --reuid {status.st_uid} --regid {status.st_gid} --clear-groups"
        whose, hint = f"belongs to {name}", f"run the same command as {name}: {command} resnap ..."
    return LogDirError(
        f"{directory} {whose}, and root does not work where other users could redirect it by links", hint=hint
    )


@contextmanager
def hold_lock(log_dir: Path) -> Iterator[None]:
    """Hold the lock of ``log_dir`` while the context lasts, so that no broker starts on it.

    A lock file that was created here is removed at the end, so that an unused log dir is unchanged.

    Raises:
        LogDirInUseError: a broker holds the lock, or another run, or this process already.
        LogDirError: it cannot be taken, or root would take it where others may write.

    """
    refuse_root(log_dir)
    with _alone_here(log_dir), _hold(log_dir):
        yield


@contextmanager
def _alone_here(log_dir: Path) -> Iterator[None]:
    """Exclude the other threads of this process, which a record lock does not exclude."""
    identity = _identity(log_dir)
    with _turn(identity):
        if identity in _HELD:
            raise in_use(log_dir, f"this process, {os.getpid()},")
        _HELD.add(identity)
    try:
        yield
    finally:
        _HELD.remove(identity)


@contextmanager
def _hold(log_dir: Path) -> Iterator[None]:
    path = log_dir / LOCK_FILE
    before = _times(log_dir)
    try:
        descriptor, made = _open_or_make(path)
    except OSError as error:
        hint = "run as the user that the broker runs as, often kafka, where the log dir may be written to"
        raise LogDirError(f"{path}: cannot be opened for writing: {error.strerror}", hint=hint) from error
    try:
        _take(descriptor, path)
        try:
            yield
        finally:
            if made:  # while the lock is held: a process that opens the file before this finds it locked
                with suppress(OSError):
                    path.unlink()
                    os.utime(log_dir, ns=before)
    finally:
        os.close(descriptor)


def in_use(log_dir: Path, who: str) -> LogDirInUseError:
    """Return the error for a log dir that ``who`` uses."""
    return LogDirInUseError(
        f"{log_dir} is in use: {who} holds its lock",
        hint="stop the broker (kafka-server-stop.sh) and wait for its process to end; if it is another resnap, wait",
    )


def _holder(descriptor: int) -> int | None:
    wanted = _RECORD_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, process_id = _RECORD_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    return None if kind == fcntl.F_UNLCK else int(process_id)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            hint = "the file system must support POSIX record locks, which brokers need, too"
            raise LogDirError(f"{path}: cannot be locked: {error.strerror}", hint=hint) from error
        holder = _holder(descriptor)
        who = "a process that has just ended" if holder is None else process_name(holder)
        raise in_use(path.parent, who) from error


def _open_or_make(path: Path) -> tuple[int, bool]:
    """Open the lock file, or create it; return the descriptor, and whether it was created."""
    with suppress(FileExistsError):
        return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), True
    return _open(path, os.O_RDWR), False


def _open(path: Path, flags: int) -> int:
    """Open a lock file, if it is neither a link nor a file type that could block; raises ``OSError``."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _LOCK_MODE)
    check_regular(descriptor, path)
    return descriptor


def _turn(identity: tuple[int, int]) -> threading.Lock:
    return _TURNS.setdefault(identity, threading.Lock())


def _identity(directory: Path) -> tuple[int, int]:
    with reading_given(directory):
        status = directory.stat()
    return status.st_dev, status.st_ino


def _times(directory: Path) -> tuple[int, int]:
    with reading_given(directory):
        status = directory.stat()
    return status.st_atime_ns, status.st_mtime_ns


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
    with hold_lock(log_dir):
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
    return None if digest is None else ShutdownMark(digest=digest, mtime_ns=attributes_of(path).mtime_ns or 0)


def refuse_running(log_dir: Path) -> None:
    """Refuse a log dir that is in use, or that root must not change, without taking its lock.

    Raises:
        LogDirInUseError: a broker runs there, or another run of ours.
        LogDirError: the lock cannot be tested, or root would work where others may write.

    """
    refuse_root(log_dir)
    holder = lock_holder(log_dir)
    if holder is not None:
        raise in_use(log_dir, process_name(holder))
