"""Damage inside the files of local segments that their sizes do not show, found by one small read for most of them.

``check`` alone reads this; scheduled scans open no index. A log that ends before its offset index does has lost
records, and so has one whose last batch ends before the next segment begins, unless it was compacted once. The end of a
log is read only where the index leaves more offsets to it than its bytes would hold; a time index only where it has
more entries than the offset index allows.

Source: ``RemoteIndexCache``, ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``; ``LogSegment.append``.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import LogDirError
from resnap.storage.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from resnap.storage.sources.files import GONE
from resnap.tiering.judging.refusal import Reason, Refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources

_BATCH_START: Final = struct.Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, checksum, attributes and last offset delta of a batch."""
_LOG_OVERHEAD: Final = 12
_FIRST_MAGIC_WITH_HEADER: Final = 2
_MOST_BATCHES: Final = 1_000
"""Batches that are passed over at the end of a log: more follow no entry of an index."""
_DENSER: Final = 2
"""How many times as many offsets the end of a log may have for its bytes as its beginning."""


def damage_in_files(partition: PartitionDir, sources: Sources) -> Iterator[Refusal]:
    """Yield what is wrong inside the files of the local segments, including the active one."""
    if not isinstance(partition.path, Path):
        return
    for segment in partition.segments:
        end = segment.next_base_offset
        if partition.is_local(segment.base_offset) and (end is None or end > partition.log_start_offset):
            try:
                yield from _by_offset_index(segment, sources, may_have_gaps=partition.cleaner_offset is not None)
                yield from _by_time_index(segment, sources)
            except GONE:
                continue
            except LogDirError as error:
                yield refuse(segment, Reason.UNREADABLE, str(error), hint=error.hint)


def _by_offset_index(segment: Segment, sources: Sources, *, may_have_gaps: bool) -> Iterator[Refusal]:
    """Judge a segment by the last entry of its offset index; one that is filled up with zeros shows nothing."""
    index, size_bytes = segment.sibling("index"), segment.index_bytes
    if not size_bytes or size_bytes % OFFSET_ENTRY.size:
        return
    last = sources.read_range(index, size_bytes - OFFSET_ENTRY.size, size_bytes)
    relative_offset, position = OFFSET_ENTRY.unpack(last) if len(last) == OFFSET_ENTRY.size else (0, 0)
    if relative_offset < 0 or position < 0:
        yield _unusable(segment, f"{index} ends with an entry of offset {relative_offset} and position {position}")
    elif position >= segment.size_bytes and position:
        now_bytes = sources.facts(segment.path).size_bytes  # a broker may have appended to it since it was listed
        is_named = not now_bytes and segment.next_base_offset is not None  # its size shows closed ones without a byte
        if now_bytes <= position and not is_named:
            detail = f"{segment.path} ends at byte {now_bytes}, and the last batch of its offset index begins at"
            lost = "records are lost here, and brokers ship it all the same"
            yield refuse(segment, Reason.DAMAGED, f"{detail} {position}: {lost}")
    elif position and not may_have_gaps and segment.next_base_offset is not None:
        left = segment.next_base_offset - segment.base_offset - relative_offset - 1
        if left > 1 + _DENSER * (segment.size_bytes - position) * relative_offset / position:
            yield from _by_last_batch(segment, position, segment.next_base_offset, sources)


def _by_last_batch(segment: Segment, position: int, next_base_offset: int, sources: Sources) -> Iterator[Refusal]:
    """Yield the offsets that are missing between the last batch, at or after ``position``, and the next segment."""
    end = next_base_offset
    for _ in range(_MOST_BATCHES):
        head = sources.read_range(segment.path, position, position + _BATCH_START.size)
        if len(head) < _BATCH_START.size:
            return
        base_offset, length, _, magic, _, _, last_offset_delta = _BATCH_START.unpack(head)
        position += _LOG_OVERHEAD + length
        if magic < _FIRST_MAGIC_WITH_HEADER or length <= 0 or position > segment.size_bytes:
            return
        if position == segment.size_bytes:
            end = base_offset + last_offset_delta + 1
            break
    if end < next_base_offset:
        detail = f"offsets {end} to {next_base_offset - 1} are missing after {segment.path}, lost or compacted away"
        both = "brokers tier the segments around them, and `resnap tier` refuses the partition"
        yield refuse(segment, Reason.MISSING_OFFSETS, f"{detail}: {both}")


def _by_time_index(segment: Segment, sources: Sources) -> Iterator[Refusal]:
    """Judge a time index as brokers do that load a copy of it, where it has more entries than brokers append."""
    size_bytes = segment.timeindex_bytes or 0
    usual = (segment.index_bytes or 0) // OFFSET_ENTRY.size + 1
    if segment.is_active or size_bytes % TIME_ENTRY.size or size_bytes <= usual * TIME_ENTRY.size:
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
