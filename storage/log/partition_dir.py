"""Lists one partition's directory as frozen values: its segments and snapshots, without reading any of them.

One listing, one ``stat`` per file, and the content of ``partition.metadata``. A live broker may roll and delete
segments at the same time, so a file that vanishes between the listing and its ``stat`` counts as not listed.

Source: ``LogLoader``.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from resnap.storage.errors import in_file
from resnap.storage.log.names import (
    FileKind,
    FileState,
    StorePath,
    TopicPartition,
    is_unknown_file,
    parse_file_name,
)
from resnap.storage.log.properties import read_partition_metadata
from resnap.storage.packed import pack_all
from resnap.storage.readers import FileFacts
from resnap.storage.whole_file import read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
_STATES_OF_A_LOG: Final = ("", ".deleted", ".swap", ".cleaned")

Place: TypeAlias = Path | StorePath
"""The path of a directory in this machine's file system, or the front of its keys in a store."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One ``.log`` file, with the lengths of the index files beside it."""

    base_offset: int
    next_base_offset: int | None
    """Base offset of the segment after this one, where this one ends; None for the active segment."""
    path: str
    """Locator of the ``.log`` file, as ``Sources`` opens it."""
    size_bytes: int
    mtime_ns: int
    """When the file was last written; for an object, when it was written into its store."""
    inode: int
    """0 of an object."""
    index_bytes: int | None
    """None without the file; so for the other two."""
    timeindex_bytes: int | None
    txnindex_bytes: int | None
    transaction_index: str | None = None
    """Locator of that file, where it is not beside the ``.log`` file under the same name."""
    manifest: str | None = None
    """Locator of the manifest that names it, if Resnap shipped it."""

    @property
    def is_active(self) -> bool:
        """Whether this is the last segment, the one that a broker appends to."""
        return self.next_base_offset is None

    def sibling(self, suffix: str) -> str:
        """Return the locator of this segment's other file with ``suffix``, given without a leading dot."""
        if suffix == FileKind.TXNINDEX and self.transaction_index is not None:
            return self.transaction_index
        return f"{self.path.removesuffix('.log')}.{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """One ``.snapshot`` file, unread."""

    offset: int
    """It claims the producers' state before this offset."""
    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDir:
    """One partition directory; a partition without any segment is legal."""

    path: Place
    topic_partition: TopicPartition
    segments: Sequence[Segment]
    """Ascending; the last is the active one, save for what has been shipped, of which all are closed."""
    snapshots: Sequence[SnapshotFile]
    """Ascending, including those that are not at a segment's base offset."""
    unfinished: tuple[str, ...]
    """Names of ``.swap`` and ``.cleaned`` files: while there are any, the directory is in the middle of a change."""
    deleted: int
    """How many ``.deleted`` files wait for their removal."""
    leader_epochs: str | None
    """Locator of the checkpoint of leader epochs, where there is one."""
    topic_id: str | None
    high_watermark: int | None
    log_start_offset: int
    """From the checkpoint, where it lists this partition, else the first base offset; 0 without a segment."""
    recovery_point: int | None
    cleaner_offset: int | None
    """Up to here the log has been compacted; None where the cleaner never was."""
    local_from: int | None = None
    """Base offset of the first segment in the directory itself, where those below are in remote storage; else None."""
    without_log: tuple[int, ...] = ()
    """Base offsets, ascending, that have only indexes left; empty for a directory without a segment."""
    stray: str | None = None
    """Why a broker of KRaft takes the directory for a stray one when it starts; None if it does not."""
    unknown: tuple[str, ...] = ()
    """Names of files with which a broker does not start."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Next base offsets of all closed segments, ascending: the offsets at which tiering needs a snapshot."""
        ends = (segment.next_base_offset for segment in self.segments)
        return tuple(end for end in ends if end is not None)

    @property
    def is_remote(self) -> bool:
        """Whether the partition, or a part of it, is in a store."""
        return isinstance(self.path, StorePath) or self.local_from is not None

    def ending_at(self, offset: int) -> PartitionDir:
        """Return this partition with its last segment closed at ``offset``, the log end of a stopped broker."""
        closed = replace(self.segments[-1], next_base_offset=offset)
        return replace(self, segments=(*self.segments[:-1], closed))

    def is_local(self, offset: int) -> bool:
        """Whether ``offset``, a base or end offset of a segment, belongs to the directory itself."""
        return self.local_from is None or offset >= self.local_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The offset checkpoints of a log dir; each may omit a partition."""

    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    recovery_points: Mapping[TopicPartition, int] = field(default_factory=dict)
    cleaner_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class _FilesByKind:
    """A partition directory's files by kind; mutable while it is filled."""

    live: dict[FileKind, dict[int, str]] = field(default_factory=lambda: {kind: {} for kind in FileKind})
    """File names by kind and offset."""
    unfinished: list[str] = field(default_factory=list)
    deleted: int = 0
    others: set[str] = field(default_factory=set)


def read_partition_dir(path: Path, topic_partition: TopicPartition, checkpoints: Checkpoints) -> PartitionDir:
    """Return the content of the directory at ``path``, with its values in ``checkpoints``.

    Raises:
        OSError: the directory, or a file in it, cannot be read; ``reading_given`` turns it into an error of ours.
        FormatError: ``partition.metadata`` is damaged.

    """
    with _open_directory(path) as directory:
        names = os.listdir(directory)  # noqa: PTH208 - by its descriptor
        partition = partition_of_files(path, topic_partition, names, partial(_status, directory), checkpoints)
    if PARTITION_METADATA not in names:
        return partition
    metadata = read_small(path / PARTITION_METADATA, read_partition_metadata)
    return replace(partition, topic_id=metadata.topic_id if metadata else None)


def partition_of_files(
    path: Place,
    topic_partition: TopicPartition,
    names: Iterable[str],
    facts_of: Callable[[str], FileFacts | None],
    checkpoints: Checkpoints,
) -> PartitionDir:
    """Return the partition that the files of the given ``names`` at ``path`` make; its topic id stays unknown.

    ``facts_of`` returns the current facts of a file, None if it vanished since it was listed.
    """
    listing = _list_by_kind(names)
    segments = pack_all(tuple(_segments(path, facts_of, listing.live))[::-1], "base_offset")
    snapshots = pack_all(_snapshots(path, facts_of, listing.live[FileKind.SNAPSHOT]), "offset")
    first_base_offset = segments[0].base_offset if segments else 0
    return PartitionDir(
        path=path,
        topic_partition=topic_partition,
        segments=segments,
        snapshots=snapshots,
        unfinished=tuple(sorted(listing.unfinished)),
        deleted=listing.deleted,
        leader_epochs=f"{path}/{LEADER_EPOCHS}" if LEADER_EPOCHS in listing.others else None,
        topic_id=None,
        high_watermark=checkpoints.high_watermarks.get(topic_partition),
        log_start_offset=checkpoints.log_start_offsets.get(topic_partition, first_base_offset),
        recovery_point=checkpoints.recovery_points.get(topic_partition),
        cleaner_offset=checkpoints.cleaner_offsets.get(topic_partition),
        without_log=_without_log(
            facts_of, listing.live, segments, checkpoints.log_start_offsets.get(topic_partition, -1)
        ),
        unknown=tuple(name for name in sorted(listing.others) if is_unknown_file(name) and facts_of(name) is not None),
    )


def _without_log(
    facts_of: Callable[[str], FileFacts | None],
    live: Mapping[FileKind, Mapping[int, str]],
    segments: Sequence[Segment],
    log_start_offset: int,
) -> tuple[int, ...]:
    """Return base offsets, ascending, that have an index but no log, which no broker leaves so.

    A broker creates the log before its indexes, and to delete a segment renames the log first. So logs that it created
    or renamed since the listing are checked once more. Segments below the log start offset are not expected.
    """
    indexes = {**live[FileKind.TIMEINDEX], **live[FileKind.INDEX]}
    orphans = sorted(indexes.keys() - live[FileKind.LOG].keys()) if segments else ()
    return tuple(
        offset
        for offset in orphans
        if max(offset, log_start_offset) < segments[0].base_offset or offset > segments[0].base_offset
        if not any(facts_of(f"{indexes[offset].split('.')[0]}.log{state}") for state in _STATES_OF_A_LOG)
        and facts_of(indexes[offset]) is not None
    )


@contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    """Hold the directory open: ``stat`` by its descriptor is faster than by a whole path."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield directory
    finally:
        os.close(directory)


def _list_by_kind(names: Iterable[str]) -> _FilesByKind:
    """Return the files of the given ``names``, by kind."""
    listing = _FilesByKind()
    for name in names:
        file = parse_file_name(name)
        if file is None:
            listing.others.add(name)
        elif file.state is FileState.LIVE:
            listing.live[file.kind][file.offset] = name
        elif file.state is FileState.DELETED:
            listing.deleted += 1
        elif file.state is not FileState.TMP:
            listing.unfinished.append(name)
    return listing


def _segments(
    path: Place, facts_of: Callable[[str], FileFacts | None], live: Mapping[FileKind, Mapping[int, str]]
) -> Iterator[Segment]:
    """Yield the segments that still exist, the highest base offset first.

    Retention deletes from the lowest offset up. Going downward after the listing, an existing segment has an existing
    neighbour above, so a concurrent deletion leaves no gap. A log that vanished from the middle still ends the segment
    below it; if the last ones vanished, the segment below them is now the active one.
    """
    logs, next_base_offset = live[FileKind.LOG], None
    for base_offset in sorted(logs, reverse=True):
        status = facts_of(logs[base_offset])
        if status is None and next_base_offset is None:
            continue
        if status is not None:
            yield Segment(
                base_offset=base_offset,
                next_base_offset=next_base_offset,
                path=f"{path}/{logs[base_offset]}",
                size_bytes=status.size_bytes,
                mtime_ns=status.mtime_ns,
                inode=status.inode,
                index_bytes=_size(facts_of, live[FileKind.INDEX].get(base_offset)),
                timeindex_bytes=_size(facts_of, live[FileKind.TIMEINDEX].get(base_offset)),
                txnindex_bytes=_size(facts_of, live[FileKind.TXNINDEX].get(base_offset)),
            )
        next_base_offset = base_offset


def _snapshots(
    path: Place, facts_of: Callable[[str], FileFacts | None], names: Mapping[int, str]
) -> Iterator[SnapshotFile]:
    for offset in sorted(names):
        status = facts_of(names[offset])
        if status is not None:
            yield SnapshotFile(
                offset=offset,
                path=f"{path}/{names[offset]}",
                size_bytes=status.size_bytes,
                mtime_ns=status.mtime_ns,
            )


def _size(facts_of: Callable[[str], FileFacts | None], name: str | None) -> int | None:
    status = facts_of(name) if name is not None else None
    return status.size_bytes if status else None


def _status(directory: int, name: str) -> FileFacts | None:
    """Return the current status of a file; None if it vanished, or is not a file.

    Raises:
        OSError: it is named like a log but is not a file. It may hold a part of the partition on a disk that is not
            mounted.

    """
    status = _status_of_any(directory, name)
    if status is None or stat.S_ISREG(status.st_mode):
        return None if status is None else FileFacts(status.st_size, status.st_mtime_ns, status.st_ino)
    file = parse_file_name(name)
    if file is not None and file.kind is FileKind.LOG:
        raise OSError(errno.EINVAL, "not a regular file", name)
    return None


def _status_of_any(directory: int, name: str) -> os.stat_result | None:
    """Return the status of what a name, or the link there, leads to, or of a broken link; None for nothing."""
    try:
        return os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        with suppress(FileNotFoundError):
            return os.lstat(name, dir_fd=directory)
    return None


def read_small(path: Path, read: Callable[[bytes], _T]) -> _T | None:
    """Return ``read`` of a file's content; None if there is no file."""
    try:
        content = read_whole(path)
    except FileNotFoundError:
        return None
    with in_file(path):
        return read(content)
