"""Folds records about topics and partitions into the image.

Source: ``TopicsDelta``, ``TopicDelta``, ``PartitionRegistration.merge``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from resnap.tiering.controller.metadata.image import (
    ConfigResource,
    DeletedTopic,
    Partition,
    ResourceType,
    Topic,
)
from resnap.tiering.controller.metadata.records import (
    NO_LEADER_CHANGE,
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resnap.tiering.controller.metadata.fold_state import FoldState, Place

NO_STATE_CHANGE: Final = -1


def create_topic(state: FoldState, record: TopicRecord, place: Place) -> None:
    """Create a topic without partitions, which have records of their own."""
    state.topics[record.topic_id] = Topic(
        name=record.name, topic_id=record.topic_id, partitions=(), created_offset=place.offset
    )


def remove_topic(state: FoldState, record: RemoveTopicRecord, place: Place) -> None:
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


def set_partition(state: FoldState, record: PartitionRecord, place: Place) -> None:
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


def change_partition(state: FoldState, record: PartitionChangeRecord, place: Place) -> None:
    """Change a partition; a leader, even the same one, begins a leader epoch, every change a partition epoch."""
    _topic(state, record.topic_id, place)
    before = state.partitions[record.topic_id].get(record.partition_id)
    if before is None:
        raise place.wrong(f"partition {record.partition_id} of topic {record.topic_id} changes that was never created")
    recovery = before.leader_recovery_state
    changed = {
        "isr": record.isr,
        "replicas": record.replicas,
        "removing_replicas": record.removing_replicas,
        "adding_replicas": record.adding_replicas,
        "directories": record.directories,
        "eligible_leader_replicas": record.eligible_leader_replicas,
        "last_known_elr": record.last_known_elr,
    }
    stays = record.leader == NO_LEADER_CHANGE
    news: dict[str, Any] = {name: value for name, value in changed.items() if value is not None}
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


def clear_elr(state: FoldState, record: ClearElrRecord, place: Place) -> None:
    """Clear the eligible leader replicas of a topic, or of all topics."""
    topic_ids = [topic.topic_id for topic in state.topics.values() if record.topic_name in {"", topic.name}]
    if record.topic_name and not topic_ids:
        raise place.wrong(f"topic {record.topic_name} is not there")
    for topic_id in topic_ids:
        for number, partition in state.partitions[topic_id].items():
            state.partitions[topic_id][number] = replace(partition, eligible_leader_replicas=(), last_known_elr=())


def _topic(state: FoldState, topic_id: str, place: Place) -> Topic:
    topic = state.topics.get(topic_id)
    if topic is None:
        raise place.wrong(f"the topic with id {topic_id} is not there")
    return topic


HANDLERS: Final[dict[type, Callable[[FoldState, Any, Place], None]]] = {
    TopicRecord: create_topic,
    RemoveTopicRecord: remove_topic,
    PartitionRecord: set_partition,
    PartitionChangeRecord: change_partition,
    ClearElrRecord: clear_elr,
}
