"""Clocks, as arguments: only ``SystemClock`` reads the machine's time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime.fromtimestamp(0, UTC)
_UNITS_MS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


class Clock(Protocol):
    """Wall-clock time, and monotonic time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as Kafka counts them."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment; only differences are meaningful."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.monotonic()


def instant(at_ms: int) -> str:
    """Return a time in milliseconds as ISO 8601 in UTC, or as a plain number outside the calendar's range.

    Clients may write any timestamp, so it may lie outside the years 1 to 9999.
    """
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return str(at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(duration_ms: int) -> str:
    """Return a time span as people write it, such as ``7 days``: in the largest unit that divides it."""
    for unit_ms, unit in _UNITS_MS:
        if duration_ms and duration_ms % unit_ms == 0:
            count = duration_ms // unit_ms
            return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"
    return f"{duration_ms:,} ms"


def milliseconds(at: datetime) -> int:
    """Return a time with a zone in milliseconds since 1970, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
