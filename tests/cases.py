"""Many cases of one claim, as one test."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark import ParameterSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def each(
    names: str | Sequence[str], cases: Iterable[Any], *, ids: Sequence[str] | Callable[[Any], object] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test for each case in turn, and names the case that fails.

    It is written like ``pytest.mark.parametrize``, for claims that need no fixture of each case's own: what pytest does
    around a test takes longer than most of these cases.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    all_values = [_values(case, arguments) for case in cases]
    assert all_values, "a claim without a case"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            for number, values in enumerate(all_values):
                try:
                    test(**dict(zip(arguments, values, strict=True)), **others)
                except BaseException as error:
                    error.add_note(f"case {number}: {_name(number, values, ids)}")
                    raise

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def mostly_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return ``cases`` for ``pytest.mark.parametrize``: slow tests, but for those in ``quick``."""
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def _values(case: Any, arguments: list[str]) -> Sequence[Any]:
    if isinstance(case, ParameterSet):
        return case.values
    return (case,) if len(arguments) == 1 else tuple(case)


def _name(number: int, values: Sequence[Any], ids: Sequence[str] | Callable[[Any], object] | None) -> str:
    if ids is not None and not callable(ids):
        return ids[number]
    return ", ".join(str(ids(value)) if ids else repr(value)[:200] for value in values)
