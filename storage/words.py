"""Numbers, sizes and times in words, as errors and answers say them; names as JSON has them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_UNITS_MS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


@cache
def camel_case(name: str) -> str:
    """Return ``last_sequence`` as ``lastSequence``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def human_count(value: int) -> str:
    """Return ``1478`` as ``1,478``."""
    return f"{value:,}"


def some(count: int, noun: str) -> str:
    """Return ``1,478 segments``, ``1 segment``."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the name of several of what ``noun`` names one of."""
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith(('x', 'ch')) else 's'}"


def agreeing(count: int, one: str = "is", many: str = "are") -> str:
    """Return the form of a verb that goes with ``count``."""
    return one if count == 1 else many


def is_utf8(path: str) -> bool:
    """Return whether the bytes of a path are UTF-8; Python has others as surrogates."""
    return path.encode(errors="replace").decode() == path


def first_of(texts: Sequence[object], most: int = 3) -> str:
    """Return the first ``most`` of ``texts``, and how many more there are."""
    more = f" and {human_count(len(texts) - most)} more" if len(texts) > most else ""
    return ", ".join(map(str, texts[:most])) + more


def counts_text(values: Iterable[object]) -> str:
    """Return how many there are of each value, such as ``2 kept, 1 proven``."""
    return ", ".join(f"{count} {value}" for value, count in Counter(values).items())


def human_bytes(size_bytes: int) -> str:
    """Return ``1536`` as ``1.5 KiB``."""
    size = float(size_bytes)
    for unit in _BINARY_UNITS:
        if round(abs(size), 1) < _STEP or unit == _BINARY_UNITS[-1]:
            break
        size /= _STEP
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def human_duration(seconds: float) -> str:
    """Return ``8000`` as ``2 h 13 m``: at most two units, with tenths only for few seconds."""
    if round(seconds, 1) < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} m {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} m"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def instant(at_ms: int) -> str:
    """Return a time in milliseconds as ISO 8601 in UTC, or as a plain number outside the calendar's range.

    Clients may write any timestamp, so it may be outside the years 1 to 9999.
    """
    try:
        at = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return str(at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def second(at_ms: int) -> str:
    """Return a time in milliseconds as people read it: ISO 8601 in UTC, without the milliseconds."""
    return instant(at_ms - at_ms % 1000).replace(".000Z", "Z")


def exact_duration(duration_ms: int) -> str:
    """Return a time span as people write it, such as ``7 days``: in the largest unit that divides it."""
    for unit_ms, unit in _UNITS_MS:
        if duration_ms and duration_ms % unit_ms == 0:
            count = duration_ms // unit_ms
            return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"
    return f"{duration_ms:,} ms"
