"""Reads and writes records of magic 2 in uncompressed batches.

A replay reads only the headers of data batches. It reads records only in markers, in a KRaft quorum's own control
batches, and in its metadata log. None of these records has headers, and Kafka refuses those that do. Of records that
clients write the headers are counted.

Source: ``DefaultRecord`` in Kafka's clients module, ``RecordsIterator`` in its raft module.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.log.record_batch import (
    COMPRESSION_MASK,
    HEADER,
    MAGIC_V2,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    RecordBatchHeader,
    seal,
)
from resnap.storage.messages.varint import read_varint, read_varlong, write_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.crc32c import Buffer

_NO_ATTRIBUTES: Final = b"\0"
_NULL: Final = write_varint(-1)
_NO_HEADERS: Final = write_varint(0)
# Lengths and deltas repeat without end in what a generator writes.
_varint = lru_cache(maxsize=1 << 14)(write_varint)


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


def read_client_records(records: Buffer, count: int, *, at: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield ``count`` records that fill ``records``, with how many headers each has, which are not read.

    Raises:
        FormatError: another number of records, or one that does not fit its own lengths; ``at`` is the file position
            of the batch.

    """
    view, position = memoryview(records), 0
    for _ in range(count):
        record, headers, after = _read_fields(view, position, "record", at)
        if not 0 <= headers <= record.end - after:
            raise FormatError("record header count", position=at, expected=f"0 to {record.end - after}", found=headers)
        position = record.end
        yield record, headers
    if position != len(view):
        raise FormatError(f"batch of {count} records", position=at, expected=f"{position} bytes of records",
                          found=len(view))  # fmt: skip


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
