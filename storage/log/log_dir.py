"""A broker's log dir as frozen values: its partitions, what is no partition, and what could not be read.

The only files opened are the small ones that speak for the whole: ``meta.properties`` and the offset checkpoints. One
bad directory or checkpoint must not hide the others: it becomes a ``PartitionProblem``, and what it would have told
stays unknown.

Source: ``LogManager.loadLogs``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from storage.errors import LogDirError, ResnapError, UsageError
from storage.log.checkpoints import read_offset_checkpoint
from storage.log.names import CLUSTER_METADATA_TOPIC, DirKind, FileKind, parse_file_name, parse_partition_dir_name
from storage.log.partition_dir import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    Checkpoints,
    PartitionDir,
    Segment,
    SnapshotFile,
    read_partition_dir,
    read_small,
    readable,
)
from storage.log.properties import read_meta_properties

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from storage.log.names import PartitionDirName, TopicPartition

__all__ = [
    "Checkpoints",
    "LogDir",
    "PartitionDir",
    "PartitionProblem",
    "Segment",
    "SetAsideDir",
    "SnapshotFile",
    "load_log_dir",
    "load_partition_dir",
    "open_log_dir_or_partition",
]

META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

_LOG_DIR_MARKS: Final = frozenset(
    {META_PROPERTIES, CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, CLEANER_OFFSETS}
)
_PARTITION_MARKS: Final = frozenset({LEADER_EPOCHS, PARTITION_METADATA})
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideDir:
    """A directory of the log dir that is no partition to work on."""

    path: Path
    kind: DirKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProblem:
    """A partition's directory, or a file that speaks for the whole log dir, that could not be read; the rest was."""

    path: Path
    error: ResnapError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """One entry of a broker's ``log.dirs``."""

    path: Path
    """Absolute."""
    cluster_id: str | None
    broker_id: int | None
    partitions: tuple[PartitionDir, ...]
    """By topic, then partition."""
    set_aside: tuple[SetAsideDir, ...]
    """By name."""
    clean_shutdown: bool
    """Whether the broker that was here stopped in order; false while one runs."""
    problems: tuple[PartitionProblem, ...]


@dataclass(slots=True, kw_only=True)
class _Survey:
    """A ``LogDir`` in the making; mutable while it fills."""

    path: Path
    partitions: list[PartitionDir] = field(default_factory=list)
    set_aside: list[SetAsideDir] = field(default_factory=list)
    problems: list[PartitionProblem] = field(default_factory=list)

    def read(self, name: str, read: Callable[[bytes], _T]) -> _T | None:
        """Return what ``read`` makes of the file ``name``; None where there is none, or it became a problem."""
        path = self.path / name
        try:
            with readable(path):
                return read_small(path, read)
        except ResnapError as error:
            self.problems.append(PartitionProblem(path=path, error=error))
            return None

    def read_checkpoints(self) -> Checkpoints:
        """Return what the four offset checkpoints say; a damaged one says nothing."""
        return Checkpoints(
            high_watermarks=self.read(HIGH_WATERMARKS, read_offset_checkpoint) or {},
            log_start_offsets=self.read(LOG_START_OFFSETS, read_offset_checkpoint) or {},
            recovery_points=self.read(RECOVERY_POINTS, read_offset_checkpoint) or {},
            cleaner_offsets=self.read(CLEANER_OFFSETS, read_offset_checkpoint) or {},
        )

    def add_partition(self, path: Path, topic_partition: TopicPartition, checkpoints: Checkpoints) -> None:
        """Add what the directory at ``path`` holds; nothing, where it was deleted or renamed since it was listed."""
        try:
            with readable(path):
                self.partitions.append(read_partition_dir(path, topic_partition, checkpoints))
        except UsageError:
            return
        except ResnapError as error:
            self.problems.append(PartitionProblem(path=path, error=error))

    def finish(self, *, clean_shutdown: bool) -> LogDir:
        """Return the whole."""
        meta = self.read(META_PROPERTIES, read_meta_properties)
        return LogDir(
            path=self.path,
            cluster_id=meta.cluster_id if meta else None,
            broker_id=meta.node_id if meta else None,
            partitions=tuple(sorted(self.partitions, key=lambda partition: partition.topic_partition)),
            set_aside=tuple(self.set_aside),
            clean_shutdown=clean_shutdown,
            problems=tuple(self.problems),
        )


def open_log_dir_or_partition(path: Path, *, topics: Callable[[TopicPartition], bool] | None = None) -> LogDir:
    """Return the log dir at ``path``; where that is one partition's directory, the log dir above with it alone.

    A lone partition takes its values from the files of the directory above, where there are any.

    Raises:
        UsageError: nothing there, or neither of the two.
        LogDirError: the operating system does not let us look.

    """
    path = path.absolute()
    names = _names(path)
    if names.isdisjoint(_LOG_DIR_MARKS):
        if _is_partition(names):
            return _load_lone_partition(path, topics)
        if not _holds_partitions(path, names):
            raise UsageError(
                f"{path} is neither a Kafka log dir nor a partition's directory",
                hint="give an entry of the broker's log.dirs, or one <topic>-<partition> directory in it",
            )
    return load_log_dir(path, topics=topics)


def load_log_dir(path: Path, *, topics: Callable[[TopicPartition], bool] | None = None) -> LogDir:
    """Return what ``path``, an entry of ``log.dirs``, holds; of its partitions only those that ``topics`` wants.

    Raises:
        UsageError: no such directory.
        LogDirError: the operating system does not let us list it.

    """
    survey = _Survey(path=path.absolute())
    with readable(path), os.scandir(path) as entries:
        listed = {entry.name: _is_dir(entry) for entry in entries}
    checkpoints = survey.read_checkpoints()
    for directory in (survey.path / name for name in sorted(listed) if listed[name]):
        name = parse_partition_dir_name(directory.name)
        kind = _kind(name)
        if name is None or kind is not DirKind.LIVE:
            survey.set_aside.append(SetAsideDir(path=directory, kind=kind))
        elif topics is None or topics(name.topic_partition):
            survey.add_partition(directory, name.topic_partition, checkpoints)
    return survey.finish(clean_shutdown=CLEAN_SHUTDOWN in listed)


def load_partition_dir(path: Path, *, checkpoints: Checkpoints | None = None) -> PartitionDir:
    """Return what one partition's directory holds, with its values in ``checkpoints``; without them, all unknown.

    Raises:
        UsageError: no such directory, or its name is not that of a live partition.
        LogDirError: the operating system does not let us look.
        FormatError: ``partition.metadata`` is damaged.

    """
    path = path.absolute()
    topic_partition = _live_partition(path)
    with readable(path):
        return read_partition_dir(path, topic_partition, checkpoints or Checkpoints())


def _load_lone_partition(path: Path, topics: Callable[[TopicPartition], bool] | None) -> LogDir:
    topic_partition = _live_partition(path)
    survey = _Survey(path=path.parent)
    if topics is None or topics(topic_partition):
        survey.add_partition(path, topic_partition, survey.read_checkpoints())
    return survey.finish(clean_shutdown=(path.parent / CLEAN_SHUTDOWN).exists())


def _live_partition(path: Path) -> TopicPartition:
    name = parse_partition_dir_name(path.name)
    kind = _kind(name)
    if name is None:
        raise UsageError(
            f"the name of {path} tells no partition", hint="name it <topic>-<partition>, as the broker had done"
        )
    if kind is not DirKind.LIVE:
        raise UsageError(
            f"{path} is not a partition to work on, but set aside by Kafka ({kind})",
            hint="give a directory named <topic>-<partition>, or the log dir",
        )
    return name.topic_partition


def _kind(name: PartitionDirName | None) -> DirKind:
    if name is None:
        return DirKind.NOT_A_LOG
    if name.kind is DirKind.LIVE and name.topic == CLUSTER_METADATA_TOPIC:
        return DirKind.METADATA
    return name.kind


def _names(path: Path) -> set[str]:
    with readable(path), os.scandir(path) as entries:
        return {entry.name for entry in entries}


def _is_partition(names: set[str]) -> bool:
    """Whether the files are those of a log; snapshots alone are no log, but what somebody put aside."""
    files = map(parse_file_name, names)
    return not names.isdisjoint(_PARTITION_MARKS) or any(
        file is not None and file.kind is FileKind.LOG for file in files
    )


def _holds_partitions(path: Path, names: set[str]) -> bool:
    """Whether, in a directory without a broker's own files, at least one partition's directory is one by content."""
    for name in filter(parse_partition_dir_name, names):
        try:
            if _is_partition(_names(path / name)):
                return True
        except UsageError:
            continue
        except LogDirError:
            return True  # shaped like one and closed to us: loading it says so
    return False


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True  # a link to where we may not look: reading it says so, as a problem of this directory alone
