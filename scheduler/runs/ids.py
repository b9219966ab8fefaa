"""Ids that sort by creation time, so that a cursor over them is a cursor over time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32, in the order of ASCII: no letter that looks like a digit."""
_DIGITS: Final = 20


class Ids:
    """Makes ids of 20 letters and digits: 50 bits of milliseconds, 50 random ones. Thread-safe.

    A clock that goes back, or stands still, does not break their order, nor does one that was set back between two
    processes, if the second is given the ``newest`` id that the first has made.
    """

    def __init__(
        self, now_ms: Callable[[], int], random_bits: Callable[[int], int], *, newest: str | None = None
    ) -> None:
        self._now_ms, self._random_bits = now_ms, random_bits
        self._lock = threading.Lock()
        self._last = 0 if newest is None else _decode(newest)

    def make(self) -> str:
        """Return an id that sorts after all earlier ones."""
        with self._lock:
            made = (self._now_ms() << 50) | self._random_bits(50)
            self._last = max(made, self._last + 1)
            return _encode(self._last)


def _encode(value: int) -> str:
    return "".join(_ALPHABET[(value >> 5 * place) & 31] for place in reversed(range(_DIGITS)))


def _decode(made: str) -> int:
    value = 0
    for letter in made:
        value = value << 5 | _ALPHABET.index(letter)
    return value
