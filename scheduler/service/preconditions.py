"""Checks before the service starts: invalid settings are refused, useless ones cause a warning."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.stores.urls import is_store_url, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.settings.settings import Settings

_MEMORY = "memory:"


def check_places(settings: Settings, state_directory: Path) -> None:
    """Check that nothing is stored where it does harm, or is lost.

    Raises:
        ConfigurationError: the state directory is inside a log dir, or a schedule names an impossible place.

    """
    inner = Path(realpath(state_directory))
    for log_dir in settings.log_dirs:
        if inner.is_relative_to(realpath(log_dir)):
            raise ConfigurationError(
                f"--state-dir {state_directory} lies in the log dir {log_dir}: a broker does not start beside it",
                hint="give a directory outside log.dirs",
            )
    for spec in settings.schedules:
        if (spec.to or "").startswith(_MEMORY):
            raise ConfigurationError(
                f"schedule {spec.name}: to {spec.to!r} is lost when the run ends",
                hint="give a directory, file:///DIRECTORY or s3://BUCKET/PREFIX",
            )
        for place in filter(is_store_url, spec.sources):
            _check_url(spec.name, place, settings)
        if spec.to is not None and (spec.run != "regenerate" or is_store_url(spec.to)):
            _check_url(spec.name, spec.to, settings)


def _check_url(name: str, place: str, settings: Settings) -> None:
    try:
        open_store(place, settings.s3())
    except UsageError as error:
        raise ConfigurationError(f"schedule {name}: {error}", hint=error.hint) from error


def warnings(settings: Settings, *, has_tokens: bool) -> Iterator[str]:
    """Yield what makes the service useless."""
    if settings.auth == "token" and not has_tokens:
        yield "no client can sign in: there is no token yet; `resnap token create NAME --role admin` makes one"
    if not settings.log_dirs and not settings.schedules:
        yield "there is nothing to scan: set log.dirs, and a [[schedules]] table that runs `scan`"
    elif not settings.schedules:
        yield "nothing is scanned automatically: a [[schedules]] table that runs `scan` fills the pages"
