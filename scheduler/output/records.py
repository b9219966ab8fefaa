"""Converts our values to JSON records: fields in camel case, as Kafka names them, and only JSON's types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum


def record(value: object) -> dict[str, object]:
    """Return a dataclass with its fields, and those of the values in it, under their names in camel case."""
    if not is_dataclass(value):
        raise AssertionError(f"{type(value).__name__} has no fields")
    return {camel_case(item.name): plain(getattr(value, item.name)) for item in fields(value)}


def camel_case(name: str) -> str:
    """Return ``last_sequence`` as ``lastSequence``."""
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)


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
