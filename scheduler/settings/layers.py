"""The layers of settings: flags, the environment, a TOML file, and the broker's ``server.properties``.

Each source becomes a layer, a mapping from the name of a setting to its raw value and its origin. Layers do not judge
values; ``loading`` does, and says the origin when it refuses one.

A file may spell a setting in snake case, in kebab case, or as Kafka does with dots, at the top or in tables:
``producer.id.expiration.ms = 604800000`` and ``producer-id-expiration-ms = 604800000`` are the same, and so are
``s3-region = "eu"`` and a ``[s3]`` table with ``region = "eu"``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.scheduler.settings.declaration import FLAG_ORIGIN, GIVEN_ORIGINS, RUN_ORIGIN, Given, Layer, Steps
from resnap.scheduler.settings.service import FleetEntry, ScheduleSpec
from resnap.scheduler.settings.settings import DECLARED
from resnap.scheduler.settings.values import did_you_mean
from resnap.storage.errors import ConfigurationError, FormatError, UsageError, in_file
from resnap.storage.log.properties import read_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ENVIRONMENT_PREFIX: Final = "RESNAP_"
RANKS: Final = "flags override the environment, which overrides the file, which overrides server.properties"
ALIASES: Final = {
    re.sub(r"[-.]", "_", spelled.removeprefix("--")): setting.name
    for setting in DECLARED.values()
    for spelled in (setting.flag, *setting.kafka)
}
"""Settings by the other ways to spell them: a flag that may be given several times is singular, as is ``log.dir``."""
_LIST: Final = "`resnap config show` lists all settings"
_PART: Final = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")
_HEADER: Final = re.compile(r"\s*(\[\[?)([^\[\],=#]+)\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"""\s*((?:[\w.\s-]|"[^"]*"|'[^']*')+?)\s*=""")
_URL: Final = re.compile(r".*://|[A-Za-z0-9]+:")
"""Also one whose slashes are missing: it is refused as it was given."""
KAFKA_PROPERTIES: Final = {key: setting.name for setting in DECLARED.values() for key in setting.kafka}
"""What a broker's configuration says that concerns us; the first of two names wins, as it does for the broker."""


def flag_layer(flags: Mapping[str, object], of_run: Mapping[str, object] | None = None) -> Layer:
    """Return the flags that were given, and over them ``of_run``; None and empty stand for those that were not."""
    given = {name: (value, f"{FLAG_ORIGIN} {DECLARED[name].flag}") for name, value in flags.items()}
    given |= {name: (value, RUN_ORIGIN) for name, value in (of_run or {}).items()}
    return {
        name: _with_origin(name, value, origin) for name, (value, origin) in given.items() if value not in (None, [])
    }


def environment_layer(environment: Mapping[str, str]) -> tuple[Layer, tuple[str, ...]]:
    """Return what ``RESNAP_*`` variables set, and those of them that set nothing.

    An unknown variable is not an error: what starts a container may have variables of its own. An empty one is not set.
    """
    layer, unknown = Layer(), []
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not environment[variable]:
            continue
        name = setting_name(variable.removeprefix(ENVIRONMENT_PREFIX))
        if name in DECLARED:
            layer[name] = _with_origin(name, environment[variable], f"env {variable}")
        else:
            unknown.append(variable)
    return layer, tuple(unknown)


def file_layer(path: Path) -> tuple[Layer, dict[Steps, str]]:
    """Return what the TOML file at ``path`` sets, and where each of its keys is.

    Raises:
        ConfigurationError: it cannot be read, is not TOML, or sets what does not exist.

    """
    layer, (text, table) = Layer(), _load_toml(path)
    lines = {steps: f"{path}, line {number}" for steps, number in _lines(text).items()}
    for name, value in _flatten(table):
        where = lines.get((name,), str(path))
        if name not in DECLARED:
            raise ConfigurationError(f"{where}: there is no setting {name!r}", hint=_where_it_belongs(name))
        given = _with_origin(name, value, f"file {where}")
        layer[name] = given._replace(value=_beside(path.parent, name, given.value))
    return layer, lines


def line_of(lines: Mapping[Steps, str], steps: Steps) -> str | None:
    """Return the line of the key at ``steps``, or of the nearest table around it; None if neither is known."""
    return next((lines[steps[:end]] for end in range(len(steps), 0, -1) if steps[:end] in lines), None)


def server_properties_layer(path: Path) -> Layer:
    """Return what a broker's configuration at ``path`` says that concerns us; everything else in it is ignored.

    Raises:
        ConfigurationError: it cannot be read, or not as Kafka would.

    """
    properties = static_properties(path)
    layer = Layer()
    for key, name in KAFKA_PROPERTIES.items():
        if properties.get(key, "").strip():
            layer.setdefault(name, Given(properties[key].strip(), f"server.properties {path}"))
    return layer


_OF_BROKERS: Final = frozenset({"log.dirs", "log.dir", "process.roles", "zookeeper.connect", "listeners"})
_OTHER_FILES: Final = {
    "cluster.id": "meta.properties, which names the log dir that it lies in",
    "bootstrap.servers": "a client's configuration",
    "log4j.rootLogger": "the configuration of log4j",
}
"""Files that are mistaken for a broker's configuration, by a key that they have."""


def static_properties(path: Path) -> dict[str, str]:
    """Return all that a broker's configuration at ``path`` says; raises as ``server_properties_layer`` does."""
    try:
        with in_file(path):
            properties = read_properties(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"server properties {path}: {_error_text(error)}", hint="give the broker's own file"
        ) from error
    except FormatError as error:
        raise ConfigurationError(f"server properties {error}", hint="give the broker's own file") from error
    other = next((what for key, what in _OTHER_FILES.items() if key in properties), None)
    if other is not None and _OF_BROKERS.isdisjoint(properties):
        raise ConfigurationError(
            f"server properties {path}: this is {other}: expected a broker's configuration, with log.dirs in it",
            hint="give the file that the broker is started with, such as /etc/kafka/server.properties",
        )
    return properties


def node_named(static: Mapping[str, str]) -> str | None:
    """Return whose ``server.properties`` they are; None where they do not say, as with an id that is generated."""
    stated = static.get("node.id", static.get("broker.id", "")).strip()
    return None if stated in ("", "-1") else stated


def value_in(layers: Iterable[Layer], name: str) -> object:
    """Return the raw value of the setting ``name`` in the first layer that gives it, or None."""
    return next((layer[name].value for layer in layers if name in layer), None)


def path_in(layers: Iterable[Layer], name: str) -> Path | None:
    """Return the path in the first layer that gives the setting ``name``, or None."""
    value = value_in(layers, name)
    return None if value is None else Path(str(value))


def merge_layers(layers: Iterable[Layer]) -> dict[str, object]:
    """Return the raw value of each setting that is given; of mappings the entries of all layers."""
    values: dict[str, object] = {}
    for layer in layers:
        for name, given in layer.items():
            above = values.setdefault(name, given.value)
            if isinstance(above, dict) and isinstance(given.value, dict):
                values[name] = {**given.value, **above}
    return values


def origins_of(layers: Iterable[Layer]) -> dict[str, str]:
    """Return where each setting was given; a mapping may come from several layers."""
    origins: dict[str, str] = {}
    for layer in layers:
        for name, given in layer.items():
            if name in origins and isinstance(given.value, dict):
                origins[name] += f", {given.origin}"
            origins.setdefault(name, given.origin)
    return origins


def _load_toml(path: Path) -> tuple[str, dict[str, object]]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows write a byte order mark
        return text, tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(
            f"configuration file {path}: {_error_text(error)}", hint="check --config and RESNAP_CONFIG"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from error


def _lines(text: str) -> dict[Steps, int]:
    """Return the line of each key of TOML, and the first of each table, by the steps to it."""
    found, table, entries = dict[Steps, int](), Steps(), Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            first, *others = _PART.findall(header[2])
            entries[first] += header[1] == "[["
            path = table = (first, *([entries[first] - 1] if entries[first] else []), *others)
        elif key := _KEY.match(line):
            path = (*table, *_PART.findall(key[1]))
        else:
            continue
        for end in range(1, len(path) + 1):
            found.setdefault(_steps(path[:end]), number)
    return found


def _steps(path: Steps) -> Steps:
    """Return the name of the setting that the first of these keys are, as in ``_flatten``, and the others."""
    keys = [str(key).strip("\"'") if isinstance(key, str) else key for key in path]
    words = list(takewhile(lambda key: isinstance(key, str), keys))
    names = {end: setting_name("_".join(map(str, words[:end]))) for end in range(len(words), 0, -1)}
    end = next((end for end, name in names.items() if name in DECLARED), len(words))
    return (names[end], *keys[end:])


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = setting_name(f"{prefix}{key}")
        if isinstance(value, dict) and not (name in DECLARED and DECLARED[name].is_mapping):
            yield from _flatten(value, f"{name}_" if name != "resnap" else "")
        else:
            yield name, value


def setting_name(text: str) -> str:
    """Return the name of a setting however it is spelled."""
    name = re.sub(r"[-.]", "_", text).lower().removeprefix("resnap_")
    return ALIASES.get(name, name)


def _with_origin(name: str, value: object, origin: str) -> Given:
    """Return the value with its origin; a table's entries become one mapping, however they came."""
    if not DECLARED[name].is_mapping:
        return Given(value, origin)
    try:
        return Given(_mapping(value), origin)
    except ValueError as error:
        raise refusal(f"{name.replace('_', '-')} ({origin}): {error}", origin) from error


def refusal(message: str, origin: str) -> UsageError | ConfigurationError:
    """Return the error to raise for a value from ``origin``: one that was given for this run is a matter of usage."""
    if origin.startswith(GIVEN_ORIGINS):
        return UsageError(message)
    return ConfigurationError(message, hint=f"correct it there, or override it: {RANKS}")


def _mapping(value: object) -> dict[str, str]:
    """Return the entries of a TOML table, a JSON object, or ``KEY=VALUE`` strings."""
    if isinstance(value, str):
        value = json.loads(value) if value.lstrip().startswith("{") else value.split(";")
    if isinstance(value, dict):
        return {key: json.dumps(entry) if isinstance(entry, bool) else str(entry) for key, entry in _join_dots(value)}
    entries = [str(entry).partition("=") for entry in value] if isinstance(value, list | tuple) else [("", "", "")]
    if not all(separator and key.strip() for key, separator, _ in entries):
        raise ValueError("expected KEY=VALUE")
    return {key.strip(): entry for key, _, entry in entries}


def _join_dots(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Undo what TOML makes of a key with dots that was not quoted."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _join_dots(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _beside(directory: Path, name: str, value: object) -> object:
    """Return ``value`` of the setting ``name`` with paths relative to ``directory``, those of schedules included."""
    if name == "schedules" and isinstance(value, list):
        return [
            {**table, **{key: _relative_to(directory, table[key]) for key in ("sources", "to") if key in table}}
            if isinstance(table, dict)
            else table
            for table in value
        ]
    return _relative_to(directory, value) if DECLARED[name].setting.is_path and value != "none" else value


def _relative_to(directory: Path, value: object) -> object:
    if isinstance(value, list):
        return [_relative_to(directory, entry) for entry in value]
    if isinstance(value, dict):
        return {key: _relative_to(directory, entry) for key, entry in value.items()}
    if not isinstance(value, str) or _URL.match(value):
        return value
    return ",".join(str(directory / part.strip()) for part in value.split(","))


def _where_it_belongs(name: str) -> str:
    """Return what to do about a name that is none of a setting."""
    for table, keys in (("schedules", ScheduleSpec.model_fields), ("fleet", FleetEntry.model_fields)):
        if name.removeprefix(f"{table}_") in keys:  # also of a table [schedules]
            return f"it is a key of tables [[{table}]]"
    return did_you_mean(name.replace("_", "-"), (declared.replace("_", "-") for declared in DECLARED), _LIST)


def resembling_variable(variable: str) -> str:
    """Return which variable may have been meant where ``variable`` sets nothing."""
    name = setting_name(variable.removeprefix(ENVIRONMENT_PREFIX))
    return did_you_mean(name.upper(), map(str.upper, DECLARED), _LIST, ENVIRONMENT_PREFIX)


def _error_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
