"""What threads share: interruptible waits, a limit of bytes per second, small work in parallel, values made once.

Interruptible waits: a thread that sleeps here wakes up when the run is asked to stop.

A pipe wakes the threads, because a signal handler may run at any instruction: it may write to a pipe, but must not take
a lock that the interrupted thread may hold.

Caches values so that a process makes each only once for the same arguments, from any thread.

Runs small pieces of work in parallel if each of them waits for a store.

Limits bytes per second, for all threads of one run together.
"""

from __future__ import annotations

import os
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from threading import Lock
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PIPE: Final = [*os.pipe()]
_MS_PER_S: Final = 1000
_P = ParamSpec("_P")
_R = TypeVar("_R")
SMALL_FILES_AT_ONCE: Final = 16
_T = TypeVar("_T")
LOOK_S: Final = 1.0
"""How long a thread waits before it checks again whether the bytes are still wanted."""


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
    """Yield ``work(item)`` for each of ``items``, in order; in parallel if they lie in a store."""
    if not remote:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(SMALL_FILES_AT_ONCE, thread_name_prefix="resnap-small") as threads:
        try:
            yield from threads.map(work, items)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True, kw_only=True)
class Throttle:
    """Makes each caller wait until its bytes may pass; ``bytes_per_s`` None means no limit.

    Unused time is not saved up: after a pause the rate is the same as before it.
    """

    bytes_per_s: int | None = None
    sleep: Callable[[float], bool] = pause
    """Says whether it was let sleep that long."""
    clock_s: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _free_at_s: float = field(default=0.0, init=False)

    def take(self, size_bytes: int, goes_on: Callable[[], bool] = lambda: True) -> bool:
        """Wait until ``size_bytes`` may pass, and return whether they may.

        They may not in a stopping process, nor once ``goes_on``, which is called each second, returns False.
        """
        if self.bytes_per_s is None:
            return True
        with self._lock:
            now_s = self.clock_s()
            self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self.bytes_per_s
            wait_s = self._free_at_s - now_s
        while wait_s > LOOK_S:
            if not (self.sleep(LOOK_S) and goes_on()):
                return False
            wait_s -= LOOK_S
        return self.sleep(wait_s)
