"""The records of ``__remote_log_metadata`` in a log dir, partition by partition, each where it stands.

What a broker could not read becomes an event like the others, so that one bad record does not hide the rest. The last
batch of an active segment may be on its way still: a broker may be writing it.

Source: ``ConsumerTask``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from resnap.storage.disk import legible
from resnap.storage.errors import FormatError, UsageError, in_file
from resnap.storage.log.record import read_records
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, check_crc, read_header
from resnap.storage.whole_file import open_file
from resnap.tiering.remote_log.codec import decode_record
from resnap.tiering.remote_log.records import METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.log.survey import LogDir
    from resnap.tiering.remote_log.records import RemoteLogRecord


class Event(NamedTuple):
    """One record where it stands."""

    metadata_partition: int
    offset: int
    record: RemoteLogRecord | FormatError
    """The record, or why a broker's reader ends here."""


def metadata_partitions(log_dirs: Iterable[LogDir]) -> dict[int, PartitionDir]:
    """Return the partitions of the metadata topic that lie in ``log_dirs``, by number.

    Raises:
        UsageError: one of them lies in two.

    """
    found: dict[int, PartitionDir] = {}
    for log_dir in log_dirs:
        for partition in log_dir.partitions:
            number = partition.topic_partition.partition
            if partition.topic_partition.topic != METADATA_TOPIC:
                continue
            if number in found:
                raise UsageError(
                    f"{METADATA_TOPIC}-{number} lies in {found[number].path} and in {partition.path}",
                    hint="give the log dirs of one broker",
                )
            found[number] = partition
    return dict(sorted(found.items()))


def read_events(partition: PartitionDir) -> Iterator[Event]:
    """Yield the records of one partition of the metadata topic, in order.

    Raises:
        FormatError: a batch is damaged, or compressed, which brokers never do here.
        LogDirError: a file cannot be read.

    """
    for segment in partition.segments:
        path = Path(segment.path)
        with legible(path), open_file(path) as file, in_file(path):
            for position, batch in _batches(file, segment):
                yield from _events(partition.topic_partition.partition, batch, position)


def event_of(metadata_partition: int, offset: int, value: Buffer | None, at: int = 0) -> Event:
    """Return the record at ``offset``, decoded; ``at`` is the file position of its value."""
    record: RemoteLogRecord | FormatError
    try:
        record = decode_record(value, at=at)
    except FormatError as error:
        record = error
    return Event(metadata_partition, offset, record)


def _batches(file: BinaryIO, segment: Segment) -> Iterator[tuple[int, bytes]]:
    """Yield whole batches with their positions, up to the end of the file, or to what is not whole at the log's end."""
    position, size = 0, os.fstat(file.fileno()).st_size
    while start := file.read(HEADER.size):
        length = int.from_bytes(start[LOG_OVERHEAD - 4 : LOG_OVERHEAD], "big", signed=True)
        there = min(LOG_OVERHEAD + length, size - position)  # memory is taken for what is asked for
        batch = start + file.read(max(there - len(start), 0))
        is_whole = len(batch) >= HEADER.size and len(batch) == LOG_OVERHEAD + length
        if not is_whole and segment.is_active:
            return
        if not is_whole:
            raise FormatError("record batch", position=position, expected="all of its bytes", found=len(batch))
        yield position, batch
        position += len(batch)


def _events(number: int, batch: bytes, position: int) -> Iterator[Event]:
    header = read_header(batch, at=position)
    check_crc(batch, at=position)
    if header.is_control:
        return
    for record in read_records(batch, header, what="remote log metadata record", at=position):
        yield event_of(number, header.base_offset + record.offset_delta, record.value, position + record.value_position)
