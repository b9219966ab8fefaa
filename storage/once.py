"""Values that a process makes once for the same arguments, whichever of its threads asks first."""

from __future__ import annotations

from functools import lru_cache, wraps
from threading import Lock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def made_once(maxsize: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return what keeps the last ``maxsize`` values of a function.

    ``lru_cache`` alone gives two threads that ask at once a value each: two clients, or two limits where one is meant.
    """

    def keeping(make: Callable[_P, _R]) -> Callable[_P, _R]:
        kept, one_at_a_time = lru_cache(maxsize)(make), Lock()

        @wraps(make)
        def value(*arguments: _P.args, **named: _P.kwargs) -> _R:
            with one_at_a_time:
                return kept(*arguments, **named)  # type: ignore[arg-type] # they can be hashed

        return value

    return keeping
