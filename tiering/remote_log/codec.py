"""Reads and writes records of ``__remote_log_metadata``, as strictly as brokers require.

A broker's reader of the topic stops for good at the first invalid value, in every broker that follows the partition,
and again after each restart. So such values are damage here, and are neither read nor written: no value at all, bytes
that cannot be decoded, a type that does not belong in the topic, a first record in another state than the first,
unknown states, a segment without leader epochs, or one that ends before it starts.

An invalid value becomes an event like the others, so that one bad record does not hide the rest.

Source: ``RemoteLogMetadataSerde``, ``ConsumerTask``, ``RemoteLogSegmentMetadata``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.log.internal_topic import read_partition
from resnap.storage.messages.schema import Frame, read_frame, read_whole, write_frame, write_message
from resnap.storage.messages.wire import ZERO_UUID, Cursor
from resnap.tiering.remote_log.records import (
    TYPES,
    PartitionDeleteState,
    RemoteLogRecord,
    RemoteLogSegmentMetadataRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentState,
    partition_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.partition_dir import PartitionDir

_WHAT: Final = "remote log metadata record"
_VERSION: Final = 0
"""Version of all record types, so far."""
_API_KEYS: Final = {message: key for key, message in TYPES.items()}


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
        yield cursor.wrong("leader epochs", "at least one, ascending", [one.leader_epoch for one in epochs])


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
