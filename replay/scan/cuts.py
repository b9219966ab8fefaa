"""Where a large segment may be cut: at a batch that its offset index names, at or after a wanted byte.

Of an index entry only the position is used: it is where an append began, so a batch starts there. The offset beside it
is the last one of that append, and says nothing of where the batch after it lies. Entries are looked up by the task
that scans a part, so the driver reads no index, and the same byte leads every task to the same batch.

An index may be missing, damaged, or filled with zeros ahead of time. None of that is said here: what is not found is
taken for the end of the file, and whether parts fit together is seen once they have been read (``parts``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.storage.errors import LogDirError, StoreError
from resnap.storage.log.indexes import OFFSET_ENTRY

if TYPE_CHECKING:
    from resnap.replay.scan.header_scan import SegmentRange
    from resnap.replay.scan.splits import Split
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

BLOCK_ENTRIES: Final = 1024
"""What is read of an index at a time, 8 KiB: mostly one look is enough."""
_RANGE_BYTES: Final = BLOCK_ENTRIES * OFFSET_ENTRY.size
"""What is asked of a store at a time, and nothing of it ahead."""
_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


def locate(split: Split, sources: Sources) -> SegmentRange | None:
    """Return the stretch of its segment that ``split`` means; None if it is empty, for want of a batch to begin at."""
    if not split.is_part:
        return split.range
    start, end = _positions(split, sources)
    return None if start is None or start == end else replace(split.range, start=start, end=end)


def index_locator(segment: str) -> str:
    """Return where the offset index of a segment lies: beside it, under the same name."""
    return f"{segment.removesuffix('.log')}.index"


def _positions(split: Split, sources: Sources) -> tuple[int | None, int | None]:
    try:
        with replace(sources, range_bytes=_RANGE_BYTES).open(index_locator(split.range.locator), end=0) as index:
            start = position_at(index, split.start_target, split.segment_bytes) if split.start_target else 0
            end = None if split.end_target is None else position_at(index, split.end_target, split.segment_bytes)
    except (LogDirError, StoreError):
        # Every part of the segment fails the same way, so that the first part becomes the whole segment.
        return (None if split.start_target else 0), None
    return start, end


def position_at(index: RangeReader, target: int, log_bytes: int) -> int | None:
    """Return the first position in ``index`` that is ``target`` or more, of a log of ``log_bytes``; None without one.

    Positions rise with their entries, almost evenly, so the search begins where the target would lie then, and goes on
    by halves.
    """
    count = index.size_bytes // OFFSET_ENTRY.size
    low, high, found = 0, count, None
    guess = min(count * target // max(log_bytes, 1), count)
    while low < high:
        first = max(low, min(guess - BLOCK_ENTRIES // 2, high - BLOCK_ENTRIES))
        positions = _read(index, first, min(BLOCK_ENTRIES, high - first))
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


def _read(index: RangeReader, first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    data = index.read(first * OFFSET_ENTRY.size, count * OFFSET_ENTRY.size)
    whole = len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
    return np.frombuffer(data[:whole], dtype=_ENTRY)["position"].astype(np.int32)
