"""Spans of work, for traces: nothing happens in one unless they are taken.

The packages that do the work say where it begins and ends, and know nothing of who hears of it: in the service and the
shell ``scheduler/telemetry/traces.py`` does, if it is asked to. On executors nothing does.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    Add: TypeAlias = Callable[[str, str | int], None]
    """Adds an attribute to a span that is open, by name."""
    Taker: TypeAlias = Callable[[str, Mapping[str, str | int]], AbstractContextManager[Add]]

_taker: Taker | None = None


def take_spans(taker: Taker | None) -> None:
    """Have every span of this process opened by ``taker``, with its name and attributes; None for by nothing."""
    global _taker  # noqa: PLW0603 - like logging, it is of the process: to pass it on would touch every signature
    _taker = taker


def span(name: str, **attributes: str | int) -> AbstractContextManager[Add]:
    """Return a span, to be entered where the work begins; one that is entered within it is a part of it."""
    return nullcontext(_add_nothing) if _taker is None else _taker(name, attributes)


def _add_nothing(_name: str, _value: str | int) -> None:
    """Do nothing: the span is not taken."""
