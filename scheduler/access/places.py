"""What a request may name: sources and destinations within what the configuration allows, and nothing else.

Without this every client that may start a replay could have any file of the machine read, or have requests sent to any
host with the service's own credentials. A local path is judged by where it leads once symbolic links are followed; a
bucket's prefix by whole parts. What is returned is what was judged, and is what must be used.

A user who may write below an allowed directory may put a link there between judging and reading; such a place should
not be allowed. What is refused gets the same answer whether it is there or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access.errors import PlaceForbiddenError
from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.stores.protocol import is_safe_path
from resnap.storage.stores.urls import is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST: Final = 4096
"""Longest path on Linux."""
_S3: Final = "s3://"


@dataclass(frozen=True, slots=True)
class Places:
    """What is allowed: local directories, and prefixes of buckets. Links among the former are followed each time."""

    setting: str
    directories: tuple[Path, ...]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, setting: str, allowed: Sequence[str]) -> Places:
        """Return the places that the setting ``setting`` allows: paths, ``file:///`` URLs, ``s3://`` URLs.

        Raises:
            ConfigurationError: one of another form.

        """
        try:
            parsed = [_parsed(place) for place in allowed]
        except UsageError as error:
            raise ConfigurationError(f"{setting}: {error}", hint=error.hint) from error
        return cls(
            setting,
            tuple(place for place in parsed if isinstance(place, Path)),
            tuple(place for place in parsed if isinstance(place, str)),
        )

    def admit(self, place: str) -> str:
        """Return the place to use for ``place``: a path or ``file://`` URL without links, or the ``s3://`` URL.

        Raises:
            UsageError: no path, nor a URL of a form that is known.
            PlaceForbiddenError: it lies elsewhere.

        """
        parsed = _parsed(place)
        if isinstance(parsed, Path):
            path = _followed(parsed)
            allowed = filter(None, map(_followed, self.directories))
            if path is not None and any(path.is_relative_to(directory) for directory in allowed):
                return path.as_uri() if is_store_url(place) else str(path)
        elif any(parsed == prefix or parsed.startswith(f"{prefix}/") for prefix in self.prefixes):
            return parsed
        raise PlaceForbiddenError(f"{place!r} is no place that requests may name", hint=self._hint())

    def _hint(self) -> str:
        allowed = [*map(str, self.directories), *self.prefixes]
        return f"{self.setting} allows {', '.join(allowed)}" if allowed else f"{self.setting} allows nothing: set it"


def _parsed(place: str) -> Path | str:
    """Return the path that is meant, or the URL of a prefix of a bucket without a slash at its end."""
    if not place or len(place) > _LONGEST or not place.isprintable():
        raise UsageError("a place must be a path or URL of up to 4,096 characters that can be printed")
    if place.startswith(_S3):
        return _prefix(place)
    path = local_path(place) if is_store_url(place) else Path(place)
    if path is None:
        form = place.partition("://")[0][:20]
        raise UsageError(f"a URL of the form {form!r} cannot be used",
                         hint="give an absolute path, file:///DIRECTORY, or s3://BUCKET/PREFIX")  # fmt: skip
    if not path.is_absolute() or ".." in path.parts:
        raise UsageError(f"{place!r}: expected an absolute path without ..", hint="write the path out")
    return path


def _followed(path: Path) -> Path | None:
    """Return where a path leads; None where it leads round in a circle, or through what is no directory."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return None


def _prefix(place: str) -> str:
    rest = place.removeprefix(_S3).rstrip("/")
    if not {"@", ":"}.isdisjoint(rest.partition("/")[0]):
        # Not repeated: what is refused is kept in the audit.
        raise UsageError("a URL with credentials or a port in it: expected s3://BUCKET/PREFIX",
                         hint="credentials and the endpoint are the service's own settings")  # fmt: skip
    if not {"?", "#", "\\"}.isdisjoint(rest) or not is_safe_path(rest):
        raise UsageError(f"{place!r}: expected s3://BUCKET/PREFIX without empty parts, '.', '..', ? or #")
    return _S3 + rest
