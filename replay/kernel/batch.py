"""Checks one batch, and adds it to the fold and to the scan's facts; compiled.

Nothing of a batch is recorded before all its checks have passed, so that an unusual one can be left to the plain path
as if it had not been read.
"""

# ruff: noqa: PLR0917 - machine code knows no keyword-only arguments

from __future__ import annotations

from typing import Final, NamedTuple

from resnap.replay.kernel.checksum import crc32c
from resnap.replay.kernel.compiling import inlined
from resnap.replay.kernel.control import MARKER, read_marker
from resnap.replay.kernel.control import ODD as ODD_RECORD
from resnap.replay.kernel.fold import append_data, append_marker, has_room
from resnap.replay.kernel.machine import Record, load_8, load_16, load_32, load_64, pread
from resnap.replay.kernel.stretch import FULL, LEGACY, MORE, ODD, STOPPED, TAKEN, leader_epoch_at
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_SEQUENCE,
    TRANSACTIONAL,
)

HEADER_BYTES: Final = HEADER.size
_UNSIGNED: Final = 0xFFFFFFFF


class BatchHeader(NamedTuple):
    """``record_batch.HEADER`` without the checksum and the base timestamp, which only markers need."""

    base_offset: int
    size: int
    """Bytes of the whole batch."""
    leader_epoch: int
    magic: int
    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int


@inlined
def header_of(batch: int) -> BatchHeader:
    """Return the header of the batch at the address ``batch``."""
    return BatchHeader(
        load_64(batch, 0),
        LOG_OVERHEAD + load_32(batch, 8),
        load_32(batch, 12),
        load_8(batch, MAGIC_POSITION),
        load_16(batch, ATTRIBUTES_POSITION),
        load_32(batch, 23),
        load_64(batch, 35),
        load_64(batch, 43),
        load_16(batch, 51),
        load_32(batch, 53),
        load_32(batch, 57),
    )


@inlined
def check(header: BatchHeader, scan: Record, fold: Record) -> int:
    """Return the reason why the batch cannot be accepted here, if there is one."""
    if header.magic == 0 or header.magic == 1:  # noqa: PLR1714 - machine code has no tuples to look in
        return LEGACY
    has_fit_length = HEADER_BYTES <= header.size <= scan.end - scan.position
    # Compared without a sum: one that overflows is undefined in machine code.
    has_fit_offsets = (
        scan.end_offset <= header.base_offset < scan.next_base_offset - header.last_offset_delta
        and header.last_offset_delta >= 0
    )
    if header.magic != MAGIC_V2 or not has_fit_length or not has_fit_offsets:
        return ODD
    if header.base_offset >= scan.stop_offset:
        return STOPPED
    return TAKEN if scan.leader_epochs < scan.leader_epoch_room and has_room(fold) else FULL


@inlined
def take_control(batch: int, header: BatchHeader, scan: Record, fold: Record) -> int:
    """Fold the control batch at the address ``batch``, unless it is unusual."""
    kind, coordinator_epoch, timestamp = read_marker(batch, header.size, header.producer_id >= 0)
    if kind == MARKER:
        append_marker(
            fold, header.producer_id, header.producer_epoch, header.base_offset,
            header.base_sequence, coordinator_epoch, timestamp, header.attributes & TRANSACTIONAL != 0,
            max(scan.clock_since_event_ms, timestamp),
        )  # fmt: skip
        _note_clock(scan, timestamp)
        scan.clock_since_event_ms = -1
    elif header.attributes & LOG_APPEND_TIME:
        _note_clock(scan, header.max_timestamp)
    return ODD if kind == ODD_RECORD else TAKEN


@inlined
def take_data(header: BatchHeader, scan: Record, fold: Record) -> int:
    """Fold a data batch, unless it is unusual."""
    if header.producer_id >= 0 and header.base_sequence < 0:
        return ODD
    if header.attributes & LOG_APPEND_TIME:
        _note_clock(scan, header.max_timestamp)
    if header.producer_id >= 0:
        last_sequence = header.base_sequence + header.last_offset_delta
        if last_sequence > MAX_SEQUENCE:
            last_sequence -= MAX_SEQUENCE + 1
        append_data(
            fold, header.producer_id, header.producer_epoch, header.base_offset,
            header.base_offset + header.last_offset_delta, header.base_sequence, last_sequence, header.max_timestamp,
            header.attributes & TRANSACTIONAL != 0, scan.clock_since_event_ms,
        )  # fmt: skip
        scan.clock_since_event_ms = -1
    return TAKEN


@inlined
def _note_clock(scan: Record, clock_ms: int) -> None:
    if clock_ms >= 0:
        scan.server_clock_ms = max(scan.server_clock_ms, clock_ms)
        scan.oldest_server_clock_ms = min(scan.oldest_server_clock_ms, clock_ms)
        scan.clock_since_event_ms = max(scan.clock_since_event_ms, clock_ms)


@inlined
def note(header: BatchHeader, scan: Record) -> None:
    """Record the batch's facts of the segment, and advance past it."""
    # What precedes the first batch of a part of a segment is in the previous part.
    has_gap = header.base_offset > scan.end_offset and (scan.batches > 0 or scan.start == 0)
    lacks_records = header.records_count != header.last_offset_delta + 1
    if has_gap or lacks_records or header.attributes & DELETE_HORIZON:
        scan.lacks_records = 1
    scan.max_timestamp_ms = max(scan.max_timestamp_ms, header.max_timestamp)
    if header.leader_epoch > scan.leader_epoch:
        scan.leader_epoch = header.leader_epoch
        noted = leader_epoch_at(scan.leader_epochs_at, scan.leader_epochs)
        noted.epoch = header.leader_epoch
        noted.first_offset = header.base_offset
        scan.leader_epochs += 1
    scan.batches += 1
    scan.end_offset = header.base_offset + header.last_offset_delta + 1
    scan.position += header.size


@inlined
def check_crc(batch: int, size: int, scan: Record, address: int, room: int, here: int) -> int:
    """Compare the checksum of a batch with ``here`` bytes in memory; the rest is read over the memory before it."""
    if size > here and scan.descriptor < 0:
        return MORE
    carried = load_32(batch, CRC_POSITION) & _UNSIGNED
    passed = min(here, size)
    checksum = crc32c(batch + ATTRIBUTES_POSITION, passed - ATTRIBUTES_POSITION, 0)
    while passed < size:
        got = pread(scan.descriptor, address, min(room, size - passed), scan.position + passed)
        if got <= 0:
            return ODD
        scan.bytes_read += got
        checksum = crc32c(address, got, checksum)
        passed += got
    return TAKEN if checksum == carried else ODD
