"""Rows of batch headers as the codecs give them, a batch at a time, from a whole file in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from resnap.storage.log.message_set import LegacyMessage, read_legacy_message
from resnap.storage.log.names import parse_partition_dir_name
from resnap.storage.log.record import ABORT, COMMIT, read_control_record
from resnap.storage.log.record_batch import COMPRESSION_NAMES, MAGIC_POSITION, MAGIC_V2, RecordBatchHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Row: TypeAlias = dict[str, object]


def plain_rows(logs: Iterable[Path]) -> list[Row]:
    """Return the rows of ``.log`` files of partition directories, in the order of the files and of their batches."""
    return [row for log in logs for row in _rows(log)]


def _rows(log: Path) -> Iterator[Row]:
    name = parse_partition_dir_name(log.parent.name)
    assert name is not None
    data, position = log.read_bytes(), 0
    while position < len(data):
        place = {"topic": name.topic, "partition": name.partition, "segment": int(log.stem), "position": position}
        if data[position + MAGIC_POSITION] == MAGIC_V2:
            header = read_header(data, position)
            batch = data[position : position + header.size_bytes]
            row = _batch_row(header, batch)
        else:
            message = read_legacy_message(data, position)
            row = _message_row(message)
        yield place | row
        position += int(str(row["sizeInBytes"]))


def _batch_row(header: RecordBatchHeader, batch: bytes) -> Row:
    record = read_control_record(batch, header) if header.is_control else None
    marker = record if record is not None and record.is_marker else None
    return {
        "sizeInBytes": header.size_bytes,
        "magic": 2,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "recordsCount": header.records_count,
        "maxTimestamp": _unless_absent(header.max_timestamp),
        "compression": header.compression,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "controlType": {COMMIT: "COMMIT", ABORT: "ABORT"}[marker.type] if marker else None,
        "coordinatorEpoch": marker.coordinator_epoch if marker else None,
        "producerId": _unless_absent(header.producer_id),
        "producerEpoch": _unless_absent(header.producer_epoch),
        "baseSequence": _unless_absent(header.base_sequence),
        "lastSequence": _unless_absent(header.last_sequence),
        "partitionLeaderEpoch": _unless_absent(header.partition_leader_epoch),
    }


def _message_row(message: LegacyMessage) -> Row:
    return {
        "sizeInBytes": message.size_bytes,
        "magic": message.magic,
        "baseOffset": None if message.is_compressed else message.offset,
        "lastOffset": message.offset,
        "recordsCount": None if message.is_compressed else 1,
        "maxTimestamp": _unless_absent(message.timestamp),
        "compression": COMPRESSION_NAMES[message.attributes & 7],
        "isTransactional": False,
        "isControl": False,
        "controlType": None,
        "coordinatorEpoch": None,
        "producerId": None,
        "producerEpoch": None,
        "baseSequence": None,
        "lastSequence": None,
        "partitionLeaderEpoch": None,
    }


def _unless_absent(value: int) -> int | None:
    return None if value == -1 else value
