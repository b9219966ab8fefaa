"""The scan of a split without machine code: events in columns, summarised a chunk at a time.

It runs where the kernel cannot, and it is what the kernel must equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay import partial_state
from resnap.replay.scan.producer_events import scan
from resnap.replay.scan.splits import NOTHING, Piece, join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.scan.header_scan import Array, ScanFacts
    from resnap.replay.scan.splits import Split
    from resnap.storage.readers import RangeReader

CHUNK_EVENTS: Final = 1 << 17
"""Events summarised at once: bounds the memory of a scan to some tens of MiB, whatever the segment's size."""


def plain_pieces(
    reader: RangeReader, split: Split, certain_silence_ms: int, facts: ScanFacts, most_producers: int
) -> Iterator[Piece]:
    """Yield the summary of ``split`` in pieces, each of some more than ``most_producers`` at most.

    Where the high watermark divides it there is one below, and one above it, at least. ``facts`` are filled in.

    Raises:
        FormatError: damage, with file and position; what was yielded before is of no use then.

    """
    piece, is_above = NOTHING, False
    for events in _gathered(scan(reader, split.range, facts)):
        lower, upper = divide(events, split.high_watermark)
        piece = _append(piece, lower, certain_silence_ms)
        if len(upper) and not is_above:
            yield piece
            piece, is_above = NOTHING, True
        piece = _append(piece, upper, certain_silence_ms)
        if len(piece.rows) >= most_producers:
            yield piece._replace(above=is_above)
            piece = NOTHING
    if split.high_watermark is not None and not is_above:
        yield piece
        piece, is_above = NOTHING, True
    trailing = Piece(partial_state.empty(), facts.clock_since_event_ms)
    yield join(piece, trailing, certain_silence_ms)._replace(above=is_above)


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


def divide(events: Array, high_watermark: int | None) -> tuple[Array, Array]:
    """Return the events that begin below the high watermark, and the others."""
    if high_watermark is None:
        return events, events[:0]
    at = int(np.searchsorted(events["offset"], high_watermark))
    return events[:at], events[at:]


def _append(piece: Piece, events: Array, certain_silence_ms: int) -> Piece:
    if not len(events):
        return piece
    later = Piece(partial_state.summarise(events, certain_silence_ms), int(events["clock_ms"].max()))
    return join(piece, later, certain_silence_ms)
