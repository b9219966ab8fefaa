"""Spans of work, for traces; without a taker they do nothing.

The packages that do the work mark its beginning and end, and do not depend on who records it: in the service and the
shell ``scheduler/telemetry/traces.py`` does, if tracing is on. On executors nothing does.
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
    """Have ``taker`` open every span of this process, with its name and attributes; None to record nothing."""
    global _taker  # noqa: PLW0603 - like logging, it is of the process: to pass it on would touch every signature
    _taker = taker


def span(name: str, **attributes: str | int) -> AbstractContextManager[Add]:
    """Return a span, entered where the work begins; a span entered within it becomes its child."""
    return nullcontext(lambda _name, _value: None) if _taker is None else _taker(name, attributes)
