"""The window: which segments can still matter, and how far back it reaches.

The window is the suffix of segments, in offset order, that starts at the first segment whose largest timestamp is later
than T - expiration. Every later segment is read even when its timestamps are older. Skipped segments cannot hold the
last batch of a producer that is still alive at T, except for open transactions: these are handled by reaching back, and
by ``evidence.py``.

Source: KIP-952; ``LogSegment.largestTimestamp`` for what a segment's largest timestamp is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.replay import DEFAULT_CHECK_INTERVAL_MS, DEFAULT_EXPIRATION_MS, DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
from resnap.replay.producer_state import Expiry

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_EXPIRY: Final = Expiry(DEFAULT_EXPIRATION_MS, DEFAULT_CHECK_INTERVAL_MS)
TRANSACTION_MARGIN_MS: Final = 300_000
"""What a coordinator may take beyond the time-out until its marker is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpan:
    """One segment as planning sees it: its locator, its offsets [base, next base), and its largest timestamp."""

    locator: str
    base_offset: int
    next_base_offset: int | None
    """None for the active segment."""
    size_bytes: int
    mtime_ms: int
    largest_timestamp_ms: int | None
    """None when unknown; it then counts as recent."""

    @property
    def has_batch_times(self) -> bool:
        """Whether its largest timestamp is of a batch; else it is the time of the file, as of messages before 0.10."""
        return self.largest_timestamp_ms != self.mtime_ms

    def is_recent(self, cut_ms: int) -> bool:
        """Whether a batch later than ``cut_ms`` may be here; the active segment grows, so it always may."""
        if self.next_base_offset is None or self.largest_timestamp_ms is None:
            return True
        return self.largest_timestamp_ms > cut_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """The moment T at which expiry is judged.

    ``now_ms`` is fixed once, when the run is planned. With ``roll`` each boundary has a T of its own, the time its
    segment was rolled as far as the log proves it, and the snapshot is the one that the broker wrote then.
    """

    now_ms: int
    roll: bool = False

    def __str__(self) -> str:
        return "roll" if self.roll else str(self.now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRules:
    """The rules that decide what is read and which entries are kept."""

    as_of: AsOf
    expiry: Expiry = DEFAULT_EXPIRY
    """The expiration of the broker that will load the snapshots."""
    history: Expiry | None = None
    """The expiration of the broker that wrote the log, if it differs."""
    transaction_max_timeout_ms: int = DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
    max_reach_back_ms: int | None = None
    """How far before the window reading may continue; None for the log start."""
    full: bool = False
    """Read from the log start, whatever the window."""
    verify_crc: bool = False
    """Read whole batches and compare their checksums."""

    @property
    def written_under(self) -> Expiry:
        """Expiry of the broker that wrote the log."""
        return self.history or self.expiry

    @property
    def transaction_reach_ms(self) -> int:
        """How long a transaction can have been open before its marker."""
        return self.transaction_max_timeout_ms + TRANSACTION_MARGIN_MS

    @property
    def silence_ms(self) -> int:
        """After this long without a batch, the broker itself had forgotten a producer."""
        return self.written_under.expiration_ms + self.transaction_reach_ms

    def kept_after_ms(self, as_of_ms: int) -> int:
        """An idle entry is kept at T = ``as_of_ms`` if its timestamp is later than this."""
        if self.as_of.roll:
            return as_of_ms - self.written_under.certain_silence_ms
        return as_of_ms - self.expiry.expiration_ms


def window_start(segments: Sequence[SegmentSpan], cut_ms: int) -> int:
    """Return the index of the first segment that may hold a batch later than ``cut_ms``, or ``len(segments)``."""
    return next((index for index, segment in enumerate(segments) if segment.is_recent(cut_ms)), len(segments))


def earliest_roll_ms(largest_below_ms: int, mtime_ms: int, now_ms: int) -> int:
    """Return a time before which a boundary cannot have been rolled, from file facts alone.

    One record stamped ten days ahead must not expire all producers: the largest timestamp counts only as far as the
    file's modification time and the time of the run confirm it. The last server clock, known after the scan, can only
    move the time later (``roll_time_ms``).
    """
    return min(largest_below_ms, mtime_ms, now_ms)


def roll_time_ms(earliest_ms: int, last_below_ms: int, oldest_above_ms: int | None) -> int:
    """Return T of a boundary under ``--as-of roll``.

    Server clocks on both sides bound it: the last one below it (-1 if there is none), and the oldest in the segment
    above it, for the case that the modification time was lost and a client's clock was ahead. A broker's clock may have
    been ahead for a while, too: then the last one counts, not the newest, and that above it more than that below it.
    A clock that is ahead at the end of a segment is not seen where the segment above it has none.
    """
    latest_ms = max(earliest_ms, last_below_ms)
    return latest_ms if oldest_above_ms is None else min(latest_ms, oldest_above_ms)


class Unexplained(StrEnum):
    """Why an entry is not certain."""

    BATCH = "marker-without-earlier-batch"
    TRANSACTION = "transaction-begun-before-the-window"
    BELOW = "last-seen-below-the-known-offset"
    """Snapshots show that it existed, but do not settle its state here."""
    COORDINATOR = "coordinator-epoch-not-known"
    """It has an entry, without the coordinator epoch of an earlier marker, if there was one; that does no harm."""
    BATCHES = "only-its-transaction-is-known"
    """It has an entry, which shows its open transaction, but not its batches: those are below the first segment."""
    LATER = "first-seen-later-with-a-past"
    """Its first readable batch is above the boundary, and continues from an unreadable one below."""
