"""Changes files so that a crash leaves each file either old or new: one small method for each step.

The steps are methods of one class, so that tests can observe their order and stop at any of them. ``write_file``
combines them: a temporary name, the data, owner and mode, sync, rename, sync of the directory. The file is durable only
after that last sync.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FileGoneError, LogDirError, UsageError
from resnap.storage.whole_file import open_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEMPORARY: Final = ".tmp"
"""Suffix of a file in the making; brokers ignore such files."""
READ_BYTES: Final = 1 << 20
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_DENIED: Final = {errno.EACCES, errno.EPERM}
_NOT_NOW: Final = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN, errno.ENOMEM}
_TOO_MANY: Final = {errno.EMFILE, errno.ENFILE}
_IN_THE_WAY: Final = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAttributes:
    """Owner, mode and times of a file."""

    mode: int
    """Permission bits."""
    user_id: int
    group_id: int
    mtime_ns: int | None = None
    """None: whatever the time of writing makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """Length and digest that identify the bytes of a file or an object."""

    size_bytes: int
    sha256: str
    """In hexadecimal."""

    @classmethod
    def of(cls, body: bytes) -> FileDigest:
        """Return the digest of ``body``."""
        return cls.of_chunks([body])

    @classmethod
    def of_chunks(cls, chunks: Iterable[bytes]) -> FileDigest:
        """Return the digest of ``chunks``, one after the other."""
        sha256, size_bytes = hashlib.sha256(), 0
        for chunk in chunks:
            sha256.update(chunk)
            size_bytes += len(chunk)
        return cls(size_bytes=size_bytes, sha256=sha256.hexdigest())


def _set_owner(target: int | Path, attributes: FileAttributes) -> None:
    """Set the owner of a file or directory; a group that its owner may not give away does not matter to a broker."""
    status = os.stat(target)  # noqa: PTH116 - a descriptor, too
    if (status.st_uid, status.st_gid) != (attributes.user_id, attributes.group_id):
        try:
            os.chown(target, attributes.user_id, attributes.group_id)
        except PermissionError:
            if status.st_uid != attributes.user_id:
                raise


class Disk:
    """The file system of this machine; each method is one step, and raises ``OSError``."""

    def create(self, path: Path) -> int:
        """Open the new, empty file ``path`` for writing, readable by this user only; return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)

    def append(self, path: Path) -> int:
        """Open the existing file ``path`` for writing at its end; return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut the file to its new length."""
        os.ftruncate(descriptor, size_bytes)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write the first bytes of ``data``; return how many were written."""
        return os.write(descriptor, data)

    def set_attributes(self, descriptor: int, attributes: FileAttributes) -> None:
        """Set the file's owner, unless we own it already, its mode and its times."""
        _set_owner(descriptor, attributes)
        os.fchmod(descriptor, attributes.mode)
        if attributes.mtime_ns is not None:
            os.utime(descriptor, ns=(attributes.mtime_ns, attributes.mtime_ns))

    def sync(self, descriptor: int) -> None:
        """Make the bytes of the file durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close the file."""
        os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        """Rename ``path`` to ``target``, replacing what has that name."""
        path.replace(target)

    def remove(self, path: Path) -> None:
        """Remove the file ``path``."""
        path.unlink()

    def make_directory(self, path: Path) -> None:
        """Make the directory ``path``; it must not exist."""
        path.mkdir()

    def remove_directory(self, path: Path) -> None:
        """Remove the empty directory ``path``."""
        path.rmdir()

    def set_directory_attributes(self, path: Path, attributes: FileAttributes) -> None:
        """Set the directory's owner, unless we own it already, and its mode."""
        _set_owner(path, attributes)
        path.chmod(attributes.mode)

    def set_directory_time(self, path: Path, mtime_ns: int) -> None:
        """Set the modification time of a directory."""
        os.utime(path, ns=(mtime_ns, mtime_ns))

    def sync_directory(self, path: Path) -> None:
        """Make the entries of the directory durable."""
        sync_directory(path)


def write_file(disk: Disk, path: Path, chunks: Iterable[bytes], attributes: FileAttributes | None = None) -> FileDigest:
    """Write ``chunks`` as the file ``path``, whole and durable.

    Raises:
        LogDirError: it cannot be written; no temporary file remains. The old file is unchanged, but for a failure of
            the last sync: then the new one has its name, which a loss of power may undo.

    """
    temporary = temporary_of(path)
    with writable(path):
        try:
            digest = _write(disk, temporary, chunks, attributes)
            disk.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                disk.remove(temporary)
            raise
        disk.sync_directory(path.parent)
    return digest


def write_all(disk: Disk, descriptor: int, data: bytes) -> None:
    """Write all of ``data``, in as many steps as the system takes; raises ``OSError``."""
    left = memoryview(data)
    while left:
        left = left[disk.write(descriptor, left) :]


def write_new_file(
    disk: Disk, path: Path, chunks: Iterable[bytes], attributes: FileAttributes | None = None
) -> FileDigest:
    """Write ``chunks`` as the file ``path`` at once, in a directory that is not visible yet; its name is not durable.

    Raises:
        LogDirError: it cannot be written; a part of it may be there.

    """
    with writable(path):
        return _write(disk, path, chunks, attributes)


def remove_file(disk: Disk, path: Path) -> None:
    """Remove the file ``path``, durably.

    Raises:
        LogDirError: it cannot be removed.

    """
    with writable(path):
        disk.remove(path)
        disk.sync_directory(path.parent)


def make_directories(disk: Disk, path: Path) -> None:
    """Make ``path`` and its missing parents; each is durable before anything is put into it.

    Raises:
        LogDirError: one of them cannot be made.

    """
    missing: list[Path] = []
    while not is_directory(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with writable(folder):
            try:
                disk.make_directory(folder)
            except FileExistsError:
                if not folder.is_dir():  # else another run has made it since
                    raise
            disk.sync_directory(folder.parent)


def make_new_directory(disk: Disk, path: Path) -> bool:
    """Make ``path``, durably, in an existing directory; return False if the name is taken.

    Raises:
        LogDirError: it cannot be made.

    """
    with writable(path):
        try:
            disk.make_directory(path)
        except FileExistsError:
            return False
        disk.sync_directory(path.parent)
    return True


def temporary_of(path: Path) -> Path:
    """Return the name under which the file ``path`` is made."""
    return path.with_name(path.name + TEMPORARY)


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file.

    Raises:
        LogDirError: it cannot be read; ``FileGoneError`` where it is not there.

    """
    with reading(path), open_file(path) as file:
        while chunk := file.read(READ_BYTES):
            yield chunk


def digest_of_file(path: Path) -> FileDigest | None:
    """Return length and digest of a file, None if it does not exist; raises as ``read_chunks`` does."""
    try:
        return FileDigest.of_chunks(read_chunks(path))
    except FileGoneError:
        return None


def attributes_of(path: Path) -> FileAttributes:
    """Return owner, mode and times of the file ``path``; raises as ``read_chunks`` does."""
    with reading(path):
        status = path.stat()
    return FileAttributes(
        mode=stat.S_IMODE(status.st_mode),
        user_id=status.st_uid,
        group_id=status.st_gid,
        mtime_ns=status.st_mtime_ns,
    )


def is_there(path: Path) -> bool:
    """Return whether ``path`` exists; raises as ``read_chunks`` does where that cannot be determined."""
    with reading(path):
        return path.exists()


def refuse_unwritable(path: Path, hint: str = "give another place, or run as another user") -> None:
    """Refuse a directory in which, or in its nearest existing parent, nothing could be written.

    Raises:
        UsageError: this user may not write there.
        LogDirError: the disk fails, or is mounted read-only.

    """
    with reading(path):
        found = why_unwritable(path)
    if found is None:
        return
    if found.errno == errno.ENOTDIR:
        where = "" if str(path) == found.filename else f"{path}: "
        raise UsageError(f"{where}{found.filename} is not a directory", hint="give another place")
    if found.errno in _DENIED:
        raise UsageError(f"{path}: {found.filename} cannot be written to", hint=hint)
    with writable(path):
        raise found


def why_unwritable(path: Path) -> OSError | None:
    """Return the error with which a write below a directory fails; what is tried leaves nothing behind.

    Raises:
        OSError: the directory cannot be inspected.

    """
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        # Permissions alone do not tell: root may write to /proc by them.
        TemporaryFile(dir=nearest).close()
    except OSError as error:
        number = errno.EACCES if error.errno in {None, errno.ENOENT} else error.errno
        return OSError(number, os.strerror(number), str(nearest))
    return None


def is_directory(path: Path) -> bool:
    """Return whether ``path`` is a directory; raises as ``read_chunks`` where that cannot be determined."""
    with reading(path):
        return path.is_dir()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate the operating system's errors in reading ``path``, which was found, into ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileGoneError(f"{path}: there is no such file", hint="run the same command again") from error
    except OSError as error:
        raise unread_error(path, error) from error


def unread_error(path: str | Path, error: OSError) -> LogDirError:
    """Return the error for a ``path`` that cannot be read, with what to do about it."""
    hint = "check the disk"
    if error.errno in _DENIED:
        hint = "run as the user that the broker runs as, or one who may read it"
    elif error.errno == errno.EINVAL:  # ``open_regular``
        hint = "only regular files are read: give another path, or see what has taken the file's place"
    elif error.errno in _NOT_NOW:
        hint = "run the same command again; if it stays so, check the disk"
    elif error.errno in _TOO_MANY:
        hint = "raise the limit of open files (ulimit -n, LimitNOFILE=), and run the same command again"
    return LogDirError(f"{path}: cannot be read: {error.strerror}", hint=hint)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Translate the operating system's errors in changing ``path`` into ours."""
    try:
        yield
    except OSError as error:
        what = f"{path}: cannot be written: {error.strerror}"
        raise LogDirError(what, hint=f"{_remedy(error)}, and run the same command again") from error


def _remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "free some space"
    if error.errno in _DENIED:
        return "run as the user that the broker runs as"
    if error.errno == errno.EROFS:
        return "mount the file system for writing"
    if error.errno in _IN_THE_WAY:
        return "give a place where no file has the name of a directory"
    return "check the kernel's log for this disk"


def _write(disk: Disk, path: Path, chunks: Iterable[bytes], attributes: FileAttributes | None) -> FileDigest:
    sha256, size_bytes = hashlib.sha256(), 0
    descriptor = disk.create(path)
    try:
        for chunk in chunks:
            sha256.update(chunk)
            size_bytes += len(chunk)
            write_all(disk, descriptor, chunk)
        if attributes is not None:
            disk.set_attributes(descriptor, attributes)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return FileDigest(size_bytes=size_bytes, sha256=sha256.hexdigest())


@contextmanager
def reading_given(path: Path) -> Iterator[None]:
    """Translate the operating system's errors about a ``path`` that the user gave, or what is in it, into ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist", hint="check the spelling; log.dirs names the right one") from error
    except NotADirectoryError as error:
        raise UsageError(f"{path} is not a directory", hint="give a log dir or a partition's directory") from error
    except PermissionError as error:
        raise LogDirError(f"no permission to read {_path_of(path, error)}",
                          hint="run as the user that the broker runs as, often kafka") from error  # fmt: skip
    except OSError as error:
        remedy = "check the kernel's log for this disk"
        if error.errno in {errno.EINVAL, errno.EFBIG}:
            remedy = "put the broker's own file in its place, or remove what has its name"
        hint = f"{remedy}, and run the same command again"
        raise LogDirError(f"cannot read {_path_of(path, error)}: {error.strerror}", hint=hint) from error


def _path_of(path: Path, error: OSError) -> Path:
    """Return the file that ``error`` concerns; its name is relative if it was read by descriptor."""
    if not isinstance(error.filename, str):
        return path
    named = Path(error.filename)
    return named if named.is_relative_to(path) else path / named
