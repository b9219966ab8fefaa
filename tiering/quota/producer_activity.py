"""The uses of producer ids in a log, by topic: what a quota would have seen, in few rows.

A row is a use: a time and an id. Further uses within ``THIN_MS`` by the same id in the same segment are skipped, since
they could only shift a refresh by that time. Markers and batches without a producer never reach a quota, and are
skipped, too. Times are those of the batches (``maxTimestamp``), which clients may have set; a batch without one gets
that of the previous batch in the segment; without a previous one, the batch is counted and skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
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
class LogUses:
    """How much of a log, or of a segment, was read, and what could not be."""

    segments: int = 0
    batches: int = 0
    """Batches of producers, those skipped included."""
    undated: int = 0
    """Batches that no time is known of, and that are skipped."""
    errors: tuple[ResnapError, ...] = ()

    def joined(self, other: LogUses) -> LogUses:
        """Return the sum of both."""
        return LogUses(
            segments=self.segments + other.segments,
            batches=self.batches + other.batches,
            undated=self.undated + other.undated,
            errors=(*self.errors, *other.errors),
        )


NO_USES: Final = Uses(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def read_uses(segment: SegmentRange, sources: Sources) -> tuple[LogUses, Uses]:
    """Read the headers of a segment; damage and unreadable files are part of the result, not exceptions."""
    facts, parts, batches, undated, last_ms = ScanFacts(), list[Uses](), 0, 0, NO_TIMESTAMP
    errors: tuple[ResnapError, ...] = ()
    try:
        with sources.open(segment.locator) as reader:
            for headers in (block.headers for block in read_blocks(reader, segment, facts)):
                data = headers[(headers["producer_id"] >= 0) & ((headers["attributes"] & CONTROL) == 0)]
                batches += len(data)
                uses = _uses(data, last_ms)
                undated += len(data) - len(uses.at_ms)
                last_ms = int(uses.at_ms[-1]) if len(uses.at_ms) else last_ms
                parts.append(thinned(uses))
    except (FormatError, LogDirError, StoreError) as caught:
        errors = (caught,)
    return LogUses(segments=1, batches=batches, undated=undated, errors=errors), thinned(joined(parts))


def _uses(headers: npt.NDArray[np.void], before_ms: int) -> Uses:
    """Return the uses of batches after one at ``before_ms``, if that is known."""
    at_ms = np.append(np.int64(before_ms), headers["max_timestamp"].astype(np.int64))
    last = np.maximum.accumulate(np.where(at_ms >= 0, np.arange(len(at_ms)), 0))[1:]
    known = at_ms[last] >= 0
    return Uses(at_ms[last][known], headers["producer_id"].astype(np.int64)[known])


def joined(parts: Iterable[Uses]) -> Uses:
    """Return uses, concatenated."""
    found = [NO_USES, *parts]
    return Uses(np.concatenate([one.at_ms for one in found]), np.concatenate([one.producer_id for one in found]))


def in_time(uses: Uses) -> Uses:
    """Return uses by time; those of the same time keep their order."""
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
