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


def milliseconds(at: datetime) -> int:
    """Return a time with a zone in milliseconds since 1970, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
