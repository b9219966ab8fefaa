"""Reads the records of an internal topic in a log dir, such as ``__transaction_state`` or ``__consumer_offsets``.

The last batch of an active segment may be incomplete, because a broker is writing it. A compacted topic lacks offsets,
and even whole segments; the remaining records are in log order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from resnap.storage.disk import reading
from resnap.storage.errors import FormatError, UsageError, in_file
from resnap.storage.log.record import Record, read_records
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, RecordBatchHeader, check_crc, read_header
from resnap.storage.whole_file import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir, Segment


class PlacedRecord(NamedTuple):
    """A record with its position."""

    offset: int
    record: Record
    header: RecordBatchHeader
    """The header of its batch."""
    position: int
    """The position of its batch in the file."""


def partitions_of(topic: str, log_dirs: Iterable[LogDir]) -> dict[int, PartitionDir]:
    """Return the partitions of ``topic`` that are in ``log_dirs``, by number.

    Raises:
        UsageError: a partition is in two log dirs.

    """
    found: dict[int, PartitionDir] = {}
    for log_dir in log_dirs:
        for partition in log_dir.partitions:
            number = partition.topic_partition.partition
            if partition.topic_partition.topic != topic:
                continue
            if number in found:
                raise UsageError(
                    f"{topic}-{number} lies in {found[number].path} and in {partition.path}",
                    hint="give the log dirs of one broker",
                )
            found[number] = partition
    return dict(sorted(found.items()))


class PlacedBatch(NamedTuple):
    """A whole batch with its position, its checksum compared."""

    path: Path
    position: int
    """The position of the batch in the file."""
    header: RecordBatchHeader
    batch: bytes


def read_partition(partition: PartitionDir) -> Iterator[PlacedRecord]:
    """Yield the records of one partition, in order, without control batches.

    Raises:
        FormatError: a batch is damaged, or compressed, which brokers never do in these topics.
        LogDirError: a file cannot be read.

    """
    what = f"{partition.topic_partition.topic} record"
    for path, position, header, batch in read_partition_batches(partition):
        if not header.is_control:
            with in_file(path):
                for record in read_records(batch, header, what=what, at=position):
                    yield PlacedRecord(header.base_offset + record.offset_delta, record, header, position)


def read_partition_batches(partition: PartitionDir) -> Iterator[PlacedBatch]:
    """Yield the batches of one partition, in order, control batches among them.

    Raises:
        FormatError: a batch is damaged.
        LogDirError: a file cannot be read.

    """
    for segment in partition.segments:
        path = Path(segment.path)
        with reading(path), open_file(path) as file, in_file(path):
            for position, batch in _batches(file, segment):
                header = read_header(batch, at=position)
                check_crc(batch, at=position)
                yield PlacedBatch(path, position, header, batch)


def _batches(file: BinaryIO, segment: Segment) -> Iterator[tuple[int, bytes]]:
    """Yield complete batches with their positions, up to the end of the file or an incomplete last batch of the log."""
    position, size = 0, os.fstat(file.fileno()).st_size
    while start := file.read(HEADER.size):
        length = int.from_bytes(start[LOG_OVERHEAD - 4 : LOG_OVERHEAD], "big", signed=True)
        there = min(LOG_OVERHEAD + length, size - position)  # a read allocates memory for the requested length
        batch = start + file.read(max(there - len(start), 0))
        is_whole = len(batch) >= HEADER.size and len(batch) == LOG_OVERHEAD + length
        if not is_whole and segment.is_active:
            return
        if not is_whole:
            raise FormatError("record batch", position=position, expected="all of its bytes", found=len(batch))
        yield position, batch
        position += len(batch)
