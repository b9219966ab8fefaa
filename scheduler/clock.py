"""The machine's clocks, as an argument of what reads the time: nothing else does, and tests give others."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime.fromtimestamp(0, UTC)


class Clock:
    """Wall-clock time, and monotonic time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as Kafka counts them."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment; only differences are meaningful."""
        return time.monotonic()


def milliseconds(at: datetime) -> int:
    """Return a time with a zone in milliseconds since 1970, rounded down."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
