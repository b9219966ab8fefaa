"""When which producer ids were used, by topic: what a quota would have seen of a log, in few rows.

A row is a use: a time and an id. What comes again within ``THIN_MS`` from the same id in the same segment is left out,
since it could change nothing but the moment of a refresh by as much. Markers and batches without a producer never reach
a quota, and are left out, too. Times are those of the batches (``maxTimestamp``), which clients may have set; one that
is missing is that of the batch before in the segment; without any before it, the batch is counted and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_headers
from resnap.storage.errors import FormatError, LogDirError, ResnapError, StoreError
from resnap.storage.log.record_batch import CONTROL, NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.storage.sources.files import Sources

Ints = npt.NDArray[np.int64]

THIN_MS: Final = 1_000


class Uses(NamedTuple):
    """Uses of producer ids, in the order of the log."""

    at_ms: Ints
    producer_id: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUses:
    """What one segment holds."""

    topic: str
    uses: Uses
    batches: int = 0
    """Batches of producers, those left out included."""
    undated: int = 0
    """How many of these came before any batch that has a time."""
    error: ResnapError | None = None
    """What ended the reading before the segment's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentToRead:
    """One segment; a plain value, so that it travels to executors."""

    topic: str
    range: SegmentRange


NO_USES: Final = Uses(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def read_uses(segment: SegmentToRead, sources: Sources) -> SegmentUses:
    """Read the headers of a segment; damage and unreadable files are part of the answer, not an exception."""
    facts, parts, batches, undated, last_ms = ScanFacts(), list[Uses](), 0, 0, NO_TIMESTAMP
    error: ResnapError | None = None
    try:
        with sources.open(segment.range.locator) as reader:
            for headers, _ in read_headers(reader, segment.range, facts):
                data = headers[(headers["producer_id"] >= 0) & ((headers["attributes"] & CONTROL) == 0)]
                batches += len(data)
                uses = _uses(data, last_ms)
                undated += len(data) - len(uses.at_ms)
                last_ms = int(uses.at_ms[-1]) if len(uses.at_ms) else last_ms
                parts.append(thinned(uses))
    except (FormatError, LogDirError, StoreError) as caught:
        error = caught
    uses = thinned(joined(parts))
    return SegmentUses(topic=segment.topic, uses=uses, batches=batches, undated=undated, error=error)


def _uses(headers: npt.NDArray[np.void], before_ms: int) -> Uses:
    """Return the uses of batches that follow one at ``before_ms``, where that is known."""
    at_ms = np.append(np.int64(before_ms), headers["max_timestamp"].astype(np.int64))
    last = np.maximum.accumulate(np.where(at_ms >= 0, np.arange(len(at_ms)), 0))[1:]
    known = at_ms[last] >= 0
    return Uses(at_ms[last][known], headers["producer_id"].astype(np.int64)[known])


def joined(parts: Iterable[Uses]) -> Uses:
    """Return uses one after the other."""
    found = [NO_USES, *parts]
    return Uses(np.concatenate([one.at_ms for one in found]), np.concatenate([one.producer_id for one in found]))


def in_time(uses: Uses) -> Uses:
    """Return uses by time; those of one moment stay in their order."""
    order = np.argsort(uses.at_ms, kind="stable")
    return Uses(uses.at_ms[order], uses.producer_id[order])


def thinned(uses: Uses) -> Uses:
    """Return the first use of each id in each stretch of ``THIN_MS``, by time."""
    stretch = uses.at_ms // THIN_MS
    order = np.lexsort((uses.at_ms, stretch, uses.producer_id))
    ids, at = uses.producer_id[order], stretch[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]) | (at[1:] != at[:-1])
    return in_time(Uses(uses.at_ms[order][is_first], ids[is_first]))
