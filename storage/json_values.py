"""Values of parsed JSON, with the types that they must have; and a strict parser.

The parser takes known fields only, each exactly once, and numbers within Java's ranges.
"""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, parser_says

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_T = TypeVar("_T")
INT_MAX: Final = 2**31 - 1
"""Sizes and positions are Java's ``int``."""


def typed(kind: type[_T], value: object) -> _T:
    """Return ``value`` if it has exactly this type: JSON's true is not a number, and its 1.0 not an offset.

    Raises:
        TypeError: it has another one.

    """
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r:.80}")
    return value


@contextmanager
def parsing(what: str, *, expected: str, hint: str) -> Iterator[None]:
    """Raise as a ``FormatError`` of ``what`` that its JSON, or a value in it, is of another form than was expected."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise FormatError(what, position=error.pos, expected=expected, found=error.msg, hint=hint) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        found = parser_says(error)
        raise FormatError(what, position=0, expected=expected, found=found, hint=hint) from error


def json_checksum(values: object) -> str:
    """Return the CRC-32C of parsed JSON, in hexadecimal digits: of its form with ordered keys."""
    return f"{crc32c(json.dumps(values, sort_keys=True).encode()):08x}"


def checked_json(version: int, name: str, record: object) -> bytes:
    """Return a JSON object with ``record`` under ``name``, its version and its checksum.

    A reader makes it again from what it has read, and compares the bytes: JSON has more than one spelling of a value.
    """
    return json.dumps({"version": version, name: record, "crc32c": json_checksum(record)}).encode()


class Fields:
    """The fields of a JSON object, with the object's name for messages."""

    def __init__(self, name: str, values: object) -> None:
        if not isinstance(values, dict):
            raise FormatError(name, position=0, expected="a JSON object", found=type(values).__name__)
        self.name = name
        self.values: Mapping[str, Any] = values

    def check_names(self, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        """Check that the plugin knows all fields."""
        missing = next((name for name in names if name not in self.values), None)
        if missing is not None:
            raise FormatError(f"{self.name}: field {missing}", position=0, expected="one", found="none")
        for name in self.values:
            if name not in names and name not in optional:
                raise FormatError(f"{self.name}: field {name[:40]!a}", position=0, expected="none",
                                  found="one, which the plugin's reader refuses")  # fmt: skip

    def inner(self, name: str) -> Fields:
        """Return the JSON object under ``name``."""
        return Fields(f"{self.name} {name}", self.values[name])

    def integer(self, name: str, least: int = 0) -> int:
        """Return the Java ``int`` under ``name``."""
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= INT_MAX:
            raise self.wrong(name, f"{least} to {INT_MAX}")
        return value

    def binary(self, name: str, text: str | None = None) -> bytes:
        """Return the bytes that ``name`` holds in base64."""
        given = self.values[name] if text is None else text
        try:
            return base64.b64decode(given, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise FormatError(f"{self.name}: {name}", position=0, expected="base64", found="something else") from None

    def wrong(self, name: str, expected: str) -> FormatError:
        """Return the error for an invalid value."""
        return FormatError(f"{self.name}: {name}", position=0, expected=expected, found=excerpt(self.values[name]))


def parse_json_object(what: str, data: bytes, *, limit: int) -> object:
    """Return the JSON object in ``data``, which has at most ``limit`` bytes; ``what`` names it in errors.

    Raises:
        FormatError: it is longer, or is not JSON.

    """
    if len(data) > limit:
        raise FormatError(what, position=0, expected=f"{limit} bytes at most", found=len(data))
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise FormatError(what, position=error.pos, expected="JSON", found=error.msg) from None
    except UnicodeDecodeError as error:
        raise FormatError(what, position=error.start, expected="UTF-8", found="something else") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(what, position=0, expected="JSON", found=str(error)[:80]) from None


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field that is given twice")
    return fields


def _no_constant(name: str) -> object:
    raise ValueError(f"{name}, which is not JSON")


def excerpt(value: object) -> str:
    """Return the beginning of an unexpected value, on one line."""
    return ascii(value)[:60]
