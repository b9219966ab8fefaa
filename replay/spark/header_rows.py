"""Batch headers as rows of a table: one row per batch, or per message in formats older than batches.

Columns have Kafka's own names. Where Kafka writes -1 for a missing value, a row has null, so that ``GROUP BY
producerId`` or ``max(lastSequence)`` need no special case.

Only headers are read, and the one record of each control batch; one block of the segment is in memory at a time. The
columns of records are declared here, too: ``record_rows``, which makes them, loads numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resnap.replay.scan.header_scan import ScanFacts, control_record, last_sequences, read_blocks
from resnap.storage.errors import in_file
from resnap.storage.log.record import ABORT, COMMIT
from resnap.storage.log.record_batch import (
    COMPRESSION_MASK,
    CONTROL,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    compression_name,
)
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.replay.scan.header_scan import Block, SegmentRange
    from resnap.storage.errors import FormatError
    from resnap.storage.log.message_set import LegacyMessage
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
HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
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
    ("value", pa.binary()),
    ("headers", HEADERS),
    ("leaderEpoch", pa.int32()),
    ("committed", pa.bool_()),     # outside of transactions true; null while the transaction is open
])  # fmt: skip
"""Every column may be null, as Spark wants it."""
DAMAGE: Final = pa.field("damage", pa.string())
"""A further column: what was skipped, and why, in a row of its own."""
_CODECS: Final = tuple(map(compression_name, range(COMPRESSION_MASK + 1)))
_MARKERS: Final = {ABORT: "ABORT", COMMIT: "COMMIT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """A segment to read rows from, with its directory's partition; None if that is not named like one."""

    topic: str | None
    partition: int | None
    size_bytes: int
    range: SegmentRange
    log: Sequence[SegmentRange] = ()
    """The segments of the partition, ascending: transactions may end in a later one."""
    log_start_offset: int = 0
    """Consumers see no record below it."""

    @property
    def is_below_start(self) -> bool:
        """Whether all of it is below the log start offset."""
        return self.range.next_base_offset is not None and self.range.next_base_offset <= self.log_start_offset


def damage_rows(segment: LogSegment, damage: Iterable[FormatError], schema: pa.Schema) -> pa.RecordBatch:
    """Return a row of ``schema`` for each ``damage`` in ``segment``, which names it in the column ``DAMAGE``."""
    place = {"topic": segment.topic, "partition": segment.partition, "segment": segment.range.base_offset}
    rows = [place | {"position": error.position, DAMAGE.name: str(error)} for error in damage]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


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
                    types, coordinator_epochs = _control_fields(reader, block)
                yield _batch_rows(segment, block, types, coordinator_epochs)


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


def _control_fields(reader: RangeReader, block: Block) -> tuple[list[str | None], list[int | None]]:
    """Return the types of a block's control records, and the coordinator epochs, a value for each header."""
    types: list[str | None] = [None] * len(block.headers)
    coordinator_epochs: list[int | None] = [None] * len(block.headers)
    for index in np.flatnonzero(block.headers["attributes"] & CONTROL).tolist():
        record = control_record(reader, block, index)
        if record is not None and record.is_marker:
            types[index] = _MARKERS[record.type]
            coordinator_epochs[index] = record.coordinator_epoch
    return types, coordinator_epochs


def _batch_rows(
    segment: LogSegment, block: Block, types: list[str | None], coordinator_epochs: list[int | None]
) -> pa.RecordBatch:
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
        "maxTimestamp": unless_absent(headers["max_timestamp"]),
        "compression": [_CODECS[codec] for codec in (attributes & COMPRESSION_MASK).tolist()],
        "isTransactional": (attributes & TRANSACTIONAL) != 0,
        "isControl": (attributes & CONTROL) != 0,
        "controlType": types,
        "coordinatorEpoch": coordinator_epochs,
        "producerId": unless_absent(headers["producer_id"]),
        "producerEpoch": unless_absent(headers["producer_epoch"]),
        "baseSequence": unless_absent(headers["base_sequence"]),
        "lastSequence": unless_absent(last_sequences(headers)),
        "partitionLeaderEpoch": unless_absent(headers["partition_leader_epoch"]),
    }
    arrays = [_array(columns[field.name], field.type) for field in ROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA)


def unless_absent(values: npt.NDArray[np.integer], kind: type[np.generic] = np.int64) -> pa.Array:
    """Return ``values`` as a column, with null in place of -1."""
    return pa.array(values.astype(kind), mask=values == -1)


def _array(values: object, type_: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values.cast(type_)
    if isinstance(values, np.ndarray):
        # Arrow takes the machine's own byte order alone.
        values = values.astype(values.dtype.newbyteorder("="))
    return pa.array(values, type=type_)
