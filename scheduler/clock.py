"""Clocks, as arguments: only ``SystemClock`` reads the machine's time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime.fromtimestamp(0, UTC)


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


def milliseconds(at: datetime) -> int:
    """Return a time with a zone in milliseconds since 1970, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
