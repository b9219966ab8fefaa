"""A new KRaft cluster from a store: its partitions' brokers and log dirs, and its metadata before the first start.

Every host gets the same arguments: either brokers that each get a replica of every partition, or a file in the form of
``kafka-reassign-partitions.sh``, in which ``log_dirs`` may name the log dir of each replica. The node id in
``meta.properties`` shows the broker of a log dir.

A partition begins without a leader, so that one is elected as soon as a broker is up: followers would not fetch from a
leader that has not started yet, and would never begin to. All replicas are in sync, because they have the same bytes.
If the cluster has eligible leader replicas (KIP-966), none are in sync, because an unknown broker counts as not shut
down cleanly when it registers: then the first replica is the last known leader, which may lead.

Leader epochs and the first block of producer ids begin above all restored ones, by a margin: returning clients of the
old cluster may have seen later ones, in segments that were never shipped.

Source: ``ReplicationControlManager``, ``ProducerIdControlManager``, ``Metadata`` of the clients; KIP-320, KIP-730,
KIP-858, KIP-966.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from os.path import realpath
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from resnap.storage.disk import is_there
from resnap.storage.errors import UsageError, parser_says
from resnap.storage.json_values import typed
from resnap.storage.log.names import TopicPartition
from resnap.storage.whole_file import read_whole
from resnap.tiering.controller.metadata.image import (
    ALL_BROKERS,
    METADATA_VERSION,
    METADATA_VERSIONS,
    ConfigResource,
    ResourceType,
)
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_LEADER,
    PRODUCER_ID_BLOCK_SIZE,
    ClientQuotaRecord,
    ConfigRecord,
    EntityData,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.tiering.cluster_state.state import KnownMetadata
    from resnap.tiering.controller.metadata.records import MetadataRecord

ANY: Final = "any"
MAX_BROKER_ID: Final = 2**31 - 1
"""Node ids are Java ints."""
_FORM: Final = '{"version": 1, "partitions": [{"topic": "payments", "partition": 0, "replicas": [1, 2]}, ...]}'


class Replica(NamedTuple):
    """A replica of a partition."""

    broker: int
    log_dir: str = ANY
    """Path of its log dir; ``any`` for whichever the broker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The brokers that get a replica of each partition."""

    brokers: tuple[int, ...] = ()
    """Each gets one of every partition, unless the file assigns others."""
    chosen: Mapping[TopicPartition, tuple[Replica, ...]] | None = None
    """The content of the file."""

    @property
    def all_brokers(self) -> frozenset[int]:
        """The brokers that get any replica."""
        if self.chosen is None:
            return frozenset(self.brokers)
        return frozenset(replica.broker for replicas in self.chosen.values() for replica in replicas)

    def replicas(self, partition: TopicPartition) -> tuple[Replica, ...]:
        """Return the replicas of ``partition``, the preferred leader first, in turn if only brokers are given.

        Raises:
            UsageError: the file does not name it.

        """
        if self.chosen is None:
            first = partition.partition % len(self.brokers)
            return tuple(Replica(broker) for broker in (*self.brokers[first:], *self.brokers[:first]))
        found = self.chosen.get(partition)
        if found is None:
            raise UsageError(f"{partition}: --assignment does not list it",
                             hint="add it to the file, or exclude the topic (--exclude-topic)")  # fmt: skip
        return found


def assign_to_all(text: str) -> Assignment:
    """Return that each of the brokers gets a replica of every partition; ``text`` has their ids.

    Raises:
        UsageError: it has something else.

    """
    words = [word.strip() for word in text.split(",")]
    ids = [int(word) for word in words if word.isdecimal()]
    if len(set(ids)) < len(words) or max(ids) > MAX_BROKER_ID:
        raise UsageError(f"--brokers {text}: expected different node ids with commas between them, such as 1,2,3")
    return Assignment(brokers=tuple(ids))


def read_assignment(path: Path) -> Assignment:
    """Return the assignment in a file of ``kafka-reassign-partitions.sh``.

    Raises:
        UsageError: it cannot be read, or has another form.

    """
    try:
        content = json.loads(read_whole(path))
        chosen: dict[TopicPartition, tuple[Replica, ...]] = {}
        for entry in content["partitions"]:
            partition = TopicPartition(typed(str, entry["topic"]), typed(int, entry["partition"]))
            if partition in chosen:
                raise ValueError(f"{partition} comes twice")  # noqa: TRY301 - said as all else
            chosen[partition] = _replicas(entry)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        what = getattr(error, "strerror", None) or parser_says(error)
        raise UsageError(f"{path}: no assignment of replicas: {what}", hint=f"expected is {_FORM}") from error
    return Assignment(chosen=chosen)


def _replicas(one: Mapping[str, object]) -> tuple[Replica, ...]:
    """Return the replicas in an entry of the file."""
    brokers = [typed(int, broker) for broker in typed(list, one["replicas"])]
    log_dirs = [typed(str, to) for to in typed(list, one.get("log_dirs") or [ANY] * len(brokers))]
    is_sound = brokers and len(set(brokers)) == len(brokers) == len(log_dirs)
    if not is_sound or not 0 <= min(brokers) <= max(brokers) <= MAX_BROKER_ID:
        raise ValueError(f"replicas {brokers} in log dirs {log_dirs}")
    return tuple(Replica(broker, to) for broker, to in zip(brokers, log_dirs, strict=True))


def place_partitions(
    partitions: Iterable[tuple[TopicPartition, int]], log_dirs: Sequence[tuple[Path, int | None]], to: Assignment | None
) -> dict[Path, set[TopicPartition]]:
    """Return the partitions for each of ``log_dirs``, given as paths with the node ids of their brokers.

    A partition stays in the log dir that has it; otherwise several log dirs of one broker are filled evenly, by the
    sizes in ``partitions``. Without an assignment every broker of ``log_dirs`` gets a replica.

    Raises:
        UsageError: the assignment does not name a partition, or a log dir's broker, or names another log dir of it: the
            broker would begin the partition without its log.

    """
    by_broker: dict[int | None, dict[Path, int]] = {}
    for path, broker in log_dirs:
        by_broker.setdefault(broker, {})[path] = 0
        if to is not None and broker not in to.all_brokers:
            raise UsageError(f"{path} is of broker {broker}, which gets no replica of anything",
                             hint="name it in --brokers or --assignment, or leave out its --into")  # fmt: skip
    found: dict[Path, set[TopicPartition]] = {path: set() for path, _ in log_dirs}
    for partition, size_bytes in sorted(partitions):
        chosen = None if to is None else {replica.broker: replica.log_dir for replica in to.replicas(partition)}
        for broker, filled in by_broker.items():
            there = ANY if chosen is None else chosen.get(-1 if broker is None else broker)
            if there is None:
                continue
            fitting = [path for path in filled if there == ANY or realpath(there) == realpath(path)]
            if not fitting:
                raise UsageError(
                    f"{partition}: --assignment has it in {there} of broker {broker}, which is none of the log dirs"
                    f" to restore into: {', '.join(map(str, filled))}",
                    hint="give --into for each log dir of the broker, or put the path right: the broker would begin"
                    " the partition without its log",
                )
            into = min(fitting, key=lambda path: (not is_there(path / str(partition)), filled[path]))
            filled[into] += size_bytes
            found[into].add(partition)
    return found


IDS_LEFT_OUT: Final = 1_000_000
"""Producer ids above the highest one that is known: of producers whose records were never shipped."""
EPOCHS_LEFT_OUT: Final = 1_000
"""Leader epochs above the last one that is known: clients ignore leaders of older ones than they have seen."""
_UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The log dir of a replica that its broker has not placed yet. Source: ``DirectoryId.UNASSIGNED``."""
_ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"
_DIRECTORIES_SINCE: Final = next(level for level, name in METADATA_VERSIONS.items() if name == "3.7-IV2")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic in its initial state."""

    name: str
    topic_id: str
    replicas: Sequence[tuple[int, ...]]
    """The brokers of each partition, in order, the preferred leader first."""
    last_leader_epochs: Mapping[int, int]
    """The epoch of the last leader of each log that has records, by partition."""
    config: Mapping[str, str]


def records_for(
    topics: Sequence[NewTopic],
    highest_producer_id: int,
    known: Sequence[MetadataRecord],
    features: Mapping[str, int],
    of_cluster: Sequence[MetadataRecord] | None = None,
) -> list[MetadataRecord]:
    """Return the records of ``topics``, after those of producer ids and those ``of_cluster``.

    ``known`` are the records of an earlier run: its topics are kept, except those with the same names or ids; those of
    the cluster are, unless there are others. ``features`` are the initial feature levels of the cluster.
    """
    names, ids = {topic.name for topic in topics}, {topic.topic_id for topic in topics}
    ids |= {record.topic_id for record in known if isinstance(record, TopicRecord) and record.name in names}
    names |= {record.name for record in known if isinstance(record, TopicRecord) and record.topic_id in ids}
    before = max((record.next_producer_id for record in known if isinstance(record, ProducerIdsRecord)), default=0)
    block = max(before, _block_above(highest_producer_id))
    stay = [
        record for record in known
        if (isinstance(record, TopicRecord | PartitionRecord) and record.topic_id not in ids)
        or (_is_of_topic(record) and record.resource_name not in names)
    ]  # fmt: skip
    if of_cluster is None:
        of_topics = (ProducerIdsRecord, TopicRecord, PartitionRecord)
        of_cluster = [record for record in known if not isinstance(record, of_topics) and not _is_of_topic(record)]
    ours = [record for topic in topics for record in _topic(topic, features)]
    return [ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=block), *of_cluster, *stay, *ours]


def _is_of_topic(record: MetadataRecord) -> TypeGuard[ConfigRecord]:
    return isinstance(record, ConfigRecord) and record.resource_type == ResourceType.TOPIC


def cluster_records(metadata: KnownMetadata) -> list[MetadataRecord]:
    """Return the records of all but topics, and of single brokers, whose settings are of the lost machines."""
    quotas = [
        ClientQuotaRecord(
            entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
            key=key, value=value, remove=False,
        )
        for entity, values in metadata.quotas.items()
        for key, value in values.items()
    ]  # fmt: skip
    configs = [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for resource, values in metadata.configs.items()
        if is_of_cluster(resource)
        for name, value in values.items()
    ]
    return [*configs, *quotas, *metadata.scram_credentials, *metadata.access_control_entries]


def is_of_cluster(resource: ConfigResource) -> bool:
    """Whether settings of ``resource`` go with the cluster, and not with a topic or a machine."""
    return resource == ALL_BROKERS or resource.type not in (ResourceType.TOPIC, ResourceType.BROKER)


def _block_above(highest_producer_id: int) -> int:
    """Return the first id of the first block above ``highest_producer_id`` and the margin."""
    return -(-(highest_producer_id + 1 + IDS_LEFT_OUT) // PRODUCER_ID_BLOCK_SIZE) * PRODUCER_ID_BLOCK_SIZE


def _topic(topic: NewTopic, features: Mapping[str, int]) -> Iterator[MetadataRecord]:
    has_directories = features[METADATA_VERSION] >= _DIRECTORIES_SINCE
    has_eligible = features.get(_ELIGIBLE_LEADER_REPLICAS, 0) > 0
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for partition, replicas in enumerate(topic.replicas):
        last_epoch = topic.last_leader_epochs.get(partition)
        yield PartitionRecord(
            partition_id=partition,
            topic_id=topic.topic_id,
            replicas=replicas,
            isr=() if has_eligible else replicas,
            leader=NO_LEADER,
            leader_epoch=0 if last_epoch is None else last_epoch + EPOCHS_LEFT_OUT,
            partition_epoch=0,
            directories=(_UNASSIGNED,) * len(replicas) if has_directories else (),
            last_known_elr=replicas[:1] if has_eligible else None,
        )
    for name, value in sorted(topic.config.items()):
        yield ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
