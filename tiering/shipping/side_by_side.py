"""Work on a few items at once, taken in order: results come in the order of the items, whichever is done first."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(
    work: Callable[[T], R], items: Iterable[T], most: int, stop: Callable[[], None], *, name: str = "resnap-ship"
) -> Generator[tuple[T, Callable[[], R]], None, None]:
    """Yield each item with what gives the result of its work, or raises; at most ``most`` are begun and not taken.

    Whoever closes the generator before its end has no more use for the rest: ``stop`` is called, which is to make work
    that is under way come to an end, and that end is waited for. What ``items`` raises comes last, after all results.
    """
    left = iter(items)
    begun: deque[tuple[T, Future[R]]] = deque()
    failures: list[Exception] = []
    with ThreadPoolExecutor(most, thread_name_prefix=name) as threads:

        def begin(count: int) -> None:
            try:
                begun.extend((item, threads.submit(work, item)) for item in islice(left, count))
            except Exception as error:  # noqa: BLE001 - raised again, once what was begun has been taken
                failures.append(error)

        try:
            begin(most)
            while begun:
                item, future = begun[0]
                yield item, future.result
                begun.popleft()
                begin(1)
        finally:
            if begun:
                stop()
                threads.shutdown(wait=False, cancel_futures=True)
    if failures:
        raise failures[0]
