"""Sinks for rebuilt snapshots: ``<topic>-<partition>/<offset, 20 digits>.snapshot`` in a directory or a store.

Executors write them, so a destination is identified by its URL. Every write is atomic and the bytes depend only on the
plan: a task that Spark runs twice, even at once, leaves the same file, and no partial file ever has its name. So no
separate commit is needed.

Temporary directories of one run, which a later run removes if the run was killed.

A killed process removes nothing. So every directory is locked by its process; the system releases the lock however that
process ends, and the next run removes directories without a lock. A lock, unlike a process id, means the same in every
container that shares the temporary directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from resnap.storage.crc32c import crc32c
from resnap.storage.disk import Disk, make_directories, writable
from resnap.storage.errors import LogDirError
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import (
    SnapshotDigest,
    snapshot_array_parts,
    store_snapshot_arrays,
)
from resnap.storage.stores.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.replay.kernel.summary import Array
    from resnap.replay.results import PartSink
    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import BodyOpener, ObjectStore
    from resnap.storage.stores.s3_settings import S3Settings

DISCARD: Final = "discard:"
"""URL of the sink for replays that write nothing."""
_CHUNK: Final = 1 << 16
_TRIES: Final = 40
_PAUSE_S: Final = 0.05
_HINT: Final = "free some space, or let TMPDIR name a directory that can be written; then run the same command again"


def snapshot_key(topic_partition: TopicPartition, offset: int) -> str:
    """Return the key of the snapshot at ``offset`` below the destination."""
    return f"{topic_partition}/{segment_name(offset, 'snapshot')}"


def open_sink(url: str, s3: S3Settings | None = None) -> PartSink:
    """Return the sink at ``url``: a directory, which need not exist yet, for ``file:///``, else a store."""
    if url == DISCARD:
        return StoreSink(None)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return DirectorySink(Path(unquote(parts.path)))
    return StoreSink(open_store(url, s3))


class DirectorySink:
    """Stores snapshots as files of a local directory, with the names that they will have beside the segments."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest:
        """Write, sync and rename, replacing an existing file.

        Raises:
            LogDirError: the directory cannot be written.

        """
        chunks = (entries[start : start + _CHUNK] for start in range(0, len(entries), _CHUNK))
        return self.write_parts(topic_partition, offset, chunks, len(entries))

    def write_parts(
        self, topic_partition: TopicPartition, offset: int, parts: Iterable[Array], count: int
    ) -> SnapshotDigest:
        """Write entries as ``write`` does, in parts."""
        path = self._root / snapshot_key(topic_partition, offset)
        make_directories(Disk(), path.parent)
        try:
            return store_snapshot_arrays(path, parts, count, attempt=f".{uuid4().hex}")
        except OSError as error:
            hint = "free some space, or give the directory to the user who runs resnap; then run the same command again"
            raise LogDirError(f"{path}: cannot be written: {error.strerror}", hint=hint) from error


class StoreSink:
    """Stores snapshots as objects of a store; without one it discards them."""

    def __init__(self, store: ObjectStore | None) -> None:
        self._store = store

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest:
        """Put the snapshot as one object, replacing an existing one whole."""
        parts = snapshot_array_parts(entries)
        return self._put(topic_partition, offset, lambda: io.BytesIO(b"".join(parts)), digest_of(*parts))

    def write_parts(
        self, topic_partition: TopicPartition, offset: int, parts: Iterable[Array], count: int
    ) -> SnapshotDigest:
        """Put a snapshot in parts through a temporary file: its checksum precedes the data that it covers."""
        with scratch_directory("snapshot") as directory:
            path = directory / "snapshot"
            with writable(path):
                digest = store_snapshot_arrays(path, parts, count)
            return self._put(topic_partition, offset, lambda: path.open("rb"), digest)

    def _put(
        self, topic_partition: TopicPartition, offset: int, open_body: BodyOpener, digest: SnapshotDigest
    ) -> SnapshotDigest:
        if self._store is not None:
            key = snapshot_key(topic_partition, offset)
            self._store.put_stream(key, open_body, size_bytes=digest.size_bytes, crc32c=digest.crc32c)
        return digest


def digest_of(*parts: Buffer) -> SnapshotDigest:
    """Return the digest of a snapshot with these bytes, which may come in parts."""
    checksum, sha256 = 0, hashlib.sha256()
    for part in parts:
        checksum = crc32c(part, checksum)
        sha256.update(part)
    return SnapshotDigest(size_bytes=sum(map(len, parts)), crc32c=checksum, sha256=sha256.hexdigest())


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Make a new directory ``resnap-<purpose>-...`` in the system's temporary one, and remove it at the end.

    It also removes the directories that killed runs have left there for the same purpose.

    Raises:
        LogDirError: it cannot be made.

    """
    prefix = f"resnap-{purpose}-"
    sweep(_temporary(), prefix)
    try:
        directory, lock = _make(prefix)
    except OSError as error:
        what = f"{_temporary()}: no temporary directory can be made: {error.strerror}"
        raise LogDirError(what, hint=_HINT) from error
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
                lock = _lock(directory)  # raises if its owner holds it
                try:
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(lock)


def _temporary() -> Path:
    """Return the system's temporary directory; Python tests by writing, so there may be none."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise LogDirError(f"no temporary directory can be written: {error.strerror}", hint=_HINT) from error


def _make(prefix: str) -> tuple[Path, int]:
    """Return a new, locked directory; a sweeping process may lock it before we do."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            with suppress(FileNotFoundError, BlockingIOError):
                lock = _lock(directory)
                if directory.is_dir():
                    return directory, lock
                os.close(lock)
        except BaseException:
            _remove(directory)
            raise


def _lock(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
