"""Whole batches as bytes: data with real records, what compaction leaves of them, and message sets of old.

Markers are ``control_record.write_marker_batch``. Everything has valid lengths and checksums, so that Kafka's own tools
read it down to the last record. Record keys are null, the values are the caller's.

Source: ``DefaultRecord``, ``DefaultRecordBatch.writeEmptyHeader`` and ``AbstractLegacyRecordBatch`` in Kafka's clients
module.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

from resnap.storage.log import record
from resnap.storage.log.message_set import LENGTH, MAGIC_V1, TIMESTAMP
from resnap.storage.log.record_batch import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    RecordBatchHeader,
    read_header,
    seal,
)
from tests.logs import stored_frames

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_data_batch(*, compression: int = stored_frames.NONE, append_time: int | None = None, **fields: Any) -> bytes:
    """Return a data batch of ``record.write_data_batch``, whose arguments ``fields`` are, in a codec's own frame.

    Args:
        compression: codec of the records, ``stored_frames.NONE`` to ``ZSTD``.
        append_time: the broker's clock in milliseconds, where it overrules the client's (LogAppendTime).
        fields: all others.

    """
    plain = record.write_data_batch(**fields)
    header = read_header(plain)
    if append_time is not None:
        header = header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=append_time)
    header = header._replace(attributes=header.attributes | compression)
    return seal(header, stored_frames.stored(compression, plain[HEADER.size :]))


def write_emptied_batch(
    *,
    offset: int,
    records: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """Return what compaction leaves of a batch once all its ``records`` are gone: the header, without records.

    Kafka keeps it for the sequence of a producer's last batch; ``control`` makes it a marker that lost its record.
    ``timestamp`` is the largest there was, in milliseconds.
    """
    bits = _bits(transactional=transactional, append_time=append_time) | (CONTROL if control else 0)
    header = RecordBatchHeader(
        base_offset=offset, batch_length=0, partition_leader_epoch=leader_epoch, magic=MAGIC_V2, crc=0,
        attributes=bits, last_offset_delta=records - 1, base_timestamp=NO_TIMESTAMP, max_timestamp=timestamp,
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence, records_count=0,
    )  # fmt: skip
    return seal(header, b"")


def write_message_set(
    *, offset: int, magic: int, values: Sequence[bytes], timestamp: int, compression: int = stored_frames.NONE
) -> bytes:
    """Return messages of ``magic`` 0 or 1 with consecutive offsets: side by side, or within one wrapper if compressed.

    ``timestamp`` is in milliseconds and the same for all; magic 0 has no room for it. Zstd is younger than both magics.
    """
    inner_offset = 0 if compression and magic == MAGIC_V1 else offset
    messages = b"".join(
        write_legacy_message(offset=inner_offset + delta, magic=magic, key=None, value=value, timestamp=timestamp)
        for delta, value in enumerate(values)
    )
    if not compression:
        return messages
    return write_legacy_message(
        offset=offset + len(values) - 1, magic=magic, key=None, timestamp=timestamp, attributes=compression,
        value=stored_frames.stored(compression, messages),
    )  # fmt: skip


def write_legacy_message(
    *,
    offset: int,
    magic: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int = NO_TIMESTAMP,
    attributes: int = 0,
) -> bytes:
    """Return a whole message with its checksum; magic 0 has no ``timestamp``.

    For a wrapper, name the codec in ``attributes``, leave the key null and give the compressed inner set as the value:
    inner offsets are absolute in magic 0 and count from 0 in magic 1, ``offset`` is that of the last inner message.
    """
    stamp = TIMESTAMP.pack(timestamp) if magic == MAGIC_V1 else b""
    body = struct.pack(">bb", magic, attributes) + stamp + _sized(key) + _sized(value)
    size = MAGIC_POSITION - LOG_OVERHEAD + len(body)
    return struct.pack(">qiI", offset, size, zlib.crc32(body)) + body


def _sized(field: bytes | None) -> bytes:
    return LENGTH.pack(-1) if field is None else LENGTH.pack(len(field)) + field


def _bits(*, transactional: bool, append_time: bool) -> int:
    return (TRANSACTIONAL if transactional else 0) | (LOG_APPEND_TIME if append_time else 0)
