"""Splits: the units of scanning, and what a scan of one gives to the ordered combine.

A split is a whole segment, or a part of a large one, cut at batch boundaries. What leaves it are summaries, one per
producer, and the facts that concern the segment: never a batch. Where the high watermark falls inside a split the
summaries are given in two pieces, so that the state there is seen too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from replay import partial_state
from replay.header_scan import Array, ScanFacts, SegmentRange, scan
from storage.errors import FormatError, LogDirError, ResnapError
from storage.source import open_reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.plan import PartitionPlan, Run

CHUNK_EVENTS: Final = 1 << 17
"""Events summarised at once: bounds the memory of a scan to some tens of MiB, whatever the segment's size."""


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


class Piece(NamedTuple):
    """The summary of a run of batches, and its newest server clock (-1: none)."""

    rows: Array
    clock_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """What one scan found.

    ``pieces`` has one summary, or two where the split is divided at the high watermark; none if ``error``, which is
    damage or a file that could not be read, stopped the scan.
    """

    segment_index: int
    part: int
    facts: ScanFacts
    pieces: tuple[Piece, ...]
    ends_segment: bool = True
    error: ResnapError | None = field(default=None)


NOTHING: Final = Piece(partial_state.empty(), -1)


def plan_splits(plan: PartitionPlan, run: Run) -> Iterator[Split]:
    """Yield the splits of ``run`` in offset order, a segment each."""
    for index in range(run.start, run.end):
        segment = plan.segments[index]
        inside = plan.high_watermark is not None and plan.high_watermark > segment.base_offset
        if inside and segment.next_base_offset is not None:
            inside = plan.high_watermark is not None and plan.high_watermark < segment.next_base_offset
        yield Split(
            segment_index=index,
            part=0,
            range=SegmentRange(
                locator=segment.locator,
                base_offset=segment.base_offset,
                next_base_offset=segment.next_base_offset,
                verify_crc=plan.rules.verify_crc,
            ),
            size_bytes=segment.size_bytes,
            high_watermark=plan.high_watermark if inside else None,
        )


def scan_split(split: Split, certain_silence_ms: int) -> SplitSummary:
    """Read ``split`` and summarise it; damage and unreadable files are part of the answer, not an exception."""
    facts = ScanFacts()
    pieces: list[Piece] = []
    error: ResnapError | None = None
    try:
        with open_reader(split.range.locator) as reader:
            below, above = NOTHING, NOTHING
            for events in _gathered(scan(reader, split.range, facts)):
                lower, upper = _divide(events, split.high_watermark)
                below = _append(below, lower, certain_silence_ms)
                above = _append(above, upper, certain_silence_ms)
        trailing = Piece(partial_state.empty(), facts.clock_since_event_ms)
        if split.high_watermark is None:
            pieces = [join(below, trailing, certain_silence_ms)]
        else:
            pieces = [below, join(above, trailing, certain_silence_ms)]
    except (FormatError, LogDirError) as caught:
        error = caught
    return SplitSummary(
        segment_index=split.segment_index,
        part=split.part,
        facts=facts,
        pieces=tuple(pieces),
        ends_segment=split.ends_segment,
        error=error,
    )


def _gathered(chunks: Iterator[Array]) -> Iterator[Array]:
    """Join small chunks, since summarising costs the same for one event as for thousands."""
    waiting: list[Array] = []
    count = 0
    for chunk in chunks:
        waiting.append(chunk)
        count += len(chunk)
        if count >= CHUNK_EVENTS:
            yield np.concatenate(waiting)
            waiting, count = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _divide(events: Array, high_watermark: int | None) -> tuple[Array, Array]:
    if high_watermark is None:
        return events, events[:0]
    at = int(np.searchsorted(events["offset"], high_watermark))
    return events[:at], events[at:]


def join(left: Piece, right: Piece, certain_silence_ms: int) -> Piece:
    """Return the piece that is ``left`` followed by ``right``."""
    rows = partial_state.compose(
        left.rows, right.rows, certain_silence_ms, left_clock_ms=left.clock_ms, right_clock_ms=right.clock_ms
    )
    return Piece(rows, max(left.clock_ms, right.clock_ms))


def _append(piece: Piece, events: Array, certain_silence_ms: int) -> Piece:
    if not len(events):
        return piece
    later = Piece(partial_state.summarise(events, certain_silence_ms), int(events["clock_ms"].max()))
    return join(piece, later, certain_silence_ms)
