"""Finds where a large segment can be cut: at a batch in its offset index, at or after a wanted byte.

Only the position of an index entry is used: an append began there, so a batch starts there. The entry's offset is the
last one of that append, and does not give the position of the next batch. The task that scans a part looks up the
entry, so the driver reads no index, and the same byte leads every task to the same batch.

An index may be missing, damaged, or filled with zeros ahead of time. None of these is an error here: an entry that is
not found means the end of the file, and ``parts`` checks whether the parts fit once they were read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.storage.errors import LogDirError, StoreError
from resnap.storage.log.indexes import OFFSET_ENTRY

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from resnap.replay.scan.header_scan import SegmentRange
    from resnap.replay.scan.splits import Split
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

BLOCK_ENTRIES: Final = 1024
"""Entries of an index read at a time, 8 KiB: mostly one read is enough."""
_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


def locate(part: Split, sources: Sources) -> SegmentRange | None:
    """Return the range of its segment that ``part`` means; None if no batch begins in it."""
    try:
        with open_index(index_locator(part.range.locator), sources) as index:
            start = position_at(index, part.start_target, part.segment_bytes) if part.start_target else 0
            end = None if part.end_target is None else position_at(index, part.end_target, part.segment_bytes)
    except (LogDirError, StoreError):
        # Every part of the segment fails the same way, so that the first part becomes the whole segment.
        start, end = (None if part.start_target else 0), None
    return None if start is None or start == end else replace(part.range, start=start, end=end)


def index_locator(segment: str) -> str:
    """Return the locator of a segment's offset index: beside it, under the same name."""
    return f"{segment.removesuffix('.log')}.index"


def open_index(locator: str, sources: Sources) -> AbstractContextManager[RangeReader]:
    """Open an offset index for ``read_entries``: a store is asked for one block at a time, and nothing ahead."""
    return replace(sources, range_bytes=BLOCK_ENTRIES * OFFSET_ENTRY.size).open(locator, end=0)


def read_entries(index: RangeReader, first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return ``count`` entries (``relative_offset``, ``position``) from number ``first`` on; fewer at the end."""
    data = index.read(first * OFFSET_ENTRY.size, count * OFFSET_ENTRY.size)
    return np.frombuffer(data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size], dtype=_ENTRY)


def position_at(index: RangeReader, target: int, log_bytes: int) -> int | None:
    """Return the first position in ``index`` at or above ``target``, in a log of ``log_bytes``; None if there is none.

    Positions rise almost evenly with their entries, so the search begins at the expected entry, and continues by
    bisection.
    """
    count = index.size_bytes // OFFSET_ENTRY.size
    low, high, found = 0, count, None
    guess = min(count * target // max(log_bytes, 1), count)
    while low < high:
        first = max(low, min(guess - BLOCK_ENTRIES // 2, high - BLOCK_ENTRIES))
        positions = read_entries(index, first, min(BLOCK_ENTRIES, high - first))["position"]
        # Zeros fill what an active segment's index has not used yet.
        reached = np.flatnonzero((positions >= target) | (positions <= 0))
        if not len(reached):
            low = first + len(positions) if len(positions) else high
        else:
            at = int(reached[0])
            found, high = int(positions[at]), first + at
            if at:
                break
        guess = (low + high) // 2
    return found if found is not None and target <= found < log_bytes else None
