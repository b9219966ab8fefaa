"""The layout ``mirror``: a plain copy of a log dir in a store, as any file copying tool makes it.

    <topic>-<partition>/<base offset, 20 digits>.log (and the other files of a partition's directory)
    meta.properties, replication-offset-checkpoint, ... where they were copied

relative to the prefix. One listing gives names, sizes and times; the times are those of the copying. As in a log dir,
the last segment of a partition counts as active: its copy may end anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

from resnap.storage.errors import ObjectNotFoundError, in_file
from resnap.storage.log.log_dir import CLEAN_SHUTDOWN, LOG_DIR_MARKS, LogDir, Survey, dir_kind
from resnap.storage.log.names import DirKind, StorePath, is_segment_name, parse_partition_dir_name
from resnap.storage.log.partition_dir import PARTITION_METADATA, partition_of_files
from resnap.storage.log.properties import read_partition_metadata
from resnap.storage.readers import FileFacts
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class Mirror:
    """A plain copy of a log dir."""

    folders: ClassVar = 1
    """The folder of a partition, which may be given alone."""
    is_plain_copy: ClassVar = True

    def is_key(self, key: str) -> bool:
        """Whether ``key`` is a file of a log dir: of a partition's segment, or one that only a log dir has."""
        directory, slash, name = key.rpartition("/")
        if not slash:
            return name in LOG_DIR_MARKS
        return parse_partition_dir_name(directory) is not None and is_segment_name(name)

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",  # noqa: ARG002 - what was listed is there
        topic_ids: Mapping[str, str] | None = None,  # noqa: ARG002 - a log dir has one topic of a name
    ) -> LogDir:
        """Return the log dir that the objects ``listed`` of ``store``, in order of key, make."""
        root = StorePath(store.url)
        survey = Survey(path=root, fetch=partial(_content, store))
        checkpoints = survey.read_checkpoints()
        found: list[tuple[PartitionDir, bool]] = []  # and whether a file with its topic id exists
        clean_shutdown = False
        for directory, infos in groupby(listed, key=lambda info: info.key.partition("/")[0]):
            files = dict(_files(directory, infos))
            name = parse_partition_dir_name(directory)
            kind = dir_kind(name)
            clean_shutdown = clean_shutdown or directory == CLEAN_SHUTDOWN
            if not files:
                continue
            if name is None or kind is not DirKind.LIVE:
                survey.set_aside[directory] = kind
            elif topics is None or topics(name.topic_partition):
                partition = partition_of_files(root / directory, name.topic_partition, files, files.get, checkpoints)
                found.append((partition, PARTITION_METADATA in files))
        _add_all(survey, store, found)
        return survey.finish(clean_shutdown=clean_shutdown)


def _files(directory: str, infos: Iterable[ObjectInfo]) -> Iterator[tuple[str, FileFacts]]:
    """Yield the files right below ``directory`` by name."""
    for info in infos:
        name = info.key.removeprefix(f"{directory}/")
        if name != info.key and "/" not in name:
            yield name, FileFacts(info.size_bytes, info.modified_ms * 1_000_000, 0)


def _add_all(survey: Survey, store: ObjectStore, found: Sequence[tuple[PartitionDir, bool]]) -> None:
    """Give the partitions their topic ids, and add them; a damaged file makes its partition a problem."""
    contents = each(
        lambda one: _content(store, f"{one[0].path.name}/{PARTITION_METADATA}") if one[1] else None,
        found,
        remote=True,
    )
    for (partition, _), content in zip(found, contents, strict=True):
        survey.add_partition(partition.path, partial(_with_topic_id, partition, content))


def _with_topic_id(partition: PartitionDir, content: bytes | None) -> PartitionDir:
    if content is None:
        return partition
    with in_file(str(partition.path / PARTITION_METADATA)):
        return replace(partition, topic_id=read_partition_metadata(content).topic_id)


def _content(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectNotFoundError:
        return None
