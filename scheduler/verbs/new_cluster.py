"""What `resnap restore` writes to a new cluster's metadata: topics, producer ids, and the state that was exported."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.contract import Result
from resnap.scheduler.verbs.restored_state import NOT_EXPORTED, RestoredState
from resnap.storage.errors import FormatError, ResnapError, VerificationError
from resnap.storage.log.names import TopicPartition
from resnap.storage.sources.log_dirs import tiered_part
from resnap.storage.words import some
from resnap.tiering.cluster.replica_comparison import next_producer_id
from resnap.tiering.controller.metadata.cluster import find_metadata_log
from resnap.tiering.controller.metadata.folding import load_current_image
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.restoring.new_cluster import NewPartition, NewTopic, records_for
from resnap.tiering.restoring.restoration import highest_in_snapshots, last_leader_epoch
from resnap.tiering.shipping.stored_topics import UNKNOWN, read_topic, topic_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.verbs.restored_state import ExportedState
    from resnap.storage.disk import Disk
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Connect
    from resnap.tiering.controller.metadata.writer import Bootstrap
    from resnap.tiering.restoring.new_cluster import Assignment
    from resnap.tiering.restoring.restoration import Restoration
    from resnap.tiering.shipping.stored_topics import TopicSettings

_TIERED: Final = "remote.storage.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster(Result):
    """What a new cluster begins with."""

    path: Path
    """Of the bootstrap metadata."""
    topics: tuple[NewTopic, ...]
    next_producer_id: int
    left_out: tuple[str, ...]
    """Topics that it does not get."""
    restored_state: RestoredState | None
    """None where the store has no state of the cluster."""

    @property
    def row(self) -> Row:
        """The same as plain values."""
        return {
            "bootstrap": str(self.path),
            "topics": [topic.name for topic in self.topics],
            "leftOut": list(self.left_out),
            "nextProducerId": self.next_producer_id,
            "clusterState": None if self.restored_state is None else self.restored_state.row,
        }

    def text(self, would: str) -> Iterator[str]:
        """Yield the same in words."""
        out = f" Left out: {', '.join(self.left_out)}." if self.left_out else ""
        topics = some(len(self.topics), "topic")
        yield (
            f"{topics} {would}written to {self.path}; producer ids begin at {self.next_producer_id}.{out} The cluster"
            " gets them when its controllers start for the first time: let each have the same."
        )
        if self.restored_state is not None:
            yield from self.restored_state.text(would)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a new cluster is made of besides what was restored."""

    bootstrap: Bootstrap
    assignment: Assignment
    url: str
    """Of the store."""
    topics: Mapping[str, TopicSettings]
    """By name, instead of what the store says."""
    exported: ExportedState | None
    """The last state of the lost cluster that the store has."""
    offsets_to: Path | None
    """Where files with the offsets of groups are written to."""
    disk: Disk | None
    """None writes nothing."""


@dataclass(slots=True)
class _Messages:
    """Messages while the topics are collected."""

    warnings: list[str] = field(default_factory=list)
    faults: list[ResnapError] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def begin_cluster(
    beginning: Beginning,
    found: Sequence[Restoration],
    lost: Collection[str],
    highest: Mapping[TopicPartition, int],
    sources: Sources,
) -> NewCluster:
    """Write what was restored into the bootstrap metadata, and return what a new cluster begins with.

    Args:
        beginning: where, and how.
        found: all that can be restored, whether here or on another host.
        lost: topics of which something cannot be, or was not.
        highest: the highest producer id of each partition that was restored here; of others their snapshots say it.
        sources: what the store is read with.

    Raises:
        StoreError: the store failed.
        LogDirError: the metadata cannot be written.

    """
    said = _Messages()
    for topic in sorted(lost):
        said.left_out.append(topic)
        said.faults.append(_left_out(topic))
    topics = _topics(beginning, found, lost, sources, said)
    ids = [
        highest[log.topic_partition] if log.topic_partition in highest else highest_in_snapshots(log) for log in found
    ]
    bootstrap = beginning.bootstrap
    exported, restored = beginning.exported, None
    of_cluster = None if exported is None else exported.records()
    records = records_for(topics, max(ids, default=-1), bootstrap.records, bootstrap.features, of_cluster)
    if exported is None:
        said.warnings.append(NOT_EXPORTED)
    else:
        restored = RestoredState.of(exported, topics, found, beginning.offsets_to)
        said.warnings += restored.warnings()
    if beginning.disk is not None:
        bootstrap.write(records, beginning.disk)
        if restored is not None:
            restored.write(beginning.disk)
    return NewCluster(
        path=bootstrap.path,
        topics=tuple(topics),
        next_producer_id=next(record.next_producer_id for record in records if isinstance(record, ProducerIdsRecord)),
        left_out=tuple(said.left_out),
        restored_state=restored,
        warnings=tuple(said.warnings),
        faults=tuple(said.faults),
        partly_done=bool(topics) and beginning.disk is not None,
    )


def check_beginning(
    beginning: Beginning, found: Sequence[Restoration], lost: Collection[str], sources: Sources
) -> None:
    """Check that every partition of the new cluster has replicas, those that begin empty too; before any is copied.

    Raises:
        UsageError: the assignment does not list one.
        StoreError: the store failed.

    """
    _topics(beginning, found, lost, sources, _Messages())


def _topics(
    beginning: Beginning, found: Sequence[Restoration], lost: Collection[str], sources: Sources, said: _Messages
) -> list[NewTopic]:
    store = tiered_part(beginning.url, sources).store
    by_topic: dict[str, list[Restoration]] = defaultdict(list)
    for restoration in found:
        if restoration.topic_partition.topic not in lost:
            by_topic[restoration.topic_partition.topic].append(restoration)
    topics = []
    for topic, partitions in sorted(by_topic.items()):
        stored = UNKNOWN
        try:
            stored = read_topic(store, topic_key(topic, partitions[0].topic_id or ""))
        except FormatError as error:
            said.warnings.append(f"{error}; {error.hint}")
        if beginning.exported is not None:
            stored = beginning.exported.settings_of(topic, partitions[0].topic_id or "").over(stored)
        settings = beginning.topics.get(topic, UNKNOWN).over(stored)
        topics.append(_topic(partitions, settings, beginning.assignment, said))
    return topics


def _left_out(topic: str) -> VerificationError:
    return VerificationError(
        f"{topic}: not given to the new cluster, since not all of it was restored",
        hint="resolve what is reported of it, and run the same command again before the cluster starts; a broker sets"
        " directories of topics that its cluster does not have aside (-stray)",
    )


def _topic(partitions: Sequence[Restoration], settings: TopicSettings, to: Assignment, said: _Messages) -> NewTopic:
    name = partitions[0].topic_partition.topic
    there = {partition.topic_partition.partition: partition for partition in partitions}
    count = max(settings.partitions or 0, max(there) + 1)
    if settings.partitions is None:
        said.warnings.append(
            f"{name}: how many partitions it had is not known; it gets {count}, according to what was shipped. If it"
            ' had more, give --topic-config FILE with "partitions"'
        )
    elif settings.partitions < count:
        said.warnings.append(
            f"{name}: it is said to have {settings.partitions} partitions, and partition {count - 1} was shipped: it"
            f" gets {count}"
        )
    if settings.config is None:
        said.warnings.append(
            f"{name}: its settings are not known; it gets those of its brokers, retention and cleanup.policy among them"
            " (--topic-config FILE)"
        )
    config = settings.config or {}
    if config.get(_TIERED) == "true":
        said.warnings.append(
            f"{name} has {_TIERED}=true: brokers and controllers do not start unless"
            " remote.log.storage.system.enable=true; what was restored is tiered again"
        )
    empty = [str(number) for number in range(count) if number not in there]
    if empty:
        said.warnings.append(f"{name}: nothing was shipped of partitions {', '.join(empty)}: they begin empty")
    return NewTopic(
        name=name,
        topic_id=partitions[0].topic_id or "",
        partitions=tuple(
            NewPartition(
                partition=number,
                replicas=tuple(replica.broker for replica in to.replicas(TopicPartition(name, number))),
                last_leader_epoch=last_leader_epoch(there[number]) if number in there else None,
            )
            for number in range(count)
        ),
        config=config,
    )


def low_producer_ids(highest: int, log_dirs: Sequence[Path], connect: Connect | None) -> Iterator[Result]:
    """Yield a warning where the cluster would give producer ids that are in what was restored to others.

    Raises:
        ClusterError: the cluster is named, and does not answer.

    """
    following = _next_id(log_dirs, connect)
    if following is not None and following <= highest:
        what = (
            f"the next producer id of the cluster is {following}, and what was restored has ids up to {highest}: new"
            " producers will get ids of these, and brokers refuse them as out of order. Restore into a new cluster"
            " (--new-cluster), whose ids begin above"
        )
        yield Result(warnings=(what,))


def _next_id(log_dirs: Sequence[Path], connect: Connect | None) -> int | None:
    """Return the next producer id, by the running cluster or by a metadata log beside ``log_dirs``; None if unknown."""
    if connect is not None:
        with connect() as cluster:
            return next_producer_id(cluster)
    directory = find_metadata_log(log_dirs)
    with suppress(ResnapError):
        return None if directory is None else load_current_image(directory).next_producer_id or 0
    return None
