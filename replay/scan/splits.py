"""Splits: the units of scanning; and the summaries that scans return to the ordered combine.

A split is a whole segment, or a part of a large one, cut at batch boundaries that its offset index names (``cuts``).
Its result is summaries, one per producer, and the facts of the segment: never a batch. If the high watermark is inside
a split, the summaries come in pieces below and above it, so that the state there is known, too. Parts are joined again
before they are combined (``replay.parts``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
    from resnap.replay.scan.state_file import Anchor
    from resnap.storage.errors import ResnapError


TASKS_PER_SLOT: Final = 3
"""Enough to even out splits of different sizes; each task costs Spark some 10 ms."""
SCAN_TASK_BYTES: Final = 4 << 30
"""Segments of a task have at most as many, but for one split, however few slots there are: slots may come later."""
TASK_SPLITS: Final = 512
"""And they are at most so many."""


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
