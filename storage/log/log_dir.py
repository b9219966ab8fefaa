"""A broker's log dir, listed: its partitions, what is not a partition, and what could not be read.

Source: ``LogManager.loadLogs``.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import is_there, legible, readable
from resnap.storage.errors import LogDirError, UsageError
from resnap.storage.log.names import DirKind, FileKind, parse_file_name, parse_partition_dir_name
from resnap.storage.log.partition_dir import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    Checkpoints,
    PartitionDir,
    read_partition_dir,
    read_small,
)
from resnap.storage.log.survey import (
    CLEAN_SHUTDOWN,
    LOG_DIR_MARKS,
    META_PROPERTIES,
    LogDir,
    SetAsideDir,
    Survey,
    dir_kind,
    live_partition,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.names import TopicPartition

_PARTITION_MARKS: Final = frozenset({LEADER_EPOCHS, PARTITION_METADATA})


class NoLogDirError(UsageError):
    """What was named as a log dir does not exist, or looks like nothing that is read as one."""


def open_log_dir_or_partition(path: Path, *, topics: Callable[[TopicPartition], bool] | None = None) -> LogDir:
    """Return the log dir at ``path``; where that is one partition's directory, the log dir above with it alone.

    A lone partition takes its values from the files of the directory above, where there are any.

    Raises:
        UsageError: nothing there, or neither of the two.
        LogDirError: the operating system does not let us read it.

    """
    path = path.absolute()
    if not is_there(path):
        hint = "check the spelling, and whether its disk is mounted; log.dirs names the right one"
        raise NoLogDirError(f"{path} does not exist", hint=hint)
    names = _names(path)
    if names.isdisjoint(LOG_DIR_MARKS):
        if _is_partition(names):
            return _load_lone_partition(path, topics)
        if not _holds_partitions(path, names):
            raise NoLogDirError(
                f"{path} is neither a Kafka log dir nor a partition's directory",
                hint="give an entry of the broker's log.dirs, with its disk mounted, or one <topic>-<partition> in it",
            )
    return load_log_dir(path, topics=topics)


def load_log_dir(path: Path, *, topics: Callable[[TopicPartition], bool] | None = None) -> LogDir:
    """Return what ``path``, an entry of ``log.dirs``, holds; of its partitions only those that ``topics`` wants.

    Raises:
        UsageError: no such directory.
        LogDirError: the operating system does not let us list it.

    """
    path = path.absolute()
    survey = Survey(path=path, fetch=partial(_content, path))
    with readable(path), os.scandir(path) as entries:
        listed = {entry.name: _is_dir(entry) for entry in entries}
    checkpoints = survey.read_checkpoints()
    for entry_name in sorted(name for name, is_dir in listed.items() if is_dir):
        name = parse_partition_dir_name(entry_name)
        kind = dir_kind(name)
        if name is None or kind is not DirKind.LIVE:
            survey.set_aside.append(SetAsideDir(path=path / entry_name, kind=kind))
        elif topics is None or topics(name.topic_partition):
            directory = path / entry_name
            survey.add_partition(directory, partial(load_partition_dir, directory, checkpoints=checkpoints))
    return survey.finish(clean_shutdown=CLEAN_SHUTDOWN in listed)


def load_partition_dir(path: Path, *, checkpoints: Checkpoints | None = None) -> PartitionDir:
    """Return what one partition's directory holds, with its values in ``checkpoints``; without them, all unknown.

    Raises:
        UsageError: no such directory, or its name is not that of a live partition.
        LogDirError: the operating system does not let us read it.
        FormatError: ``partition.metadata`` is damaged.

    """
    path = path.absolute()
    topic_partition = live_partition(path)
    with readable(path):
        return read_partition_dir(path, topic_partition, checkpoints or Checkpoints())


def _load_lone_partition(path: Path, topics: Callable[[TopicPartition], bool] | None) -> LogDir:
    topic_partition = live_partition(path)
    survey = Survey(path=path.parent, fetch=partial(_content, path.parent))
    if topics is None or topics(topic_partition):
        checkpoints = survey.read_checkpoints()
        survey.add_partition(path, partial(load_partition_dir, path, checkpoints=checkpoints))
    return survey.finish(clean_shutdown=is_there(path.parent / CLEAN_SHUTDOWN))


def _content(directory: Path, name: str) -> bytes | None:
    with readable(directory / name):
        return read_small(directory / name, bytes)


def _names(path: Path) -> set[str]:
    with readable(path), os.scandir(path) as entries:
        return {entry.name for entry in entries}


def _is_partition(names: set[str]) -> bool:
    """Whether the files are those of a log; snapshots alone are not a log, but files that were put aside."""
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
        return True  # a link to where we may not read: reading it says so, as a problem of this directory alone


def log_dir_around(path: Path) -> Path | None:
    """Return the broker's log dir that ``path``, which need not exist, lies in; None where it lies in none."""
    with legible(path):
        resolved = Path(os.path.realpath(path))
    return next((above for above in (resolved, *resolved.parents) if is_there(above / META_PROPERTIES)), None)
