"""What threads share: interruptible waits, work on several items in parallel, values made once.

A thread that waits here wakes up when the run is asked to stop. A pipe wakes the threads, because a signal handler may
run at any instruction: it may write to a pipe, but must not take a lock that the interrupted thread may hold.

Results come in the order of the items, or as they are completed.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial, wraps
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from resnap.storage.errors import CancelledError, ResnapError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Executor, Future

_PIPE: Final = [*os.pipe()]
_MS_PER_S: Final = 1000
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
SMALL_FILES_AT_ONCE: Final = 16
SMALL_FILES_BEGUN: Final = 4096
"""At most, of which results are not taken yet: each takes 2 kB; the threads read others while one is slow."""
LOOK_S: Final = 1.0
"""How often a thread that waits looks whether it is to go on."""


CHECK: Final[ContextVar[Callable[[], None]]] = ContextVar("CHECK", default=lambda: None)
"""Raises CancelledError if the run that this context belongs to is to end."""


def pause(seconds: float) -> bool:
    """Wait; return False if the process was asked to stop before the time was over.

    Raises:
        CancelledError: the run of this context is to end.

    """
    poll, end_s = select.poll(), time.monotonic() + seconds
    poll.register(_PIPE[0], select.POLLIN)
    while True:
        CHECK.get()()
        left_s = max(0.0, end_s - time.monotonic())
        if poll.poll(min(left_s, LOOK_S) * _MS_PER_S):
            return False
        if left_s <= LOOK_S:
            return True


def end_pauses() -> None:
    """Wake up all threads that pause in this process, now or later; may be called from a signal handler."""
    os.write(_PIPE[1], b"!")


def _take_a_pipe_of_its_own() -> None:
    """Give a forked process a pipe of its own, so that it can be stopped without its parent."""
    _PIPE[:] = os.pipe()


os.register_at_fork(after_in_child=_take_a_pipe_of_its_own)


class Threads(ThreadPoolExecutor):
    """Threads that do work in a copy of its caller's context: it ends with the caller's run, and has its spans."""

    def submit(self, work: Callable[_P, _R], /, *arguments: _P.args, **named: _P.kwargs) -> Future[_R]:
        """Have ``work`` done."""
        return super().submit(copy_context().run, partial(work, *arguments, **named))


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
    with (
        Threads(SMALL_FILES_AT_ONCE, thread_name_prefix="resnap-small") as threads,
        closing(side_by_side(work, items, SMALL_FILES_BEGUN, lambda: None, threads)) as begun,
    ):
        for _, result in begun:
            yield result()


def side_by_side(
    work: Callable[[_T], _R], items: Iterable[_T], most: int, stop: Callable[[], None], threads: Executor
) -> Generator[tuple[_T, Callable[[], _R]], None, None]:
    """Yield each item in order with a function that returns its result, or raises; ``threads`` may be shared.

    At most ``most`` are started and not consumed. If the caller closes the generator early, ``stop`` is called, which
    must make running work end, and that end is waited for.
    """
    left = iter(items)
    begun: deque[tuple[_T, Future[_R]]] = deque()
    try:
        while True:
            for item in islice(left, most - len(begun)):
                begun.append((item, threads.submit(work, item)))
            if not begun:
                break
            yield begun[0][0], begun[0][1].result
            begun.popleft()
    finally:
        if begun:
            stop()
            wait([future for _, future in begun if not future.cancel()])


def as_done(
    work: Callable[[_T], _R],
    items: Iterable[_T],
    most: int,
    stop: Callable[[], None],
    *,
    look: Callable[[], None] = lambda: None,
) -> Generator[tuple[_T, Callable[[], _R]], None, None]:
    """Yield each item when its work is done, with a function that returns the result, or raises; ``most`` run at once.

    If ``items`` fails, started work is completed first, and the error is raised last. An interrupt of the process, or
    of the work by its caller, calls ``stop``, as closing the generator does; completed items are still yielded.
    ``look`` is called each second in which nothing completes, and raises to end the work.
    """
    failures: list[ResnapError] = []
    left = _until_error(items, failures)
    going: dict[Future[_R], _T] = {}
    with Threads(most, thread_name_prefix="resnap-partition") as threads:
        try:
            while True:
                while len(going) < most and not any(future.done() for future in going):
                    begun = list(islice(left, 1))
                    if not begun:
                        break
                    going[threads.submit(work, begun[0])] = begun[0]
                if not going:
                    break
                done = wait(going, LOOK_S, return_when=FIRST_COMPLETED).done
                if not done:
                    look()
                for future in done:
                    yield going.pop(future), future.result
        except (KeyboardInterrupt, CancelledError):
            stop()
            threads.shutdown(cancel_futures=True)
            yield from [(item, future.result) for future, item in going.items() if _has_succeeded(future)]
            going.clear()
            raise
        finally:
            if going:
                stop()
                threads.shutdown(wait=False, cancel_futures=True)
    if failures:
        raise failures[0]


def _until_error(items: Iterable[_T], failures: list[ResnapError]) -> Iterator[_T]:
    """Yield ``items`` up to their end, or to an error of ours, which is added to ``failures``."""
    try:
        yield from items
    except CancelledError:
        raise
    except ResnapError as error:
        failures.append(error)


def _has_succeeded(future: Future[_R]) -> bool:
    return not future.cancelled() and future.exception() is None
