"""Converts our values to JSON records: fields in camel case, as Kafka names them, and only JSON's types.

Rows of documents are types. ``docs/schemas/`` and the rows in OpenAPI are generated from them, rows are made
(``row_of``) and tables have their columns (``columns_of``) by what their keys are annotated with. A key always exists,
unless it is ``NotRequired``; keys may be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache, partial
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypeVar, cast, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

from resnap.scheduler.output.rendering import Column
from resnap.storage.words import camel_case, instant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def row_of(kind: type[T], value: object) -> T:
    """Return the row of a value: under each key its attribute of that name in snake case.

    ``Annotated`` names another, as a path through attributes, where what None has is None; or it is a function of the
    value, which makes what the key has. Attributes become what the type of the key says. Keys that are not required are
    only those of a path that ends at an attribute.
    """
    makers = _makers(cast("Any", kind))
    return cast("T", {key: made for key, make in makers if (made := make(value)) is not _ABSENT})


_ABSENT: Final = object()


@cache
def _makers(kind: Any) -> list[tuple[str, Callable[[Any], object]]]:  # noqa: ANN401 - a class
    return [(key, _maker(key, hint)) for key, hint in get_type_hints(kind, include_extras=True).items()]


def _maker(key: str, hint: Any) -> Callable[[Any], object]:  # noqa: ANN401 - a type
    is_required = get_origin(hint) is not NotRequired
    hint = hint if is_required else get_args(hint)[0]
    snake_case = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
    kind, notes = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    source = next((note for note in notes if not isinstance(note, Column)), snake_case)
    if callable(source):
        return cast("Callable[[Any], object]", source)
    return partial(_shape_value, source.split("."), _shape(kind), is_required)


def _shape_value(path: Sequence[str], shape: Callable[[Any], object], is_required: bool, value: object) -> object:
    for name in path:
        if not (is_required or hasattr(value, name)):
            return _ABSENT
        value = None if value is None else getattr(value, name)
    return shape(value)


def instant_of(name: str) -> Callable[[object], str | None]:
    """Return what gives the time that an attribute has in milliseconds, as ISO 8601; None where it has none."""

    def made(value: object) -> str | None:
        at_ms = getattr(value, name)
        return None if at_ms is None else instant(at_ms)

    return made


def columns_of(kind: Any, *keys: str) -> tuple[Column, ...]:  # noqa: ANN401 - a class
    """Return the columns that the keys of a row are annotated with: of ``keys`` in this order, else all."""
    hints = get_type_hints(kind, include_extras=True)
    notes = ((key, note) for key in keys or hints for note in getattr(hints[key], "__metadata__", ()))
    return tuple(replace(note, key=key) for key, note in notes if isinstance(note, Column))


def _shape(kind: Any) -> Callable[[Any], object]:  # noqa: ANN401 - a type
    """Return what makes a value one of a row's: of its type in JSON."""
    parts = [part for part in get_args(kind) if part is not NoneType]
    if is_typeddict(kind):
        return partial(row_of, kind)
    if get_origin(kind) is dict or not parts:
        return str if kind is str else lambda value: value
    shape = _shape(parts[0])
    if get_origin(kind) is list:
        return lambda values: [*map(shape, values)]
    return lambda value: None if value is None else shape(value)


def record(value: object) -> dict[str, object]:
    """Return a dataclass with its fields, and those of the values in it, under their names in camel case."""
    if not is_dataclass(value):
        raise AssertionError(f"{type(value).__name__} has no fields")
    return {camel_case(item.name): plain(getattr(value, item.name)) for item in fields(value)}


def plain(value: object) -> object:
    """Return ``value`` in JSON's types; values of other types become strings."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value):
        return record(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {camel_case(key): plain(entry) for key, entry in value._asdict().items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple | list | set | frozenset) else str(value)
