"""Runs small pieces of work in parallel if each of them waits for a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SMALL_FILES_AT_ONCE: Final = 16

_T = TypeVar("_T")
_R = TypeVar("_R")


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
