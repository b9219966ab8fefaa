"""A broker's log dir, listed: its partitions, what is not a partition, and what could not be read.

Its values, and what puts them together, are the same for a directory and for a copy of one in a store.

The only files read are the small ones that speak for the whole: ``meta.properties`` and the offset checkpoints. One bad
directory or checkpoint must not hide the others: it becomes a ``PartitionProblem``, and what it would have said stays
unknown.

Source: ``LogManager.loadLogs``.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from resnap.storage.disk import is_there, reading, reading_given
from resnap.storage.errors import LogDirError, ResnapError, StoreError, UsageError, add_hint, in_file
from resnap.storage.log.checkpoints import read_offset_checkpoint
from resnap.storage.log.names import (
    CLUSTER_METADATA_TOPIC,
    DirKind,
    FileKind,
    is_unknown_directory,
    parse_file_name,
    parse_partition_dir_name,
    topic_name_problem,
)
from resnap.storage.log.partition_dir import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    Checkpoints,
    PartitionDir,
    Place,
    read_partition_dir,
    read_small,
)
from resnap.storage.log.properties import read_meta_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.storage.log.names import PartitionDirName, TopicPartition

META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
LOG_DIR_MARKS: Final = frozenset(
    {META_PROPERTIES, CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, CLEANER_OFFSETS}
)
"""Names of files that only a log dir has."""
_read_checkpoint = add_hint("it is this broker's own, and no other replica has it: a running broker writes it again")(
    read_offset_checkpoint
)
_T = TypeVar("_T")
_PARTITION_MARKS: Final = frozenset({LEADER_EPOCHS, PARTITION_METADATA})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProblem:
    """A partition's directory, or a file that speaks for the whole log dir, that could not be read; the rest was."""

    path: Place
    error: ResnapError
    topic_partition: TopicPartition | None = None
    """Which partition it is of; None where it is of the whole log dir."""


class Incomplete(NamedTuple):
    """A segment in a store that lacks an object which brokers need, and which they may know of."""

    topic_partition: TopicPartition
    base_offset: int
    missing_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """One entry of a broker's ``log.dirs``."""

    path: Place
    """Absolute."""
    cluster_id: str | None
    broker_id: int | None
    partitions: tuple[PartitionDir, ...]
    """The partitions by topic, then number."""
    set_aside: Mapping[str, DirKind]
    """The directories that are not partitions to work on, ascending by name."""
    unwanted: tuple[Path, ...] = ()
    """Directories of a broker's other partitions, which were not asked for and are not read."""
    unknown: tuple[Path, ...] = ()
    """Directories, and files in its partitions, with whose names a broker does not start."""
    clean_shutdown: bool
    """Whether the broker that was here was shut down cleanly; false while one runs."""
    problems: tuple[PartitionProblem, ...]
    incomplete: tuple[Incomplete, ...] = ()
    """In a store: segments that are in no partition, since nothing but an absent object would name them."""
    is_shipped: bool = False
    """Whether it is what Resnap has shipped, to which nothing is added but by shipping."""
    is_kraft: bool = False
    """Whether its broker runs without ZooKeeper, or is being migrated, as ``meta.properties`` says."""
    remote: str | None = None
    """URL of the remote storage whose segments its partitions have been joined with."""


@dataclass(slots=True, kw_only=True)
class Survey:
    """A ``LogDir`` in the making; mutable while it fills."""

    path: Place
    fetch: Callable[[str], bytes | None]
    """Gives the content of a file of the log dir by its name; None where there is none."""
    partitions: list[PartitionDir] = field(default_factory=list)
    set_aside: dict[str, DirKind] = field(default_factory=dict)
    unwanted: list[Path] = field(default_factory=list)
    problems: list[PartitionProblem] = field(default_factory=list)

    def read(self, name: str, read: Callable[[bytes], _T]) -> _T | None:
        """Return what ``read`` makes of the file ``name``; None where there is none, or it became a problem.

        Raises:
            LogDirError, StoreError: it is there, and cannot be read.

        """
        path = self.path / name
        try:
            content = self.fetch(name)
            with in_file(str(path)):
                return None if content is None else read(content)
        except (StoreError, LogDirError):
            raise  # it may say that a topic is compacted, where its log starts, or whose log it is
        except ResnapError as error:
            self.problems.append(PartitionProblem(path=path, error=error))
            return None

    def read_checkpoints(self) -> Checkpoints:
        """Return what the four offset checkpoints say; a damaged one says nothing."""
        return Checkpoints(
            high_watermarks=self.read(HIGH_WATERMARKS, _read_checkpoint) or {},
            log_start_offsets=self.read(LOG_START_OFFSETS, _read_checkpoint) or {},
            recovery_points=self.read(RECOVERY_POINTS, _read_checkpoint) or {},
            cleaner_offsets=self.read(CLEANER_OFFSETS, _read_checkpoint) or {},
        )

    def add_partition(self, path: Place, load: Callable[[], PartitionDir]) -> None:
        """Add what ``load`` finds at ``path``; nothing, where it was deleted or renamed since it was listed."""
        try:
            self.partitions.append(load())
        except StoreError:
            raise
        except UsageError:
            return
        except ResnapError as error:
            name = parse_partition_dir_name(path.name)
            of = None if name is None else name.topic_partition
            self.problems.append(PartitionProblem(path=path, error=error, topic_partition=of))

    def finish(self, *, clean_shutdown: bool) -> LogDir:
        """Return the whole."""
        meta = self.read(META_PROPERTIES, read_meta_properties)
        return LogDir(
            path=self.path,
            cluster_id=meta.cluster_id if meta else None,
            broker_id=meta.node_id if meta else None,
            partitions=tuple(sorted(self.partitions, key=lambda partition: partition.topic_partition)),
            set_aside=self.set_aside,
            unwanted=tuple(self.unwanted) if meta else (),
            unknown=tuple(self._unknown_paths()),
            clean_shutdown=clean_shutdown,
            problems=tuple(self.problems),
            # A migration from ZooKeeper, and nothing else, leaves version 0 with an id of the directory.
            is_kraft=meta is not None and (meta.version > 0 or meta.directory_id is not None),
        )

    def _unknown_paths(self) -> Iterator[Path]:
        if isinstance(self.path, Path):
            yield from (self.path / name for name in self.set_aside if is_unknown_directory(name))
            for partition in self.partitions:
                yield from (self.path / partition.path.name / name for name in partition.unknown)


def dir_kind(name: PartitionDirName | None) -> DirKind:
    """Return what a directory of this name is to the broker."""
    if name is None:
        return DirKind.NOT_A_LOG
    if name.kind is DirKind.LIVE and name.topic == CLUSTER_METADATA_TOPIC:
        return DirKind.METADATA
    return name.kind


def live_partition(path: Place) -> TopicPartition:
    """Return what the name of the directory at ``path`` says.

    Raises:
        UsageError: it is not that of a live partition.

    """
    name = parse_partition_dir_name(path.name)
    kind = dir_kind(name)
    if name is None:
        raise UsageError(
            f"the name of {path} is not that of a partition", hint="name it <topic>-<partition>, as the broker had done"
        )
    if kind is not DirKind.LIVE:
        raise UsageError(
            f"{path} is not a partition to work on, but set aside by Kafka ({kind})",
            hint="give a directory named <topic>-<partition>, or the log dir",
        )
    return name.topic_partition


class NoLogDirError(UsageError):
    """What was named as a log dir does not exist, or looks like nothing that is read as one."""


def open_log_dir_or_partition(path: Path, *, topics: Callable[[TopicPartition], bool] | None = None) -> LogDir:
    """Return the log dir at ``path``; where that is one partition's directory, the log dir above with it alone.

    A lone partition takes its values from the files of the directory above, where there are any.

    Raises:
        UsageError: nothing there, or neither of the two.
        LogDirError: the operating system does not let us read it.

    """
    is_word, path = path.name == str(path), path.absolute()
    if not is_there(path):
        hint = "check the spelling, and whether its disk is mounted; log.dirs names the right one"
        if is_there(path.with_name(f"{path.name}-0")):
            hint = f"for all partitions of this topic give {path.parent} with --topic {path.name}"
        elif is_word and topic_name_problem(path.name) is None:
            hint = f"{hint}; a topic is chosen by --topic {path.name}"
        raise NoLogDirError(f"{path} does not exist", hint=hint)
    names = _names(path)
    if names.isdisjoint(LOG_DIR_MARKS):
        if _is_partition(names):
            return _load_lone_partition(path, topics)
        if not _holds_partitions(path, names):
            raise NoLogDirError(
                f"{path} is neither a Kafka log dir nor a partition's directory",
                hint="give an entry of the broker's log.dirs, with its disk mounted, or one <topic>-<partition> in it;"
                f" a store is given as a URL, which of this directory is {path.as_uri()}",
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
    listed = _list_names(path)
    checkpoints = survey.read_checkpoints()
    wanted = _select_wanted(survey, listed, lambda name: topics is None or topics(name.topic_partition))
    for directory in wanted:
        survey.add_partition(directory, partial(load_partition_dir, directory, checkpoints=checkpoints))
    return survey.finish(clean_shutdown=CLEAN_SHUTDOWN in listed)


def _select_wanted(survey: Survey, listed: Mapping[str, bool], wants: Callable[[PartitionDirName], bool]) -> list[Path]:
    """Return the directories of wanted partitions; the others come into ``survey``. ``listed``: whether each is one."""
    wanted: list[Path] = []
    for entry_name in sorted(name for name, is_dir in listed.items() if is_dir):
        name = parse_partition_dir_name(entry_name)
        kind = dir_kind(name)
        if name is None or kind is not DirKind.LIVE:
            survey.set_aside[entry_name] = kind
        else:
            (wanted if wants(name) else survey.unwanted).append(Path(str(survey.path), entry_name))
    return wanted


def load_topic(path: Path, topic: str) -> LogDir:
    """Return the partitions of one topic in ``path``, an entry of ``log.dirs``; nothing else there is read.

    So what checkpoints and ``meta.properties`` say is unknown. Raises as ``load_log_dir`` does.
    """
    path = path.absolute()
    survey = Survey(path=path, fetch=lambda _: None)
    for entry_name in sorted(name for name in _names(path) if name.startswith(f"{topic}-")):
        if dir_kind(parse_partition_dir_name(entry_name)) is DirKind.LIVE:
            survey.add_partition(path / entry_name, partial(load_partition_dir, path / entry_name))
    return survey.finish(clean_shutdown=False)


def load_partition_dir(path: Path, *, checkpoints: Checkpoints | None = None) -> PartitionDir:
    """Return what one partition's directory holds, with its values in ``checkpoints``; without them, all unknown.

    Raises:
        UsageError: no such directory, or its name is not that of a live partition.
        LogDirError: the operating system does not let us read it.
        FormatError: ``partition.metadata`` is damaged.

    """
    path = path.absolute()
    topic_partition = live_partition(path)
    with reading_given(path):
        return read_partition_dir(path, topic_partition, checkpoints or Checkpoints())


def _load_lone_partition(path: Path, topics: Callable[[TopicPartition], bool] | None) -> LogDir:
    topic_partition = live_partition(path)
    survey = Survey(path=path.parent, fetch=partial(_content, path.parent))
    with suppress(LogDirError):  # its broker may read the directory above, and we the partition alone
        _select_wanted(survey, {name: is_dir for name, is_dir in _list_names(path.parent).items() if name != path.name},
                  lambda _: False)  # fmt: skip
    if topics is None or topics(topic_partition):
        checkpoints = survey.read_checkpoints()
        survey.add_partition(path, partial(load_partition_dir, path, checkpoints=checkpoints))
    return survey.finish(clean_shutdown=is_there(path.parent / CLEAN_SHUTDOWN))


def _content(directory: Path, name: str) -> bytes | None:
    with reading_given(directory / name):
        return read_small(directory / name, bytes)


def _list_names(path: Path) -> dict[str, bool]:
    """Return the names in a directory, and which of them are directories."""
    with reading_given(path), os.scandir(path) as entries:
        return {entry.name: _is_dir(entry) for entry in entries}


def _names(path: Path) -> set[str]:
    with reading_given(path):
        return set(os.listdir(path))  # noqa: PTH208 - it makes no value of each name


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
    """Return the broker's log dir that ``path``, which need not exist, is in; None where it is in none.

    A directory that we may not enter counts as none: nothing can be written below it.
    """
    with reading(path):
        resolved = Path(os.path.realpath(path))
    return next(filter(_has_meta_properties, (resolved, *resolved.parents)), None)


def _has_meta_properties(directory: Path) -> bool:
    with reading(directory):
        try:
            return (directory / META_PROPERTIES).exists()
        except PermissionError:
            return False


def most_of_a_broker(log_dirs: Iterable[LogDir]) -> int:
    """Return how many of ``log_dirs`` are of one broker, at the most."""
    different = {(log_dir.broker_id, log_dir.path) for log_dir in log_dirs}
    return max(Counter(broker for broker, _ in different).values(), default=0)
