"""Stores many values of one frozen dataclass compactly, as columns; and any value that is rarely used, compressed.

A log of a million segments is held in memory, and a dataclass of ten fields takes half a kilobyte. A column takes eight
bytes for each number, and stores what all values share only once; a value is built when it is requested.
"""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import repeat
from operator import attrgetter, eq
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")
_NONE: Final = -(1 << 63)
_MOST_REMEMBERED: Final = 1 << 15
"""Values of a sequence that are made once for the next passes, too: some 15 MB."""
_FEWEST: Final = 8
"""Fewer values take about as much memory as their columns, and most partitions have fewer."""
_DIGITS: Final = 20
"""The digits of an offset in the name of a file."""


class Packed(Sequence[_T]):
    """A sequence of values that are equal, but not identical, to the original ones."""

    __slots__ = ("_columns",)

    def __init__(self, values: Sequence[_T], number: str, **given: Sequence[Any]) -> None:
        """Store ``values``, at least one.

        Args:
            values: of one dataclass, which has slots.
            number: the field whose number may occur in file names.
            given: columns that exist already, by field; they may be longer than ``values``.

        """
        kind: Any = type(values[0])
        numbers = array("q", (getattr(value, number) for value in values))
        self._columns = _Table(
            kind=kind,
            length=len(values),
            columns=tuple(
                given[name] if name in given else _column(list(map(attrgetter(name), values)), numbers)
                for name in _names(kind)
            ),
        )

    def __len__(self) -> int:
        return self._columns.length

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[_T, ...]: ...

    def __getitem__(self, index: int | slice) -> _T | tuple[_T, ...]:
        at = range(len(self))[index]
        if isinstance(at, range):
            values = self._values()
            return values[index] if isinstance(values, tuple) else tuple(map(values.value, at))
        found: _T = self._columns.value(at)
        return found

    def __iter__(self) -> Iterator[_T]:
        return iter(self._values())

    def _values(self) -> tuple[_T, ...] | _Table:
        return self._columns if len(self) > _MOST_REMEMBERED else _cached_values(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """The fields of values, one column each."""

    kind: Any
    length: int
    columns: tuple[Any, ...]

    def value(self, at: int) -> Any:  # noqa: ANN401 - of any dataclass
        """Return one value."""
        return self.kind(**{name: column[at] for name, column in zip(_names(self.kind), self.columns, strict=True)})

    def __iter__(self) -> Iterator[Any]:
        # As ``kind`` made them once, a field of many at a time: to call it again for each takes several times as long.
        fields = [(put, iter(column)) for put, column in zip(_setters(self.kind), self.columns, strict=True)]
        for start in range(0, self.length, _MOST_REMEMBERED):
            some = [object.__new__(self.kind) for _ in range(min(_MOST_REMEMBERED, self.length - start))]
            for put, column in fields:
                deque(map(put, some, column), maxlen=0)
            yield from some


@lru_cache(maxsize=8)
def _cached_values(columns: _Table) -> tuple[Any, ...]:
    """Return all values, cached: a partition is iterated dozens of times before the next one."""
    return tuple(columns)


class Compressed(Generic[_T]):
    """Holds what is seldom used of very many partitions; ``value`` is equal, but not identical, to what was given."""

    __slots__ = ("_data",)

    def __init__(self, value: _T) -> None:
        self._data = zlib.compress(pickle.dumps(value), 1)

    @property
    def value(self) -> _T:
        """The value, made again from its bytes unless it was the last one."""
        found: _T = _decompressed(self._data)
        return found


@lru_cache(maxsize=1)
def _decompressed(data: bytes) -> Any:  # noqa: ANN401 - whatever was given
    return pickle.loads(zlib.decompress(data))  # noqa: S301 - our own, and never from outside


def pack_all(values: Iterable[_T], number: str, **given: Sequence[Any]) -> Sequence[_T]:
    """Return ``values`` as a ``Packed``; unchanged if they are few, or an offset exceeds 64 bits."""
    found = tuple(values)
    try:
        return Packed(found, number, **given) if len(found) >= _FEWEST else found
    except OverflowError:
        return found


def _names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a dataclass
    return tuple(kind.__dataclass_fields__)


@cache
def _setters(kind: Any) -> tuple[Callable[[Any, Any], None], ...]:  # noqa: ANN401 - a dataclass with slots
    return tuple(getattr(kind, name).__set__ for name in _names(kind))


@dataclass(frozen=True, slots=True)
class _Same:
    """One value for all rows."""

    value: Any

    def __getitem__(self, _: int) -> Any:  # noqa: ANN401 - whatever it is
        return self.value

    def __iter__(self) -> Iterator[Any]:
        return repeat(self.value)


@dataclass(frozen=True, slots=True)
class _Optional:
    """Numbers, some of which are None."""

    numbers: array[int]

    def __getitem__(self, at: int) -> int | None:
        found = self.numbers[at]
        return None if found == _NONE else found

    def __iter__(self) -> Iterator[int | None]:
        return (None if number == _NONE else number for number in self.numbers)


@dataclass(frozen=True, slots=True)
class _Names:
    """Texts that differ only in an offset."""

    before: str
    offsets: array[int]
    after: str

    def __getitem__(self, at: int) -> str:
        return f"{self.before}{self.offsets[at]:0{_DIGITS}d}{self.after}"

    def __iter__(self) -> Iterator[str]:
        return (f"{self.before}{offset:0{_DIGITS}d}{self.after}" for offset in self.offsets)


def _column(values: list[Any], offsets: array[int]) -> Any:  # noqa: ANN401 - one of the three, or a sequence
    """Return ``values`` in the smallest form that gives equal ones back."""
    first, kinds = values[0], set(map(type, values))
    if len(kinds) == 1 and values[-1] == first and values.count(first) == len(values):
        return _Same(first)
    if kinds == {str}:
        before, _, after = first.rpartition(f"{offsets[0]:0{_DIGITS}d}")
        names = _Names(before, offsets, after)
        return names if all(map(eq, names, values)) else tuple(values)
    with suppress(OverflowError):
        if kinds == {int}:
            numbers = array("q", values)
            return offsets if numbers == offsets else numbers
        if kinds <= {int, NoneType} and _NONE not in values:
            return _Optional(array("q", (_NONE if value is None else value for value in values)))
    return tuple(values)
