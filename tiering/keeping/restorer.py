"""Makes partition directories of what was shipped, each whole or not at all, in a log dir whose lock the caller holds.

A directory is made under the name that Kafka gives to one of a deleted topic, and gets its own name when every file of
it is durable and has been compared with its manifest. What a crash leaves is thus what a broker removes by itself when
it starts, and what the next run removes before it begins anew: the name follows from the partition alone.

Source: ``UnifiedLog.logDeleteDirName`` and ``LogManager.loadLog`` for the name; ``LogLoader`` for the files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID, uuid5

from storage.disk import FileDigest, digest_of_file, dress_of, writable, write_new_file
from storage.errors import ObjectNotFoundError, VerificationError
from storage.log.names import segment_name
from storage.log.partition_dir import LEADER_EPOCHS, PARTITION_METADATA
from storage.log.properties import PartitionMetadata, write_partition_metadata
from storage.remote.manifest import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from storage.disk import Disk, Dress
    from storage.log.names import TopicPartition
    from storage.remote.manifest import Manifest, ManifestObject
    from storage.remote.object_store import ObjectStore

FILE_MODE: Final = 0o644
_NAMESPACE: Final = UUID("0d0f8a34-65f3-4f0c-9d6b-0b7b1e6f2f11")
_NAME_BYTES: Final = 255


class Restored(StrEnum):
    """What became of a partition; the values are codes that users and programs see, and never change."""

    RESTORED = "restored"
    ALREADY_THERE = "already-there"
    """Every file of it is there, byte for byte."""
    OCCUPIED = "occupied"
    """A directory of this name holds something else; it is never touched."""


class _Source(NamedTuple):
    """A file of a partition directory, and the object that it comes from."""

    name: str
    entry: ManifestObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """One partition that is to be made of what was shipped."""

    topic_partition: TopicPartition
    manifests: tuple[Manifest, ...]
    """A chain, ascending: each begins where the one before ends."""
    given_topic_id: str | None = None
    """What the topic's id is now, whatever it was when the segments were shipped; None to go by the manifests."""

    @property
    def start_offset(self) -> int:
        """First offset of the log."""
        return self.manifests[0].base_offset

    @property
    def end_offset(self) -> int:
        """The log end."""
        return self.manifests[-1].next_base_offset

    @property
    def topic_id(self) -> str | None:
        """Of the topic: what is given, else where any of the segments tells it."""
        return self.given_topic_id or next(
            (one.topic_id for one in reversed(self.manifests) if one.topic_id is not None), None
        )

    @property
    def size_bytes(self) -> int:
        """Of all files that come from the store."""
        return sum(source.entry.size_bytes for source in self.sources())

    def sources(self) -> Iterator[_Source]:
        """Yield every file that comes from the store; the leader epochs are those of the last segment, with all."""
        for manifest in self.manifests:
            for entry in manifest.objects:
                if entry.kind is ObjectKind.LEADER_EPOCH_CHECKPOINT:
                    if manifest is self.manifests[-1]:
                        yield _Source(LEADER_EPOCHS, entry)
                else:
                    at = manifest.next_base_offset if entry.kind is ObjectKind.SNAPSHOT else manifest.base_offset
                    yield _Source(segment_name(at, entry.kind), entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer:
    """Makes directories in ``log_dir`` of the objects of ``store``."""

    log_dir: Path
    store: ObjectStore
    disk: Disk

    def look(self, restoration: Restoration) -> Restored:
        """Tell what would become of a partition, by what stands in its place; nothing is changed.

        Raises:
            LogDirError: it cannot be read.

        """
        target = self._target(restoration)
        if not target.exists():
            return Restored.RESTORED
        same = all(digest_of_file(target / name) == _digest(entry) for name, entry in restoration.sources())
        return Restored.ALREADY_THERE if same else Restored.OCCUPIED

    def restore(self, restoration: Restoration, done: Callable[[int], None]) -> Restored:
        """Make the directory of a partition unless its place is taken; ``done`` is told of bytes written.

        Raises:
            VerificationError: an object is not what its manifest says; nothing has come into being.
            LogDirError, StoreError: a file cannot be written, an object not be read.

        """
        found = self.look(restoration)
        if found is not Restored.RESTORED:
            return found
        unfinished = self.log_dir / unfinished_name(restoration.topic_partition)
        self._remove(unfinished)
        self._fill(unfinished, restoration, done)
        self._make_durable(unfinished)
        self._publish(unfinished, self._target(restoration))
        return found

    def _fill(self, folder: Path, restoration: Restoration, done: Callable[[int], None]) -> None:
        owner = dress_of(self.log_dir)
        dress = replace(owner, mode=FILE_MODE, mtime_ns=None)
        with writable(folder):
            self.disk.make_directory(folder)
            self.disk.dress_directory(folder, replace(owner, mtime_ns=None))
        for name, entry in restoration.sources():
            self._copy(entry, folder / name, dress)
            done(entry.size_bytes)
        if restoration.topic_id is not None:
            metadata = write_partition_metadata(PartitionMetadata(version=0, topic_id=restoration.topic_id))
            write_new_file(self.disk, folder / PARTITION_METADATA, [metadata], dress)

    def _make_durable(self, unfinished: Path) -> None:
        """Make the names in the directory durable; what they name is so already."""
        with writable(unfinished):
            self.disk.sync_directory(unfinished)

    def _publish(self, unfinished: Path, target: Path) -> None:
        with writable(target):
            self.disk.rename(unfinished, target)
            self.disk.sync_directory(self.log_dir)

    def _copy(self, entry: ManifestObject, path: Path, dress: Dress) -> None:
        hint = "see `resnap verify --store URL`; restore from another copy, or leave the topic out (--topic)"
        try:
            with self.store.open(entry.key) as chunks:
                written = write_new_file(self.disk, path, chunks, dress)
        except ObjectNotFoundError as error:
            raise VerificationError(f"{entry.key}: missing, though a manifest names it", hint=hint) from error
        if written != _digest(entry):
            raise VerificationError(f"{entry.key}: other bytes than its manifest says", hint=hint)

    def _remove(self, folder: Path) -> None:
        """Remove what a run that did not come to its end has left."""
        if folder.is_dir():
            with writable(folder):
                for path in folder.iterdir():
                    self.disk.remove(path)
                self.disk.remove_directory(folder)

    def _target(self, restoration: Restoration) -> Path:
        return self.log_dir / str(restoration.topic_partition)


def unfinished_name(topic_partition: TopicPartition) -> str:
    """Return the name of the directory of a partition while it is made: to a broker, one that waits to be removed."""
    suffix = f".{uuid5(_NAMESPACE, str(topic_partition)).hex}-delete"
    number = f"-{topic_partition.partition}"
    return f"{topic_partition.topic[: _NAME_BYTES - len(number) - len(suffix)]}{number}{suffix}"


def _digest(entry: ManifestObject) -> FileDigest:
    return FileDigest(size_bytes=entry.size_bytes, sha256=entry.sha256)
