"""Folds the records of a metadata log into the image, one function for each type of record.

A record allocates one block of 1,000 producer ids, identified by the first id above it. A controller never goes back,
and leaves no gap. A log that violates this is not refused, because brokers use its image; the violation is recorded,
and the block is kept as allocated, so that an audit finds ids that two brokers have, or none.

Source: ``TopicsDelta``, ``TopicDelta``, ``PartitionRegistration.merge``; ``ClusterDelta``, ``FeaturesDelta``,
``ConfigurationsDelta``, ``ClientQuotasDelta``, ``AclsDelta``, ``ScramDelta``; ``ProducerIdsDelta``,
``ProducerIdsImage``, ``ProducerIdControlManager``, ``ZkMigrationClient``; KIP-730.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from resnap.storage.errors import MetadataLogError
from resnap.tiering.controller.metadata.image import (
    BlockSource,
    Broker,
    ConfigChange,
    ConfigResource,
    Controller,
    DeletedTopic,
    MetadataImage,
    Note,
    Partition,
    ProducerIdBlock,
    ResourceType,
    Topic,
)
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    NO_LEADER_CHANGE,
    PRODUCER_ID_BLOCK_SIZE,
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    Endpoint,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    SupportedFeature,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resnap.tiering.controller.metadata.batches import MetadataBatch
    from resnap.tiering.controller.metadata.image import MetadataTransaction, QuotaEntity, SkippedRecords


class RecordPosition(NamedTuple):
    """The position of a record."""

    batch: MetadataBatch
    offset: int | None
    """None in a checkpoint."""
    timestamp: int
    """When it was appended, milliseconds; in a checkpoint, when the last record that it covers was."""

    def wrong(self, what: str) -> MetadataLogError:
        """Return the error for a record that contradicts the ones before it."""
        return MetadataLogError(
            f"{self}: {what}", hint="part of the log is missing or is of another cluster; copy the directory again"
        )

    def __str__(self) -> str:
        where = "in the batch" if self.offset is None else f"record at offset {self.offset}, in the batch"
        return f"{self.batch.file}: {where} at byte {self.batch.position}"


@dataclass(slots=True)
class FoldState:
    """An image under construction; mutable."""

    offset: int
    """The offset of the last record so far."""
    leader_epoch: int = 0
    timestamp: int = 0
    features: dict[str, int] = field(default_factory=dict)
    zk_migration_state: int | None = None
    brokers: dict[int, Broker] = field(default_factory=dict)
    controllers: dict[int, Controller] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    """Topics by id, without their partitions, which are in ``partitions`` by number."""
    partitions: defaultdict[str, dict[int, Partition]] = field(default_factory=lambda: defaultdict(dict))
    deleted_topics: list[DeletedTopic] = field(default_factory=list)
    configs: defaultdict[ConfigResource, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    broker_config_changes: list[ConfigChange] = field(default_factory=list)
    quotas: defaultdict[QuotaEntity, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    access_control_entries: dict[str, AccessControlEntryRecord] = field(default_factory=dict)
    """Access control entries by id."""
    scram_credentials: dict[tuple[str, int], UserScramCredentialRecord] = field(default_factory=dict)
    """Credentials by user and mechanism."""
    producer_id_blocks: list[ProducerIdBlock] = field(default_factory=list)
    next_producer_id: int | None = None
    transactions: list[MetadataTransaction] = field(default_factory=list)
    left_aside: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, SkippedRecords] = field(default_factory=dict)
    """Counts of skipped records by kind."""
    notes: list[Note] = field(default_factory=list)

    def image(self) -> MetadataImage:
        """Return the state as an image."""
        topics = sorted(self.topics.values(), key=lambda one: one.name)
        skipped = tuple(self.skipped[kind] for kind in sorted(self.skipped))
        return MetadataImage(
            offset=self.offset,
            leader_epoch=self.leader_epoch,
            timestamp=self.timestamp,
            features=dict(sorted(self.features.items())),
            zk_migration_state=self.zk_migration_state,
            brokers=dict(sorted(self.brokers.items())),
            controllers=dict(sorted(self.controllers.items())),
            topics={topic.name: self._whole(topic) for topic in topics},
            deleted_topics=tuple(self.deleted_topics),
            configs={resource: dict(sorted(self.configs[resource].items())) for resource in sorted(self.configs)},
            broker_config_changes=tuple(self.broker_config_changes),
            quotas={entity: dict(sorted(values.items())) for entity, values in self.quotas.items()},
            access_control_entries=tuple(entry for _, entry in sorted(self.access_control_entries.items())),
            scram_credentials=tuple(credential for _, credential in sorted(self.scram_credentials.items())),
            producer_id_blocks=tuple(self.producer_id_blocks),
            next_producer_id=self.next_producer_id,
            transactions=tuple(self.transactions),
            left_aside=dict(sorted(self.left_aside.items())),
            skipped=skipped,
            notes=(*self.notes, *(Note(offset=None, text=str(records)) for records in skipped)),
        )

    def _whole(self, topic: Topic) -> Topic:
        partitions = self.partitions[topic.topic_id]
        return replace(topic, partitions=tuple(partitions[number] for number in sorted(partitions)))


NO_STATE_CHANGE: Final = -1


def create_topic(state: FoldState, record: TopicRecord, place: RecordPosition) -> None:
    """Create a topic without partitions, which have records of their own."""
    state.topics[record.topic_id] = Topic(
        name=record.name, topic_id=record.topic_id, partitions=(), created_offset=place.offset
    )


def remove_topic(state: FoldState, record: RemoveTopicRecord, place: RecordPosition) -> None:
    """Remove a topic with its partitions and its configuration."""
    topic = _topic(state, record.topic_id, place)
    del state.topics[record.topic_id]
    state.partitions.pop(record.topic_id, None)
    state.configs.pop(ConfigResource(ResourceType.TOPIC, topic.name), None)
    state.deleted_topics.append(
        DeletedTopic(
            name=topic.name, topic_id=topic.topic_id, offset=place.offset or 0, timestamp=place.timestamp
        )
    )  # fmt: skip


def set_partition(state: FoldState, record: PartitionRecord, place: RecordPosition) -> None:
    """Set a whole partition, new or existing."""
    _topic(state, record.topic_id, place)
    state.partitions[record.topic_id][record.partition_id] = Partition(
        partition=record.partition_id,
        replicas=record.replicas,
        isr=record.isr,
        removing_replicas=record.removing_replicas,
        adding_replicas=record.adding_replicas,
        leader=record.leader,
        leader_recovery_state=record.leader_recovery_state,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        directories=record.directories,
        eligible_leader_replicas=record.eligible_leader_replicas or (),
        last_known_elr=record.last_known_elr or (),
    )


_LISTS: Final = ("replicas", "isr", "removing_replicas", "adding_replicas", "directories",
                 "eligible_leader_replicas", "last_known_elr")  # fmt: skip
"""What a change of a partition replaces, unless it is null."""


def change_partition(state: FoldState, record: PartitionChangeRecord, place: RecordPosition) -> None:
    """Change a partition; a leader, even the same one, begins a leader epoch, every change a partition epoch."""
    _topic(state, record.topic_id, place)
    before = state.partitions[record.topic_id].get(record.partition_id)
    if before is None:
        raise place.wrong(f"partition {record.partition_id} of topic {record.topic_id} changes that was never created")
    recovery = before.leader_recovery_state
    stays = record.leader == NO_LEADER_CHANGE
    news: dict[str, Any] = {name: value for name in _LISTS if (value := getattr(record, name)) is not None}
    state.partitions[record.topic_id][record.partition_id] = replace(
        before,
        leader=before.leader if stays else record.leader,
        leader_epoch=before.leader_epoch + (not stays),
        leader_recovery_state=recovery
        if record.leader_recovery_state == NO_STATE_CHANGE
        else record.leader_recovery_state,
        partition_epoch=before.partition_epoch + 1,
        **news,
    )


def clear_elr(state: FoldState, record: ClearElrRecord, place: RecordPosition) -> None:
    """Clear the eligible leader replicas of a topic, or of all topics."""
    topic_ids = [topic.topic_id for topic in state.topics.values() if record.topic_name in {"", topic.name}]
    if record.topic_name and not topic_ids:
        raise place.wrong(f"topic {record.topic_name} is not there")
    for topic_id in topic_ids:
        for number, partition in state.partitions[topic_id].items():
            state.partitions[topic_id][number] = replace(partition, eligible_leader_replicas=(), last_known_elr=())


def _topic(state: FoldState, topic_id: str, place: RecordPosition) -> Topic:
    topic = state.topics.get(topic_id)
    if topic is None:
        raise place.wrong(f"the topic with id {topic_id} is not there")
    return topic


_Named = TypeVar("_Named", Endpoint, SupportedFeature)
_CHANGE: Final = {-1: False, 0: None, 1: True}
"""What a flag becomes; None: it stays."""


def register_broker(state: FoldState, record: RegisterBrokerRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Apply a broker's registration, replacing an older one of the same id."""
    state.brokers[record.broker_id] = Broker(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        endpoints=_by_name(record.end_points),
        features=_by_name(record.features),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        is_migrating_zk_broker=record.is_migrating_zk_broker,
        log_dirs=record.log_dirs,
        cordoned_log_dirs=record.cordoned_log_dirs or (),
    )


def unregister_broker(state: FoldState, record: UnregisterBrokerRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Apply the removal of a broker, which may be unknown."""
    state.brokers.pop(record.broker_id, None)


def change_registration(state: FoldState, record: BrokerRegistrationChangeRecord, place: RecordPosition) -> None:
    """Apply a change to a registration; unchanged fields are 0, or empty."""
    if record.fenced not in _CHANGE or record.in_controlled_shutdown not in _CHANGE:
        raise place.wrong(
            f"fenced {record.fenced}, in controlled shutdown {record.in_controlled_shutdown}: not -1 to 1"
        )
    _change_broker(
        state,
        record.broker_id,
        record.broker_epoch,
        place,
        fenced=_CHANGE[record.fenced],
        in_controlled_shutdown=_CHANGE[record.in_controlled_shutdown],
        log_dirs=record.log_dirs or None,
        cordoned_log_dirs=record.cordoned_log_dirs,
    )


def fence_broker(state: FoldState, record: FenceBrokerRecord, place: RecordPosition) -> None:
    """Fence a broker; before 3.3-IV2."""
    _change_broker(state, record.id, record.epoch, place, fenced=True)


def unfence_broker(state: FoldState, record: UnfenceBrokerRecord, place: RecordPosition) -> None:
    """Unfence a broker; before 3.3-IV2."""
    _change_broker(state, record.id, record.epoch, place, fenced=False)


def register_controller(state: FoldState, record: RegisterControllerRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Apply a controller's registration, replacing an older one of the same id."""
    state.controllers[record.controller_id] = Controller(
        controller_id=record.controller_id,
        incarnation_id=record.incarnation_id,
        endpoints=_by_name(record.end_points),
        features=_by_name(record.features),
        zk_migration_ready=record.zk_migration_ready,
    )


def unregister_controller(state: FoldState, record: UnregisterControllerRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Apply the removal of a controller, which may be unknown."""
    state.controllers.pop(record.controller_id, None)


def set_feature(state: FoldState, record: FeatureLevelRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Set the level of a feature; 0 removes it."""
    state.features.pop(record.name, None)
    if record.feature_level:
        state.features[record.name] = record.feature_level


def set_migration_state(state: FoldState, record: ZkMigrationStateRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Set the state of the migration from ZooKeeper; 0 is none."""
    state.zk_migration_state = record.zk_migration_state


def _by_name(parts: tuple[_Named, ...]) -> tuple[_Named, ...]:
    """Sort entries by name, since a log and a checkpoint order them differently."""
    return tuple(sorted(parts, key=lambda part: part.name))


def _change_broker(state: FoldState, broker_id: int, epoch: int, place: RecordPosition, **changed: Any) -> None:  # noqa: ANN401
    broker = state.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch:
        now = "not registered" if broker is None else f"registered under epoch {broker.epoch}"
        raise place.wrong(f"the registration of broker {broker_id}, epoch {epoch}, changes, but it is {now}")
    state.brokers[broker_id] = replace(
        broker, **{name: value for name, value in changed.items() if value is not None}
    )  # fmt: skip


def set_config(state: FoldState, record: ConfigRecord, place: RecordPosition) -> None:
    """Set a setting, or remove it if the value is null; a resource without settings is removed."""
    resource = ConfigResource(record.resource_type, record.resource_name)
    if record.value is None:
        state.configs[resource].pop(record.name, None)
        if not state.configs[resource]:
            del state.configs[resource]
    else:
        state.configs[resource][record.name] = record.value
    if resource.type == ResourceType.BROKER:
        state.broker_config_changes.append(
            ConfigChange(
                resource=resource,
                name=record.name,
                value=record.value,
                offset=place.offset,
                timestamp=place.timestamp,
            )
        )


def set_quota(state: FoldState, record: ClientQuotaRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Set or remove a quota; an entity without quotas is removed."""
    entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
    if record.remove:
        state.quotas[entity].pop(record.key, None)
        if not state.quotas[entity]:
            del state.quotas[entity]
    else:
        state.quotas[entity][record.key] = record.value


def add_access_control_entry(state: FoldState, record: AccessControlEntryRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Add an entry; one of the same id is replaced."""
    state.access_control_entries[record.id] = record


def remove_access_control_entry(
    state: FoldState, record: RemoveAccessControlEntryRecord, place: RecordPosition
) -> None:
    """Remove an entry that is there."""
    if state.access_control_entries.pop(record.id, None) is None:
        raise place.wrong(f"the access control entry {record.id} is removed, which was never added")


def set_scram_credential(state: FoldState, record: UserScramCredentialRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Set a user's credential of one mechanism."""
    state.scram_credentials[record.name, record.mechanism] = record


def remove_scram_credential(state: FoldState, record: RemoveUserScramCredentialRecord, place: RecordPosition) -> None:  # noqa: ARG001
    """Remove a user's credential of one mechanism."""
    state.scram_credentials.pop((record.name, record.mechanism), None)


def give_block(state: FoldState, record: ProducerIdsRecord, place: RecordPosition) -> None:
    """Record that a block was allocated to a broker; or that all ids so far were, to brokers that are unknown now."""
    source = _source(record, place)
    above = state.next_producer_id or 0
    allocated = source is BlockSource.ALLOCATED
    first = (
        max(record.next_producer_id - PRODUCER_ID_BLOCK_SIZE, 0) if allocated else min(above, record.next_producer_id)
    )
    if allocated and first != above:
        _note_order(state, record, place, above)
    known = source is not BlockSource.CHECKPOINT and record.broker_id != NO_BROKER
    state.producer_id_blocks.append(
        ProducerIdBlock(
            first_producer_id=first,
            next_producer_id=record.next_producer_id,
            broker_id=record.broker_id if known else None,
            broker_epoch=record.broker_epoch if known and record.broker_epoch != NO_BROKER_EPOCH else None,
            source=source,
            offset=place.offset,
            timestamp=place.timestamp,
        )
    )
    state.next_producer_id = record.next_producer_id


def _source(record: ProducerIdsRecord, place: RecordPosition) -> BlockSource:
    # Until 3.3 a checkpoint's record names a broker, the last one or 0, as if it were a request's.
    if place.offset is None or record.broker_id == NO_BROKER:
        return BlockSource.CHECKPOINT
    return BlockSource.MIGRATION if record.broker_epoch == NO_BROKER_EPOCH else BlockSource.ALLOCATED


def _note_order(state: FoldState, record: ProducerIdsRecord, place: RecordPosition, above: int) -> None:
    first = record.next_producer_id - PRODUCER_ID_BLOCK_SIZE
    skipped = f"ids from {above} to {first} were allocated to no broker"
    what = skipped if first > above else f"ids below {above} were allocated before"
    text = f"the block of producer ids below {record.next_producer_id} does not begin at {above}: {what}"
    state.notes.append(Note(offset=place.offset, text=text))


HANDLERS: Final[dict[type, Callable[[FoldState, Any, RecordPosition], None]]] = {
    TopicRecord: create_topic,
    RemoveTopicRecord: remove_topic,
    PartitionRecord: set_partition,
    PartitionChangeRecord: change_partition,
    ClearElrRecord: clear_elr,
    RegisterBrokerRecord: register_broker,
    UnregisterBrokerRecord: unregister_broker,
    BrokerRegistrationChangeRecord: change_registration,
    FenceBrokerRecord: fence_broker,
    UnfenceBrokerRecord: unfence_broker,
    RegisterControllerRecord: register_controller,
    UnregisterControllerRecord: unregister_controller,
    FeatureLevelRecord: set_feature,
    ZkMigrationStateRecord: set_migration_state,
    ConfigRecord: set_config,
    ClientQuotaRecord: set_quota,
    AccessControlEntryRecord: add_access_control_entry,
    RemoveAccessControlEntryRecord: remove_access_control_entry,
    UserScramCredentialRecord: set_scram_credential,
    RemoveUserScramCredentialRecord: remove_scram_credential,
    ProducerIdsRecord: give_block,
}
