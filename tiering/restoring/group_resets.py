"""The committed offsets of groups, as files that ``kafka-consumer-groups.sh --reset-offsets --from-file`` takes.

An offset above the end of what was restored is cut to that end: the records from there on are lost, and new ones will
have these offsets. Offsets of topics that were not restored, or that are not the same by their ids, are left out.

Source: ``ConsumerGroupCommand``, ``CsvUtils.CsvRecordNoGroup``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.disk import writable, write_file
from resnap.storage.stores.protocol import key_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.storage.disk import Disk
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster_state.group_offsets import GroupOffsets

SCRIPT: Final = "reset-offsets.sh"
_HEAD: Final = """#!/bin/sh
# Sets the offsets of all groups: sh {script} HOST:PORT [further options of kafka-consumer-groups.sh]
set -e
cd "$(dirname "$0")"
"""


class Cut(NamedTuple):
    """A committed offset above the end of what was restored."""

    group: str
    topic_partition: TopicPartition
    committed: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReset:
    """The offsets that a group gets."""

    group: str
    offsets: Mapping[TopicPartition, int]
    cut: tuple[Cut, ...]

    @property
    def file_name(self) -> str:
        """The name of its file; groups have names that a file cannot have."""
        return f"{key_part(self.group or None)}.csv"

    def lines(self) -> Iterator[bytes]:
        """Yield the content of its file."""
        for partition, offset in self.offsets.items():
            yield f"{partition.topic},{partition.partition},{offset}\n".encode()


def group_resets(groups: GroupOffsets, ends: Mapping[TopicPartition, int]) -> list[GroupReset]:
    """Return what each group gets in the partitions of ``ends``, with their log ends; others are left out."""
    resets = []
    for group, committed in groups.items():
        there = {partition: found.offset for partition, found in committed.items() if partition in ends}
        if there:
            cut = [
                Cut(group, partition, offset, ends[partition])
                for partition, offset in there.items()
                if offset > ends[partition]
            ]
            offsets = {partition: min(offset, ends[partition]) for partition, offset in there.items()}
            resets.append(GroupReset(group=group, offsets=offsets, cut=tuple(cut)))
    return resets


def write_resets(resets: Sequence[GroupReset], directory: Path, disk: Disk) -> None:
    """Write a file for each group into ``directory``, and a script that gives each to Kafka's tool.

    Raises:
        LogDirError: they cannot be written.

    """
    with writable(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for reset in resets:
        write_file(disk, directory / reset.file_name, reset.lines())
    write_file(disk, directory / SCRIPT, _script(resets))


def _script(resets: Sequence[GroupReset]) -> Iterator[bytes]:
    yield _HEAD.format(script=SCRIPT).encode()
    for reset in resets:
        named = shlex.join(["--group", reset.group, "--reset-offsets", "--from-file", reset.file_name, "--execute"])
        yield f'kafka-consumer-groups.sh --bootstrap-server "$@" {named}\n'.encode()
