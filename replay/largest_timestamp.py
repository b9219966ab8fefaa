"""Reads the largest timestamp of each closed segment, which decides where a window begins, and proves it by batches.

It is the last entry of the time index, which has no checksum: one flipped bit, and a window begins above producers that
are alive. So an entry that contradicts the previous entry of its index, or the neighbouring segments, is verified: the
batch that it names must have that timestamp. If not, the true one is read from all headers of the segment. The entries
that decide where a window begins are verified, too, once it is planned (``tiering/judging/planning.py``): in a log with
ascending timestamps no other entry can hide a batch of the window.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
from resnap.replay.scan.splits import BLOCK_ENTRIES, open_index, read_entries
from resnap.replay.window import TRANSACTION_MARGIN_MS
from resnap.storage.errors import FormatError
from resnap.storage.log.indexes import OFFSET_ENTRY, TimeIndexEntry, last_time_index_entries
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD, MAGIC_POSITION, MAGIC_V2, read_header
from resnap.storage.sources.files import UNREADABLE
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

_SLACK_MS: Final = TRANSACTION_MARGIN_MS
"""How far neighbours may be out of order: by so much at least each window begins earlier than it must."""
_BLOCK_BYTES: Final = 8 << 10
"""Bytes of a segment read at once: mostly they contain the batch, so that a store gets one request."""
_HOPS: Final = 256
"""Batches that may follow the one in the offset index; a broker adds an entry every 4 KiB or so."""


class _Claim(NamedTuple):
    """The largest timestamp of a segment as its small files give it."""

    timestamp_ms: int | None
    """None where unknown."""
    is_indexed: bool = False
    """Whether the time index says so; else it is the file's time, or nothing."""
    is_odd: bool = False
    """Whether the entry cannot be one, or contradicts the one before it."""
    entry: TimeIndexEntry | None = None
    """The last one of the time index, if it has any that can be one."""


def largest_timestamps(segments: Sequence[Segment], sources: Sources, *, remote: bool) -> list[int | None]:
    """Return the largest timestamp of each of ``segments`` in milliseconds, None if unknown.

    Raises:
        StoreError: the store they are in failed.

    """
    claims = list(each(partial(_claim, sources), segments, remote=remote))
    found = [claim.timestamp_ms for claim in claims]
    odd = sorted({index for index, claim in enumerate(claims) if claim.is_odd} | set(_out_of_order(claims)))
    look = partial(largest_timestamp_by_batches, sources=sources)
    for index, borne_out in zip(odd, each(look, [segments[index] for index in odd], remote=remote), strict=True):
        found[index] = borne_out
    return found


def largest_timestamp_by_batches(segment: Segment, sources: Sources) -> int | None:
    """Return the largest timestamp of a closed segment: from its time index, if the batch it names agrees.

    Else from the headers of all batches, and None if these cannot be read either.

    Raises:
        StoreError: the store it is in failed.

    """
    claim = _claim(sources, segment)
    if not claim.is_indexed:
        return claim.timestamp_ms
    proven = _proven_timestamp(segment, claim, sources)
    if proven is not None:
        return proven
    try:
        return _by_all_headers(segment, sources)
    except UNREADABLE:
        return None


def proven_largest_timestamp(segment: Segment, sources: Sources) -> int | None:
    """Return the time index's largest timestamp of a closed segment, if the batch it names agrees; else None.

    Raises:
        StoreError: the store it is in failed.

    """
    return _proven_timestamp(segment, _claim(sources, segment), sources)


def _proven_timestamp(segment: Segment, claim: _Claim, sources: Sources) -> int | None:
    try:
        is_borne_out = claim.entry is not None and _is_confirmed(segment, claim.entry, sources)
    except UNREADABLE:
        return None
    return claim.timestamp_ms if is_borne_out else None


def _claim(sources: Sources, segment: Segment) -> _Claim:
    """Return the last time index entry; if the index is empty, the file's time, as ``LogSegment`` does."""
    if segment.is_active or segment.timeindex_bytes is None:
        return _Claim(None)
    file_time = _Claim(segment.mtime_ns // 1_000_000)
    if segment.timeindex_bytes == 0:
        return file_time
    try:
        read = partial(sources.read_range, segment.sibling("timeindex"))
        last = last_time_index_entries(read, segment.timeindex_bytes)
    except FormatError:
        return _Claim(None, is_indexed=True, is_odd=True)
    except UNREADABLE:
        return _Claim(None)
    if not last:
        return file_time
    is_odd = any(entry.timestamp >= last[-1].timestamp or entry.relative_offset > last[-1].relative_offset
                 for entry in last[:-1])  # fmt: skip
    return _Claim(last[-1].timestamp, is_indexed=True, is_odd=is_odd, entry=last[-1])


def _out_of_order(claims: Sequence[_Claim]) -> Iterator[int]:
    """Yield the indexes of two neighbours if the later one is much older by its time index."""
    indexed = [(index, claim.timestamp_ms or 0) for index, claim in enumerate(claims) if claim.is_indexed]
    for (below, before_ms), (above, after_ms) in pairwise(indexed):
        if after_ms < before_ms - _SLACK_MS:
            yield from (below, above)


def _is_confirmed(segment: Segment, entry: TimeIndexEntry, sources: Sources) -> bool:
    """Whether the batch that the last entry names has the entry's timestamp."""
    position = 0
    if segment.index_bytes:
        with open_index(segment.sibling("index"), sources) as index:
            position = _position_of(index, entry.relative_offset)
    with sources.open(segment.path, end=0) as log:
        block, start = log.read(position, _BLOCK_BYTES), position
        for _ in range(_HOPS):
            if position + HEADER.size > start + len(block):
                block, start = log.read(position, _BLOCK_BYTES), position
            data = block[position - start :][: HEADER.size]
            if len(data) < HEADER.size or data[MAGIC_POSITION] != MAGIC_V2:
                return False
            header = read_header(data)
            if header.base_offset + header.last_offset_delta >= segment.base_offset + entry.relative_offset:
                return header.max_timestamp == entry.timestamp
            position += LOG_OVERHEAD + max(header.batch_length, 0)
    return False


def _position_of(index: RangeReader, relative_offset: int) -> int:
    """Return the position of the batch of the last entry not above ``relative_offset``; 0 without one."""
    low, high = 0, index.size_bytes // OFFSET_ENTRY.size
    while high - low > BLOCK_ENTRIES:
        middle = (low + high) // 2
        is_below = (read_entries(index, middle, 1)["relative_offset"] <= relative_offset).all()
        low, high = (middle, high) if is_below else (low, middle)
    entries = read_entries(index, low, high - low)
    at = int(np.searchsorted(entries["relative_offset"], relative_offset, side="right")) - 1
    return int(entries["position"][at]) if at >= 0 else 0


def _by_all_headers(segment: Segment, sources: Sources) -> int:
    """Return the largest timestamp of all batches; the file's time if none has one."""
    whole = SegmentRange.whole(segment)
    facts = ScanFacts()
    with sources.open(segment.path) as log:
        for _ in read_blocks(log, whole, facts):
            pass
    return facts.max_timestamp_ms if facts.max_timestamp_ms >= 0 else segment.mtime_ns // 1_000_000
