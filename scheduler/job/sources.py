"""From the SOURCE arguments of a command to the partitions it works on."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.storage.disk import is_there
from resnap.storage.errors import UsageError
from resnap.storage.log.survey import META_PROPERTIES
from resnap.storage.sources.files import PLAIN
from resnap.storage.sources.joined_log import with_remote
from resnap.storage.sources.log_dirs import open_source
from resnap.storage.stores.urls import is_store_url, local_path
from resnap.tiering.cluster.facts import with_facts
from resnap.tiering.controller.metadata.cluster import ClusterMetadata, find_metadata_log
from resnap.tiering.controller.topic_ids import with_topic_ids
from resnap.tiering.inventory import take_inventory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, SnapshotFile
    from resnap.storage.log.survey import LogDir, PartitionProblem
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import ClusterFacts, PartitionFacts, TopicFacts
    from resnap.tiering.inventory import PartitionInventory, SnapshotLook


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a command was pointed at."""

    sources: tuple[str, ...]
    topics: tuple[str, ...] = ()
    """Globs; all topics if there are none."""
    partitions: tuple[str, ...] = ()
    """Directories' names, such as ``payments-0``; all partitions if there are none."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Which topic is meant by a name that several have in a store; as keys have the id."""
    high_watermark: int | None = None
    """High watermark of the one partition in scope, instead of the one in the checkpoint."""
    metadata_log: Path | None = None
    """Metadata log of the cluster; if it is not named, it is looked for in the sources."""
    read_ahead: ClusterMetadata | None = None
    """The metadata log that the settings of the run were read from."""
    remote: str | None = None
    """URL of the remote storage whose segments are read with those of the log dirs as one log."""
    connect: Callable[[], Cluster] | None = None
    """Connects to the running cluster; None where none is named."""

    def wants(self, topic: str) -> bool:
        """Whether ``topic`` is to be looked at."""
        return not self.topics or any(fnmatchcase(topic, glob) for glob in self.topics)

    def wants_partition(self, partition: TopicPartition) -> bool:
        """Whether ``partition`` is to be looked at."""
        return self.wants(partition.topic) and (not self.partitions or str(partition) in self.partitions)

    def live(self) -> ClusterFacts | None:
        """Ask the running cluster, where one is named, how its topics are now.

        Raises:
            ClusterError, ConfigurationError: it does not say, or cannot be reached as was meant.

        """
        if self.connect is None:
            return None
        with self.connect() as cluster:
            return cluster.facts(self.wants)

    def metadata(self, source: str) -> ClusterMetadata:
        """Return the metadata log that describes ``source``."""
        directory = self.metadata_log or find_metadata_log([source])
        read = self.read_ahead
        return read if read is not None and read.directory == directory else ClusterMetadata(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedPartition:
    """One partition, and the log dir it lies in."""

    inventory: PartitionInventory
    log_dir: LogDir
    live: TopicFacts | None = None
    """What the running cluster says of the topic, where it was asked."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and number."""
        return self.inventory.partition.topic_partition

    @property
    def live_facts(self) -> PartitionFacts | None:
        """What the running cluster says of it; None where it was not asked, or has none."""
        return None if self.live is None else self.live.partitions.get(self.topic_partition.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Everything in scope."""

    partitions: tuple[SelectedPartition, ...]
    """By topic, then partition."""
    problems: tuple[PartitionProblem, ...]

    def find(self, topic_partition: TopicPartition) -> SelectedPartition:
        """Return one partition.

        Raises:
            UsageError: it is not in scope.

        """
        for selected in self.partitions:
            if selected.topic_partition == topic_partition:
                return selected
        known = ", ".join(str(selected.topic_partition) for selected in self.partitions[:5]) or "none"
        raise UsageError(f"{topic_partition} is not in the given source", hint=f"partitions there: {known}")


class NothingMatchesError(UsageError):
    """Topics or partitions were named, and none of the sources has any of them."""


def look(
    scope: Scope,
    sources: Sources = PLAIN,
    known: Callable[[PartitionDir], Mapping[SnapshotFile, SnapshotLook]] | None = None,
) -> Selection:
    """List the log dirs in scope and take the inventory of their partitions; ``known`` is as for ``take_inventory``.

    Raises:
        UsageError: a source is not what it should be, two of them have the same partition, or nothing is in scope.
        LogDirError, StoreError: a source cannot be listed.

    """
    partitions: dict[TopicPartition, SelectedPartition] = {}
    problems: list[PartitionProblem] = []
    facts = scope.live()
    for source in scope.sources:
        listed = open_source(source, sources, topics=scope.wants_partition, topic_ids=scope.topic_ids)
        metadata = scope.metadata(source)
        log_dir = with_topic_ids(listed if facts is None else with_facts(listed, facts), metadata.image)
        if scope.remote is not None:
            log_dir = with_remote(log_dir, scope.remote, sources)
        policies = metadata.cleanup_policies() | ({} if facts is None else facts.cleanup_policies())
        inventory = take_inventory(log_dir, cleanup_policies=policies, sources=sources, known=known)
        problems += inventory.problems
        for found in inventory.partitions:
            live = None if facts is None else facts.topics.get(found.partition.topic_partition.topic)
            _add(partitions, SelectedPartition(inventory=found, log_dir=log_dir, live=live))
    if not partitions and not problems:
        raise nothing_in(scope)
    if scope.high_watermark is not None and len(partitions) > 1:
        raise UsageError(
            f"--high-watermark is of one partition, {len(partitions)} are in scope",
            hint="name one partition's directory",
        )
    return Selection(partitions=tuple(partitions[key] for key in sorted(partitions)), problems=tuple(problems))


def nothing_in(scope: Scope) -> UsageError:
    """Return the error of a scope without a partition."""
    where = ", ".join(scope.sources)
    if scope.partitions:
        what = f"none of {', '.join(scope.partitions[:5])} is in {where}"
        return NothingMatchesError(what, hint="`resnap scan SOURCE` lists what is there")
    if scope.topics:
        what = f"no topic in {where} matches --topic {' or '.join(scope.topics)}"
        return NothingMatchesError(what, hint="`resnap scan SOURCE` without --topic lists what is there")
    return UsageError(f"no partition in {where}", hint="compare with log.dirs in the broker's server.properties")


def _add(partitions: dict[TopicPartition, SelectedPartition], selected: SelectedPartition) -> None:
    other = partitions.setdefault(selected.topic_partition, selected)
    if other is not selected:
        places = f"{other.inventory.partition.path} and {selected.inventory.partition.path}"
        raise UsageError(
            f"{selected.topic_partition} is in {places}",
            hint="replicas of a partition have boundaries of their own: one run takes one of them",
        )


def destination_url(destination: str, selection: Selection) -> str:
    """Return the URL of ``destination``, which is one already or a directory.

    Raises:
        UsageError: it is one of the log dirs in scope, or inside it: a broker does not start with a strange directory
            in its log dir; or it is what Resnap has shipped, to which nothing is added but by shipping.

    """
    url = destination.rstrip("/") if is_store_url(destination) else Path(destination).absolute().as_uri()
    for selected in selection.partitions:
        _refuse_inside(selected, url)
    return url


def lies_beside(url: str, selected: SelectedPartition) -> bool:
    """Whether snapshots below ``url`` come to stand beside the segments of the partition, in a copy of a log dir."""
    return str(selected.log_dir.path) == url


def is_of(selected: SelectedPartition, source: str) -> bool:
    """Whether ``source``, as somebody gave it, is what the partition was found by."""
    places = {str(selected.log_dir.path), str(selected.inventory.partition.path)}
    return (source.rstrip("/") if is_store_url(source) else str(Path(source).absolute())) in places


def _refuse_inside(selected: SelectedPartition, url: str) -> None:
    partition, path = selected.inventory.partition, local_path(url)
    if path is not None and isinstance(partition.path, Path) and isinstance(selected.log_dir.path, Path):
        is_a_brokers = is_there(selected.log_dir.path / META_PROPERTIES)
        # A partition outside any log dir: no broker works there, so only its own directory is protected.
        root = selected.log_dir.path if is_a_brokers else partition.path
        if Path(realpath(path)).is_relative_to(realpath(root)):
            raise UsageError(
                f"{path} is inside the log dir {root}",
                hint="a broker does not start with a strange directory in its log dir: choose a place outside",
            )
    if selected.log_dir.is_shipped and f"{url}/".startswith(f"{selected.log_dir.path}/"):
        raise UsageError(
            f"{url} holds what was shipped, whose manifests are never changed",
            hint="choose another place for the snapshots",
        )
    if f"{url}/".startswith(f"{partition.path}/"):
        hint = f"{selected.log_dir.path} puts snapshots beside the segments"
        raise UsageError(f"{url} is the folder of a partition", hint=hint)
