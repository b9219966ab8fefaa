"""What threads share: interruptible waits, small work in parallel, values made once.

A thread that waits here wakes up when the run is asked to stop. A pipe wakes the threads, because a signal handler may
run at any instruction: it may write to a pipe, but must not take a lock that the interrupted thread may hold.
"""

from __future__ import annotations

import os
import select
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, wraps
from threading import Lock
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PIPE: Final = [*os.pipe()]
_MS_PER_S: Final = 1000
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
SMALL_FILES_AT_ONCE: Final = 16


def pause(seconds: float) -> bool:
    """Wait; return False if the process was asked to stop before the time was over."""
    poll = select.poll()
    poll.register(_PIPE[0], select.POLLIN)
    return not poll.poll(seconds * _MS_PER_S)


def end_pauses() -> None:
    """Wake up all threads that pause in this process, now or later; may be called from a signal handler."""
    os.write(_PIPE[1], b"!")


def _take_a_pipe_of_its_own() -> None:
    """Give a forked process a pipe of its own, so that it can be stopped without its parent."""
    _PIPE[:] = os.pipe()


os.register_at_fork(after_in_child=_take_a_pipe_of_its_own)


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


def each(work: Callable[[_T], _R], items: Iterable[_T], *, remote: bool) -> Iterator[_R]:
    """Yield ``work(item)`` for each of ``items``, in order; in parallel if they are in a store."""
    if not remote:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(SMALL_FILES_AT_ONCE, thread_name_prefix="resnap-small") as threads:
        try:
            yield from threads.map(work, items)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
