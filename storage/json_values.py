"""Values of parsed JSON, with the types that they must have."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T")


def typed(kind: type[_T], value: object) -> _T:
    """Return ``value`` if it has exactly this type: JSON's true is not a number, and its 1.0 not an offset.

    Raises:
        TypeError: it has another one.

    """
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r:.80}")
    return value
