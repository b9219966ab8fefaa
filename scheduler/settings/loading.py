"""Loads the settings of one command from flags, the environment, files and the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN, UNKNOWN_KEY, Layer, SettingFiles
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.layers import (
    environment_layer,
    file_layer,
    flag_layer,
    line_of,
    merge_layers,
    origins_of,
    path_in,
    refusal,
    server_properties_layer,
    value_in,
)
from resnap.scheduler.settings.settings import DECLARED, Settings
from resnap.scheduler.settings.values import shown_as
from resnap.storage.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resnap.scheduler.settings.declaration import Steps
    from resnap.scheduler.settings.settings import SharedCluster

DEFAULT_FILE: Final = "resnap.toml"
NOWHERE: Final = "none"
"""Value of ``state_dir`` for runs that keep nothing."""


def state_directory(settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Return where what runs find out is kept for later ones; None for nowhere.

    Raises:
        UsageError: not a directory of this machine.

    """
    if settings.state_dir is not None:
        if "://" in settings.state_dir:
            raise UsageError(f"--state-dir {settings.state_dir}: it cannot be in a store",
                             hint="give a directory of this machine, or none")  # fmt: skip
        return None if settings.state_dir == NOWHERE else Path(settings.state_dir).absolute()
    states = environment.get("XDG_STATE_HOME", "")
    if states.startswith("/"):  # the XDG Base Directory Specification requires other values to be ignored
        return Path(states, "resnap")
    home = environment.get("HOME", "")
    return Path(home, ".local/state/resnap") if home.startswith("/") else None


def state_directory_of(settings: Settings) -> Path:
    """Return the directory of the service's file.

    Raises:
        ConfigurationError: none is configured.

    """
    directory = state_directory(settings, process_environment())
    if directory is None:
        raise ConfigurationError(
            "the service has no place for its file", hint="give --state-dir DIR, a directory of this machine"
        )
    return directory


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    places: Sequence[str] | None = None,
    ask_cluster: bool = False,
    files: SettingFiles | None = None,
    of_run: Mapping[str, object] | None = None,
    shared_cluster: SharedCluster | None = None,
) -> Settings:
    """Return the settings of one command.

    Args:
        flags: what the command line gave, by name of setting; None stands for a flag that was not given.
        environment: the process's own, unless given.
        directory: where ``resnap.toml`` is looked for; the working directory, unless given.
        places: the SOURCE arguments, where what a metadata log says counts; empty for ``log.dirs``, None for a
            command to which it does not matter.
        ask_cluster: whether the running cluster, where one is named, is asked what its brokers use.
        files: what was read of them for earlier settings, which are not read again then.
        of_run: what a schedule, or a request, gives for this run, over the flags.
        shared_cluster: the connection to the cluster, which the caller closes; without it each question has its own.

    Raises:
        UsageError: a flag's value cannot be used.
        ConfigurationError: another value cannot be used, or a file cannot be read.
        ResnapError: the metadata log, or the cluster, that was named cannot be used.

    """
    variables = process_environment() if environment is None else environment
    given = flag_layer(flags or {}, of_run)
    from_environment, unknown = environment_layer(variables)
    layers = [given, from_environment]
    read = files or _read_files(layers, directory)
    layers.append(read.configuration)
    if "command_config" in given and value_in(layers, "bootstrap_server") is None:
        hint = "give --bootstrap-server HOST:PORT with it"
        raise UsageError("--command-config is given, but no cluster", hint=hint)
    learned, warnings, metadata = list[Layer](), tuple[str, ...](), None
    if places is not None or (ask_cluster and value_in(layers, "bootstrap_server")):
        from resnap.scheduler.settings.metadata import learn  # noqa: PLC0415 - Kafka's formats, which few need

        learned, warnings, metadata = learn(layers, read, places, ask_cluster=ask_cluster, shared=shared_cluster)
    layers += [*learned, read.static]
    origins = origins_of(layers)
    try:
        return Settings(
            **merge_layers(layers),  # type: ignore[arg-type] # raw values, which are judged here
            origins=origins,
            unknown_variables=unknown,
            metadata_warnings=warnings,
            metadata=metadata,
            files=read,
            shared_cluster=shared_cluster,
        )
    except ValidationError as error:
        raise _refusal(error, origins, read.lines) from error


def _read_files(layers: list[Layer], directory: Path | None) -> SettingFiles:
    file = _file(layers, directory)
    configuration, lines = (Layer(), {}) if file is None else file_layer(file)
    properties = path_in([*layers, configuration], "server_properties")
    static = Layer() if properties is None else server_properties_layer(properties)
    return SettingFiles(configuration, lines, properties, static)


def settings_file(
    flags: Mapping[str, object], environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> Path | None:
    """Return the file that ``load_settings`` reads when it is given the same; None if there is none."""
    variables = process_environment() if environment is None else environment
    return _file([flag_layer(flags), environment_layer(variables)[0]], directory)


def _file(layers: list[Layer], directory: Path | None) -> Path | None:
    path = (directory or Path()) / DEFAULT_FILE
    return path_in(layers, "config") or (path if path.is_file() else None)


def _refusal(
    error: ValidationError, origins: Mapping[str, str], lines: Mapping[Steps, str]
) -> UsageError | ConfigurationError:
    """Say which setting, from where, what was expected and what was found; the first of several problems."""
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0])
    origin = origins.get(name, DEFAULT_ORIGIN)
    expected = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    # Within a table, such as the second of [[schedules]], the key says where.
    within = "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in problem["loc"][1:])
    if within and origin.startswith("file "):
        origin = f"file {line_of(lines, problem['loc'])}"
    if problem["type"] == UNKNOWN_KEY:
        return ConfigurationError(
            f"{DECLARED[name].key}{within} ({origin}): there is no such key", hint=problem["ctx"]["meant"]
        )
    found = shown_as(str(problem["loc"][-1]), problem["input"])
    message = f"{DECLARED[name].key}{within} ({origin}): {expected}, found {found!r}"
    return refusal(message, origin)
