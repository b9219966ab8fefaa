"""From the SOURCE arguments of a command to the partitions it works on."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from storage.errors import UsageError
from storage.log.log_dir import META_PROPERTIES, open_log_dir_or_partition
from storage.remote.urls import is_store_url
from tiering.inventory import take_inventory

if TYPE_CHECKING:
    from storage.log.log_dir import LogDir, PartitionProblem
    from storage.log.names import TopicPartition
    from tiering.inventory import PartitionInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a command was pointed at."""

    sources: tuple[str, ...]
    topics: tuple[str, ...] = ()
    """Globs; all topics if there are none."""
    high_watermark: int | None = None
    """Of the one partition in scope, instead of what the checkpoint says."""

    def wants(self, topic: str) -> bool:
        """Whether ``topic`` is to be looked at."""
        return not self.topics or any(fnmatchcase(topic, glob) for glob in self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighted:
    """One partition, and the log dir it lies in."""

    inventory: PartitionInventory
    log_dir: LogDir

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and number."""
        return self.inventory.partition.topic_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything in scope."""

    partitions: tuple[Sighted, ...]
    """By topic, then partition."""
    problems: tuple[PartitionProblem, ...]

    def find(self, topic_partition: TopicPartition) -> Sighted:
        """Return one partition.

        Raises:
            UsageError: it is not in scope.

        """
        for sighted in self.partitions:
            if sighted.topic_partition == topic_partition:
                return sighted
        known = ", ".join(str(sighted.topic_partition) for sighted in self.partitions[:5]) or "none"
        raise UsageError(f"{topic_partition} is not in the given source", hint=f"partitions there: {known}")


def look(scope: Scope) -> Sight:
    """List the log dirs in scope and take the inventory of their partitions.

    Raises:
        UsageError: a source is not what it should be, two of them have the same partition, or nothing is in scope.
        LogDirError: a source cannot be listed.

    """
    partitions: dict[TopicPartition, Sighted] = {}
    problems: list[PartitionProblem] = []
    for source in scope.sources:
        log_dir = _open(source, scope)
        inventory = take_inventory(log_dir)
        problems += inventory.problems
        for found in inventory.partitions:
            _add(partitions, Sighted(inventory=found, log_dir=log_dir))
    if not partitions and not problems:
        raise _nothing_in(scope)
    if scope.high_watermark is not None and len(partitions) > 1:
        raise UsageError(
            f"--high-watermark is of one partition, {len(partitions)} are in scope",
            hint="name one partition's directory",
        )
    return Sight(partitions=tuple(partitions[key] for key in sorted(partitions)), problems=tuple(problems))


def _nothing_in(scope: Scope) -> UsageError:
    where = ", ".join(scope.sources)
    if scope.topics:
        what = f"no topic in {where} matches --topic {' or '.join(scope.topics)}"
        return UsageError(what, hint="`resnap scan SOURCE` without --topic lists what is there")
    return UsageError(f"no partition in {where}", hint="compare with log.dirs in the broker's server.properties")


def _open(source: str, scope: Scope) -> LogDir:
    if is_store_url(source):
        raise UsageError(f"{source}: a store cannot be a source", hint="give a log dir or a partition's directory")
    return open_log_dir_or_partition(Path(source), topics=lambda partition: scope.wants(partition.topic))


def _add(partitions: dict[TopicPartition, Sighted], sighted: Sighted) -> None:
    other = partitions.setdefault(sighted.topic_partition, sighted)
    if other is not sighted:
        raise UsageError(
            f"{sighted.topic_partition} is in {other.inventory.partition.path} and {sighted.inventory.partition.path}",
            hint="replicas of a partition have boundaries of their own: one run takes one of them",
        )


def destination_url(destination: str, sight: Sight) -> str:
    """Return the URL of ``destination``, which is one already or a directory.

    Raises:
        UsageError: it is one of the log dirs in scope, or inside it: a broker does not start with a strange directory
            in its log dir.

    """
    url = destination if is_store_url(destination) else Path(destination).absolute().as_uri()
    parts = urlsplit(url)
    if parts.scheme == "file":
        _refuse_inside_log_dir(sight, Path(unquote(parts.path)))
    return url


def _refuse_inside_log_dir(sight: Sight, directory: Path) -> None:
    for root in {_protected(sighted) for sighted in sight.partitions}:
        if directory.resolve().is_relative_to(root.resolve()):
            raise UsageError(
                f"{directory} is inside the log dir {root}",
                hint="a broker does not start with a strange directory in its log dir: choose a place outside",
            )


def _protected(sighted: Sighted) -> Path:
    """Return the log dir; of a partition that lies apart, where no broker works, its own directory alone."""
    is_a_brokers = (sighted.log_dir.path / META_PROPERTIES).exists()
    return sighted.log_dir.path if is_a_brokers else sighted.inventory.partition.path
