"""Stores objects as files of a directory: a mounted disk, an NFS export, or a mirror of a log dir.

A body is written beside its place under a temporary name, made durable, and then renamed (or, if the key must be free,
linked) into place; then the folder is made durable too. A crash leaves at most a temporary file, whose name
(``is_temporary``) no key can have and no listing shows.

The root of a store is like a prefix of a bucket: it is created with its first object. The directory *above* it is like
the bucket and must exist, so that a mistyped path or an unmounted disk is noticed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from resnap.storage.disk import why_unwritable
from resnap.storage.errors import (
    LockedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from resnap.storage.processes import lock_within
from resnap.storage.stores.protocol import (
    CHUNK_BYTES,
    ObjectInfo,
    Unfinished,
    body_chunks,
    check_etag,
    check_key,
    check_range,
    is_safe_path,
)
from resnap.storage.whole_file import open_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import BodyOpener

_TEMPORARY_NAME = re.compile(r"\.resnap-[0-9a-f]{32}~")

_LONGEST_WAIT_S: Final = 30.0
"""The longest wait for the lock of a folder: others hold it while they compare and rename one file."""
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_DENIED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_MAY_PASS: Final = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN}
"""What a disk says that fails, and network file systems when their server does not answer."""
_DISK_HINT: Final = "check the kernel's log for this disk"
_TOO_MANY_HINT: Final = "raise the limit of open files (ulimit -n, LimitNOFILE=), and run again"
_OTHER_HINTS: Final = {
    errno.EMFILE: _TOO_MANY_HINT,
    errno.ENFILE: _TOO_MANY_HINT,
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f, LimitFSIZE=), or take another file system",
    errno.EINVAL: "if something else has the path of an object, remove it",
}
_NO_SUCH_FILE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
_IN_THE_WAY: Final = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


def is_temporary(name: str) -> bool:
    """Whether a file of this name is an unfinished write: of a process that is writing now, or left by a crash."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


class LocalObjectStore:
    """The store ``file:///root``; writes with ``if_absent`` need a file system with hard links.

    Symbolic links below the root are refused, not followed: an object must have one key.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._durable_folders: set[Path] = set()

    @property
    def url(self) -> str:
        """The URL that opens the same directory again."""
        return self._root.as_uri()

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
        """Write a small object; see ``ObjectStore.put``."""
        check_key(key)
        self._write(key, [body], if_absent=if_absent)

    def replace(self, key: str, body: Buffer, *, etag: str) -> None:
        """Write a small object in place of one version, with no other writer; see ``ObjectStore.replace``."""
        check_key(key)
        self._write(key, [body], etag=etag)

    def put_stream(
        self,
        key: str,
        open_body: BodyOpener,
        *,
        size_bytes: int,
        crc32c: int | None = None,
        sha256: str | None = None,  # noqa: ARG002 - there is nothing to sign
    ) -> None:
        """Write a large object, a chunk at a time; see ``ObjectStore.put_stream``."""
        check_key(key)
        chunks = body_chunks(open_body, size_bytes=size_bytes, crc32c=crc32c, chunk_bytes=CHUNK_BYTES, key=key)
        self._write(key, chunks)

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        with self.open(key) as chunks:
            return b"".join(chunks)

    def get_range(self, key: str, start: int, end: int, *, etag: str | None = None) -> bytes:
        """Return the bytes [``start``, ``end``); see ``ObjectStore.get_range``."""
        check_range(start, end)
        with self._open_file(key) as file:
            found = _info(key, os.fstat(file.fileno())).etag
            check_etag(str(self._root / key), key, expected=etag, found=found)
            return b"".join(self._chunks(key, file, start, end))

    @contextmanager
    def open(self, key: str, start: int = 0, end: int | None = None) -> Iterator[Iterator[bytes]]:
        """Stream the object; see ``ObjectStore.open``. If it is replaced during that, the old version is read."""
        check_range(start, end)
        with self._open_file(key) as file:
            yield self._chunks(key, file, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return size, time and etag; see ``ObjectStore.head``."""
        with self._reading(key):
            return _info(key, self._readable_path(key).stat())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below ``prefix``, one folder in memory at a time; see ``ObjectStore.list``."""
        folder, slash, name_start = prefix.rpartition("/")
        self._check_parent()
        self._check_no_link(folder)
        if not slash or is_safe_path(folder):
            yield from self._walk(folder, name_start)

    def delete(self, key: str, *, etag: str | None = None) -> None:
        """Remove the object if it exists; see ``ObjectStore.delete``. Its folder stays.

        With ``etag`` the folder is locked against ``replace``, but not against who writes without a condition.
        """
        check_key(key)
        path = self._root / key
        self._check_no_link(key)
        if etag is None:
            self._unlink(key, path)
            return
        with suppress(ObjectNotFoundError), self._locked_version(key, path, etag):
            self._unlink(key, path)

    def _unlink(self, key: str, path: Path) -> None:
        with self._translate_errors(key), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
            sync_directory(path.parent)

    def unfinished(self) -> Iterator[Unfinished]:
        """Yield the temporary files of writes that a crash ended; see ``ObjectStore.unfinished``."""
        for folder, _, names in os.walk(self._root):
            for name in filter(is_temporary, names):
                path = Path(folder, name)
                with self._translate_errors(None), suppress(FileNotFoundError):
                    begun_ms = path.stat().st_mtime_ns // 1_000_000
                    key = path.relative_to(self._root).as_posix()
                    yield Unfinished(key=key, begun_ms=begun_ms, handle=str(path))

    def discard(self, unfinished: Unfinished) -> None:
        """Remove a temporary file; see ``ObjectStore.discard``."""
        with self._translate_errors(None):
            Path(unfinished.handle).unlink(missing_ok=True)

    def _write(self, key: str, chunks: Iterable[Buffer], *, if_absent: bool = False, etag: str | None = None) -> None:
        """Write an object durably: if its key is free, in place of the version ``etag``, or in any case."""
        path = self._root / key
        self._check_no_link(key)
        with self._translate_errors(key):
            self._make_folder(path.parent)
        with self._temporary_file(key, path.parent, chunks) as temporary:
            if etag is not None:
                with self._locked_version(key, path, etag), self._translate_errors(key):
                    temporary.replace(path)
            else:
                with self._translate_errors(key):
                    if if_absent:
                        self._link(key, temporary, path)
                    else:
                        temporary.replace(path)
        with self._translate_errors(key):
            sync_directory(path.parent)

    @contextmanager
    def _temporary_file(self, key: str, folder: Path, chunks: Iterable[Buffer]) -> Iterator[Path]:
        """Yield a durable file that holds ``chunks``, and remove its temporary name at the end."""
        path = folder / f".resnap-{secrets.token_hex(16)}~"
        try:
            with self._translate_errors(key):
                file = path.open("xb", buffering=0)
            with file:
                # Only the file's own errors are the store's: a source that fails while being read is not.
                for chunk in chunks:
                    with self._translate_errors(key):
                        _write_fully(file, chunk)
                with self._translate_errors(key):
                    os.fsync(file.fileno())
            yield path
        finally:
            with suppress(OSError):
                path.unlink()

    @contextmanager
    def _locked_version(self, key: str, path: Path, etag: str) -> Iterator[None]:
        """Lock the folder if the existing file has ``etag``, for as long as the context lasts."""
        with self._reading(key):
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with self._translate_errors(key):
                _lock(folder, path.parent, key)
            check_etag(str(path), key, expected=etag, found=self.head(key).etag)
            yield
        finally:
            os.close(folder)

    def _link(self, key: str, temporary: Path, path: Path) -> None:
        """Link the file to its name unless the name is taken, in one step, which rename cannot do."""
        try:
            path.hardlink_to(temporary)
        except FileExistsError as error:
            if path.is_dir():
                raise
            raise ObjectExistsError(f"{path}: the object already exists", key=key) from error

    def _make_folder(self, folder: Path) -> None:
        """Make ``folder`` and its parents up to the root; each is durable before anything is put into it."""
        if folder in self._durable_folders and folder.is_dir():  # the store may have been cleared since
            return
        if folder != self._root:
            self._make_folder(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            found = True
        else:
            found = False
        # A folder found may be another run's, made a moment ago and not yet durable; a root found is the operator's.
        if not (found and folder == self._root):
            sync_directory(folder.parent)
        self._durable_folders.add(folder)

    def _readable_path(self, key: str) -> Path:
        """Return the path of a regular file that readers may see."""
        path = self._root / key
        self._check_no_link(key)
        if not is_safe_path(key) or is_temporary(path.name) or not stat.S_ISREG(path.stat().st_mode):
            raise FileNotFoundError(errno.ENOENT, "not an object")
        return path

    @contextmanager
    def _open_file(self, key: str) -> Iterator[BinaryIO]:
        with self._reading(key):
            file = open_file(self._readable_path(key))
        with file:
            yield file

    def _chunks(self, key: str, file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
        with self._translate_errors(key):
            size_bytes = os.fstat(file.fileno()).st_size
            left = max(0, (size_bytes if end is None else min(end, size_bytes)) - start)
            if left:
                file.seek(start)
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk

    def _walk(self, folder: str, name_start: str = "") -> Iterator[ObjectInfo]:
        """Yield the content of ``folder`` in key order: a folder sorts as its name and a slash."""
        for name, is_folder in self._entries(folder, name_start):
            key = f"{folder}/{name}" if folder else name
            if is_folder:
                yield from self._walk(key)
                continue
            with self._translate_errors(key), suppress(FileNotFoundError):
                yield _info(key, (self._root / key).stat())

    def _entries(self, folder: str, name_start: str) -> Sequence[tuple[str, bool]]:
        """Return the objects and folders in ``folder``, in key order, and whether each is a folder."""
        found = []
        with self._listing(folder), os.scandir(self._root / folder) as entries:
            for entry in entries:
                if not entry.name.startswith(name_start):
                    continue
                if entry.is_symlink():
                    raise _link_error(Path(entry.path))
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder or _is_object(entry):
                    found.append((entry.name, is_folder))
        return sorted(found, key=lambda entry: f"{entry[0]}/" if entry[1] else entry[0])

    def _check_no_link(self, path: str) -> None:
        """Refuse objects behind a link: under another key an object would be another one, which nothing names.

        The root itself may be one.
        """
        here = str(self._root)
        for part in path.split("/") if is_safe_path(path) else ():
            here = f"{here}/{part}"
            if os.path.islink(here):  # noqa: PTH114 - of each part of each key; an error is reported when it is opened
                raise _link_error(Path(here))

    def check_writable(self) -> None:
        """Check that objects could be written, before work is done for them.

        Raises:
            StoreError: they could not.

        """
        self._check_parent()
        with self._translate_errors(None):
            if (error := why_unwritable(self._root)) is not None:
                raise error

    def _check_parent(self) -> None:
        with self._translate_errors(None):
            is_there = self._root.parent.is_dir()
        if not is_there:
            raise StoreAccessError(f"{self._root.parent}: no such directory", hint=self._parent_hint())

    def _parent_hint(self) -> str:
        directory = shlex.quote(str(self._root.parent))
        return f"check the path and whether its disk is mounted, or make it: mkdir -p {directory}"

    @contextmanager
    def _listing(self, folder: str) -> Iterator[None]:
        """Translate as ``_translate_errors`` does; a folder that does not exist, or cannot exist, is empty."""
        # That the root itself is not a directory is another matter.
        nothing_there = _NO_SUCH_FILE if folder else {errno.ENOENT}
        try:
            yield
        except OSError as error:
            if error.errno not in nothing_there:
                raise self._store_error(error, folder or None) from error

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Translate as ``_translate_errors`` does; a missing file is a missing object."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_SUCH_FILE:
                raise self._store_error(error, key) from error
            self._check_parent()
            raise ObjectNotFoundError(f"{self._root / key}: no such object", key=key) from error

    @contextmanager
    def _translate_errors(self, key: str | None) -> Iterator[None]:
        """Translate the operating system's errors into the store's; the only place that does."""
        try:
            yield
        except OSError as error:
            raise self._store_error(error, key) from error

    def _store_error(self, error: OSError, key: str | None) -> StoreError:
        """Return the store's error for one of the operating system, with what to do about it."""
        path = self._root / key if key else self._root
        what = f"{path}: {(error.strerror or str(error)).lower()}"
        if error.errno in _FULL:
            return StoreFullError(what, key=key, hint=f"make room on the file system of {self._root}, and run again")
        if error.errno in _DENIED:
            hint = f"let the user who runs resnap read and write below {self._root}"
            return StoreAccessError(what, key=key, hint=hint)
        if error.errno in _MAY_PASS:
            hint = _DISK_HINT if error.errno == errno.EIO else "check the server of this network file system"
            return StoreUnavailableError(what, key=key, hint=hint)
        if error.errno == errno.ENOENT:
            return StoreAccessError(what, key=key, hint=self._parent_hint())
        if error.errno in _IN_THE_WAY:
            hint = "a name cannot be both an object and a folder of objects here; choose another prefix"
            return StoreError(what, key=key, hint=hint)
        return StoreError(what, key=key, hint=_OTHER_HINTS.get(error.errno or 0, _DISK_HINT))


def _lock(folder: int, path: Path, key: str) -> None:
    try:
        lock_within(folder, path, _LONGEST_WAIT_S)
    except LockedError as error:
        raise StoreUnavailableError(str(error), key=key, hint=error.hint) from error


def _link_error(path: Path) -> StoreError:
    return StoreError(
        f"{path}: a symbolic link, which a store does not follow",
        hint="remove it, or replace it with its target; a bind mount is not a link",
    )


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    etag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectInfo(key=key, size_bytes=status.st_size, modified_ms=status.st_mtime_ns // 1_000_000, etag=etag)


def _is_object(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) and not is_temporary(entry.name)


def _write_fully(file: BinaryIO, chunk: Buffer) -> None:
    """Write all of ``chunk``: on a nearly full disk a write may be partial, and only the next one fails."""
    view = memoryview(chunk).cast("B")
    while view:
        view = view[file.write(view) :]
