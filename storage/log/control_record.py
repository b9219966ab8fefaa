"""Control batches: the one record that ends a transaction, or that a KRaft quorum writes for itself.

A marker's producer and epoch are in the batch header; its record adds whether the transaction was committed or aborted,
the coordinator epoch, and the time. Control batches are never compressed.

Source: KIP-98; ``ControlRecordType``, ``EndTransactionMarker`` and ``DefaultRecord`` in Kafka's clients module.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.log.record import Record, read_record, write_record
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    MAGIC_V2,
    NO_SEQUENCE,
    TRANSACTIONAL,
    RecordBatchHeader,
    check_crc,
    seal,
)

if TYPE_CHECKING:
    from resnap.storage.crc32c import Buffer

ABORT: Final = 0
COMMIT: Final = 1
LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
KRAFT_VOTERS: Final = 6

NO_COORDINATOR_EPOCH: Final = -1

KEY: Final = struct.Struct(">hh")
"""Version and type; a later version may append fields."""
MARKER_VALUE: Final = struct.Struct(">hi")
"""Version and coordinator epoch; a later version may append fields."""
RECORDS_COUNT_POSITION: Final = 57

_TIMESTAMPS: Final = range(-(2**63), 2**63)


class ControlRecord(NamedTuple):
    """The content of a control batch, beyond its header."""

    type: int
    """``ABORT``, ``COMMIT``, or a type that concerns no producer; types unknown today are passed on as they are."""
    coordinator_epoch: int
    """``NO_COORDINATOR_EPOCH`` for anything but a marker."""
    timestamp: int
    """Milliseconds: the record's own, which the producer's entry takes over."""

    @property
    def is_marker(self) -> bool:
        """Whether the record ends a transaction."""
        return self.type in (ABORT, COMMIT)


def read_control_record(batch: Buffer, header: RecordBatchHeader, *, at: int = 0) -> ControlRecord | None:
    """Return the record of a whole control batch, or ``None`` if compaction has emptied the batch.

    The checksum is always compared: markers are few and tiny, and a flipped bit would turn an abort into a commit. Of
    several records (snapshots of a KRaft quorum have such batches) the first decides, as it does for Kafka.

    Args:
        batch: all bytes of the batch, from its base offset on.
        header: the header of ``batch``.
        at: file position of the batch, for messages.

    Raises:
        FormatError: wrong length or checksum, a batch that is compressed or holds no control records, or a record that
            does not fit its own lengths.

    """
    _check_batch(batch, header, at)
    if header.records_count == 0:
        return None
    record = read_record(memoryview(batch), HEADER.size, what="control record", at=at)
    if header.records_count == 1 and record.end != len(batch):
        raise FormatError("control batch of one record", position=at + record.end, expected="its end",
                          found=f"{len(batch) - record.end} more bytes")  # fmt: skip
    kind, epoch = _versioned(record.key, KEY, "control record key", at + record.key_position), NO_COORDINATOR_EPOCH
    if kind in (ABORT, COMMIT):
        epoch = _versioned(record.value, MARKER_VALUE, "transaction marker", at + record.value_position)
    return ControlRecord(kind, epoch, _timestamp(record, header, at))


def write_marker_batch(
    *,
    offset: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    commit: bool,
    leader_epoch: int = 0,
) -> bytes:
    """Return the batch with which a broker ends a transaction; ``timestamp`` is in milliseconds."""
    header = RecordBatchHeader(
        base_offset=offset, batch_length=0, partition_leader_epoch=leader_epoch, magic=MAGIC_V2, crc=0,
        attributes=TRANSACTIONAL | CONTROL, last_offset_delta=0, base_timestamp=timestamp, max_timestamp=timestamp,
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=NO_SEQUENCE, records_count=1,
    )  # fmt: skip
    key = KEY.pack(0, COMMIT if commit else ABORT)
    value = MARKER_VALUE.pack(0, coordinator_epoch)
    return seal(header, write_record(0, 0, key, value))


def _check_batch(batch: Buffer, header: RecordBatchHeader, at: int) -> None:
    if len(batch) != header.size_bytes:
        raise FormatError("control batch length", position=at, expected=f"{header.size_bytes} bytes",
                          found=len(batch))  # fmt: skip
    check_crc(batch, at=at)
    if not header.is_control:
        raise FormatError("control batch attributes", position=at + ATTRIBUTES_POSITION,
                          expected=f"bit {CONTROL:#04x}", found=f"{header.attributes:#06x}")  # fmt: skip
    if header.attributes & COMPRESSION_MASK:
        raise FormatError("control batch compression", position=at + ATTRIBUTES_POSITION, expected="none",
                          found=header.compression)  # fmt: skip
    room = len(batch) - HEADER.size
    if header.records_count < 0 or (header.records_count == 0 and room):
        raise FormatError("control batch records count", position=at + RECORDS_COUNT_POSITION,
                          expected=f"one to fill {room} bytes", found=header.records_count)  # fmt: skip


def _versioned(field: memoryview | None, layout: struct.Struct, what: str, position: int) -> int:
    """Return the number that follows the version in a key or value."""
    data = field or b""
    if len(data) < layout.size:
        raise FormatError(f"{what} cut short", position=position, expected=f"{layout.size} bytes", found=len(data))
    version, number = layout.unpack_from(data)
    if version < 0:
        raise FormatError(f"{what} version", position=position, expected="0 or more", found=version)
    return int(number)


def _timestamp(record: Record, header: RecordBatchHeader, at: int) -> int:
    # Deltas count from the base timestamp also where that field holds a delete horizon: compaction rewrote them.
    if header.is_log_append_time:
        return header.max_timestamp
    timestamp = header.base_timestamp + record.timestamp_delta
    if timestamp not in _TIMESTAMPS:
        raise FormatError("control record timestamp", position=at + HEADER.size, expected="64 bits", found=timestamp)
    return timestamp
