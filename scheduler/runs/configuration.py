"""The settings of runs: the service's own, reloaded on request, overridden by a request's settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnap.scheduler.access.places import Places
from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.settings.layers import line_of
from resnap.scheduler.settings.loading import load_settings, settings_file
from resnap.scheduler.settings.service import RUN_SETTINGS
from resnap.scheduler.settings.values import meant
from resnap.storage.disk import is_directory
from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.log.names import parse_partition_dir_name
from resnap.storage.stores.urls import check_form, is_store_url, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resnap.scheduler.runs.run import RunRequest
    from resnap.scheduler.settings.declaration import SettingFiles
    from resnap.scheduler.settings.service import ScheduleSpec
    from resnap.scheduler.settings.settings import Settings


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
        hint = meant(strange[0], RUN_SETTINGS | verb.of_runs.keys())
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
    sources = Places.of(
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
    destinations = Places.of("allow-destinations", [*settings.allow_destinations, *absolute_places(targets)])
    return replace(
        asked,
        sources=tuple(sources.admit(place) for place in asked.sources),
        destination=None if asked.destination is None else destinations.admit(asked.destination),
        settings=asked.settings if remote is None else {**asked.settings, "remote": sources.admit(str(remote))},
    )


def scanned_sources(settings: Settings) -> tuple[str, ...]:
    """Return the sources that are scanned regularly, as the configuration names them."""
    scheduled = [place for spec in settings.schedules if spec.run == "scan" for place in spec.sources]
    return tuple(dict.fromkeys([*map(str, settings.log_dirs), *scheduled]))


def place_of(source: str) -> Path | str:
    """Return what ``source`` leads to, by which two names of one place are known."""
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
