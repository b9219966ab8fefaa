"""Marks that identify a closed segment across runs without reading it: file facts, first and last batch header.

Offsets, size, modification time and inode change with every change of a file, unless somebody restores them. So the
headers of the first and the last batch count as well; the end of the offset index shows where the last one is. Without
a usable index, only the first one is used. The time of an object in S3 is that of its last write and cannot be
restored, so nothing of it is read; a ``file://`` URL is a file like any other.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, LogDirError
from resnap.storage.layouts.inner_files import is_inner
from resnap.storage.log.indexes import OFFSET_ENTRY
from resnap.storage.log.record_batch import HEADER
from resnap.storage.stores.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

HOPS: Final = 256
"""Batches that may follow the last one in the index; a broker adds an entry every 4 KiB or so."""
_OVERHEAD: Final = 12
"""Bytes of a batch before what its length counts: the base offset, and the length itself."""
_UNREADABLE: Final = (FormatError, LogDirError)


class SegmentMark(NamedTuple):
    """The mark of one closed segment."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    mtime_ns: int
    inode: int
    headers: str
    """Digest of the first and the last batch header; empty for an object that is not a file."""


def mark_of(segment: Segment, sources: Sources) -> SegmentMark | None:
    """Return the mark of ``segment``; None if it is active, or cannot be read."""
    if segment.next_base_offset is None:
        return None
    try:
        headers = _headers(segment, sources) if _is_file(segment.path) else ""
    except _UNREADABLE:
        return None
    return SegmentMark(
        segment.base_offset, segment.next_base_offset, segment.size_bytes, segment.mtime_ns, segment.inode, headers
    )


def unchanged_up_to(segments: Iterable[Segment], marks: Sequence[SegmentMark], sources: Sources) -> int | None:
    """Return the offset up to which the log still matches ``marks``; None if none of it does.

    Retention may have deleted the oldest segments; the first existing one must be marked, and so must all up to the
    returned offset, unchanged.
    """
    known = {mark.base_offset: mark for mark in marks}
    end: int | None = None
    for segment in segments:
        mark = known.get(segment.base_offset)
        if mark is None or not _looks_like(segment, mark) or mark_of(segment, sources) != mark:
            break
        end = mark.next_base_offset
    return end


def _looks_like(segment: Segment, mark: SegmentMark) -> bool:
    facts = (segment.next_base_offset, segment.size_bytes, segment.mtime_ns, segment.inode)
    return facts == (mark.next_base_offset, mark.size_bytes, mark.mtime_ns, mark.inode)


def _is_file(locator: str) -> bool:
    return not is_inner(locator) and (not is_store_url(locator) or local_path(locator) is not None)


def _headers(segment: Segment, sources: Sources) -> str:
    with sources.open(segment.path) as log:
        digest = hashlib.blake2b(log.read(0, HEADER.size), digest_size=16)
        position = _last_indexed(segment, sources)
        if position is not None:
            digest.update(_last_header(log, position))
    return digest.hexdigest()


def _last_indexed(segment: Segment, sources: Sources) -> int | None:
    """Return the position of the last batch in the offset index; None if it has no valid one."""
    if not segment.index_bytes or segment.index_bytes % OFFSET_ENTRY.size:
        return None
    with sources.open(f"{segment.path.removesuffix('.log')}.index") as index:
        tail = index.read(max(segment.index_bytes - OFFSET_ENTRY.size, 0), OFFSET_ENTRY.size)
    position = int(OFFSET_ENTRY.unpack(tail)[1]) if len(tail) == OFFSET_ENTRY.size else 0
    return position if 0 < position < segment.size_bytes else None


def _last_header(log: RangeReader, position: int) -> bytes:
    """Return the header of the last batch, by hopping from the one at ``position``."""
    header = log.read(position, HEADER.size)
    for _ in range(HOPS):
        position += _OVERHEAD + int.from_bytes(header[8:_OVERHEAD], "big", signed=True)
        following = log.read(position, HEADER.size) if position + HEADER.size <= log.size_bytes else b""
        if len(following) < HEADER.size or int.from_bytes(following[8:_OVERHEAD], "big", signed=True) <= 0:
            break
        header = following
    return header
