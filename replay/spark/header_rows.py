"""Batch headers as rows of a table: one row per batch, or per message in formats older than batches.

Columns have Kafka's own names. Where Kafka writes -1 for a missing value, a row has null, so that ``GROUP BY
producerId`` or ``max(lastSequence)`` need no special case.

Only headers are read, and the one record of each control batch; one block of the segment is in memory at a time.

Records as rows of a table: one row per record that a client wrote, those of compressed batches included.

Batches are read whole, checked by their checksums, and decompressed; markers of transactions give no rows. The offset
of a message inside a compressed one counts from the last of them (KIP-31), in magic 0 it is its own.

Source: ``DefaultRecord``, ``AbstractLegacyRecordBatch.DeepRecordsIterator`` in Kafka's clients module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resnap.replay.scan.header_scan import ScanFacts, control_record, last_sequences, read_blocks, whole_batch
from resnap.storage.errors import in_file
from resnap.storage.log.compression import decompressed
from resnap.storage.log.message_set import (
    MAGIC_V0,
    LegacyMessage,
    check_legacy_crc,
    read_key_and_value,
    read_legacy_message,
)
from resnap.storage.log.record import ABORT, COMMIT, read_client_records
from resnap.storage.log.record_batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    check_crc,
    compression_name,
    read_header,
)
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.scan.header_scan import Block, SegmentRange
    from resnap.storage.crc32c import Buffer
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

ROW_SCHEMA: Final = pa.schema([
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("segment", pa.int64()),              # its base offset
    ("position", pa.int64()),             # bytes, in the .log file
    ("sizeInBytes", pa.int64()),          # header included
    ("magic", pa.int32()),
    ("baseOffset", pa.int64()),           # null for a compressed message: only inflating it would show
    ("lastOffset", pa.int64()),           # inclusive
    ("recordsCount", pa.int32()),         # likewise null for a compressed message
    ("maxTimestamp", pa.int64()),         # milliseconds
    ("compression", pa.string()),
    ("isTransactional", pa.bool_()),
    ("isControl", pa.bool_()),
    ("controlType", pa.string()),         # COMMIT or ABORT; null also where a cleaner has taken a marker's record
    ("coordinatorEpoch", pa.int32()),     # of a marker
    ("producerId", pa.int64()),
    ("producerEpoch", pa.int32()),
    ("baseSequence", pa.int32()),
    ("lastSequence", pa.int32()),
    ("partitionLeaderEpoch", pa.int32()),
])  # fmt: skip
"""Every column may be null, as Spark wants it."""
_CODECS: Final = tuple(map(compression_name, range(COMPRESSION_MASK + 1)))
_MARKERS: Final = {ABORT: "ABORT", COMMIT: "COMMIT"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """A segment to read rows from, with its directory's partition; None if that is not named like one."""

    topic: str | None
    partition: int | None
    size_bytes: int
    range: SegmentRange


class _Control(NamedTuple):
    """The fields of a block's control records, a value for each header."""

    types: list[str | None]
    coordinator_epochs: list[int | None]


def read_header_rows(segment: LogSegment, sources: Sources = PLAIN) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``segment`` (``ROW_SCHEMA``), block by block; in a block, those of old messages come first.

    Raises:
        FormatError: damage, with file and position; what came before it has been yielded.
        LogDirError, StoreError: the file does not exist, or cannot be read.

    """
    with sources.open(segment.range.locator) as reader:
        for block in read_blocks(reader, segment.range, ScanFacts()):
            if block.messages:
                rows = [_message_row(segment, block.at + position, message) for position, message in block.messages]
                yield pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)
            if len(block.headers):
                with in_file(segment.range.locator):
                    control = _control(reader, block)
                yield _batch_rows(segment, block, control)


def _message_row(segment: LogSegment, position: int, message: LegacyMessage) -> dict[str, object]:
    """Return the row of a message, without the columns that are null for it."""
    row: dict[str, object] = {
        "topic": segment.topic,
        "partition": segment.partition,
        "segment": segment.range.base_offset,
        "position": position,
        "sizeInBytes": message.size_bytes,
        "magic": message.magic,
        "lastOffset": message.offset,
        "maxTimestamp": None if message.timestamp == NO_TIMESTAMP else message.timestamp,
        "compression": _CODECS[message.attributes & COMPRESSION_MASK],
        "isTransactional": False,
        "isControl": False,
    }
    return row if message.is_compressed else row | {"baseOffset": message.offset, "recordsCount": 1}


def _control(reader: RangeReader, block: Block) -> _Control:
    control = _Control([None] * len(block.headers), [None] * len(block.headers))
    for index in np.flatnonzero(block.headers["attributes"] & CONTROL).tolist():
        record = control_record(reader, block, index)
        if record is not None and record.is_marker:
            control.types[index] = _MARKERS[record.type]
            control.coordinator_epochs[index] = record.coordinator_epoch
    return control


def _batch_rows(segment: LogSegment, block: Block, control: _Control) -> pa.RecordBatch:
    headers = block.headers
    count, attributes = len(headers), headers["attributes"]
    columns = {
        "topic": [segment.topic] * count,
        "partition": [segment.partition] * count,
        "segment": np.full(count, segment.range.base_offset),
        "position": block.positions + block.at,
        "sizeInBytes": headers["batch_length"].astype(np.int64) + LOG_OVERHEAD,
        "magic": headers["magic"],
        "baseOffset": headers["base_offset"],
        "lastOffset": headers["base_offset"] + headers["last_offset_delta"].astype(np.int64),
        "recordsCount": headers["records_count"],
        "maxTimestamp": _unless_absent(headers["max_timestamp"]),
        "compression": [_CODECS[codec] for codec in (attributes & COMPRESSION_MASK).tolist()],
        "isTransactional": (attributes & TRANSACTIONAL) != 0,
        "isControl": (attributes & CONTROL) != 0,
        "controlType": control.types,
        "coordinatorEpoch": control.coordinator_epochs,
        "producerId": _unless_absent(headers["producer_id"]),
        "producerEpoch": _unless_absent(headers["producer_epoch"]),
        "baseSequence": _unless_absent(headers["base_sequence"]),
        "lastSequence": _unless_absent(last_sequences(headers)),
        "partitionLeaderEpoch": _unless_absent(headers["partition_leader_epoch"]),
    }
    arrays = [_array(columns[field.name], field.type) for field in ROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def _unless_absent(values: npt.NDArray[np.integer]) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=values == -1)


def _array(values: object, type_: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(type_)
    if isinstance(values, np.ndarray):
        # Arrow takes the machine's own byte order alone.
        values = values.astype(values.dtype.newbyteorder("="))
    return pa.array(values, type=type_)


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
                    yield _table(segment, at, list(_rows_of_batch(whole_batch(reader, block, index), at)))


def _table(segment: LogSegment, at: int, rows: list[_Row]) -> pa.RecordBatch:
    same = (segment.topic, segment.partition, segment.range.base_offset, at)
    columns = [*([value] * len(rows) for value in same), *(zip(*rows, strict=True) if rows else [[]] * 5)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _rows_of_batch(batch: Buffer, at: int) -> Iterator[_Row]:
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
