"""Record batches of magic 2, of whose data batches a replay reads only the 61-byte header.

Producer, epoch, sequence, offsets and timestamps precede the (possibly compressed) records, so data batches are never
decompressed. The CRC-32C covers everything from the attributes on: base offset, length, leader epoch and magic are
*not* protected by it, and are checked by continuity instead, by every scan.

Source: KIP-98; ``DefaultRecordBatch`` in Kafka's clients module.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from resnap.storage.crc32c import Buffer, crc32c
from resnap.storage.errors import FormatError

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
MAGIC_V2: Final = 2
MAX_SEQUENCE: Final = 2**31 - 1
"""The sequence after this one is 0."""
MAX_EPOCH: Final = 2**15 - 1

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Big endian, 61 bytes."""
LOG_OVERHEAD: Final = 12
"""Bytes before the part that ``batch_length`` counts: base offset and the length itself."""
LENGTH_POSITION: Final = 8
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MIN_BATCH_LENGTH: Final = HEADER.size - LOG_OVERHEAD

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

COMPRESSION_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class RecordBatchHeader(NamedTuple):
    """One batch header as stored on disk. A ``NamedTuple`` because one is made per batch."""

    base_offset: int
    batch_length: int
    """Bytes after this field; the whole batch is ``size_bytes``."""
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """Milliseconds; the delete horizon where attribute bit 6 is set (KIP-534)."""
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes from the base offset to the end of the records."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapped after ``MAX_SEQUENCE``; ``NO_SEQUENCE`` without a base sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return wrap_sequence(self.base_sequence + self.last_offset_delta)

    @property
    def has_producer(self) -> bool:
        """Whether the batch came from an idempotent or transactional producer."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker instead of data."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker, not the client, set the timestamps."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def compression(self) -> str:
        """Name of the codec, or ``unknown(n)``."""
        return compression_name(self.attributes)


def compression_name(attributes: int) -> str:
    """Return the name of the codec in the attributes of a batch or a message, or ``unknown(n)``."""
    codec = attributes & COMPRESSION_MASK
    return COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"unknown({codec})"


def wrap_sequence(sequence: int) -> int:
    """Wrap the sum of a sequence and a delta back into [0, ``MAX_SEQUENCE``].

    Source: ``DefaultRecordBatch.incrementSequence``.
    """
    return sequence if sequence <= MAX_SEQUENCE else sequence - MAX_SEQUENCE - 1


def read_header(buffer: Buffer, position: int = 0, *, at: int = 0) -> RecordBatchHeader:
    """Return the header at ``position`` of ``buffer``; records are not read.

    Args:
        buffer: bytes of a segment, at least 61 from ``position`` on.
        position: byte offset of the batch within ``buffer``.
        at: file position of ``buffer[0]``, for messages.

    Raises:
        FormatError: too few bytes, another magic, or an impossible length or delta.

    """
    here = at + position
    if len(buffer) - position < HEADER.size:
        raise FormatError("record batch header cut short", position=here, expected=f"{HEADER.size} bytes",
                          found=len(buffer) - position)  # fmt: skip
    header = RecordBatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC_V2:
        raise FormatError("record batch magic", position=here + MAGIC_POSITION, expected=MAGIC_V2, found=header.magic)
    if header.batch_length < MIN_BATCH_LENGTH:
        raise FormatError("record batch length", position=here + 8, expected=f"at least {MIN_BATCH_LENGTH}",
                          found=header.batch_length)  # fmt: skip
    if header.base_offset < 0 or header.last_offset_delta < 0:
        raise FormatError("record batch offsets", position=here, expected="base offset and last offset delta >= 0",
                          found=f"{header.base_offset} and {header.last_offset_delta}")  # fmt: skip
    return header


def write_header(header: RecordBatchHeader) -> bytes:
    """Return the 61 bytes of ``header``, exactly as given: length and CRC are not recomputed."""
    return HEADER.pack(*header)


def seal(header: RecordBatchHeader, records: bytes) -> bytes:
    """Return a whole batch: ``header``, with its length and CRC set for ``records``, and ``records``."""
    sized = header._replace(batch_length=MIN_BATCH_LENGTH + len(records), crc=0)
    body = write_header(sized)[ATTRIBUTES_POSITION:] + records
    return write_header(sized._replace(crc=crc32c(body)))[:ATTRIBUTES_POSITION] + body


def check_crc(batch: Buffer, *, at: int = 0) -> None:
    """Compare the CRC-32C of a whole batch with the one it carries.

    Raises:
        FormatError: they differ; ``at`` is the file position of the batch.

    """
    view = memoryview(batch)
    carried = int.from_bytes(view[CRC_POSITION:ATTRIBUTES_POSITION], "big")
    computed = crc32c(view[ATTRIBUTES_POSITION:])
    if carried != computed:
        raise FormatError("record batch checksum (CRC-32C)", position=at, expected=f"{carried:08x}",
                          found=f"{computed:08x}")  # fmt: skip
