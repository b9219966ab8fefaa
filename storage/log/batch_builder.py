"""Whole batches as bytes: data with real records, what compaction leaves of them, and message sets of old.

Markers are ``control_record.write_marker_batch``. Everything has valid lengths and checksums, so that Kafka's own tools
read it down to the last record. Record keys are null, the values are the caller's.

Source: ``DefaultRecord``, ``DefaultRecordBatch.writeEmptyHeader`` and ``AbstractLegacyRecordBatch`` in Kafka's clients
module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.log import stored_frames
from resnap.storage.log.message_set import MAGIC_V1, write_legacy_message
from resnap.storage.log.record import write_record
from resnap.storage.log.record_batch import (
    CONTROL,
    LOG_APPEND_TIME,
    MAGIC_V2,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    RecordBatchHeader,
    seal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_data_batch(
    *,
    offset: int,
    values: Sequence[bytes],
    timestamps: int | Sequence[int],
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    compression: int = stored_frames.NONE,
    append_time: int | None = None,
    leader_epoch: int = 0,
) -> bytes:
    """Return a data batch of one record for each of ``values``, of which there is at least one.

    Args:
        offset: of the first record.
        values: of the records, in order.
        timestamps: milliseconds, one for all records or one for each.
        producer_id: with ``producer_epoch`` and ``base_sequence``; left out for a plain producer.
        producer_epoch: see there.
        base_sequence: see there.
        transactional: whether the batch belongs to a transaction.
        compression: codec of the records, ``stored_frames.NONE`` to ``ZSTD``.
        append_time: the broker's clock in milliseconds, where it overrules the client's (LogAppendTime).
        leader_epoch: of the leader that appended the batch.

    """
    stamps = [timestamps] * len(values) if isinstance(timestamps, int) else timestamps
    records = b"".join(
        write_record(stamp - stamps[0], delta, None, value)
        for delta, (stamp, value) in enumerate(zip(stamps, values, strict=True))
    )
    header = RecordBatchHeader(
        base_offset=offset, batch_length=0, partition_leader_epoch=leader_epoch, magic=MAGIC_V2, crc=0,
        attributes=compression | _bits(transactional=transactional, append_time=append_time is not None),
        last_offset_delta=len(values) - 1, base_timestamp=stamps[0],
        max_timestamp=max(stamps) if append_time is None else append_time, producer_id=producer_id,
        producer_epoch=producer_epoch, base_sequence=base_sequence, records_count=len(values),
    )  # fmt: skip
    return seal(header, stored_frames.stored(compression, records))


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


def _bits(*, transactional: bool, append_time: bool) -> int:
    return (TRANSACTIONAL if transactional else 0) | (LOG_APPEND_TIME if append_time else 0)
