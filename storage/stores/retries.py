"""Trying again what a store could not do just then: the one place that waits, for all requests of all threads.

Attempts are spaced by *full jitter*: a random time up to a bound that doubles, so that many clients which were refused
at once do not come back at once. A time that the store names itself (``Retry-After``) is the least that is waited; if
it is longer than anybody would wait within a run, the error is told instead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from resnap.storage.errors import StoreUnavailableError
from resnap.storage.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ATTEMPTS: Final = 6
"""At one request, the first included."""
FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 20.0
LONGEST_ASKED_S: Final = 120.0
"""Of the times that stores ask for, the longest that is waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """How often something transient is tried, and how long is waited in between."""

    attempts: int = ATTEMPTS
    first_wait_s: float = FIRST_WAIT_S
    longest_wait_s: float = LONGEST_WAIT_S
    sleep: Callable[[float], bool] = pause
    """Says whether it was let sleep that long."""
    chance: Callable[[], float] = random.random
    """Gives numbers in [0, 1)."""

    def call(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns, once it does.

        Raises:
            StoreUnavailableError: it was still so at the last attempt, or the store wants to be left alone for long.
            StoreError: anything that would not be otherwise a second time, at once.

        """
        for number in range(1, self.attempts):
            try:
                return attempt()
            except StoreUnavailableError as error:
                self.wait(number, error)
        return attempt()

    def wait(self, failed: int, error: StoreUnavailableError) -> None:
        """Wait before the next attempt, after ``failed`` of them.

        Raises:
            StoreUnavailableError: ``error``, where that would take too long, or the process is to end.

        """
        asked_s = error.retry_after_s or 0.0
        if asked_s > LONGEST_ASKED_S:
            raise error
        bound_s = min(self.longest_wait_s, self.first_wait_s * 2 ** (failed - 1))
        if not self.sleep(asked_s + bound_s * self.chance()):
            raise error
