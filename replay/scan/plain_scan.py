"""Scans a split without compiled header reading: block by block, event by event, into the same fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.scan.producer_fold import ProducerFold, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import ScanFacts
    from resnap.replay.scan.splits import Piece, Split
    from resnap.storage.readers import RangeReader


def plain_pieces(
    reader: RangeReader, split: Split, certain_silence_ms: int, facts: ScanFacts, most_producers: int
) -> Iterator[Piece]:
    """Yield the summary of ``split`` in pieces, each of some more than ``most_producers`` at most.

    If the high watermark divides the split, there is at least one piece below it and one above. ``facts`` are filled
    in.

    Raises:
        FormatError: damage, with file and position; pieces that were yielded before must be discarded.

    """
    fold, is_above = ProducerFold(certain_silence_ms), False
    for events in scan(reader, split.range, facts):
        lower, upper = divide(events, None if is_above else split.high_watermark)
        fold.append(lower)
        if len(upper):
            yield fold.finish()
            fold, is_above = ProducerFold(certain_silence_ms), True
            fold.append(upper)
        if len(fold) >= most_producers:
            yield fold.finish()._replace(above=is_above)
            fold = ProducerFold(certain_silence_ms)
    if split.high_watermark is not None and not is_above:
        yield fold.finish()
        fold, is_above = ProducerFold(certain_silence_ms), True
    yield fold.finish(facts.clock_since_event_ms)._replace(above=is_above)


def divide(events: Array, high_watermark: int | None) -> tuple[Array, Array]:
    """Return the events that begin below the high watermark, and the other events."""
    if high_watermark is None:
        return events, events[:0]
    at = int(np.searchsorted(events["offset"], high_watermark))
    return events[:at], events[at:]
