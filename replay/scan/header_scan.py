"""Columnar scan of a segment: its batch headers as checked arrays, and the facts of the whole segment.

A segment is read in blocks, whose ends rarely coincide with batches; the hop from header to header is the only
sequential step, everything after it works on whole arrays. ``producer_fold`` turns headers into events of producers.

Damage is never skipped. A batch that runs past the end of the *active* segment ends it without an error, as in Kafka's
own reader, and so do the zeros of a preallocated tail; in a closed segment both are damage, because nothing may follow
its last whole batch.

Source: ``FileLogInputStream.nextBatch``; ``DefaultRecordBatch``.

``--verify-crc``: checks the checksum of every batch, which means reading all bytes of a segment.

A replay needs only headers, so this is off by default. The checksum of a batch does not cover its offset, length,
leader epoch and magic; every scan checks those by continuity.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, in_file
from resnap.storage.log.message_set import HEADER as LEGACY_HEADER
from resnap.storage.log.message_set import (
    LENGTH,
    MAGIC_V1,
    MIN_SIZES,
    LegacyMessage,
    check_legacy_crc,
    read_legacy_message,
)
from resnap.storage.log.message_set import TIMESTAMP as LEGACY_TIMESTAMP
from resnap.storage.log.record import bytes_at, read_control_record
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    CONTROL,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_SEQUENCE,
    MIN_BATCH_LENGTH,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resnap.replay.kernel.summary import Array
    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.log.record import ControlRecord
    from resnap.storage.readers import RangeReader

    Find: TypeAlias = Callable[[memoryview, int], tuple[list[int], int]]
    """``hop`` by machine code: takes a block and its room, and stops where it finds no usual batch."""

HEADER_DTYPE: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
"""``record_batch.HEADER`` as columns."""
BLOCK_BYTES: Final = 1 << 20
LARGE_BLOCK_BYTES: Final = 4 << 20
"""The size of a block for readers of whole records: it costs half a millisecond more than its bytes."""
_LENGTH_AND_MAGIC: Final = struct.Struct(">i4xb")
_SEQUENCE_POSITION: Final = 53
_SIZE_UP_TO_MAGIC: Final = 17
_MIN_LEGACY_SIZE: Final = 14
_CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct(">i")


@dataclass(slots=True)
class ScanFacts:
    """The facts of a segment besides its producers; filled while the scan runs."""

    batches: int = 0
    bytes_read: int = 0
    end_offset: int = 0
    """One past the last offset seen; the base offset while nothing was."""
    end_position: int = 0
    """Byte after the last whole batch."""
    server_clock_ms: int = -1
    """Last marker timestamp or LogAppendTime; -1 if there was none."""
    oldest_server_clock_ms: int | None = None
    """The smallest of the same; whatever was rolled below was rolled by then."""
    clock_since_event_ms: int = -1
    """Newest server clock after the last event that was yielded."""
    max_timestamp_ms: int = -1
    lacks_records: bool = False
    """Only a cleaner, or a loss, leaves what was seen: a delete horizon, offsets without a record or a batch."""
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, first offset) each time a higher leader epoch appears; legacy messages have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """A range of one segment that starts and ends at batch boundaries.

    ``end`` is None for the end of the file.
    """

    locator: str
    base_offset: int
    next_base_offset: int | None
    start: int = 0
    end: int | None = None
    verify_crc: bool = False
    """Read whole batches and compare their checksums."""

    @classmethod
    def whole(cls, segment: Segment, *, verify_crc: bool = False) -> Self:
        """Return all of ``segment``."""
        return cls(
            locator=segment.path,
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            verify_crc=verify_crc,
        )

    @property
    def is_active(self) -> bool:
        """Whether the log still grows here, so that an incomplete tail is not damage."""
        return self.next_base_offset is None


def read_blocks(
    reader: RangeReader,
    segment: SegmentRange,
    facts: ScanFacts,
    find: Find | None = None,
    block_bytes: int | None = None,
) -> Iterator[Block]:
    """Yield the content of ``segment``, including legacy messages, block by block; ``find`` makes it faster.

    Blocks have ``BLOCK_BYTES``, or as many as the caller says.

    Raises:
        FormatError: damage, with file and position.

    """
    with in_file(segment.locator):
        begin(segment, facts)
        while (block := next_block(reader, segment, facts, find=find, block_bytes=block_bytes)) is not None:
            yield block
        finish(segment, facts)


class Block(NamedTuple):
    """A range of a segment whose lengths and offsets have been checked."""

    data: memoryview
    at: int
    """File position of ``data``."""
    headers: Array
    """Headers of the v2 batches that start in ``data`` (``HEADER_DTYPE``); the last batch may end beyond."""
    positions: npt.NDArray[np.int64]
    """Positions of the headers in ``data``."""
    messages: list[tuple[int, LegacyMessage]]
    """The legacy messages that start in ``data``, with their positions there."""


def begin(segment: SegmentRange, facts: ScanFacts) -> None:
    """Set ``facts`` to the start of ``segment``."""
    facts.end_offset = segment.base_offset
    facts.end_position = segment.start


def finish(segment: SegmentRange, facts: ScanFacts) -> None:
    """Record the end of ``segment``, now that all of it has been read."""
    if segment.end is None and segment.next_base_offset is not None:
        facts.lacks_records = facts.lacks_records or facts.end_offset < segment.next_base_offset


def next_block(
    reader: RangeReader,
    segment: SegmentRange,
    facts: ScanFacts,
    *,
    most: int | None = None,
    find: Find | None = None,
    block_bytes: int | None = None,
) -> Block | None:
    """Return the block that begins where ``facts`` end, of at most so many batches; None at the end.

    Raises:
        FormatError: damage, with position.

    """
    end = reader.size_bytes if segment.end is None else segment.end
    at = facts.end_position
    if at >= end:
        return None
    data = memoryview(reader.read(at, min(block_bytes or BLOCK_BYTES, end - at)))
    facts.bytes_read += len(data)
    starts, following = ([], 0) if find is None else find(data, end - at)
    if not starts:
        starts, following = hop(data, room=end - at, at=at, most=most)
    if not starts:
        _check_tail(reader, segment, at, end)
        return None
    if segment.verify_crc:
        facts.bytes_read += check_crcs(reader, data, at, starts)
    headers, positions, messages = _headers(data, at, starts, segment, facts)
    _note_facts(headers, facts)
    facts.end_position = at + following
    return Block(data, at, headers, positions, messages)


def hop(block: memoryview, *, room: int, at: int, most: int | None = None) -> tuple[list[int], int]:
    """Return where batches start in ``block``, and where the next one after them does, perhaps beyond the block.

    At most ``most`` are returned, and none above a damaged one. A batch counts if its header is in the block and its
    end within ``room`` bytes from the block's start.

    Raises:
        FormatError: an impossible length, or an unknown magic; ``at`` is the block's file position.

    """
    starts: list[int] = []
    position, end = 0, len(block)
    length_and_magic = _LENGTH_AND_MAGIC.unpack_from
    while end - position > _SIZE_UP_TO_MAGIC and (most is None or len(starts) < most):
        length, magic = length_and_magic(block, position + LENGTH_POSITION)
        if magic != MAGIC_V2 or length < MIN_BATCH_LENGTH:
            if length == 0 and not any(block[position : position + _SIZE_UP_TO_MAGIC]):
                break  # the zeros of a preallocated file
            damage = _damage(magic, length, at + position)
            if damage is not None and starts:
                break  # it is reported once all before it has been taken
            if damage is not None:
                raise damage
        following = position + LOG_OVERHEAD + length
        if following > end and (following > room or end - position < HEADER.size):
            break
        starts.append(position)
        position = following
    return starts, position


def _damage(magic: int, length: int, position: int) -> FormatError | None:
    if not 0 <= magic <= MAGIC_V2:
        return FormatError("record batch magic", position=position + MAGIC_POSITION, expected="0, 1 or 2", found=magic)
    least = MIN_BATCH_LENGTH if magic == MAGIC_V2 else _MIN_LEGACY_SIZE
    if length < least:
        return FormatError("record batch length", position=position + 8, expected=f"at least {least}", found=length)
    return None


def _check_tail(reader: RangeReader, segment: SegmentRange, at: int, end: int) -> None:
    if segment.end is not None:
        raise FormatError("a batch crosses the end of its split", position=at, expected=f"a batch that ends by {end}")
    if not segment.is_active:
        raise FormatError(
            "bytes after the last whole batch of a closed segment",
            position=at,
            expected=f"the segment to end here, or a batch that ends by {end}",
            found=f"{reader.size_bytes - at} bytes more",
            hint="the segment is cut short or damaged; restore it from another replica",
        )


def whole_batch(reader: RangeReader, block: Block, index: int) -> Buffer:
    """Return the whole batch of the header at ``index``; the last one of a block may need another read."""
    start, size = int(block.positions[index]), LOG_OVERHEAD + int(block.headers["batch_length"][index])
    batch = block.data[start : start + size]
    return batch if len(batch) == size else reader.read(block.at + start, size)


def control_record(reader: RangeReader, block: Block, index: int) -> ControlRecord | None:
    """Return the record of the control batch of the header at ``index``; None if the log cleaner has removed it.

    Raises:
        FormatError: the batch is damaged.

    """
    at, batch = block.at + int(block.positions[index]), whole_batch(reader, block, index)
    return read_control_record(batch, read_header(batch, at=at), at=at)


def _headers(
    block: memoryview, at: int, starts: list[int], segment: SegmentRange, facts: ScanFacts
) -> tuple[Array, npt.NDArray[np.int64], list[tuple[int, LegacyMessage]]]:
    """Gather the v2 headers and legacy messages at ``starts``, and check the offsets of them all."""
    positions = np.array(starts, dtype=np.int64)
    buffer = np.frombuffer(block, dtype=np.uint8)
    is_v2 = buffer[positions + MAGIC_POSITION] == MAGIC_V2
    v2 = positions[is_v2]
    headers = bytes_at(block, v2, HEADER.size).view(HEADER_DTYPE)
    firsts = np.empty(len(positions), dtype=np.int64)
    lasts = np.empty(len(positions), dtype=np.int64)
    firsts[is_v2] = headers["base_offset"]
    lasts[is_v2] = headers["base_offset"] + headers["last_offset_delta"].astype(np.int64)
    messages = []
    for i in np.flatnonzero(~is_v2):
        message = _legacy_message(block, int(positions[i]), at)
        messages.append((int(positions[i]), message))
        # A compressed wrapper carries its last offset alone, so nothing is known of its first.
        firsts[i] = lasts[i] = message.offset
        facts.max_timestamp_ms = max(facts.max_timestamp_ms, message.timestamp)
    floors = np.concatenate(([facts.end_offset], lasts[:-1] + 1))
    _check_offsets(firsts, lasts, floors, positions + at, segment)
    _check_sequences(headers, v2 + at)
    gaps = (firsts > floors) & is_v2
    gaps[0] &= segment.start == 0 or facts.batches > 0
    facts.lacks_records = facts.lacks_records or bool(gaps.any())
    facts.batches += len(positions)
    if len(lasts):
        facts.end_offset = int(lasts[-1]) + 1
    return headers, v2, messages


def _legacy_message(block: memoryview, position: int, at: int) -> LegacyMessage:
    """Return the message at ``position``; its key must fit: a flipped magic makes a batch look like a message."""
    message = read_legacy_message(block, position, at=at)
    key_position = position + LEGACY_HEADER.size + (LEGACY_TIMESTAMP.size if message.magic == MAGIC_V1 else 0)
    key_length: int = LENGTH.unpack_from(block, key_position)[0]
    room = message.size - MIN_SIZES[message.magic]
    if not -1 <= key_length <= room:
        raise FormatError("message key length", position=at + key_position, expected=f"-1 to {room}", found=key_length)
    return message


def _check_offsets(
    firsts: npt.NDArray[np.int64],
    lasts: npt.NDArray[np.int64],
    floors: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    segment: SegmentRange,
) -> None:
    """Check that offsets rise and stay within the segment, because no checksum covers them."""
    ceiling = np.iinfo(np.int64).max if segment.next_base_offset is None else segment.next_base_offset
    bad = np.flatnonzero((firsts < floors) | (lasts < firsts) | (lasts >= ceiling))
    if len(bad):
        i = int(bad[0])
        upper = "" if segment.next_base_offset is None else f" and below {segment.next_base_offset}"
        raise FormatError(
            "record batch offsets",
            position=int(positions[i]),
            expected=f"rising offsets, at least {int(floors[i])}{upper}",
            found=f"{int(firsts[i])} to {int(lasts[i])}",
        )


def _check_sequences(headers: Array, positions: npt.NDArray[np.int64]) -> None:
    """Check that a producer's data has a sequence; without one it is a marker with damaged attributes."""
    is_data = (headers["producer_id"] >= 0) & ((headers["attributes"] & CONTROL) == 0)
    bad = np.flatnonzero(is_data & (headers["base_sequence"] < 0))
    if len(bad):
        i = int(bad[0])
        raise FormatError(
            "base sequence of a producer's data", position=int(positions[i]) + _SEQUENCE_POSITION, expected="0 or more",
            found=int(headers["base_sequence"][i]),
        )  # fmt: skip


def _note_facts(headers: Array, facts: ScanFacts) -> None:
    if not len(headers):
        return
    attributes = headers["attributes"]
    facts.max_timestamp_ms = max(facts.max_timestamp_ms, int(headers["max_timestamp"].max()))
    incomplete = headers["records_count"] != headers["last_offset_delta"].astype(np.int64) + 1
    facts.lacks_records = facts.lacks_records or bool((incomplete | ((attributes & DELETE_HORIZON) != 0)).any())
    _note_leader_epochs(headers, facts)


def _note_leader_epochs(headers: Array, facts: ScanFacts) -> None:
    epochs = headers["partition_leader_epoch"]
    newest = facts.leader_epochs[-1][0] if facts.leader_epochs else -1
    running = np.maximum.accumulate(np.concatenate(([newest], epochs)))
    for i in np.flatnonzero(running[1:] > running[:-1]):
        facts.leader_epochs.append((int(epochs[i]), int(headers["base_offset"][i])))


def last_sequences(headers: Array) -> npt.NDArray[np.int64]:
    """Return ``RecordBatchHeader.last_sequence`` of each header."""
    base_sequence = headers["base_sequence"].astype(np.int64)
    last_sequence = base_sequence + headers["last_offset_delta"]
    last_sequence = np.where(last_sequence > MAX_SEQUENCE, last_sequence - MAX_SEQUENCE - 1, last_sequence)
    return np.where(base_sequence == -1, -1, last_sequence)


def check_crcs(reader: RangeReader, block: memoryview, at: int, starts: Sequence[int]) -> int:
    """Check every batch that starts in ``block`` at file position ``at``; bytes beyond the block are read.

    Returns:
        The number of bytes read beyond the block.

    Raises:
        FormatError: a checksum differs.

    """
    beyond = 0
    for start in starts:
        size = LOG_OVERHEAD + _LENGTH.unpack_from(block, start + 8)[0]
        if block[start + MAGIC_POSITION] != MAGIC_V2:
            whole = block[start : start + size] if start + size <= len(block) else reader.read(at + start, size)
            check_legacy_crc(whole, at=at + start)
            continue
        covered = block[start + ATTRIBUTES_POSITION : start + size]
        missing = size - ATTRIBUTES_POSITION - len(covered)
        computed = _continue(reader, crc32c(covered), at + start + size - missing, missing)
        beyond += missing
        carried = int.from_bytes(block[start + CRC_POSITION : start + ATTRIBUTES_POSITION], "big")
        if carried != computed:
            raise FormatError("record batch checksum (CRC-32C)", position=at + start, expected=f"{carried:08x}",
                              found=f"{computed:08x}")  # fmt: skip
    return beyond


def _continue(reader: RangeReader, checksum: int, position: int, length: int) -> int:
    while length > 0:
        chunk = reader.read(position, min(_CHUNK_BYTES, length))
        if not chunk:
            break  # truncated in between: the checksum will show it
        checksum = crc32c(chunk, checksum)
        position += len(chunk)
        length -= len(chunk)
    return checksum
