"""The records of ``__remote_log_metadata``, as data: fields, their order and their types.

A segment is told of by a whole record when its copying begins, and by updates from then on. A third record tells of
partitions that are deleted. The fourth type that Kafka defines belongs in a broker's own file, never in the topic: its
reader dies of it.

Source: KIP-405; ``RemoteLogSegmentMetadataRecord.json`` and its neighbours in Kafka's storage module; the tag: 4.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.schema import Bool, Bytes, Int8, Int32, Int64, String, Tag, Uuid

METADATA_TOPIC: Final = "__remote_log_metadata"


class SegmentState(IntEnum):
    """How far a segment has come."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    @property
    def label(self) -> str:
        """What it is called in an answer."""
        return self.name.lower().replace("_segment_", "-")


class PartitionDeleteState(IntEnum):
    """How far the deletion of a partition has come."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdPartition:
    """A partition of one topic among all that ever had its name."""

    name: String
    id: Uuid
    partition: Int32

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and number."""
        return TopicPartition(self.name, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentId:
    """A segment as it was, or was to be, copied once; another attempt at the same offsets has another id."""

    topic_id_partition: TopicIdPartition
    id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLeaderEpoch:
    """Where a leader epoch begins within a segment."""

    leader_epoch: Int32
    offset: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataRecord:
    """A segment whose copying begins."""

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: Int64
    end_offset: Int64
    """Inclusive: the base of the next segment less one."""
    broker_id: Int32
    max_timestamp_ms: Int64
    event_timestamp_ms: Int64
    segment_leader_epochs: tuple[SegmentLeaderEpoch, ...]
    """The first one clamped to ``start_offset``."""
    segment_size_in_bytes: Int32
    """Size of the log alone."""
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = SegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: Annotated[Bool, Tag(0)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdateRecord:
    """How far a segment has come since."""

    remote_log_segment_id: RemoteLogSegmentId
    broker_id: Int32
    event_timestamp_ms: Int64
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadataRecord:
    """A partition that is being deleted."""

    topic_id_partition: TopicIdPartition
    broker_id: Int32
    event_timestamp_ms: Int64
    remote_partition_delete_state: Int8


RemoteLogRecord: TypeAlias = (
    RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord | RemotePartitionDeleteMetadataRecord
)
TYPES: Final[dict[int, type[RemoteLogRecord]]] = {
    0: RemoteLogSegmentMetadataRecord,
    1: RemoteLogSegmentMetadataUpdateRecord,
    2: RemotePartitionDeleteMetadataRecord,
}
"""By api key."""


def partition_of(record: RemoteLogRecord) -> TopicIdPartition:
    """Return which partition ``record`` is about."""
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        return record.topic_id_partition
    return record.remote_log_segment_id.topic_id_partition
