"""Records as rows of a table: one row per record that a client wrote, those of compressed batches included.

Batches are read whole, checked by their checksums, and decompressed; markers of transactions give no rows. The offset
of a message inside a compressed one counts from the last of them (KIP-31), in magic 0 it is its own.

Source: ``DefaultRecord``, ``AbstractLegacyRecordBatch.DeepRecordsIterator`` in Kafka's clients module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from resnap.replay.scan.header_scan import ScanFacts, read_blocks, whole_batch
from resnap.storage.errors import in_file
from resnap.storage.log.compression import decompressed
from resnap.storage.log.message_set import (
    MAGIC_V0,
    LegacyMessage,
    check_legacy_crc,
    read_key_and_value,
    read_legacy_message,
)
from resnap.storage.log.record import read_client_records
from resnap.storage.log.record_batch import (
    HEADER,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    check_crc,
    compression_name,
    read_header,
)
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.spark.header_rows import LogSegment
    from resnap.storage.crc32c import Buffer
    from resnap.storage.sources.files import Sources

RECORD_SCHEMA: Final = pa.schema([
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("segment", pa.int64()),       # its base offset
    ("position", pa.int64()),      # of the batch, bytes, in the .log file
    ("offset", pa.int64()),
    ("timestamp", pa.int64()),     # milliseconds
    ("key", pa.binary()),
    ("valueSize", pa.int32()),     # bytes; null for a null value
    ("headersCount", pa.int32()),
])  # fmt: skip
"""Every column may be null, as Spark wants it."""

_Row: TypeAlias = tuple[int, int | None, bytes | None, int | None, int]
"""The columns from the offset on."""


def read_record_rows(segment: LogSegment, sources: Sources = PLAIN) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``segment`` (``RECORD_SCHEMA``), batch by batch; in a block, those of old messages come first.

    Raises:
        FormatError: damage, with file and position; what came before it has been yielded.
        LogDirError, StoreError: the file does not exist, or cannot be read.

    """
    with sources.open(segment.range.locator) as reader:
        for block in read_blocks(reader, segment.range, ScanFacts()):
            with in_file(segment.range.locator):
                for position, message in block.messages:
                    at = block.at + position
                    yield _table(segment, at, list(_legacy_rows(reader.read(at, message.size_bytes), at)))
                for index, position in enumerate(block.positions.tolist()):
                    at = block.at + position
                    yield _table(segment, at, list(_batch_rows(whole_batch(reader, block, index), at)))


def _table(segment: LogSegment, at: int, rows: list[_Row]) -> pa.RecordBatch:
    same = (segment.topic, segment.partition, segment.range.base_offset, at)
    columns = [*([value] * len(rows) for value in same), *(zip(*rows, strict=True) if rows else [[]] * 5)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _batch_rows(batch: Buffer, at: int) -> Iterator[_Row]:
    header = read_header(batch, at=at)
    check_crc(batch, at=at)
    if header.is_control:
        return
    records = decompressed(memoryview(batch)[HEADER.size :], header.compression, at=at)
    for record, headers in read_client_records(records, header.records_count, at=at):
        timestamp = (
            header.max_timestamp if header.is_log_append_time else header.base_timestamp + record.timestamp_delta
        )
        offset = header.base_offset + record.offset_delta
        yield _row(offset, timestamp, record.key, record.value, headers)


def _legacy_rows(message: Buffer, at: int) -> Iterator[_Row]:
    outer = read_legacy_message(message, at=at)
    check_legacy_crc(message, at=at)
    key, value = read_key_and_value(message, outer, at=at)
    if not outer.is_compressed or value is None:
        yield _row(outer.offset, outer.timestamp, key, value, 0)
        return
    inside = list(_messages(decompressed(value, compression_name(outer.attributes), at=at), at))
    first = 0 if outer.magic == MAGIC_V0 or not inside else outer.offset - inside[-1][0].offset
    for inner, data in inside:
        timestamp = outer.timestamp if outer.attributes & LOG_APPEND_TIME else inner.timestamp
        yield _row(first + inner.offset, timestamp, *read_key_and_value(data, inner, at=at), 0)


def _messages(messages: Buffer, at: int) -> Iterator[tuple[LegacyMessage, memoryview]]:
    view, position = memoryview(messages), 0
    while position < len(view):
        message = read_legacy_message(view, position, at=at)
        yield message, view[position : position + message.size_bytes]
        position += message.size_bytes


def _row(offset: int, timestamp: int, key: Buffer | None, value: Buffer | None, headers: int) -> _Row:
    return (
        _int64(offset),
        None if timestamp == NO_TIMESTAMP else _int64(timestamp),
        None if key is None else bytes(key),
        None if value is None else len(value),
        headers,
    )


def _int64(value: int) -> int:
    """Return ``value`` as Java's ``long`` has it: a delta that a client has written may lead beyond its ends."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
