"""Makes partition directories from shipped segments, each whole or not at all, in a log dir that it has checked.

The check says which cluster owns the log dir, and which partitions fit.

A directory is made under the name that Kafka gives to a deleted topic's directory, and gets its own name when every
file is durable and has been compared with its manifest; if manifests have no digests, when the files were checked
against each other. So a starting broker removes what a crash leaves, and so does the next run before it begins again:
the name depends only on the partition.

Its files are written several at a time: by threads of this process, or by Spark tasks, with the same functions. A task
may be repeated, or run twice at the same time, even after this run has ended: so executors write into a directory of
their own, also under the name of a deleted one, with file names of their own, and only this process moves the reported
files from there.

Source: ``UnifiedLog.logDeleteDirName`` and ``LogManager.loadLog`` for the name; ``LogLoader`` for the files.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID, uuid4, uuid5

from resnap.storage.disk import (
    TEMPORARY,
    Disk,
    FileDigest,
    attributes_of,
    digest_of_file,
    is_there,
    reading_given,
    writable,
    write_file,
    write_new_file,
)
from resnap.storage.errors import CancelledError, FormatError, UsageError, VerificationError
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.checkpoints import read_offset_checkpoint, write_offset_checkpoint
from resnap.storage.log.log_dir import CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, load_log_dir
from resnap.storage.log.partition_dir import PARTITION_METADATA, read_small
from resnap.storage.log.properties import PartitionMetadata, read_partition_metadata, write_partition_metadata
from resnap.storage.sources.files import GONE
from resnap.storage.threads import made_once, side_by_side
from resnap.storage.throttle import Throttle
from resnap.tiering.restoring.restoration import HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Executor
    from pathlib import Path

    from resnap.storage.disk import FileAttributes
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.restoring.restoration import Restoration, ShippedFile

GROUP_FILES: Final = 16
GROUP_BYTES: Final = 64 << 20
"""Files that are written one after the other are no more, and no larger, unless it is one alone."""

_R = TypeVar("_R")


class Flow(NamedTuple):
    """Limits the rate of bytes, and stops them when they are no longer wanted."""

    throttle: Throttle
    is_wanted: Callable[[], bool] = lambda: True

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield ``chunks``.

        Raises:
            CancelledError: they are no longer wanted.

        """
        for chunk in chunks:
            if not (self.is_wanted() and self.throttle.take(len(chunk), self.is_wanted)):
                raise CancelledError("the run was ended while files were written")
            yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Copier:
    """Runs work on the files of a partition; in this thread, unless ``threads`` are given."""

    throttle: Throttle = field(default_factory=Throttle)
    threads: Executor | None = None
    at_once: int = 1
    """Groups of files of a partition."""
    elsewhere: Callable[[Callable[[Flow], Any], int, Callable[[], bool]], Any] | None = None
    """Has an executor do work on so many bytes, if that is still wanted when one has room for it."""
    stop: Callable[[], None] = lambda: None
    """Ends what executors are at."""

    def each(self, work: Callable[[tuple[ShippedFile, ...], Flow], _R], files: Iterable[ShippedFile]) -> Iterator[_R]:
        """Yield what ``work`` returns for each group of ``files``, in order."""
        ended = Event()

        def wanted() -> bool:
            return not ended.is_set()

        def one(group: tuple[ShippedFile, ...]) -> _R:
            return self.run(partial(work, group), sum(file.size_bytes for file in group), wanted)

        if self.threads is None:
            yield from map(one, groups(files))
            return
        with closing(side_by_side(one, groups(files), self.at_once, ended.set, self.threads)) as begun:
            for _, result in begun:
                yield result()

    def run(self, work: Callable[[Flow], _R], size_bytes: int, wanted: Callable[[], bool] = lambda: True) -> _R:
        """Return the result of ``work`` on so many bytes, in this thread or another."""
        if self.elsewhere is None:
            return work(Flow(self.throttle, wanted))
        result: _R = self.elsewhere(work, size_bytes, wanted)
        return result


def work_at(bytes_per_s: int | None, work: Callable[[Flow], _R]) -> _R:
    """Return the result of ``work`` on an executor; each of its processes moves so many bytes per second."""
    return work(Flow(_throttle(bytes_per_s)))


@made_once(maxsize=4)
def _throttle(bytes_per_s: int | None) -> Throttle:
    return Throttle(bytes_per_s=bytes_per_s)


def groups(files: Iterable[ShippedFile]) -> Iterator[tuple[ShippedFile, ...]]:
    """Yield ``files`` in order, in groups that are written one after the other."""
    group: list[ShippedFile] = []
    size_bytes = 0
    for file in files:
        if group and (len(group) == GROUP_FILES or size_bytes + file.size_bytes > GROUP_BYTES):
            yield tuple(group)
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if group:
        yield tuple(group)


def write_files(
    folder: Path, attributes: FileAttributes, disk: Disk, files: tuple[ShippedFile, ...], flow: Flow
) -> tuple[int, int]:
    """Write ``files`` into ``folder``, which is not visible yet, and return their ``amount``.

    Raises:
        VerificationError: an object is not what its manifest says.
        LogDirError, StoreError: a file cannot be written, an object not be read.

    """
    for file in files:
        _write(disk, file, folder / file.name, attributes, flow)
    return amount(files)


def amount(files: Iterable[ShippedFile]) -> tuple[int, int]:
    """Return the number of segments among ``files``, and the total size."""
    counted = [(file.name.endswith(f".{ObjectKind.LOG}"), file.size_bytes) for file in files]
    return sum(is_log for is_log, _ in counted), sum(size for _, size in counted)


def write_apart(
    folder: Path, attributes: FileAttributes, files: tuple[ShippedFile, ...], flow: Flow
) -> list[tuple[str, ShippedFile]]:
    """Write ``files`` into ``folder`` and return each with its name there; raises as ``write_files``."""
    named = [(f"{uuid4().hex}{TEMPORARY}", file) for file in files]
    for name, file in named:
        _write(Disk(), file, folder / name, attributes, flow)
    return named


def _write(disk: Disk, file: ShippedFile, path: Path, attributes: FileAttributes, flow: Flow) -> None:
    try:
        with file.open() as chunks:
            written = write_new_file(disk, path, flow.through(chunks), attributes)
    except GONE as error:
        raise VerificationError(f"{file.source}: missing, though a manifest names it", hint=HINT) from error
    except FormatError as error:
        raise VerificationError(str(error), hint=HINT) from error
    if written.size_bytes != file.size_bytes or file.digest not in (None, written):
        raise VerificationError(f"{file.source}: other bytes than its manifest says", hint=HINT)


_OF_A_START: Final = (CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The log dir to restore into, as it was found."""

    path: Path
    there: LogDir
    log_starts: Mapping[TopicPartition, int]
    """The log starts that were used before."""
    begins_cluster: bool
    """Whether it is of a new cluster, into which the logs of any other may come."""

    @classmethod
    def at(cls, path: Path, *, new_cluster: bool) -> Self:
        """Return the log dir at ``path``; with ``new_cluster`` it must belong to a new cluster.

        Raises:
            UsageError: it must belong to a new cluster, but was not formatted, or a broker was started on it.
            LogDirError: it cannot be read.

        """
        there = load_log_dir(path, topics=lambda _: False)
        with reading_given(path):
            log_starts = read_small(path / LOG_START_OFFSETS, read_offset_checkpoint) or {}
        if new_cluster and not there.is_kraft:
            raise UsageError(f"{path} is not a formatted log dir, so its cluster is not known",
                             hint="kafka-storage.sh format, with the id of the new cluster")  # fmt: skip
        if new_cluster and any(is_there(path / name) for name in _OF_A_START):
            raise UsageError(f"{path} is not the log dir of a new cluster: a broker was started on it",
                             hint="format an empty directory; without --brokers, --assignment and --new-cluster"
                             " `restore` works in the log dirs of the same cluster")  # fmt: skip
        return cls(path=path, there=there, log_starts=log_starts, begins_cluster=new_cluster)

    def check(self, one: Restoration) -> None:
        """Check that ``one`` may be restored here.

        Raises:
            UsageError: a broker would not serve it, or would damage it.

        """
        is_known = not self.begins_cluster and None not in (one.cluster_id, self.there.cluster_id)
        if is_known and one.cluster_id != self.there.cluster_id:
            raise UsageError(
                f"{one.topic_partition} is of cluster {one.cluster_id}, and {self.path} of {self.there.cluster_id}",
                hint="give a log dir of the same cluster, or a new directory; --brokers if a new cluster is to begin",
            )
        if one.topic_id is None and self.there.is_kraft:
            raise without_topic_id(one)
        # A log that ends below the log dir's checkpointed log start would be emptied by a starting broker.
        log_start = self.log_starts.get(one.topic_partition)
        if log_start is not None and log_start > one.end_offset:
            raise UsageError(
                f"{one.topic_partition} ends at {one.end_offset}, below its log start {log_start} in"
                f" {self.path / LOG_START_OFFSETS}: a broker would delete all of it",
                hint="take the line of the partition out of that file, or restore into a new directory",
            )

    def is_of_cluster_of(self, one: Restoration) -> bool:
        """Whether the log dir is known to be of the cluster that ``one`` was shipped from."""
        return one.cluster_id is not None and one.cluster_id == self.there.cluster_id


def without_topic_id(one: Restoration) -> UsageError:
    """Return the error for a partition that a KRaft broker would set aside, and replace with an empty log.

    With ZooKeeper it gives the id itself. Source: ``LogManager.isStrayKraftReplica``; seen with 3.9.1 and 4.1.1.
    """
    topic = one.topic_partition.topic
    return UsageError(
        f"{one.topic_partition}: the id of its topic is not known, since it was not when the partition was shipped:"
        " without ZooKeeper a broker sets such a directory aside as stray, and begins an empty log",
        hint=f"give --topic-id {topic}=ID; `kafka-topics.sh --describe` and `resnap controller image` show it",
    )


FILE_MODE: Final = 0o644
_NAMESPACE: Final = UUID("0d0f8a34-65f3-4f0c-9d6b-0b7b1e6f2f11")
_NAME_BYTES: Final = 255


class Restored(StrEnum):
    """The outcome of a partition; the values are codes that users and programs see, and never change."""

    RESTORED = "restored"
    ALREADY_THERE = "already-there"
    """Every file of it is there, byte for byte, and the topic's id."""
    OCCUPIED = "occupied"
    """A directory of this name holds something else; it is never touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer:
    """Makes directories in ``log_dir``; several threads may do so at once."""

    log_dir: Path
    disk: Disk
    copier: Copier = field(default_factory=Copier)
    _turn: Lock = field(default_factory=Lock, init=False, repr=False)

    def look(self, restoration: Restoration) -> Restored:
        """Return what would happen to a partition, by what exists at its path; nothing is changed.

        Raises:
            LogDirError: it cannot be read.
            ResnapError: a shipped file cannot be read, if no manifest has a digest of it.

        """
        target = self._target(restoration)
        if not is_there(target):
            return Restored.RESTORED
        same = _is_of(target, restoration) and all(self.copier.each(partial(_are_there, target), restoration.files))
        return Restored.ALREADY_THERE if same else Restored.OCCUPIED

    def restore(self, restoration: Restoration, done: Callable[[int, int], None]) -> Restored:
        """Make the directory of a partition unless its path exists.

        ``done`` is called with the number of segments and bytes written.

        Raises:
            VerificationError: an object does not match its manifest, or is damaged; no directory was made.
            LogDirError, StoreError: a file cannot be written, an object not be read.

        """
        found = self.look(restoration)
        if found is not Restored.RESTORED:
            return found
        unfinished = self.log_dir / unfinished_name(restoration.topic_partition)
        self._remove(unfinished)
        self._fill(unfinished, restoration, done)
        if restoration.check is not None:
            self.copier.run(partial(_run_check, restoration.check, unfinished), restoration.size_bytes)
        self._make_durable(unfinished)
        with self._turn:
            self._keep_log_start(restoration)
        self._publish(unfinished, self._target(restoration))
        return found

    def _fill(self, folder: Path, restoration: Restoration, done: Callable[[int, int], None]) -> None:
        attributes = replace(attributes_of(self.log_dir), mode=FILE_MODE, mtime_ns=None)
        self._make(folder)
        if self.copier.elsewhere is None:
            for written in self.copier.each(partial(write_files, folder, attributes, self.disk), restoration.files):
                done(*written)
        else:
            self._fill_elsewhere(folder, restoration, attributes, done)
        if restoration.topic_id is not None:
            metadata = write_partition_metadata(PartitionMetadata(version=0, topic_id=restoration.topic_id))
            write_new_file(self.disk, folder / PARTITION_METADATA, [metadata], attributes)

    def _fill_elsewhere(
        self, folder: Path, restoration: Restoration, attributes: FileAttributes, done: Callable[[int, int], None]
    ) -> None:
        """Let executors write into another directory, and move each file from there once it is complete."""
        apart = self.log_dir / unfinished_name(restoration.topic_partition, "of executors")
        self._remove(apart)
        self._make(apart)
        for written in self.copier.each(partial(write_apart, apart, attributes), restoration.files):
            with writable(folder):
                for name, file in written:
                    self.disk.rename(apart / name, folder / file.name)
            done(*amount(file for _, file in written))
        self._remove(apart)

    def _make(self, folder: Path) -> None:
        with writable(folder):
            self.disk.make_directory(folder)
            self.disk.set_directory_attributes(folder, replace(attributes_of(self.log_dir), mtime_ns=None))

    def _keep_log_start(self, restoration: Restoration) -> None:
        """Write the log start to the broker's checkpoint, unless it has a later one, before the log gets its name."""
        start, path = restoration.log_start, self.log_dir / LOG_START_OFFSETS
        if start is None:
            return
        with reading_given(self.log_dir):
            known = read_small(path, read_offset_checkpoint) or {}
        if known.get(restoration.topic_partition, -1) < start:
            attributes = replace(attributes_of(path if known else self.log_dir), mode=FILE_MODE, mtime_ns=None)
            content = write_offset_checkpoint({**known, restoration.topic_partition: start})
            write_file(self.disk, path, [content], attributes)

    def _make_durable(self, unfinished: Path) -> None:
        """Make the entries of the directory durable; the files are so already."""
        with writable(unfinished):
            self.disk.sync_directory(unfinished)

    def _publish(self, unfinished: Path, target: Path) -> None:
        with writable(target):
            self.disk.rename(unfinished, target)
            self.disk.sync_directory(self.log_dir)

    def _remove(self, folder: Path) -> None:
        """Remove what an unfinished run has left."""
        if not os.path.lexists(folder):
            return
        with writable(folder):
            if folder.is_symlink():  # the target of a link is not ours to clear
                self.disk.remove(folder)
            else:
                for path in folder.iterdir():
                    self.disk.remove(path)
                self.disk.remove_directory(folder)

    def _target(self, restoration: Restoration) -> Path:
        return self.log_dir / str(restoration.topic_partition)


def unfinished_name(topic_partition: TopicPartition, part: str = "") -> str:
    """Return the name of a directory under construction: to a broker, one that waits for deletion.

    ``part`` distinguishes further directories of the partition.
    """
    suffix = f".{uuid5(_NAMESPACE, str(topic_partition) + part).hex}-delete"
    number = f"-{topic_partition.partition}"
    return f"{topic_partition.topic[: _NAME_BYTES - len(number) - len(suffix)]}{number}{suffix}"


def _is_of(target: Path, restoration: Restoration) -> bool:
    """Whether a broker accepts ``target`` as a partition of the same topic: it sets aside one with another id."""
    if restoration.topic_id is None:
        return True
    with reading_given(target):
        found = read_small(target / PARTITION_METADATA, read_partition_metadata)
    return found is not None and found.topic_id == restoration.topic_id


def _are_there(target: Path, files: tuple[ShippedFile, ...], _: Flow) -> bool:
    return all(_is_there(target / file.name, file) for file in files)


def _run_check(check: Callable[[Path], None], folder: Path, _: Flow) -> None:
    check(folder)


def _is_there(path: Path, file: ShippedFile) -> bool:
    """Whether ``path`` has exactly the bytes of ``file``, which is read only if size and times do not decide."""
    found = digest_of_file(path)
    if found is None or found.size_bytes != file.size_bytes:
        return False
    if file.digest is not None:
        return found == file.digest
    with file.open() as chunks:
        return found == FileDigest.of_chunks(chunks)
