"""Reads and writes records of magic 2 in uncompressed batches.

A replay reads only the headers of data batches. It reads records only in markers, in a KRaft quorum's own control
batches, and in its metadata log. None of these records has headers, and Kafka refuses those that do. Of records that
clients write the headers are read, too.

Source: ``DefaultRecord`` in Kafka's clients module, ``RecordsIterator`` in its raft module.

Control batches: the one record that ends a transaction, or that a KRaft quorum writes for itself.

A marker's producer and epoch are in the batch header; its record adds whether the transaction was committed or aborted,
the coordinator epoch, and the time. Control batches are never compressed.

All brokers so far write markers in one form, in which only offset, time, producer and coordinator differ. The type of a
batch in that form is known without parsing it, for a whole block at once; all other control batches are parsed.

Source: KIP-98; ``ControlRecordType``, ``EndTransactionMarker`` and ``DefaultRecord`` in Kafka's clients module.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL,
    CRC_POSITION,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    RecordBatchHeader,
    check_crc,
    seal,
)
from resnap.storage.messages.wire import read_varint, read_varlong, write_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from resnap.storage.crc32c import Buffer


_NO_ATTRIBUTES: Final = b"\0"
_NULL: Final = write_varint(-1)
_NO_HEADERS: Final = write_varint(0)
# Lengths and deltas repeat without end in what a generator writes.
_varint = lru_cache(maxsize=1 << 14)(write_varint)
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


RecordHeader: TypeAlias = tuple[memoryview, memoryview | None]
"""The key and the value of a header."""


class Record(NamedTuple):
    """One record; positions are bytes from the start of its batch."""

    timestamp_delta: int
    """Milliseconds after the batch's base timestamp."""
    offset_delta: int
    key: memoryview | None
    key_position: int
    value: memoryview | None
    value_position: int
    end: int
    """Where the next record begins."""


def write_record(timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes) -> bytes:
    """Return a record without headers."""
    key_field = _NULL if key is None else _varint(len(key)) + key
    body = b"".join((
        _NO_ATTRIBUTES, _varint(timestamp_delta), _varint(offset_delta), key_field, _varint(len(value)), value,
        _NO_HEADERS,
    ))  # fmt: skip
    return _varint(len(body)) + body


def write_data_batch(
    *,
    offset: int,
    values: Sequence[bytes],
    timestamps: int | Sequence[int],
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """Return a data batch with one record for each of ``values``, at least one; keys are null.

    Args:
        offset: of the first record.
        values: of the records, in order.
        timestamps: milliseconds, one for all records or one for each.
        producer_id: with ``producer_epoch`` and ``base_sequence``; left out for a plain producer.
        producer_epoch: see there.
        base_sequence: see there.
        transactional: whether the batch belongs to a transaction.
        leader_epoch: of the leader that appended the batch.

    """
    stamps = [timestamps] * len(values) if isinstance(timestamps, int) else timestamps
    records = b"".join(
        write_record(stamp - stamps[0], delta, None, value)
        for delta, (stamp, value) in enumerate(zip(stamps, values, strict=True))
    )
    header = RecordBatchHeader(
        base_offset=offset, batch_length=0, partition_leader_epoch=leader_epoch, magic=MAGIC_V2, crc=0,
        attributes=TRANSACTIONAL if transactional else 0, last_offset_delta=len(values) - 1, base_timestamp=stamps[0],
        max_timestamp=max(stamps), producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
        records_count=len(values),
    )  # fmt: skip
    return seal(header, records)


def read_records(batch: Buffer, header: RecordBatchHeader, *, what: str, at: int = 0) -> Iterator[Record]:
    """Yield the records of a whole batch that is not compressed, as many as its header says.

    Args:
        batch: all bytes of the batch, from its base offset on, no more and no less.
        header: the header of ``batch``.
        what: what to call a record in a message.
        at: file position of the batch, for messages.

    Raises:
        FormatError: the batch is compressed, has another number of records, or a record does not fit its own lengths.

    """
    if header.attributes & COMPRESSION_MASK:
        raise FormatError(f"compression of a batch of {what}s", position=at, expected="none", found=header.compression)
    view, position = memoryview(batch), HEADER.size
    for _ in range(header.records_count):
        record = read_record(view, position, what=what, at=at)
        position = record.end
        yield record
    if position != len(view):
        raise FormatError(f"batch of {header.records_count} {what}s", position=at + position, expected="its end",
                          found=f"{len(view) - position} more bytes")  # fmt: skip


def read_record(batch: memoryview, position: int, *, what: str, at: int = 0) -> Record:
    """Return the record at ``position`` of ``batch``; arguments and errors are those of ``read_records``."""
    record, headers, after = _read_fields(batch, position, what, at)
    if headers != 0 or after != record.end:
        fields_end = record.value_position + len(record.value or b"")
        raise FormatError(what, position=at + fields_end, expected="no headers, and nothing after them",
                          found=f"{headers} headers and {record.end - after} more bytes")  # fmt: skip
    return record


def read_client_records(records: Buffer, count: int, *, at: int = 0) -> Iterator[tuple[Record, list[RecordHeader]]]:
    """Yield ``count`` records that fill ``records``, with their headers.

    Raises:
        FormatError: another number of records, or one that does not fit its own lengths; ``at`` is the file position
            of the batch.

    """
    view, position = memoryview(records), 0
    for _ in range(count):
        record, headers, after = _read_fields(view, position, "record", at)
        if not 0 <= headers <= record.end - after:
            raise FormatError("record header count", position=at, expected=f"0 to {record.end - after}", found=headers)
        yield record, _read_headers(view[: record.end], after, headers, at)
        position = record.end
    if position != len(view):
        raise FormatError(f"batch of {count} records", position=at, expected=f"{position} bytes of records",
                          found=len(view))  # fmt: skip


def _read_headers(body: memoryview, position: int, count: int, at: int) -> list[RecordHeader]:
    """Return the ``count`` headers that fill ``body`` from ``position`` on."""
    found: list[RecordHeader] = []
    for _ in range(count):
        key, _, after = _read_field(body, position, "record header key length", at)
        value, _, position = _read_field(body, after, "record header value length", at)
        if key is None:
            raise FormatError("record header key length", position=at, expected="0 or more", found=-1)
        found.append((key, value))
    if position != len(body):
        raise FormatError("record headers", position=at, expected=f"an end after {position} bytes", found=len(body))
    return found


def _read_fields(batch: memoryview, position: int, what: str, at: int) -> tuple[Record, int, int]:
    """Return a record, how many headers it has, and where they begin."""
    length, start = read_varint(batch, position, at=at)
    end = start + length
    if not start < end <= len(batch):
        raise FormatError(f"{what} length", position=at + position, expected=f"1 to {len(batch) - start}",
                          found=length)  # fmt: skip
    body = batch[:end]
    timestamp_delta, after = read_varlong(body, start + 1, at=at)
    offset_delta, after = read_varint(body, after, at=at)
    key, key_position, key_end = _read_field(body, after, f"{what} key length", at)
    value, value_position, value_end = _read_field(body, key_end, f"{what} value length", at)
    headers, after = read_varint(body, value_end, at=at)
    return Record(timestamp_delta, offset_delta, key, key_position, value, value_position, end), headers, after


def _read_field(body: memoryview, position: int, what: str, at: int) -> tuple[memoryview | None, int, int]:
    """Return a key or value, where it begins, and the position after it."""
    length, start = read_varint(body, position, at=at)
    room = len(body) - start
    if not -1 <= length <= room:
        raise FormatError(what, position=at + position, expected=f"-1 to {room}", found=length)
    end = start + max(length, 0)
    return (None if length < 0 else body[start:end]), start, end


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
    kind, epoch = (
        _versioned_number(record.key, KEY, "control record key", at + record.key_position),
        NO_COORDINATOR_EPOCH,
    )
    if kind in (ABORT, COMMIT):
        epoch = _versioned_number(record.value, MARKER_VALUE, "transaction marker", at + record.value_position)
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


def _versioned_number(field: memoryview | None, layout: struct.Struct, what: str, position: int) -> int:
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


UNUSUAL: Final = -1
"""In place of a type: ``read_control_record`` is to decide."""

_USUAL: Final = np.frombuffer(
    write_marker_batch(offset=0, producer_id=0, producer_epoch=0, coordinator_epoch=0, timestamp=0, commit=True),
    dtype=np.uint8,
)
_TYPE_POSITION: Final = HEADER.size + 8
_COORDINATOR_EPOCH_POSITION: Final = HEADER.size + 12
_SAME: Final = np.isin(
    np.arange(len(_USUAL)),
    [
        *range(LOG_OVERHEAD - 4, LOG_OVERHEAD),
        MAGIC_POSITION,
        *range(ATTRIBUTES_POSITION, ATTRIBUTES_POSITION + 2),
        *range(RECORDS_COUNT_POSITION, _TYPE_POSITION),
        *range(_TYPE_POSITION + 1, _COORDINATOR_EPOCH_POSITION),
        len(_USUAL) - 1,
    ],
)
"""Where all of them have the same bytes: length, magic, attributes, count, and the record but for type and epoch."""


def bytes_at(block: memoryview, positions: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.void]:
    """Return the ``size`` bytes at each of the ``positions`` in ``block``, as elements of an array."""
    every: npt.NDArray[np.void] = np.ndarray((max(len(block) - size + 1, 0),), f"V{size}", block, strides=(1,))
    return every[positions]


def usual_marker_types(block: memoryview, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ``ABORT`` or ``COMMIT`` for each control batch that starts in ``block`` at ``positions``, or ``UNUSUAL``.

    A batch is usual if it is complete, has the form that ``write_marker_batch`` gives it, and a correct checksum.
    """
    types = np.full(len(positions), UNUSUAL, dtype=np.int64)
    whole = np.flatnonzero(positions <= len(block) - len(_USUAL))
    rows = bytes_at(block, positions[whole], len(_USUAL)).view(np.uint8).reshape(-1, len(_USUAL))
    found = rows[:, _TYPE_POSITION]
    is_usual = ~((rows != _USUAL) & _SAME).any(axis=1) & ((found == ABORT) | (found == COMMIT))
    carried = np.ascontiguousarray(rows[:, CRC_POSITION:ATTRIBUTES_POSITION]).view(">u4")[:, 0]
    for i in np.flatnonzero(is_usual).tolist():
        if carried[i] == crc32c(rows[i, ATTRIBUTES_POSITION:].data):
            types[whole[i]] = found[i]
    return types
