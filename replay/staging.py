"""Sinks for rebuilt snapshots: ``<topic>-<partition>/<offset, 20 digits>.snapshot`` in a directory or a store.

Executors write them, so a destination is identified by its URL. Every write is atomic and the bytes depend only on the
plan: a task that Spark runs twice, even at once, leaves the same file, and no partial file ever has its name. So no
separate commit is needed.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from resnap.replay.scratch import scratch_directory
from resnap.storage.crc32c import crc32c
from resnap.storage.disk import Disk, make_directories, writable
from resnap.storage.errors import LogDirError
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import (
    SnapshotDigest,
    snapshot_array_bytes,
    snapshot_array_parts,
    store_snapshot_arrays,
)
from resnap.storage.stores.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.replay.kernel.summary import Array
    from resnap.replay.results import PartSink
    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.storage.stores.s3_settings import S3Settings

DISCARD: Final = "discard:"
"""URL of the sink for replays that write nothing."""
_CHUNK: Final = 1 << 16


def snapshot_key(topic_partition: TopicPartition, offset: int) -> str:
    """Return the key of the snapshot at ``offset`` below the destination."""
    return f"{topic_partition}/{segment_name(offset, 'snapshot')}"


def open_sink(url: str, s3: S3Settings | None = None) -> PartSink:
    """Return the sink at ``url``: a directory, which need not exist yet, for ``file:///``, else a store."""
    if url == DISCARD:
        return DiscardSink()
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
    """Stores snapshots as objects of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest:
        """Put the snapshot as one object, replacing an existing one whole."""
        body = snapshot_array_bytes(entries)
        digest = digest_of(body)
        self._store.put_stream(
            snapshot_key(topic_partition, offset),
            lambda: io.BytesIO(body),
            size_bytes=digest.size_bytes,
            crc32c=digest.crc32c,
        )
        return digest

    def write_parts(
        self, topic_partition: TopicPartition, offset: int, parts: Iterable[Array], count: int
    ) -> SnapshotDigest:
        """Put a snapshot in parts through a temporary file: its checksum precedes the data that it covers."""
        with scratch_directory("snapshot") as directory:
            path = directory / "snapshot"
            with writable(path):
                digest = store_snapshot_arrays(path, parts, count)
            self._store.put_stream(
                snapshot_key(topic_partition, offset),
                lambda: path.open("rb"),
                size_bytes=digest.size_bytes,
                crc32c=digest.crc32c,
            )
        return digest


class DiscardSink:
    """Discards snapshots."""

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest:  # noqa: ARG002
        """Return the digest that the snapshot would have."""
        return digest_of(*snapshot_array_parts(entries))

    def write_parts(
        self,
        topic_partition: TopicPartition,  # noqa: ARG002
        offset: int,  # noqa: ARG002
        parts: Iterable[Array],
        count: int,
    ) -> SnapshotDigest:
        """Return the digest for entries in parts."""
        with scratch_directory("snapshot") as directory:
            path = directory / "snapshot"
            with writable(path):
                return store_snapshot_arrays(path, parts, count)


def digest_of(*parts: Buffer) -> SnapshotDigest:
    """Return the digest of a snapshot with these bytes, which may come in parts."""
    checksum, sha256 = 0, hashlib.sha256()
    for part in parts:
        checksum = crc32c(part, checksum)
        sha256.update(part)
    return SnapshotDigest(size_bytes=sum(map(len, parts)), crc32c=checksum, sha256=sha256.hexdigest())
