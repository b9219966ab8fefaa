"""Runs work on several items in parallel: results in the order of the items, or as they are completed.

Each item runs in a copy of the caller's context, so that spans of the work are children of the caller's.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from resnap.storage.errors import CancelledError, ResnapError
from resnap.storage.throttle import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Executor, Future

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(
    work: Callable[[T], R], items: Iterable[T], most: int, stop: Callable[[], None], threads: Executor
) -> Generator[tuple[T, Callable[[], R]], None, None]:
    """Yield each item in order with a function that returns its result, or raises; ``threads`` may be shared.

    At most ``most`` are started and not consumed. If the caller closes the generator early, ``stop`` is called, which
    must make running work end, and that end is waited for.
    """
    left = iter(items)
    begun: deque[tuple[T, Future[R]]] = deque()
    try:
        while True:
            for item in islice(left, most - len(begun)):
                begun.append((item, threads.submit(copy_context().run, work, item)))
            if not begun:
                break
            yield begun[0][0], begun[0][1].result
            begun.popleft()
    finally:
        if begun:
            stop()
            wait([future for _, future in begun if not future.cancel()])


def as_done(
    work: Callable[[T], R],
    items: Iterable[T],
    most: int,
    stop: Callable[[], None],
    *,
    name: str,
    look: Callable[[], None] = lambda: None,
) -> Generator[tuple[T, Callable[[], R]], None, None]:
    """Yield each item when its work is done, with a function that returns the result, or raises; ``most`` run at once.

    If ``items`` fails, started work is completed first, and the error is raised last. An interrupt of the process, or
    of the work by its caller, calls ``stop``, as closing the generator does; completed items are still yielded.
    ``look`` is called each second in which nothing completes, and raises to end the work.
    """
    failures: list[ResnapError] = []
    left = _until_error(items, failures)
    going: dict[Future[R], T] = {}
    with ThreadPoolExecutor(most, thread_name_prefix=name) as threads:
        try:
            while True:
                while len(going) < most and not any(future.done() for future in going):
                    begun = list(islice(left, 1))
                    if not begun:
                        break
                    going[threads.submit(copy_context().run, work, begun[0])] = begun[0]
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


def _until_error(items: Iterable[T], failures: list[ResnapError]) -> Iterator[T]:
    """Yield ``items`` up to their end, or to an error of ours, which is added to ``failures``."""
    try:
        yield from items
    except CancelledError:
        raise
    except ResnapError as error:
        failures.append(error)


def _has_succeeded(future: Future[R]) -> bool:
    return not future.cancelled() and future.exception() is None
