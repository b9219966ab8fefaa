"""The record types of ``__remote_log_metadata``, as data: fields, their order and their types.

A segment has a full record when its copy begins, and updates from then on. A third type reports deleted partitions. The
fourth type that Kafka defines belongs in a broker's own file, never in the topic: it stops the topic's reader. All
records of a partition are in one partition of the topic, in order.

Source: KIP-405; ``RemoteLogSegmentMetadataRecord.json`` and related files in Kafka's storage module; the tag: 4.0.
``RemoteLogMetadataTopicPartitioner``; ``TopicIdPartition.hashCode``, which excludes the topic's name; ``Utils.murmur2``
in Kafka's clients module.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.schema import Bool, Bytes, Int8, Int32, Int64, String, Tag, Uuid
from resnap.storage.messages.wire import uuid_bytes

METADATA_TOPIC: Final = "__remote_log_metadata"
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_FACTOR: Final = 31
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995


class SegmentState(IntEnum):
    """The state of a segment."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    @property
    def label(self) -> str:
        """The state's name in results."""
        return self.name.lower().replace("_segment_", "-")


class PartitionDeleteState(IntEnum):
    """The state of a partition's deletion."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdPartition:
    """A partition of a topic, identified by the topic's id, too."""

    name: String
    id: Uuid
    partition: Int32

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and number."""
        return TopicPartition(self.name, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentId:
    """The id of one copy of a segment; another attempt at the same offsets has another id."""

    topic_id_partition: TopicIdPartition
    id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLeaderEpoch:
    """The start offset of a leader epoch within a segment."""

    leader_epoch: Int32
    offset: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataRecord:
    """A segment whose copy begins."""

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
    """A later state of a segment."""

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
    """Return the partition of ``record``."""
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        return record.topic_id_partition
    return record.remote_log_segment_id.topic_id_partition


def metadata_partition(of: TopicIdPartition, partitions: int) -> int:
    """Return which of the topic's ``partitions`` holds the records of ``of``."""
    most, least = struct.unpack(">QQ", uuid_bytes(of.id))
    hashed = 1
    for part in (_hash_of_long(least), _hash_of_long(most), of.partition):
        hashed = (_FACTOR * hashed + part) & _MASK
    return (murmur2(struct.pack(">I", hashed)) & _POSITIVE) % partitions


def murmur2(data: bytes) -> int:
    """Return the hash of ``data`` as in Kafka's Java client, as an unsigned 32-bit number."""
    hashed = _SEED ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (word * _MULTIPLIER) & _MASK
        mixed = ((mixed ^ (mixed >> 24)) * _MULTIPLIER) & _MASK
        hashed = ((hashed * _MULTIPLIER) & _MASK) ^ mixed
    if rest := data[whole:]:
        hashed = ((hashed ^ int.from_bytes(rest, "little")) * _MULTIPLIER) & _MASK
    hashed = ((hashed ^ (hashed >> 13)) * _MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)


def _hash_of_long(value: int) -> int:
    return (value ^ (value >> 32)) & _MASK
