"""Reads and writes records of ``__remote_log_metadata``, as strictly as brokers require.

The record types are data: fields, their order and their types. A segment has a full record when its copy begins, and
updates from then on. A third type reports deleted partitions. The fourth type that Kafka defines belongs in a broker's
own file, never in the topic: it stops the topic's reader. All records of a partition are in one partition of the topic,
in order.

A broker's reader of the topic stops for good at the first invalid value, in every broker that follows the partition,
and again after each restart. So such values are damage here, and are neither read nor written: no value at all, bytes
that cannot be decoded, a type that does not belong in the topic, a first record in another state than the first,
unknown states, a segment without leader epochs, or one that ends before it starts. An invalid value becomes an event
like the others, so that one bad record does not hide the rest.

Source: KIP-405; ``RemoteLogMetadataSerde``, ``ConsumerTask``, ``RemoteLogSegmentMetadata``;
``RemoteLogSegmentMetadataRecord.json`` and related files in Kafka's storage module; the tag: 4.0.
``RemoteLogMetadataTopicPartitioner``; ``TopicIdPartition.hashCode``, which excludes the topic's name; ``Utils.murmur2``
in Kafka's clients module.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias
from uuid import UUID

from resnap.storage.errors import FormatError
from resnap.storage.log.internal_topic import read_partition
from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.schema import (
    Bool,
    Bytes,
    Frame,
    Int8,
    Int32,
    Int64,
    String,
    Tag,
    Uuid,
    read_frame,
    read_whole,
    write_frame,
    write_message,
)
from resnap.storage.messages.wire import ZERO_UUID, Cursor, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.partition_dir import PartitionDir

METADATA_TOPIC: Final = "__remote_log_metadata"
_OUR_VERSION: Final = 5
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_FACTOR: Final = 31
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_WHAT: Final = "remote log metadata record"
_VERSION: Final = 0
"""Version of all record types, so far."""


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


def is_ours(segment_id: str) -> bool:
    """Whether Resnap made ``segment_id``, a UUID of version 5 in Kafka's base64 form; brokers' are of version 4."""
    return UUID(bytes=uuid_bytes(segment_id)).version == _OUR_VERSION


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
_API_KEYS: Final = {message: key for key, message in TYPES.items()}
"""The api key of each kind of record."""


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


def decode_record(value: Buffer | None, *, at: int = 0) -> RemoteLogRecord:
    """Return the record in ``value``; ``at`` is the file position of the value.

    Raises:
        FormatError: a broker would not survive it.

    """
    cursor = Cursor(b"" if value is None else value, at=at)
    if value is None:
        raise cursor.wrong(_WHAT, "a value", "none")
    frame = read_frame(cursor, _WHAT)
    known = TYPES.get(frame.api_key)
    if known is None or frame.version != _VERSION:
        raise cursor.wrong(_WHAT, "type 0, 1 or 2, of version 0", f"type {frame.api_key}, version {frame.version}")
    record = read_whole(known, cursor, _VERSION)
    for problem in _problems(cursor, record):
        raise problem
    return record


def encode_record(record: RemoteLogRecord) -> bytes:
    """Return the value of the log record that holds ``record``, decoded again and compared.

    Raises:
        ValueError: a field cannot hold its value.
        FormatError: a broker would not survive it.

    """
    value = write_frame(Frame(_API_KEYS[type(record)], _VERSION)) + write_message(record, _VERSION)
    if decode_record(value) != record:
        raise AssertionError(f"{record} differs after encoding and decoding")
    return value


def _problems(cursor: Cursor, record: RemoteLogRecord) -> Iterator[FormatError]:
    """Yield why a decoded record is still invalid for a broker."""
    partition = partition_of(record)
    if partition.id == ZERO_UUID or partition.partition < 0 or not partition.name:
        yield cursor.wrong("partition", "a topic with an id, and a number", partition)
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        if record.remote_partition_delete_state not in set(PartitionDeleteState):
            yield cursor.wrong("deletion state", "0 to 2", record.remote_partition_delete_state)
        return
    state = record.remote_log_segment_state
    if state not in set(SegmentState):
        yield cursor.wrong("segment state", "0 to 3", state)
    if isinstance(record, RemoteLogSegmentMetadataRecord):
        yield from _problems_of_first(cursor, record)
    elif state == SegmentState.COPY_SEGMENT_STARTED:
        yield cursor.wrong("state of an update", "1 to 3", state)


def _problems_of_first(cursor: Cursor, record: RemoteLogSegmentMetadataRecord) -> Iterator[FormatError]:
    if record.remote_log_segment_state != SegmentState.COPY_SEGMENT_STARTED:
        yield cursor.wrong(
            "state of a first record", SegmentState.COPY_SEGMENT_STARTED, record.remote_log_segment_state
        )
    if not 0 <= record.start_offset <= record.end_offset:
        yield cursor.wrong("offsets", "0 <= start <= end", f"{record.start_offset} and {record.end_offset}")
    epochs = record.segment_leader_epochs
    if not epochs or any(a.leader_epoch >= b.leader_epoch for a, b in pairwise(epochs)):
        yield cursor.wrong("leader epochs", "at least one, ascending", [epoch.leader_epoch for epoch in epochs])


class Event(NamedTuple):
    """One record and its position."""

    metadata_partition: int
    offset: int
    record: RemoteLogRecord | FormatError
    """The record, or why a broker's reader ends here."""


def read_events(partition: PartitionDir) -> Iterator[Event]:
    """Yield the records of one partition of the metadata topic, in order.

    Raises:
        FormatError: a batch is damaged, or compressed, which brokers never do here.
        LogDirError: a file cannot be read.

    """
    for found in read_partition(partition):
        record = found.record
        at = found.position + record.value_position
        yield event_of(partition.topic_partition.partition, found.offset, record.value, at)


def event_of(metadata_partition: int, offset: int, value: Buffer | None, at: int = 0) -> Event:
    """Return the record at ``offset``, decoded; ``at`` is the file position of its value."""
    record: RemoteLogRecord | FormatError
    try:
        record = decode_record(value, at=at)
    except FormatError as error:
        record = error
    return Event(metadata_partition, offset, record)
