"""The records of ``__remote_log_metadata`` in a log dir, partition by partition, each where it stands.

What a broker could not read becomes an event like the others, so that one bad record does not hide the rest.

Source: ``ConsumerTask``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.log.internal_topic import read_partition
from resnap.tiering.remote_log.codec import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.remote_log.records import RemoteLogRecord


class Event(NamedTuple):
    """One record where it stands."""

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
