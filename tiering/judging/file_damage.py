"""Finds damage inside the files of local segments that their sizes do not show, by one small read for most of them.

``check`` and dry runs alone read this; scheduled scans open no index. A log that ends before its offset index does, or
inside its last batch, has lost records, and so has one whose last batch ends before the next segment begins, unless it
was compacted once. A log whose first or last batch has offsets of other segments is damaged, too, and so is one that
does not begin with a batch, or goes on after the last one: brokers trim what they preallocate, and a consumer fails at
zeros, local or remote (asked of 3.9.1). So of each closed log the first header and what follows the last entry of its
index are read, some 4 KiB; of a time index something only where it has more entries than the offset index allows.

Source: ``RemoteIndexCache``, ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``; ``LogSegment.append``,
``LogSegment.onBecomeInactiveSegment``; ``ByteBufferLogInputStream.nextBatchSize``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.replay.scan.header_scan import hop
from resnap.storage.errors import FormatError, LogDirError
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
)
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, MAGIC_POSITION, MAGIC_V2
from resnap.storage.sources.files import GONE
from resnap.tiering.judging.inventory import checkpointed_epochs, leader_epoch_of
from resnap.tiering.judging.refusal import Reason, Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources


_BATCH_START: Final = struct.Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, checksum, attributes and last offset delta of a batch."""
_MOST_BLOCKS: Final = 100
"""Blocks of headers that are read at the end of a log: more follow no entry of an index."""
_BLOCK_BYTES: Final = 8_192
"""As many bytes as batches without an entry of an index have, and one more batch."""
_LOST: Final = "records are lost here, and brokers ship it all the same"


def damage_in_files(partition: PartitionDir, sources: Sources) -> Iterator[Refusal]:
    """Yield what is wrong inside the files of the local segments, including the active one."""
    if not isinstance(partition.path, Path):
        return
    try:
        epochs = checkpointed_epochs(partition.leader_epochs, sources)
    except LogDirError:
        epochs = ()  # it is reported where it is needed
    for segment in partition.segments:
        end = segment.next_base_offset
        if partition.is_local(segment.base_offset) and (end is None or end > partition.log_start_offset):
            try:
                yield from _in_segment(segment, epochs, sources, may_have_gaps=partition.cleaner_offset is not None)
            except GONE:
                continue
            except LogDirError as error:
                yield refuse(segment, Reason.UNREADABLE, str(error), hint=error.hint)


def _in_segment(
    segment: Segment, epochs: Sequence[LeaderEpoch], sources: Sources, *, may_have_gaps: bool
) -> Iterator[Refusal]:
    """Yield the damage of one segment; the log of the active segment is not read."""
    if segment.next_base_offset is None:
        yield from _by_offset_index(segment, None, sources, may_have_gaps=may_have_gaps)
        return
    with sources.open(segment.path) as log:
        head = log.read(0, HEADER.size)
        unfit = _unfit_beginning(segment, head)
        if unfit is not None:
            yield unfit
        else:
            yield from _by_leader_epoch(segment, head, epochs)
            yield from _by_offset_index(segment, (log, head), sources, may_have_gaps=may_have_gaps)
    yield from _by_time_index(segment, sources)


def _unfit_beginning(segment: Segment, head: bytes) -> Refusal | None:
    """Return why a log with this ``head`` does not begin with a whole batch, as a scan says it; None if it does."""
    try:
        starts, _ = hop(memoryview(head), room=segment.size_bytes, at=0, most=1)
    except FormatError as error:
        return refuse(segment, Reason.DAMAGED, f"{segment.path}: {error}: brokers ship it all the same")
    if starts or not head:
        return None
    return _cut_inside(segment, 0) if any(head) else _without_batch(segment, 0, None)


def _by_leader_epoch(segment: Segment, head: bytes, epochs: Sequence[LeaderEpoch]) -> Iterator[Refusal]:
    """Judge a closed segment by the leader epoch of its first batch, and what ``epochs`` of the checkpoint say."""
    epoch = leader_epoch_of(head)
    if epoch in {None, -1}:
        return
    offset = int.from_bytes(head[:8], "big", signed=True)  # of what a cleaner has left, not of the file's name
    stated = epochs_in(epochs, offset, offset + 1)
    if stated and epoch != stated[0].epoch:
        found = f"at offset {offset} a batch is of leader epoch {epoch}"
        detail = f"{segment.path}: {found}, {LEADER_EPOCHS} says {stated[0].epoch}: brokers ship it all the same"
        yield refuse(segment, Reason.LEADER_EPOCHS_WRONG, detail)


def _by_offset_index(
    segment: Segment, opened: tuple[RangeReader, bytes] | None, sources: Sources, *, may_have_gaps: bool
) -> Iterator[Refusal]:
    """Judge a segment by the last entry of its offset index; one that is filled up with zeros shows nothing.

    ``opened`` are the log of a closed segment, and the beginning of its first batch.
    """
    index, size_bytes = segment.sibling("index"), segment.index_bytes
    if size_bytes is None or size_bytes % OFFSET_ENTRY.size:
        return
    last = sources.read_range(index, size_bytes - OFFSET_ENTRY.size, size_bytes) if size_bytes else b""
    relative_offset, position = OFFSET_ENTRY.unpack(last) if len(last) == OFFSET_ENTRY.size else (0, 0)
    if relative_offset < 0 or position < 0:
        yield _unusable(segment, f"{index} ends with an entry of offset {relative_offset} and position {position}")
    elif position >= segment.size_bytes and position:
        now_bytes = sources.facts(segment.path).size_bytes  # a broker may have appended to it since it was listed
        is_named = not now_bytes and segment.next_base_offset is not None  # its size shows closed ones without a byte
        if now_bytes <= position and not is_named:
            detail = f"{segment.path} ends at byte {now_bytes}, and the last batch of its offset index begins at"
            yield refuse(segment, Reason.DAMAGED, f"{detail} {position}: {_LOST}")
    elif opened is not None and segment.next_base_offset is not None and (position or not size_bytes):
        log, head = opened
        found = _by_first_batch(segment, head, segment.next_base_offset)
        if found is None or (found.reason is Reason.MISSING_OFFSETS and may_have_gaps and position):
            found = _by_last_batch(segment, log, relative_offset, position, segment.next_base_offset)
        if found is not None and (found.reason is not Reason.MISSING_OFFSETS or not may_have_gaps):
            yield found


def _by_first_batch(segment: Segment, head: bytes, next_base_offset: int) -> Refusal | None:
    """Return whether the first batch of a closed segment is not the one at its base offset; None if it is."""
    if len(head) < _BATCH_START.size:
        return None
    base_offset, _, _, magic, _, _, _ = _BATCH_START.unpack_from(head)
    if magic != MAGIC_V2 or base_offset == segment.base_offset:
        return None
    if not segment.base_offset < base_offset < next_base_offset:
        detail = f"{segment.path} begins with a batch of offset {base_offset}, and holds {segment.base_offset} to"
        return refuse(segment, Reason.DAMAGED, f"{detail} {next_base_offset - 1}: brokers ship it all the same")
    return _missing(segment, segment.base_offset, base_offset, "at the beginning of")


def _by_last_batch(
    segment: Segment, log: RangeReader, relative_offset: int, position: int, next_base_offset: int
) -> Refusal | None:
    """Return what the last batch of a closed segment, at or after ``position``, shows to be wrong; None if nothing.

    Missing can be the end of the batch itself, or the offsets between it and the next segment; or it reaches into that.
    At ``position`` is the batch of ``relative_offset``.
    """
    end, begins = segment.base_offset + relative_offset, None
    for _ in range(_MOST_BLOCKS):
        at, block = position, log.read(position, _BLOCK_BYTES)
        while len(head := block[position - at : position - at + _BATCH_START.size]) == _BATCH_START.size and any(head):
            base_offset, length, _, magic, _, _, last_offset_delta = _BATCH_START.unpack(head)
            is_inside = segment.base_offset <= base_offset < next_base_offset and length > 0
            is_risen = base_offset <= end if begins is None else base_offset >= end
            if not is_inside or magic != MAGIC_V2 or not is_risen:
                is_older = is_inside and 0 <= magic < MAGIC_V2
                is_whole = magic == MAGIC_V2 and 0 < length <= segment.size_bytes - position
                is_by_index = begins is None and (is_inside or not is_whole)
                return None if is_older else _without_batch(segment, position, end if is_by_index else None)
            begins, position = position, position + LOG_OVERHEAD + length
            if position > segment.size_bytes:
                return _cut_inside(segment, begins)
            end = base_offset + last_offset_delta + 1
        rest = block[position - at :]
        if at + len(block) >= segment.size_bytes or (rest and not any(rest)):  # as of a file that was made too large
            break
    else:
        return None
    if position < segment.size_bytes:
        # A whole message of before 0.11 may be shorter than what a batch begins with.
        is_older = len(rest) > MAGIC_POSITION and rest[MAGIC_POSITION] < MAGIC_V2
        cut = None if is_older else _cut_inside(segment, position)
        return cut if any(rest) else _without_batch(segment, position, None)
    if end > next_base_offset and begins is not None:
        detail = f"{segment.path}: the batch at byte {begins} ends at offset {end - 1}, and the next segment begins at"
        return refuse(segment, Reason.DAMAGED, f"{detail} {next_base_offset}: brokers ship both all the same")
    return _missing(segment, end, next_base_offset, "after") if end < next_base_offset else None


def _missing(segment: Segment, first: int, end: int, where: str) -> Refusal:
    detail = f"offsets {first} to {end - 1} are missing {where} {segment.path}, lost or compacted away"
    both = "brokers tier the segments around them, and `resnap tier` refuses the partition"
    return refuse(segment, Reason.MISSING_OFFSETS, f"{detail}: {both}")


def _without_batch(segment: Segment, position: int, indexed: int | None) -> Refusal:
    """Return the refusal of a segment without a batch at ``position``, where the offset index may have ``indexed``."""
    if indexed is not None:
        what = f"ends with an entry of offset {indexed} at byte {position}, where no batch has it"
        return _unusable(segment, f"{segment.sibling('index')} {what}")
    detail = f"{segment.path} goes on at byte {position} with what is no batch of its offsets"
    return refuse(segment, Reason.DAMAGED, f"{detail}: brokers ship it all the same")


def _cut_inside(segment: Segment, position: int) -> Refusal:
    detail = f"{segment.path} ends at byte {segment.size_bytes}, inside the batch that begins at byte {position}"
    return refuse(segment, Reason.DAMAGED, f"{detail}: {_LOST}")


def _by_time_index(segment: Segment, sources: Sources) -> Iterator[Refusal]:
    """Judge a time index as brokers do that load a copy of it, where it has more entries than brokers append."""
    size_bytes = segment.timeindex_bytes or 0
    usual = (segment.index_bytes or 0) // OFFSET_ENTRY.size + 1
    if size_bytes % TIME_ENTRY.size or size_bytes <= usual * TIME_ENTRY.size:
        return
    path = segment.sibling("timeindex")
    first = sources.read_range(path, 0, TIME_ENTRY.size)
    last = sources.read_range(path, size_bytes - TIME_ENTRY.size, size_bytes)
    if len(first) == len(last) == TIME_ENTRY.size:
        (first_ms, _), (last_ms, relative_offset) = TIME_ENTRY.unpack(first), TIME_ENTRY.unpack(last)
        if last_ms < first_ms or relative_offset < 0:
            yield _unusable(segment, f"{path} begins with timestamp {first_ms} and ends with {last_ms}")


def _unusable(segment: Segment, what: str) -> Refusal:
    shipped = "brokers ship it as it is, and the segment cannot be read from remote storage"
    return refuse(segment, Reason.INDEX_UNUSABLE, f"{what}: {shipped}")
