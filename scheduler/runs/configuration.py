"""The settings of runs: the service's own, reloaded on request, overridden by a request's settings.

Sources and destinations of requests are limited to the places that the configuration allows. Otherwise every client
that may start a replay could make the service read any file of the machine, or send requests to any host with its own
credentials. A local path is checked after symbolic links are resolved; a bucket's prefix by whole parts. The returned
place is the one that was checked, and is the one to use.

A user with write access below an allowed directory may create a link between check and use; such a place should not be
allowed. A refused place gets the same response whether it exists or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.access.roles import PlaceForbiddenError
from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.job.wiring import scope_of
from resnap.scheduler.settings.layers import line_of
from resnap.scheduler.settings.loading import load_settings, settings_file
from resnap.scheduler.settings.settings import RUN_SETTINGS
from resnap.scheduler.settings.values import did_you_mean
from resnap.storage.disk import is_directory
from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.log.names import parse_partition_dir_name
from resnap.storage.stores.protocol import is_safe_path
from resnap.storage.stores.urls import check_form, is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.scheduler.runs.run import RunRequest
    from resnap.scheduler.settings.declaration import SettingFiles
    from resnap.scheduler.settings.service import ScheduleSpec
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.selection import Scope


@dataclass(slots=True, kw_only=True)
class Configuration:
    """Where the settings of the service come from.

    Runs use the files as they were when they were put in force, whatever has changed in them since.

    Attributes:
        flags: of ``resnap serve``, by name of the setting.
        environment: of the process, unless given.
        directory: where ``resnap.toml`` is looked for.

    """

    flags: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    _in_force: SettingFiles | None = field(default=None, init=False)

    def file(self) -> Path | None:
        """Return the file that settings are read from; None if there is none."""
        return settings_file(self.flags, self.environment, self.directory)

    def load(self) -> Settings:
        """Return the settings of the service as the files have them now; they are not in force by that.

        Raises:
            UsageError, ConfigurationError: a value cannot be used, or a file cannot be read.

        """
        settings = self._load({}, places=())
        for number, spec in enumerate(settings.schedules):
            self._check(spec, number, settings)
        return settings

    def _check(self, spec: ScheduleSpec, number: int, settings: Settings) -> None:
        """Make sure that the settings of a schedule can be used, and not only when its first run is due."""
        try:
            check_schedule(spec)
            self._load(self._of_settings(spec.run, spec.settings), files=settings.files)
        except UsageError as error:
            lines = {} if settings.files is None else settings.files.lines
            where = line_of(lines, ("schedules", number, "settings")) or settings.origin("schedules")
            raise ConfigurationError(f"schedule {spec.name} ({where}): {error}", hint=error.hint) from error

    def put_in_force(self, settings: Settings) -> None:
        """Have runs use the files that ``settings`` were loaded from."""
        self._in_force = settings.files

    def of(self, request: RunRequest) -> Settings:
        """Return the settings for one run; what the metadata log beside its sources says counts, too.

        Raises:
            UsageError, ConfigurationError: a value cannot be used, or a file cannot be read.

        """
        asks_cluster = verb_of(request.kind).reads != "store"  # which is read without brokers
        settings = self._of_settings(request.kind, request.settings)
        return self._load(settings, places=request.sources, ask_cluster=asks_cluster, files=self._in_force)

    @staticmethod
    def _of_settings(kind: str, given: Mapping[str, object]) -> dict[str, object]:
        """Return what of the given is a setting; the rest are arguments of the verb."""
        return {name: value for name, value in given.items() if name not in verb_of(kind).of_runs}

    def _load(self, settings: Mapping[str, object], **given: Any) -> Settings:  # noqa: ANN401 - of load_settings
        """Return the settings with ``settings`` over the service's own flags."""
        return load_settings(
            self.flags, environment=self.environment, directory=self.directory, of_run=settings, **given
        )


def check_schedule(spec: ScheduleSpec) -> None:
    """Make sure that a schedule asks for what its verb takes.

    Raises:
        UsageError: it does not.

    """
    verb = verb_of(spec.run)
    verb.given(spec.settings)
    if strange := sorted(spec.settings.keys() - RUN_SETTINGS - verb.of_runs.keys()):
        hint = did_you_mean(strange[0], RUN_SETTINGS | verb.of_runs.keys())
        raise UsageError(f"{strange[0]!r} cannot be set for one schedule", hint=hint)
    if verb.reads == "cluster" and spec.sources:
        raise UsageError(f"{spec.run} takes no `sources`: bootstrap-server counts")
    if verb.reads == "store" and len(spec.sources) != 1:
        raise UsageError(f"a {spec.run} needs `sources` with one URL, of the store")
    if verb.to is None and spec.to is not None:
        raise UsageError(f"a {spec.run} takes no `to`: it writes nothing")
    if verb.to is not None and spec.to is None:
        what = "a URL" if verb.to_url else "a directory or URL"
        raise UsageError(f"a {spec.run} needs `to`, {what}")


def within_places(settings: Settings, asked: RunRequest) -> RunRequest:
    """Return ``asked`` with the places to use, links followed.

    Raises:
        UsageError: no path, nor a URL of a form that is known.
        PlaceForbiddenError: one is outside what the configuration allows.

    """
    scheduled = [place for spec in settings.schedules for place in spec.sources]
    source = admitting(
        "allow-sources",
        [
            *settings.allow_sources,
            *absolute_places(map(str, settings.log_dirs)),
            *absolute_places(scheduled),
            *([] if settings.remote is None else absolute_places([settings.remote])),
        ],
    )
    if asked.destination is not None and verb_of(asked.kind).to_url:
        check_form(asked.destination)
    remote = asked.settings.get("remote")
    targets = [spec.to for spec in settings.schedules if spec.to is not None]
    destination = admitting("allow-destinations", [*settings.allow_destinations, *absolute_places(targets)])
    return replace(
        asked,
        sources=tuple(map(source, asked.sources)),
        destination=None if asked.destination is None else destination(asked.destination),
        settings=asked.settings if remote is None else {**asked.settings, "remote": source(str(remote))},
    )


def scope_for(settings: Settings, request: RunRequest, saved: SavedPlan | None = None) -> Scope:
    """Return what a request points at, or else a saved plan, or else ``log.dirs``.

    Raises:
        UsageError: none of them names anything.

    """
    scope = scope_of(settings, request.sources or None, saved, reads=verb_of(request.kind).reads)
    return replace(scope, partitions=request.partitions or scope.partitions)


def scanned_sources(settings: Settings) -> tuple[str, ...]:
    """Return the sources that are scanned regularly, as the configuration names them."""
    scheduled = [place for spec in settings.schedules if spec.run == "scan" for place in spec.sources]
    return tuple(dict.fromkeys([*map(str, settings.log_dirs), *scheduled]))


def place_of(source: str) -> Path | str:
    """Return the canonical path or URL of ``source``, equal for two names of one directory."""
    path = local_path(source) if is_store_url(source) else Path(source)
    return source.rstrip("/") if path is None else Path(realpath(path))


def of_scanned_sources(settings: Settings, asked: RunRequest) -> RunRequest:
    """Return ``asked``, a scan, with partitions' directories in configured sources as partitions of these.

    Raises:
        UsageError: a directory that is not there.

    """
    configured = {place_of(source) for source in scanned_sources(settings)}
    sources: list[str] = []
    partitions: list[str] = []
    for source in asked.sources:
        above, _, name = source.rstrip("/").rpartition("/")
        if place_of(source) in configured:
            sources.append(source)
            continue
        path = local_path(source) if is_store_url(source) else Path(source)
        if path is not None and not is_directory(path):
            raise UsageError(f"{source} is not a directory", hint="give a log dir, or a partition's directory in one")
        parsed = parse_partition_dir_name(name)
        is_partition = parsed is not None and str(parsed.topic_partition) == name and place_of(above) in configured
        sources.append(above if is_partition else source)
        partitions += [name] if is_partition else []
    is_whole = len(partitions) < len(asked.sources)  # what else is in the log dirs is scanned, too
    return replace(
        asked,
        sources=tuple(dict.fromkeys(sources)),
        partitions=asked.partitions if is_whole else tuple(dict.fromkeys(partitions)),
    )


def check_still_within_places(settings: Settings, kept: RunRequest) -> None:
    """Make sure that what was asked for earlier may be asked for now; a schedule's own places may be relative.

    Raises:
        PlaceForbiddenError: it may not.

    """
    destination = kept.destination and absolute_places([kept.destination])[0]
    within_places(settings, replace(kept, sources=tuple(absolute_places(kept.sources)), destination=destination))


def absolute_places(places: Iterable[str]) -> list[str]:
    """Return places of the configuration, which may be relative to where the service was started."""
    return [place if is_store_url(place) else str(Path(place).absolute()) for place in places]


_LONGEST: Final = 4096
"""Longest path on Linux."""
_S3: Final = "s3://"


def admitting(setting: str, allowed: Sequence[str]) -> Callable[[str], str]:
    """Return what admits places at or below those that ``setting`` has: paths, ``file:///`` URLs, ``s3://`` URLs.

    It returns the place to use for one: a path or ``file://`` URL without links, which are followed each time, or the
    ``s3://`` URL. It raises UsageError for what is neither a path nor a URL of a known form, PlaceForbiddenError for
    any other place.

    Raises:
        ConfigurationError: one of ``allowed`` has another form.

    """
    try:
        known = [_parse(place) for place in allowed]
    except UsageError as error:
        raise ConfigurationError(f"{setting}: {error}", hint=error.hint) from error
    directories = [place for place in known if isinstance(place, Path)]
    prefixes = [place for place in known if isinstance(place, str)]

    def admit(place: str) -> str:
        parsed = _parse(place)
        if isinstance(parsed, Path):
            path = _resolve(parsed)
            if path is not None and any(path.is_relative_to(below) for below in map(_resolve, directories) if below):
                return path.as_uri() if is_store_url(place) else str(path)
        elif any(parsed == prefix or parsed.startswith(f"{prefix}/") for prefix in prefixes):
            return parsed
        what = ", ".join(map(str, (*directories, *prefixes))) or "nothing: set it"
        raise PlaceForbiddenError(f"{place!r} is not a place that requests may name", hint=f"{setting} allows {what}")

    return admit


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
        resolved = path.resolve()
    except (OSError, RuntimeError):
        return None
    # From Python 3.13 on a circle is no error, and the path ends at one of its links, or passes through it.
    return None if any(part.is_symlink() for part in (resolved, *resolved.parents)) else resolved


def _prefix(place: str) -> str:
    rest = place.removeprefix(_S3).rstrip("/")
    if not {"@", ":"}.isdisjoint(rest.partition("/")[0]):
        # Not repeated: what is refused is kept in the audit.
        raise UsageError("a URL with credentials or a port in it: expected s3://BUCKET/PREFIX",
                         hint="credentials and the endpoint are the service's own settings")  # fmt: skip
    if not {"?", "#", "\\"}.isdisjoint(rest) or not is_safe_path(rest):
        raise UsageError(f"{place!r}: expected s3://BUCKET/PREFIX without empty parts, '.', '..', ? or #")
    return _S3 + rest
