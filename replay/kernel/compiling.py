"""Compiles functions with numba; where numba does not work, Python runs the same functions.

Compiled functions work on records at addresses (``record_at``), and use only what both ways have, so that both give the
same bytes. The scan of headers (``hop``) exists only as machine code: ``scan.producer_fold`` replaces it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

try:
    import numba

    from resnap.replay.kernel.code_cache import CodeCache
    from resnap.replay.kernel.machine import load_8, load_32, memcpy, prefetch, record_at, store_16, store_32, store_64
except (ImportError, OSError, AttributeError) as error:
    from resnap.replay.kernel.interpreted import (
        load_8,
        load_32,
        memcpy,
        prefetch,
        record_at,
        store_16,
        store_32,
        store_64,
    )

    WHY_NOT: str | None = f"{type(error).__name__}: {error}"
else:
    WHY_NOT = None

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "WHY_NOT", "compiled", "inlined", "load_8", "load_32", "memcpy", "prefetch", "record_at", "store_16", "store_32",
    "store_64",
]  # fmt: skip

F = TypeVar("F", bound="Callable[..., Any]")


def inlined(function: F) -> F:
    """Compile ``function`` as a part of its callers; a call from Python compiles it each time."""
    if WHY_NOT is not None:
        return function
    made: Any = numba.njit(nogil=True)(function)
    return cast("F", made)


def compiled(function: F) -> F:
    """Compile ``function`` at its first call, or load it from the cache; it runs without the GIL."""
    if WHY_NOT is not None:
        return cast("F", _by_python(function))
    made: Any = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # there is no place to keep it
        # The choice of place that numba itself offers fails for zips.
        made._cache = CodeCache(function)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return cast("F", made)


def _by_python(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: int) -> Any:  # noqa: ANN401 - as the function
        with np.errstate(over="ignore"):  # hashes wrap round
            return function(*map(int, arguments))

    return run
