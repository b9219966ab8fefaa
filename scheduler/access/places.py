"""Limits the sources and destinations in requests to the places that the configuration allows.

Otherwise every client that may start a replay could make the service read any file of the machine, or send requests to
any host with its own credentials. A local path is checked after symbolic links are resolved; a bucket's prefix by whole
parts. The returned place is the one that was checked, and is the one to use.

A user with write access below an allowed directory may create a link between check and use; such a place should not be
allowed. A refused place gets the same response whether it exists or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access.roles import PlaceForbiddenError
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
    """The allowed local directories and prefixes of buckets. Links in directories are resolved each time."""

    setting: str
    directories: tuple[Path, ...]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, setting: str, allowed: Sequence[str]) -> Places:
        """Return the places of the setting ``setting``: paths, ``file:///`` URLs, ``s3://`` URLs.

        Raises:
            ConfigurationError: one has another form.

        """
        try:
            parsed = [_parse(place) for place in allowed]
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
            UsageError: neither a path nor a URL of a known form.
            PlaceForbiddenError: it is outside the allowed places.

        """
        parsed = _parse(place)
        if isinstance(parsed, Path):
            path = _resolve(parsed)
            allowed = filter(None, map(_resolve, self.directories))
            if path is not None and any(path.is_relative_to(directory) for directory in allowed):
                return path.as_uri() if is_store_url(place) else str(path)
        elif any(parsed == prefix or parsed.startswith(f"{prefix}/") for prefix in self.prefixes):
            return parsed
        raise PlaceForbiddenError(f"{place!r} is not a place that requests may name", hint=self._hint())

    def _hint(self) -> str:
        allowed = [*map(str, self.directories), *self.prefixes]
        return f"{self.setting} allows {', '.join(allowed)}" if allowed else f"{self.setting} allows nothing: set it"


def _parse(place: str) -> Path | str:
    """Return the path, or the URL of a bucket's prefix without a slash at its end."""
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


def _resolve(path: Path) -> Path | None:
    """Return where a path leads; None if its links form a circle, or pass through a file."""
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
