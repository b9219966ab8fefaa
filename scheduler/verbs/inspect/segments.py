"""Shows a segment batch by batch, under the names of Kafka's own dump tool.

Only headers are read, and the one record of each control batch; never more than a block of the file, or one batch, is
in memory. A batch that does not continue the previous one, or runs past the end, ends the rows with a ``FormatError``.

Source: ``DumpLogSegments`` in Kafka's tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import FormatError
from resnap.storage.log.message_set import LegacyMessage, check_legacy_crc, read_legacy_message
from resnap.storage.log.record import (
    ABORT,
    COMMIT,
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    read_control_record,
)
from resnap.storage.log.record_batch import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    RecordBatchHeader,
    check_crc,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.readers import RangeReader

BLOCK_BYTES: Final = 1 << 20
_CONTROL_TYPES: Final = {
    ABORT: "ABORT",
    COMMIT: "COMMIT",
    LEADER_CHANGE: "LEADER_CHANGE",
    SNAPSHOT_HEADER: "SNAPSHOT_HEADER",
    SNAPSHOT_FOOTER: "SNAPSHOT_FOOTER",
    KRAFT_VERSION: "KRAFT_VERSION",
    KRAFT_VOTERS: "KRAFT_VOTERS",
}


class SegmentInspection:
    """The rows of one segment, and after them what they came to."""

    def __init__(
        self,
        reader: RangeReader,
        *,
        base_offset: int,
        is_active: bool,
        verify_crc: bool,
        shows_validity: bool = False,
    ) -> None:
        """Look at ``reader``; a wrong checksum is damage with ``verify_crc``, and a fact with ``shows_validity``."""
        self._reader, self._is_active = reader, is_active
        self._verify_crc, self._shows_validity = verify_crc, shows_validity
        self._block, self._block_at = memoryview(b""), 0
        self._position = 0
        self._next_offset = base_offset
        self._batches = 0

    def facts(self) -> dict[str, object]:
        """Return how many batches were seen, where the next would begin, and what comes after the last of them."""
        return {
            "batches": self._batches,
            "endOffset": self._next_offset,
            "validBytes": self._position,
            "bytesAfter": self._reader.size_bytes - self._position,
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per batch, or per message where they are older than batches.

        Raises:
            FormatError: damage; what came before it has been yielded.

        """
        while self._reader.size_bytes - self._position > MAGIC_POSITION:
            row = self._row()
            if row is None:
                break
            self._batches += 1
            yield row
        self._check_tail()

    def _row(self) -> dict[str, object] | None:
        """Return the row of the batch at the position, and go on to the next; None at the end of what is whole."""
        start = self._read(self._position, HEADER.size)
        if not any(start) or LOG_OVERHEAD + int.from_bytes(start[8:12], "big", signed=True) > self._bytes_left():
            return None
        if start[MAGIC_POSITION] == MAGIC_V2:
            return self._batch_row(read_header(start, at=self._position))
        return self._message_row(read_legacy_message(start, at=self._position))

    def _batch_row(self, header: RecordBatchHeader) -> dict[str, object]:
        self._check_offset(header.base_offset)
        has_horizon = bool(header.attributes & DELETE_HORIZON)
        row: dict[str, object] = {
            "position": self._position,
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.records_count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.partition_leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.base_timestamp if has_horizon else None,
            "maxTimestamp": header.max_timestamp,
            "timestampType": "LogAppendTime" if header.is_log_append_time else "CreateTime",
            "size": header.size_bytes,
            "magic": header.magic,
            "compresscodec": header.compression,
            "crc": header.crc,
        }
        if self._shows_validity:
            row["isvalid"] = self._is_valid(check_crc, header.size_bytes)
        if header.is_control:
            row |= self._control_fields(header) if row.get("isvalid", True) else {}
        elif self._verify_crc:
            check_crc(self._read(self._position, header.size_bytes), at=self._position)
        self._go_on(header.last_offset, header.size_bytes)
        return row

    def _control_fields(self, header: RecordBatchHeader) -> dict[str, object]:
        batch = self._read(self._position, header.size_bytes)
        record = read_control_record(batch, header, at=self._position)
        if record is None:
            return {"controlType": None}
        fields: dict[str, object] = {"controlType": _CONTROL_TYPES.get(record.type, f"UNKNOWN({record.type})")}
        if record.is_marker:
            fields |= {"coordinatorEpoch": record.coordinator_epoch, "controlTimestamp": record.timestamp}
        return fields

    def _message_row(self, message: LegacyMessage) -> dict[str, object]:
        self._check_offset(message.offset)
        if self._verify_crc:
            check_legacy_crc(self._read(self._position, message.size_bytes), at=self._position)
        codec = message.attributes & COMPRESSION_MASK
        row: dict[str, object] = {
            "position": self._position,
            "baseOffset": None if message.is_compressed else message.offset,
            "lastOffset": message.offset,
            "maxTimestamp": message.timestamp,
            "timestampType": "LogAppendTime" if message.attributes & LOG_APPEND_TIME else "CreateTime",
            "size": message.size_bytes,
            "magic": message.magic,
            "compresscodec": COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"unknown({codec})",
            "crc": message.crc,
        }
        if self._shows_validity:
            row["isvalid"] = self._is_valid(check_legacy_crc, message.size_bytes)
        self._go_on(message.offset, message.size_bytes)
        return row

    def _is_valid(self, check: Callable[..., None], size_bytes: int) -> bool:
        try:
            check(self._read(self._position, size_bytes))
        except FormatError:
            return False
        return True

    def _go_on(self, last_offset: int, size_bytes: int) -> None:
        self._next_offset = last_offset + 1
        self._position += size_bytes

    def _check_offset(self, offset: int) -> None:
        # No checksum covers the offset, so it is checked by offsets rising.
        if offset < self._next_offset:
            raise FormatError("record batch offset", position=self._position,
                              expected=f"at least {self._next_offset}", found=offset)  # fmt: skip

    def _check_tail(self) -> None:
        """Accept what a running broker leaves behind: a batch half written, or the zeros of a preallocated file."""
        if not self._bytes_left() or self._is_active or self._is_zero_to_the_end():
            return
        raise FormatError(
            "bytes after the last whole batch of a closed segment",
            position=self._position,
            expected="the segment to end here, or a batch that ends within it",
            found=f"{self._bytes_left()} bytes",
        )

    def _is_zero_to_the_end(self) -> bool:
        at = self._position
        while block := self._reader.read(at, BLOCK_BYTES):
            if block.count(0) != len(block):
                return False
            at += len(block)
        return True

    def _bytes_left(self) -> int:
        return self._reader.size_bytes - self._position

    def _read(self, position: int, length: int) -> memoryview:
        """Return bytes of the file through a block of it, so that a store is not asked for each header."""
        if not self._block_at <= position <= position + length <= self._block_at + len(self._block):
            self._block = memoryview(self._reader.read(position, max(length, BLOCK_BYTES)))
            self._block_at = position
        start = position - self._block_at
        return self._block[start : start + length]
