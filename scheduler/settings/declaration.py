"""Declares a setting once, which defines its flag, environment variable, Kafka property and default.

A setting is a field of a group of settings: ``name: Annotated[type, Setting("description", "METAVAR")] = default``.
This generates its flag with help, ``RESNAP_NAME``, the key in a file, its row in ``config show`` and in
``docs/reference.md``, and what a schedule or a request may set. To add a setting, add its field here beside, in
``replay``, ``store``, ``service`` or ``settings``, and a line in ``docs/deploy/resnap.toml``. Commands
that take the whole group have its flag then; others name it (``scheduler.cli.flags``). A new group is a base of
``settings.Settings``, and has its row in ``scheduler.cli.flags`` and in ``ALL`` there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from inspect import get_annotations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from resnap.scheduler.settings.values import (
    did_you_mean,
    duration_text,
    parse_duration,
    parse_size,
    size_text,
    split_list,
)

DEFAULT_ORIGIN: Final = "default"
FLAG_ORIGIN: Final = "flag"
RUN_ORIGIN: Final = "setting of this run"
"""What a schedule, or a request to the API, gives for one run."""
GIVEN_ORIGINS: Final = (FLAG_ORIGIN, RUN_ORIGIN)
"""How the origins of values begin that were given for one run, and not configured."""
UNKNOWN_KEY: Final = "unknown_key"
"""Type of the error of ``KnownKeys``."""


class Given(NamedTuple):
    """A raw value and its origin."""

    value: object
    origin: str


Layer: TypeAlias = dict[str, Given]
"""What one place gives, by name of the setting."""


Steps: TypeAlias = tuple[str | int, ...]
"""The name of a setting, and the keys and numbers from 0 that lead on to a value within."""


class SettingFiles(NamedTuple):
    """What was read of the files that settings come from."""

    configuration: Layer
    lines: Mapping[Steps, str]
    """Where each of its keys is: its file and line, by the name of the setting and the steps within that."""
    properties: Path | None
    static: Layer
    """What the ``server.properties`` at that path say."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting, besides its name, type and default.

    Attributes:
        description: the help of its flag; the default is added to it.
        metavar: what stands for a value in ``--help``; of numbers and times it follows from the type.
        flag: where it is not spelled like the setting, or of a list like one of its entries; empty for no flag.
        short: the flag's short form.
        is_kafkas: whether the setting is Kafka's own, with dots in its name.
        kafka: keys of ``server.properties`` that give it, if not that alone; the first wins, and is the name shown.
        for_runs: whether a schedule or a request may set it for its own runs.
        at_start: whether a running service keeps its value until it is restarted.

    """

    description: str
    metavar: str | None = None
    _: KW_ONLY
    flag: str | None = None
    short: str | None = None
    is_kafkas: bool = False
    kafka: tuple[str, ...] = ()
    for_runs: bool = False
    at_start: bool = False

    @property
    def is_path(self) -> bool:
        """Whether it names files or directories; in a configuration file they are relative to that file."""
        return "FILE" in (self.metavar or "") or "DIR" in (self.metavar or "")


def from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """Parse a string, and leave anything else to the type."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _not_negative(value: timedelta) -> timedelta:
    if value < timedelta(0):
        raise ValueError("expected a duration of 0s or more")
    return value


def _named(values: tuple[str, ...]) -> tuple[str, ...]:
    if "" in values:
        raise ValueError("an entry is empty: a shell variable may not be set")
    return values


Listed: TypeAlias = Annotated[tuple[str, ...], from_text(split_list), AfterValidator(_named)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=2**63 - 1)]
"""As Kafka has them, a Java long."""
Size: TypeAlias = Annotated[int, from_text(parse_size), Field(ge=1, le=2**63 - 1)]
Duration: TypeAlias = Annotated[timedelta, from_text(parse_duration), AfterValidator(_not_negative)]


class KnownKeys(BaseModel):
    """A table or an object that has no other keys than its own; of another one it says which was probably meant."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_no_other_keys(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name: name for name, field in cls.model_fields.items()}
        names = {*known, *(known.values() if cls.model_config.get("populate_by_name") else ())}
        strange = [
            InitErrorDetails(type=_unknown(str(key), known), loc=(key,), input=value[key])
            for key in value
            if key not in names
        ]
        if strange:
            raise ValidationError.from_exception_data(cls.__name__, strange)
        return value


def _unknown(key: str, known: Iterable[str]) -> PydanticCustomError:
    return PydanticCustomError(UNKNOWN_KEY, "there is no such key; {meant}", {"meant": did_you_mean(key, known)})


class SettingGroup(BaseModel):
    """Settings that belong together, which know where they were given."""

    model_config = ConfigDict(defer_build=True)

    title: ClassVar[str]
    """Heading of their flags in ``--help``."""
    at_start: ClassVar[bool] = False
    """Whether a running service keeps the values of all of them until it is restarted."""
    origins: Mapping[str, str] = Field(default_factory=dict, exclude=True)
    """Origin by setting, for those that were given."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is expected: they would be 1 and 0."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("expected another value than true or false")
        return value

    def origin(self, name: str) -> str:
        """Return where the value of the setting ``name`` was given."""
        return self.origins.get(name, DEFAULT_ORIGIN)


class Declared(NamedTuple):
    """A setting with its name, its type and its group."""

    name: str
    setting: Setting
    field: FieldInfo
    group: type[SettingGroup]

    @property
    def flag(self) -> str:
        """The flag; empty where there is none."""
        name = self.name.replace("_", "-")
        if get_origin(self.field.annotation) is tuple:
            name = f"{name.removesuffix('ies')}y" if name.endswith("ies") else name.removesuffix("s")
        return f"--{name}" if self.setting.flag is None else self.setting.flag

    @property
    def kafka(self) -> tuple[str, ...]:
        """Kafka's names of it, if any."""
        return (self.name.replace("_", "."),) if self.setting.is_kafkas else self.setting.kafka

    @property
    def metavar(self) -> str | None:
        """What stands for a value in ``--help``."""
        kind, is_parsed = self._kind()
        if kind is timedelta:
            return "DURATION"
        if self.setting.metavar is not None or kind is not int:
            return self.setting.metavar
        return "SIZE" if is_parsed else "MS" if self.name.endswith("_ms") else "N"

    @property
    def key(self) -> str:
        """Kafka's name of a setting that is Kafka's, and the flag's without dashes of any other."""
        return next(iter(self.kafka), "") or self.flag.removeprefix("--") or self.name

    @property
    def default(self) -> str:
        """The default as an operator would write it; empty where nothing is the default."""
        value = self.field.get_default(call_default_factory=True)
        if value is None or value is False or value in ((), {}, ""):
            return ""
        if isinstance(value, timedelta):
            return duration_text(value)
        return size_text(value) if self.metavar == "SIZE" and isinstance(value, int) else str(value)

    @property
    def at_start(self) -> bool:
        """Whether a running service keeps the value until it is restarted."""
        return self.setting.at_start or self.group.at_start

    @property
    def is_mapping(self) -> bool:
        """Whether it is a table, whose entries of all places are merged."""
        return get_origin(self.field.annotation) is Mapping

    def command_line_type(self) -> Any:  # noqa: ANN401 - a type
        """Return the type as the parser of the command line knows it; what it does not know is text to it."""
        kind, is_parsed = self._kind()
        if get_origin(kind) in (tuple, Mapping):
            return list[str]
        return str if is_parsed else kind

    def _kind(self) -> tuple[Any, bool]:
        """Return the type of values that are given, and whether they are parsed of text."""
        kind, is_parsed = self.field.annotation, any(isinstance(note, BeforeValidator) for note in self.field.metadata)
        given = [member for member in get_args(kind) if member is not type(None)]
        if len(given) < len(get_args(kind)):  # optional
            is_parsed = is_parsed or any(isinstance(extra, BeforeValidator) for extra in get_args(given[0])[1:])
            kind = get_args(given[0])[0] if get_origin(given[0]) is Annotated else given[0]
        return kind, is_parsed


def declared_in(settings: type[SettingGroup]) -> Iterator[Declared]:
    """Yield the settings of a class, those of its bases included, in their order."""
    for name, field in settings.model_fields.items():
        setting = next((extra for extra in field.metadata if isinstance(extra, Setting)), None)
        if setting is not None:
            group = next(base for base in settings.__mro__ if name in get_annotations(base))
            yield Declared(name, setting, field, group)
