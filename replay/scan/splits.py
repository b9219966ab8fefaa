"""Splits: the units of scanning, and what a scan of one gives to the ordered combine.

A split is a whole segment, or a part of a large one, cut at batch boundaries that its offset index tells (``cuts``).
What leaves it are summaries, one per producer, and the facts that concern the segment: never a batch. Where the high
watermark falls inside a split the summaries are given in pieces below and above it, so that the state there is seen
too. Parts are put together again before they are combined (``parts``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.kernel.summary import Array, empty
from resnap.replay.scan.header_scan import ScanFacts, SegmentRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.replay.anchor import Anchor
    from resnap.replay.plan import PartitionPlan, Run
    from resnap.replay.scan.reading import Reading
    from resnap.storage.errors import ResnapError


TASKS_PER_SLOT: Final = 3
"""Enough to even out splits of different sizes; each task costs Spark some 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What one scan reads: a stretch of the segment at ``segment_index``, the ``part``-th of it."""

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
    """The part starts at the first batch that the index tells at or after this byte."""
    end_target: int | None = None
    """And ends where one with this target would start; None for the end of the file."""
    anchor: Anchor | None = None
    """Set in the split that comes before the first segment, and whose summary is the state kept there."""

    @property
    def is_part(self) -> bool:
        """Whether there are others of the same segment."""
        return self.start_target > 0 or self.end_target is not None


class PartStart(NamedTuple):
    """The first batch of a part."""

    position: int
    offset: int
    is_v2: bool
    """Whether it tells its first offset; a legacy message may be the last of several."""


class Piece(NamedTuple):
    """The summary of a run of batches, and its newest server clock (-1: none)."""

    rows: Array
    clock_ms: int
    above: bool = False
    """Whether the batches lie at or above the high watermark, in a split that it falls into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """What one scan found.

    ``pieces`` are in offset order, those below the high watermark first where it divides the split; there are none if
    ``error``, which is damage or a file that could not be read, stopped the scan. They may be read once.
    """

    segment_index: int
    part: int
    facts: ScanFacts
    pieces: Iterable[Piece]
    ends_segment: bool = True
    error: ResnapError | None = field(default=None)
    start: PartStart | None = None
    """Where a part that is not empty began."""


ANCHOR_PART: Final = -1
"""Number of the part that is no part of its segment, but the state below it."""
NOTHING: Final = Piece(empty(), -1)


def plan_splits(plan: PartitionPlan, run: Run, part_bytes: int | None = None) -> Iterator[Split]:
    """Yield the splits of ``run`` in offset order, after the state that it begins with.

    A segment is one split, or several of about ``part_bytes`` each, and never of less, where that is given.
    """
    if run.anchor is not None:
        yield _anchor_split(run, run.anchor)
    for index in range(run.start, run.end):
        whole = whole_segment(plan, index)
        yield from [whole] if part_bytes is None else _parts(whole, part_bytes)


def whole_segment(plan: PartitionPlan, index: int) -> Split:
    """Return the split that is all of the segment at ``index``."""
    segment = plan.segments[index]
    inside = plan.high_watermark is not None and plan.high_watermark > segment.base_offset
    if inside and segment.next_base_offset is not None:
        inside = plan.high_watermark is not None and plan.high_watermark < segment.next_base_offset
    return Split(
        segment_index=index,
        part=0,
        range=SegmentRange(
            locator=segment.locator,
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            verify_crc=plan.rules.verify_crc,
        ),
        size_bytes=segment.size_bytes,
        segment_bytes=segment.size_bytes,
        high_watermark=plan.high_watermark if inside else None,
    )


def part_bytes(reading: Reading, size_bytes: int, *, slots: int) -> int | None:
    """Return the size of the parts to cut segments into, so that ``slots`` are kept busy; None to cut none.

    With a single slot nothing is won by it.
    """
    if slots == 1:
        return None
    share = size_bytes // (slots * TASKS_PER_SLOT)
    return max(reading.least_part_bytes, min(reading.split_bytes, share))


def _parts(whole: Split, part_bytes: int) -> Iterator[Split]:
    count = max(1, whole.size_bytes // part_bytes)
    edges = [whole.size_bytes * number // count for number in range(count + 1)]
    for number in range(count):
        ends_segment = number == count - 1
        yield replace(
            whole,
            part=number,
            size_bytes=edges[number + 1] - edges[number],
            ends_segment=ends_segment,
            start_target=edges[number],
            end_target=None if ends_segment else edges[number + 1],
        )


def _anchor_split(run: Run, anchor: Anchor) -> Split:
    return Split(
        segment_index=run.start,
        part=ANCHOR_PART,
        range=SegmentRange(locator=anchor.states[0].path, base_offset=anchor.read_from, next_base_offset=anchor.offset),
        size_bytes=sum(state.size_bytes for state in anchor.states),
        ends_segment=False,
        anchor=anchor,
    )
