"""Splits: the units of scanning; and the summaries that scans return to the ordered combine.

A split is a whole segment, or a part of a large one, cut at batch boundaries that its offset index names.
Its result is summaries, one per producer, and the facts of the segment: never a batch. If the high watermark is inside
a split, the summaries come in pieces below and above it, so that the state there is known, too. Parts are joined again
before they are combined (``replay.parts``).

Finds where a large segment can be cut: at a batch in its offset index, at or after a wanted byte.

Only the position of an index entry is used: an append began there, so a batch starts there. The entry's offset is the
last one of that append, and does not give the position of the next batch. The task that scans a part looks up the
entry, so the driver reads no index, and the same byte leads every task to the same batch.

An index may be missing, damaged, or filled with zeros ahead of time. None of these is an error here: an entry that is
not found means the end of the file, and ``parts`` checks whether the parts fit once they were read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.storage.errors import LogDirError, StoreError
from resnap.storage.log.indexes import OFFSET_ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
    from resnap.replay.scan.state_file import Anchor
    from resnap.storage.errors import ResnapError
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

TASKS_PER_SLOT: Final = 3
"""Enough to even out splits of different sizes; each task costs Spark some 10 ms."""
SCAN_TASK_BYTES: Final = 4 << 30
"""Segments of a task have at most as many, but for one split, however few slots there are: slots may come later."""
TASK_SPLITS: Final = 512
"""And they are at most so many."""
BLOCK_ENTRIES: Final = 1024
"""Entries of an index read at a time, 8 KiB: mostly one read is enough."""
_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The unit of one scan: a range of the segment at ``segment_index``, its ``part``-th one."""

    segment_index: int
    part: int
    range: SegmentRange
    size_bytes: int
    ends_segment: bool = True
    """Whether no other part of the segment follows."""
    high_watermark: int | None = None
    """Set where it falls inside the segment: the summaries are given apart below and from it on."""
    segment_bytes: int = 0
    """Size of the whole segment when the run was planned."""
    start_target: int = 0
    """The part starts at the first batch that the index names at or after this byte."""
    end_target: int | None = None
    """And ends where one with this target would start; None for the end of the file."""
    anchor: Anchor | None = None
    """Set in the split that comes before the first segment, and whose summary is the state kept there."""

    @property
    def is_part(self) -> bool:
        """Whether the segment has other splits."""
        return self.start_target > 0 or self.end_target is not None


class PartStart(NamedTuple):
    """The first batch of a part."""

    position: int
    offset: int
    is_v2: bool
    """Whether it says its first offset; a legacy message may be the last of several."""


class Piece(NamedTuple):
    """The summary of a run of batches, and its newest server clock (-1: none)."""

    rows: Array
    clock_ms: int
    above: bool = False
    """Whether the batches lie at or above the high watermark, in a split that it falls into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """The result of one scan.

    ``pieces`` are in offset order, those below the high watermark first if it divides the split; there are none if
    ``error``, damage or an unreadable file, stopped the scan. They can be read once.
    """

    segment_index: int
    part: int
    facts: ScanFacts
    pieces: Iterable[Piece]
    ends_segment: bool = True
    error: ResnapError | None = None
    start: PartStart | None = None
    """Where a part that is not empty began."""


ANCHOR_PART: Final = -1
"""Number of the split that is not a part of its segment, but the state below it."""


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
