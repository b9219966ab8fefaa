"""The time, where a test says what it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FixedClock:
    """A clock that stands still until it is moved on."""

    at_ms: int

    def now_ms(self) -> int:
        """Return the time it was set to."""
        return self.at_ms

    def monotonic_s(self) -> float:
        """Return the same time in seconds."""
        return self.at_ms / 1000

    def advance(self, ms: int) -> None:
        """Move on by ``ms``."""
        self.at_ms += ms
