"""Caches values so that a process makes each only once for the same arguments, from any thread."""

from __future__ import annotations

from functools import lru_cache, wraps
from threading import Lock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_R = TypeVar("_R")


def made_once(maxsize: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that caches the last ``maxsize`` values of a function.

    ``lru_cache`` alone may call the function once for each of two concurrent threads: two clients, or two limits
    instead of one.
    """

    def keeping(make: Callable[_P, _R]) -> Callable[_P, _R]:
        kept, one_at_a_time = lru_cache(maxsize)(make), Lock()

        @wraps(make)
        def value(*arguments: _P.args, **named: _P.kwargs) -> _R:
            with one_at_a_time:
                return kept(*arguments, **named)  # type: ignore[arg-type] # they can be hashed

        return value

    return keeping
