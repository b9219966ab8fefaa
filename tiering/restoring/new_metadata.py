"""What `resnap restore` writes to a new cluster's metadata: topics, producer ids, and the state that was exported."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, ResnapError, VerificationError
from resnap.storage.log.names import TopicPartition
from resnap.storage.words import agreeing, first_of, some
from resnap.tiering.cluster.replica_comparison import next_producer_id
from resnap.tiering.cluster_state.group_offsets import group_resets, write_resets
from resnap.tiering.cluster_state.state import merge_documents, named_state, newest_states
from resnap.tiering.controller.metadata.cluster import find_metadata_log
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.restoring.new_cluster import (
    NewTopic,
    cluster_records,
    is_of_cluster,
    records_for,
)
from resnap.tiering.restoring.restoration import highest_in_snapshots, last_leader_epoch
from resnap.tiering.shipping.notes import UNKNOWN, TopicSettings, read_topic, topic_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.storage.disk import Disk
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.client import Connect
    from resnap.tiering.cluster_state.group_offsets import GroupReset
    from resnap.tiering.cluster_state.state import ClusterState
    from resnap.tiering.controller.metadata.records import MetadataRecord
    from resnap.tiering.controller.metadata.writer import Bootstrap
    from resnap.tiering.restoring.new_cluster import Assignment
    from resnap.tiering.restoring.restoration import Restoration

_TIERED: Final = "remote.storage.enable"
NOT_EXPORTED: Final = (
    "the store has no state of the cluster (`resnap export`): the offsets of consumer groups, ACLs, quotas, users and"
    " the configuration of brokers are lost"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedState:
    """The state of the lost cluster, and the objects that it is from."""

    keys: tuple[str, ...]
    state: ClusterState

    def settings_of(self, topic: str, topic_id: str) -> TopicSettings:
        """Return the settings of a topic; unknown where the state has none of that id."""
        metadata = self.state.metadata
        known = None if metadata is None else metadata.topics.get(topic)
        if metadata is None or known is None or known.topic_id != topic_id:
            return UNKNOWN
        config = metadata.configs.get(ConfigResource(ResourceType.TOPIC, topic), {})
        return TopicSettings(partitions=known.partitions, config=config)

    def is_other(self, topic: NewTopic) -> bool:
        """Whether the state has another topic of that name: its offsets are of other records."""
        known = None if self.state.metadata is None else self.state.metadata.topics.get(topic.name)
        return known is not None and known.topic_id != topic.topic_id

    def records(self) -> list[MetadataRecord] | None:
        """Return the records of all but topics; None where the state has no metadata."""
        return None if self.state.metadata is None else cluster_records(self.state.metadata)


def exported_state(store: ObjectStore, key: str | None, restorations: Sequence[Restoration]) -> ExportedState | None:
    """Return the newest state of the cluster in ``store``, or the one under ``key``; None if there is none.

    Raises:
        UsageError: there are states of several clusters, and it is not known which one is restored; or none at ``key``.
        FormatError: one is damaged, or of a later release.
        StoreError: the store failed.

    """
    cluster_ids = {restoration.cluster_id for restoration in restorations if restoration.cluster_id is not None}
    found = newest_states(store, cluster_ids) if key is None else [(key, named_state(store, key))]
    if not found:
        return None
    return ExportedState(keys=tuple(name for name, _ in found), state=merge_documents([state for _, state in found]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredState:
    """What came of an exported state."""

    exported: ExportedState
    resets: tuple[GroupReset, ...]
    not_restored: tuple[str, ...]
    """Topics with committed offsets that are left out."""
    offsets_to: Path | None

    @classmethod
    def of(
        cls, exported: ExportedState, topics: Sequence[NewTopic], found: Sequence[Restoration], to: Path | None
    ) -> RestoredState:
        """Return the same for the topics of a new cluster, of which ``found`` has the log ends."""
        ends = {
            TopicPartition(topic.name, partition): 0
            for topic in topics
            if not exported.is_other(topic)
            for partition in range(len(topic.replicas))
        }
        ends |= {one.topic_partition: one.end_offset for one in found if one.topic_partition in ends}
        groups = exported.state.groups
        named = {partition.topic for offsets in groups.values() for partition in offsets if partition not in ends}
        return cls(
            exported=exported,
            resets=tuple(group_resets(groups, ends)),
            not_restored=tuple(sorted(named)),
            offsets_to=to,
        )

    def write(self, disk: Disk) -> None:
        """Write the files of the groups, if that was asked for; raises LogDirError where they cannot be."""
        if self.offsets_to is not None:
            write_resets(self.resets, self.offsets_to, disk)

    def warnings(self) -> Iterator[str]:
        """Yield what of the lost cluster the new one does not have."""
        cut = [cut for reset in self.resets for cut in reset.cut]
        if cut:
            named = [f"{one.group} at {one.topic_partition} from {one.committed} to {one.end}" for one in cut]
            yield (
                f"{some(len(cut), 'committed offset')} {agreeing(len(cut))} above the end of what was restored, and"
                f" cut to it: {first_of(named)}"
            )
        if self.not_restored:
            yield f"offsets in topics that were not restored are left out: {first_of(self.not_restored)}"
        if self.resets and self.offsets_to is None:
            yield (
                f"the offsets of {some(len(self.resets), 'consumer group')} are known: with --offsets-to DIR they are"
                " written as files for kafka-consumer-groups.sh"
            )
        if self.exported.state.share_groups:
            yield (
                f"{self.exported.state.share_group_text} are not restored: they begin where their"
                " share.auto.offset.reset says"
            )
        yield from _not_taken(self.exported.state)


def _not_taken(state: ClusterState) -> Iterator[str]:
    if state.metadata is None:
        yield "the state of the cluster has no metadata: ACLs, quotas and configuration are lost"
        return
    own = [
        f"{resource.name} ({', '.join(values)})"
        for resource, values in state.metadata.configs.items()
        if resource.type != ResourceType.TOPIC and not is_of_cluster(resource)
    ]
    if own:
        yield f"settings of single brokers are left out, which are of the lost machines: {first_of(own)}"
    if state.metadata.scram_older:
        users = first_of(state.metadata.scram_older)
        yield f"SCRAM credentials of {users} are of an older export: set those again that were changed since"
    if state.metadata.secrets_left_out:
        count = state.metadata.secrets_left_out
        secrets = f"{some(count, 'password or SCRAM credential')} {agreeing(count, 'was', 'were')}"
        yield f"{secrets} not exported (`resnap export --credentials`): set them again"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """What a new cluster begins with."""

    path: Path
    """The path of the bootstrap metadata."""
    topics: tuple[str, ...]
    next_producer_id: int
    left_out: tuple[str, ...]
    """Topics that it does not get."""
    restored_state: RestoredState | None
    """None where the store has no state of the cluster."""
    faults: tuple[ResnapError, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a new cluster is made of besides what was restored."""

    bootstrap: Bootstrap
    topics: Sequence[tuple[NewTopic, Sequence[str]]]
    """Topics of which all can be restored, each with warnings about it."""
    exported: ExportedState | None
    """The last state of the lost cluster that the store has."""
    offsets_to: Path | None
    """Where files with the offsets of groups are written to."""
    disk: Disk | None
    """None writes nothing."""


def begin_cluster(
    beginning: Beginning,
    found: Sequence[Restoration],
    lost: Collection[str],
    highest: Mapping[TopicPartition, int],
) -> NewCluster:
    """Write what was restored into the bootstrap metadata, and return what a new cluster begins with.

    Args:
        beginning: where, and how.
        found: all that can be restored, whether here or on another host.
        lost: topics of which something cannot be, or was not.
        highest: the highest producer id of each partition that was restored here; of others their snapshots say it.

    Raises:
        StoreError: the store failed.
        LogDirError: the metadata cannot be written.

    """
    kept = [(topic, about) for topic, about in beginning.topics if topic.name not in lost]
    topics, warnings = [topic for topic, _ in kept], [warning for _, about in kept for warning in about]
    ids = [
        highest[log.topic_partition] if log.topic_partition in highest else highest_in_snapshots(log) for log in found
    ]
    bootstrap = beginning.bootstrap
    exported, restored = beginning.exported, None
    of_cluster = None if exported is None else exported.records()
    records = records_for(topics, max(ids, default=-1), bootstrap.records, bootstrap.features, of_cluster)
    if exported is None:
        warnings.append(NOT_EXPORTED)
    else:
        restored = RestoredState.of(exported, topics, found, beginning.offsets_to)
        warnings += restored.warnings()
    if beginning.disk is not None:
        bootstrap.write(records, beginning.disk)
        if restored is not None:
            restored.write(beginning.disk)
    return NewCluster(
        path=bootstrap.path,
        topics=tuple(topic.name for topic in topics),
        next_producer_id=next(record.next_producer_id for record in records if isinstance(record, ProducerIdsRecord)),
        left_out=tuple(sorted(lost)),
        restored_state=restored,
        warnings=tuple(warnings),
        faults=tuple(map(_left_out, sorted(lost))),
    )


def new_topics(
    found: Iterable[Restoration],
    store: ObjectStore,
    to: Assignment,
    given: Mapping[str, TopicSettings],
    exported: ExportedState | None,
) -> Iterator[tuple[NewTopic, list[str]]]:
    """Yield the topics of a new cluster that get what is ``found``, each with warnings about it.

    What is ``given`` of their settings counts more than what was ``exported``, and that more than what ``store`` says.

    Raises:
        UsageError: the assignment does not list a partition, which may be one that begins empty.
        StoreError: the store failed.

    """
    by_topic: dict[str, list[Restoration]] = defaultdict(list)
    for restoration in found:
        by_topic[restoration.topic_partition.topic].append(restoration)
    for topic, partitions in sorted(by_topic.items()):
        stored, warnings = UNKNOWN, list[str]()
        try:
            stored = read_topic(store, topic_key(topic, partitions[0].topic_id or ""))
        except FormatError as error:
            warnings.append(f"{error}; {error.hint}")
        if exported is not None:
            stored = exported.settings_of(topic, partitions[0].topic_id or "").over(stored)
        yield _topic(partitions, given.get(topic, UNKNOWN).over(stored), to, warnings), warnings


def _left_out(topic: str) -> VerificationError:
    return VerificationError(
        f"{topic}: not given to the new cluster, since not all of it was restored",
        hint="resolve what is reported of it, and run the same command again before the cluster starts; a broker sets"
        " directories of topics that its cluster does not have aside (-stray)",
    )


def _topic(partitions: Sequence[Restoration], settings: TopicSettings, to: Assignment, warnings: list[str]) -> NewTopic:
    name = partitions[0].topic_partition.topic
    there = {partition.topic_partition.partition: partition for partition in partitions}
    count = max(settings.partitions or 0, max(there) + 1)
    if settings.partitions is None:
        warnings.append(
            f"{name}: how many partitions it had is not known; it gets {count}, according to what was shipped. If it"
            ' had more, give --topic-config FILE with "partitions"'
        )
    elif settings.partitions < count:
        warnings.append(
            f"{name}: it is said to have {settings.partitions} partitions, and partition {count - 1} was shipped: it"
            f" gets {count}"
        )
    if settings.config is None:
        warnings.append(
            f"{name}: its settings are not known; it gets those of its brokers, retention and cleanup.policy among them"
            " (--topic-config FILE)"
        )
    config = settings.config or {}
    if config.get(_TIERED) == "true":
        warnings.append(
            f"{name} has {_TIERED}=true: brokers and controllers do not start unless"
            " remote.log.storage.system.enable=true; what was restored is tiered again"
        )
    empty = [str(number) for number in range(count) if number not in there]
    if empty:
        warnings.append(f"{name}: nothing was shipped of partitions {', '.join(empty)}: they begin empty")
    return NewTopic(
        name=name,
        topic_id=partitions[0].topic_id or "",
        replicas=[
            tuple(replica.broker for replica in to.replicas(TopicPartition(name, number))) for number in range(count)
        ],
        last_leader_epochs={number: last_leader_epoch(one) for number, one in there.items()},
        config=config,
    )


def low_producer_ids(highest: int, log_dirs: Sequence[Path], connect: Connect | None) -> Iterator[str]:
    """Yield a warning where the cluster would give producer ids that are in what was restored to others.

    Raises:
        ClusterError: the cluster is named, and does not answer.

    """
    following = _next_id(log_dirs, connect)
    if following is not None and following <= highest:
        yield (
            f"the next producer id of the cluster is {following}, and what was restored has ids up to {highest}: new"
            " producers will get ids of these, and brokers refuse them as out of order. Restore into a new cluster"
            " (--new-cluster), whose ids begin above"
        )


def _next_id(log_dirs: Sequence[Path], connect: Connect | None) -> int | None:
    """Return the next producer id, by the running cluster or by a metadata log beside ``log_dirs``; None if unknown."""
    if connect is not None:
        with connect() as cluster:
            return next_producer_id(cluster)
    directory = find_metadata_log(log_dirs)
    with suppress(ResnapError):
        if directory is not None:
            return load_image(directory, is_current=True).relying_on(ProducerIdsRecord).next_producer_id or 0
    return None
