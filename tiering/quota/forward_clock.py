"""A clock that never goes back: where the machine's is set back, time stands still for that moment and then goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ForwardClock:
    """Readings of ``now_ms`` that never fall, whoever asks; thread-safe.

    A reading below the last one shifts all later ones: an hour that the machine is set back neither freezes quotas for
    an hour nor gives anybody tokens twice.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._shift_ms = 0
        self._last_ms: int | None = None
        self._guard = threading.Lock()

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        with self._guard:
            reading = self._now_ms() + self._shift_ms
            if self._last_ms is not None and reading < self._last_ms:
                self._shift_ms += self._last_ms - reading
                reading = self._last_ms
            self._last_ms = reading
            return reading
