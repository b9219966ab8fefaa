"""What an operator can set: one frozen value, made once per command, in which every setting knows where it came from.

What lies below ``scheduler`` gets plain values out of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, InstanceOf, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from resnap.scheduler.answers.rendering import Form
from resnap.scheduler.settings.kinds import DEFAULT_ORIGIN, from_text
from resnap.scheduler.settings.layers import KAFKA_PROPERTIES, Layer, SettingFiles, flag_of, origins_of, refusal
from resnap.scheduler.settings.replay import EngineSettings, ReplaySettings
from resnap.scheduler.settings.service import ServiceSettings
from resnap.scheduler.settings.shipping import ShippingSettings
from resnap.scheduler.settings.store import StoreSettings
from resnap.scheduler.settings.values import shown_as, split_list
from resnap.scheduler.use_cases.cluster_metadata import ClusterMetadata
from resnap.storage.errors import ConfigurationError, UsageError


class Settings(ServiceSettings, StoreSettings, ShippingSettings, EngineSettings, ReplaySettings, BaseSettings):
    """Every setting; the description of each is the help of its flag."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    state_dir: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="Where what earlier runs found out is kept; none for nowhere, else $XDG_STATE_HOME/resnap or"
        " ~/.local/state/resnap.",
    )
    fresh: bool = Field(default=False, description="Find everything out anew, whatever earlier runs have found.")
    dry_run: bool = Field(default=False, description="Say what would be done, with totals, and write nothing.")

    log_dirs: Annotated[tuple[Path, ...], from_text(split_list)] = Field(
        default=(), description="log.dirs of the broker."
    )

    output: Form = Field(default="table", description="Form of the answer.")
    quiet: bool = Field(default=False, description="Nothing but the answer and errors.")
    verbose: bool = Field(default=False, description="Say more; show the traceback of a bug.")

    config: Path | None = Field(default=None, description="TOML file with settings, else ./resnap.toml.")
    server_properties: Path | None = Field(default=None, description="A broker's server.properties to learn from.")
    metadata_log: Path | None = Field(
        default=None, description="The cluster's __cluster_metadata-0, or the log dir that holds it, to learn from."
    )

    unknown_variables: tuple[str, ...] = Field(default=(), exclude=True)
    """``RESNAP_*`` variables that set nothing."""
    metadata_warnings: tuple[str, ...] = Field(default=(), exclude=True)
    """What a metadata log and other places do not agree on."""
    metadata: InstanceOf[ClusterMetadata] | None = Field(default=None, exclude=True)
    """The metadata log that the settings were read from, if there was one."""
    files: InstanceOf[SettingFiles] | None = Field(default=None, exclude=True)
    """What was read of the files, for settings that are to rest on the same."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - layers read the environment, and keep origins
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values given in code, then the layers of ``load_settings``, the first of which wins."""
        given = dict(init_settings.init_kwargs) if isinstance(init_settings, InitSettingsSource) else {}
        layers: tuple[Layer, ...] = given.pop("layers", ())
        return InitSettingsSource(settings_cls, given), *(_LayerSource(settings_cls, layer) for layer in layers)

    @classmethod
    def from_layers(
        cls,
        layers: tuple[Layer, ...],
        unknown_variables: tuple[str, ...],
        metadata_warnings: tuple[str, ...] = (),
        metadata: ClusterMetadata | None = None,
        files: SettingFiles | None = None,
    ) -> Self:
        """Return the settings that ``layers`` make, the first of which wins.

        Raises:
            UsageError: a flag's value cannot be used.
            ConfigurationError: another value cannot be used.

        """
        origins = origins_of(layers)
        values: dict[str, Any] = {
            "layers": layers,
            "origins": origins,
            "unknown_variables": unknown_variables,
            "metadata_warnings": metadata_warnings,
            "metadata": metadata,
            "files": files,
        }
        try:
            return cls(**values)
        except ValidationError as error:
            raise _refusal(error, origins) from error


class _LayerSource(PydanticBaseSettingsSource):
    """A layer, as pydantic-settings ranks it."""

    def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[object, str, bool]:  # noqa: ARG002
        """Return a setting's raw value; what would parse it further does not apply."""
        given = self._layer.get(field_name)
        return (given.value if given else None), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {name: given.value for name, given in self._layer.items()}


def display_name(name: str) -> str:
    """Return Kafka's name of a setting that is Kafka's, and the flag's without dashes in front of any other."""
    kafka = {setting: key for key, setting in reversed(KAFKA_PROPERTIES.items())}
    return kafka.get(name) or flag_of(name).removeprefix("--")


SETTING_NAMES: Final = tuple(name for name, field in Settings.model_fields.items() if not field.exclude)
"""In the order of ``config show``: by group."""


def _refusal(error: ValidationError, origins: Mapping[str, str]) -> UsageError | ConfigurationError:
    """Say which setting, from where, what was expected and what was found; the first of several problems."""
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0])
    origin = origins.get(name, DEFAULT_ORIGIN)
    expected = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    # Within a table, such as the second of [[schedules]], the key says where.
    within = "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in problem["loc"][1:])
    if problem["type"] == "extra_forbidden":
        expected = "there is no such key"
    found = shown_as(str(problem["loc"][-1]), problem["input"])
    message = f"{display_name(name)}{within} ({origin}): {expected}, found {found!r}"
    return refusal(message, origin)
