"""Parses and formats values of settings: durations, sizes, times and lists; and hides secrets.

``redact`` is called at every edge where text leaves: problems, the audit, the log, the history of runs. It looks at
form, not at place, since a message may repeat whatever it was given; it masks one too many rather than show one. Each
form is of bounded length, so that a text takes as long as it is long, however it was made.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from resnap.scheduler.clock import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

Form: TypeAlias = Literal["table", "json", "ndjson", "dump-log"]
"""Forms of an answer."""
IoPriority: TypeAlias = Literal["normal", "low", "idle"]
_ZONE_EXPECTED: Final = "expected a time with its zone, such as 2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00"
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d{1,12}(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+)(ms|[smhdw])")
_SIZE_UNITS: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,18})([a-z]*)", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"secret|password|passwd|token|access[._]?key|credential"
    r"|jaas|private|[._](?:master[._])?key$|certificate[._]chain$|truststore[._]certificates$"
    r"|account[._]?key|[._]sas(?:$|[._])|pass(?:phrase|code)?$",
    re.IGNORECASE,
)
"""Kafka's settings of type PASSWORD, and what plugins and file systems of Spark call theirs; one too many is masked
rather than one shown."""
_SPARK_SECRET = re.compile(r"secret|password|token|access[.]?key|credential", re.IGNORECASE)
"""The default of ``spark.redaction.regex``, which masks a property if its name or its value matches."""
_SPARK_RULE: Final = "spark.redaction.regex"


def parse_duration(text: str) -> timedelta:
    """Return what ``7d``, ``36h``, ``15m`` or ``1d12h`` stand for.

    Raises:
        ValueError: another form, or no unit.

    """
    compact = text.replace(" ", "")
    if not _DURATION.fullmatch(compact):
        raise ValueError("expected a duration such as 7d, 36h, 15m or 30s")
    try:
        return timedelta(milliseconds=sum(int(n) * _UNITS[unit] for n, unit in _DURATION_PART.findall(compact)))
    except OverflowError:
        raise ValueError("expected a duration of less than a billion days") from None


def duration_text(value: timedelta) -> str:
    """Return ``value`` as ``parse_duration`` reads it."""
    rest, parts = value // timedelta(milliseconds=1), []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Return the bytes that ``128KiB``, ``256MiB``, ``1GiB`` or a bare number stand for.

    Raises:
        ValueError: another form or unit; k and M alone mean different things to different people.

    """
    parts = _SIZE.fullmatch(text.replace(" ", ""))
    unit = _SIZE_UNITS.get(parts[2].lower()) if parts else None
    if parts is None or unit is None:
        raise ValueError("expected a size such as 128KiB, 256MiB, 1GiB or a number of bytes")
    return int(parts[1]) * unit


def size_text(value: int) -> str:
    """Return ``value`` in the form of ``parse_size``, in the largest unit that divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value % _SIZE_UNITS[unit.lower()] == 0:
            return f"{value // _SIZE_UNITS[unit.lower()]}{unit}"
    return str(value)


def parse_as_of(text: str) -> datetime | str:
    """Return ``now`` or ``roll`` as they are, and anything else as a time that has a zone.

    Raises:
        ValueError: neither; a time without a zone would mean another moment on another machine.

    """
    if text in {"now", "roll"}:
        return text
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected now, roll or a time such as 2026-01-31T12:00:00Z") from None
    return _with_zone(at)


def checked_as_of(value: object) -> object:
    """Return what a file or a caller gives for ``as_of``, text parsed.

    Raises:
        ValueError: text of another form, or a date or time without a zone.

    """
    if isinstance(value, str):
        return parse_as_of(value)
    if isinstance(value, datetime):
        return _with_zone(value)
    if isinstance(value, date):
        raise ValueError(_ZONE_EXPECTED)  # noqa: TRY004 - pydantic takes no other error
    return value


def _with_zone(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ValueError(_ZONE_EXPECTED)
    return at


def parse_moment(text: str, now_ms: int) -> int:
    """Return the milliseconds since 1970 that a time with its zone stands for, or a duration, back from ``now_ms``.

    Raises:
        ValueError: neither.

    """
    with suppress(ValueError):
        return now_ms - parse_duration(text) // timedelta(milliseconds=1)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a duration such as 7d or a time such as 2026-01-31T12:00:00Z") from None
    return milliseconds(_with_zone(at))


def did_you_mean(name: str, possible: Iterable[str], where: str | None = None, prefix: str = "") -> str:
    """Return which of the ``possible`` names is most like ``name``; if none is, ``where`` they are, or all of them."""
    known = sorted(possible)
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {prefix}{close[0]}?"
    return where or f"possible: {', '.join(known) or 'none'}"


def checked_log_dir(value: object) -> object:
    """Return ``value``, the path of a log dir; of a URL ``pathlib`` would make another path.

    Raises:
        ValueError: it is a URL.

    """
    if isinstance(value, str) and "://" in value:
        raise ValueError(f"expected the path of a directory, found the URL {value}, which commands take as a source")
    return value


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of ``text`` between commas, without the empty ones."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


MASK: Final = "***"
"""Replaces a secret."""

_SECRETS: Final = (
    r"secret|password|passwd|token|signature|credential|access[._-]?key(?:[._-]?id)?"
    r"|account[._-]?key|passphrase|key[._-]?pass"
)
_RULES: Final = (
    # Our own tokens, anywhere.
    (re.compile(r"\bresnap_[A-Za-z0-9_-]{43}"), f"resnap_{MASK}"),
    # s3://key:secret@bucket, where a secret may hold slashes: up to the last @ of the word.
    (re.compile(r"(?<=://)(?:[^/\s\"'<>@]{0,200}:[^\s\"'<>]{0,400}|[^/\s\"'<>]{1,400})(?=@)"), MASK),
    # Queries of signed URLs; not the two parameters of S3's listings that have similar names.
    (
        re.compile(
            rf"(?<=[?&])(?!(?:max-keys|key-marker)=)([^=&\s]{{0,50}}(?:key|{_SECRETS})[^=&\s]{{0,50}}=)[^&\s]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # password=..., "token": "...", Authorization: Bearer ...
    (
        re.compile(
            rf"""((?:(?:{_SECRETS})[\w.-]{{0,80}}|authorization)["']?\s{{0,9}}[=:]\s{{0,9}}(?:b?["'])?"""
            r"""(?:(?:bearer|basic|digest)\s{1,9})?)[^\s"',;&)}\]]+""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\bbearer\s{1,9})[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{MASK}"),
    # Ids of AWS keys: no secret, but half of one.
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
)


def redact(text: str) -> str:
    """Return ``text`` with ``***`` for each secret in it."""
    for form, mask in _RULES:
        text = form.sub(mask, text)
    return text


def json_form(value: object) -> object:
    """Return a value as JSON can hold it, with credentials masked: in URLs, and under names of secrets."""
    if isinstance(value, Mapping):
        secret = _spark_rule(value)
        return {key: MASK if _is_secret(secret, key, entry) else shown_as(key, entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [json_form(entry) for entry in value]
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int):
        return value
    return redact(str(value))


def shown_as(name: str, value: object) -> object:
    """Return the value of the setting ``name`` as JSON can hold it, masked if the name is of a secret."""
    return MASK if value is not None and is_secret_name(name) else json_form(value)


def is_secret_name(name: str) -> bool:
    """Whether a setting of Kafka, or of a plugin, has a value that nobody may read, by its ``name``."""
    return _SECRET_NAME.search(name) is not None


def _spark_rule(properties: Mapping[str, object]) -> re.Pattern[str]:
    """Return by what Spark itself masks, which an operator may set; one that Python cannot read masks everything."""
    own = properties.get(_SPARK_RULE)
    if own is None:
        return _SPARK_SECRET
    try:
        return re.compile(str(own))
    except re.error:
        return re.compile("")


def _is_secret(secret: re.Pattern[str], name: str, value: object) -> bool:
    """Whether Spark would mask the property; without effect on names that are none of Spark's."""
    return name.startswith("spark.") and bool(secret.search(name) or secret.search(str(value)))
