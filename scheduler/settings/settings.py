"""What an operator can set, from flags, then the environment, then a file, then the broker's own configuration.

``Settings`` is one frozen value in which every setting knows where it came from. It is made once per command, and what
lies below ``scheduler`` gets plain values out of it. This is the one module that reads the process environment.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, InstanceOf, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from replay.scan.reading import HEADER_READ_BYTES, PRODUCERS_PER_TASK, SPLIT_BYTES
from replay.spark.settings import SparkSettings
from replay.window import DEFAULT_CHECK_INTERVAL_MS, DEFAULT_EXPIRATION_MS, DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
from scheduler.answers.rendering import Form
from scheduler.clock import milliseconds
from scheduler.inspecting.key_files import key_ring, public_key
from scheduler.io_priority import IoPriority
from scheduler.settings.layers import (
    FLAG_ORIGIN,
    KAFKA_PROPERTIES,
    Layer,
    environment_layer,
    file_layer,
    flag_layer,
    flag_of,
    origins_of,
    refusal,
    server_properties_layer,
    value_in,
)
from scheduler.settings.metadata import (
    NOTHING,
    SETTING,
    FromMetadata,
    contradiction,
    metadata_layer,
    of_another_node,
)
from scheduler.settings.s3_values import customer_key, storage_class
from scheduler.settings.service import ServiceSettings
from scheduler.settings.values import parse_as_of, parse_duration, parse_size, shown, split_list
from scheduler.use_cases.cluster_metadata import ClusterMetadata, find_metadata_log
from storage.errors import ConfigurationError, UsageError
from storage.remote.layouts.aiven_body import CHUNK_BYTES, MAX_CHUNK_BYTES, AivenForm, Compression
from storage.remote.layouts.aiven_keys import KeyRing
from storage.remote.ranged_reader import RANGE_BYTES, RANGES_IN_FLIGHT
from storage.remote.s3_settings import AddressingStyle, ChecksumMode, Encryption, S3Settings
from storage.remote.urls import is_store_url
from tiering.shipping.delivery import Verification
from tiering.shipping.uploader import Layout

DEFAULT_FILE: Final = "resnap.toml"
PARALLEL: Final = 4
"""Segments on their way at once: each holds a part of 16 MiB."""
DEFAULT_ORIGIN: Final = "default"
_OF_AIVEN: Final = ("key_prefix", "chunk_size", "chunk_compression", "encryption_public_key")
NOWHERE: Final = "none"
"""Value of ``state_dir`` for runs that keep nothing."""


def _from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """Parse a string, and leave anything else to the type."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


_Listed = _from_text(split_list)
Milliseconds: TypeAlias = Annotated[int, Field(ge=1)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Size: TypeAlias = Annotated[int, _from_text(parse_size), Field(ge=1)]


class Settings(ServiceSettings, BaseSettings):
    """Every setting; the description of each is the help of its flag."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    topics: Annotated[tuple[str, ...], _Listed] = Field(
        default=(), description="Only topics that match GLOB; may be given several times."
    )
    boundaries: Literal["missing", "all"] = Field(
        default="missing", description="Which boundaries to work on: those without a usable snapshot, or all."
    )
    as_of: Annotated[Literal["now", "roll"] | datetime, _from_text(parse_as_of)] = Field(
        default="now", description="When expiry is judged: now, roll (each boundary's own time), or an ISO 8601 time."
    )
    producer_id_expiration_ms: Milliseconds | None = Field(
        default=None, description="producer.id.expiration.ms of the brokers that will load the snapshots."
    )
    producer_id_expiration_check_interval_ms: Milliseconds = Field(
        default=DEFAULT_CHECK_INTERVAL_MS, description="producer.id.expiration.check.interval.ms of the same brokers."
    )
    history_expiration_ms: Milliseconds | None = Field(
        default=None,
        description="The expiration under which the log was written, if it differs; before 3.4 that was"
        " transactional.id.expiration.ms.",
    )
    transactional_id_expiration_ms: Milliseconds | None = Field(
        default=None, description="transactional.id.expiration.ms of the brokers; before 3.4 producers expired by it."
    )
    transaction_max_timeout_ms: Milliseconds = Field(
        default=DEFAULT_TRANSACTION_MAX_TIMEOUT_MS, description="transaction.max.timeout.ms of the brokers."
    )
    max_reach_back: Annotated[timedelta | None, _from_text(parse_duration)] = Field(
        default=None, description="How far before the window reading may go on (7d, 36h, 15m); else to the log start."
    )
    high_watermark: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="High watermark of the one partition given, where no checkpoint tells it."
    )
    bootstrap_server: str | None = Field(
        default=None, description="Brokers of the running cluster, HOST:PORT with commas between."
    )
    command_config: Path | None = Field(
        default=None, description="Properties for connecting to the cluster, as Kafka's own tools take them."
    )
    full: bool = Field(default=False, description="Replay from the log start, whatever the window.")

    engine: Literal["spark", "local"] = Field(
        default="spark", description="What replays: Spark, or this process alone, without a JVM."
    )
    spark_master: str = Field(default="local[*]", description="URL of the Spark master.")
    spark_driver_memory: str = Field(default="1g", description="Heap of the Spark driver.")
    spark_conf: Mapping[str, str] = Field(
        default_factory=dict, description="A further Spark property; may be given several times."
    )
    threads: Count | None = Field(default=None, description="Segments that --engine local scans at once.")
    header_read_size: Size = Field(
        default=HEADER_READ_BYTES, description="Mean batch size from which headers are read one by one."
    )
    split_size: Size = Field(default=SPLIT_BYTES, description="Larger segments are cut into parts of about this size.")
    range_size: Size = Field(default=RANGE_BYTES, description="Bytes asked for at once of a segment in a store.")
    ranges_in_flight: Count = Field(
        default=RANGES_IN_FLIGHT, description="Ranges of a segment in a store that are on their way at a time."
    )
    producers_per_task: Count = Field(
        default=PRODUCERS_PER_TASK, description="A partition with more producers is combined by several tasks."
    )
    verify_crc: bool = Field(default=False, description="Read whole batches and compare their checksums.")
    state_dir: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="Where what earlier runs found out is kept; none for nowhere, else $XDG_STATE_HOME/resnap or"
        " ~/.local/state/resnap.",
    )
    fresh: bool = Field(default=False, description="Find everything out anew, whatever earlier runs have found.")
    dry_run: bool = Field(default=False, description="Say what would be done, with totals, and write nothing.")

    parallel: Annotated[int, Field(ge=1, le=64)] = Field(
        default=PARALLEL,
        description="Segments of a partition, and parts of them, that are on their way to the store at once.",
    )
    bwlimit: Size | None = Field(default=None, description="Bytes per second that are sent, and read back, at most.")
    verify_upload: Verification = Field(
        default="auto", description="How uploads are checked: by what the store was seen to keep, or by reading back."
    )
    layout: Layout = Field(default="flat", description="Where objects lie: Resnap's own, or where brokers read them.")
    io_priority: IoPriority = Field(
        default="low", description="Of reading segments, as ionice knows it, so that a broker goes first."
    )

    s3_endpoint_url: str | None = Field(default=None, description="Endpoint of the S3-compatible store.")
    s3_region: str | None = Field(default=None, description="Region of the store.")
    s3_profile: str | None = Field(default=None, description="Section of the shared AWS configuration to use.")
    s3_addressing_style: AddressingStyle | None = Field(
        default=None, description="Where the bucket goes: path is what most stores other than AWS want."
    )
    s3_request_checksum_calculation: ChecksumMode | None = Field(
        default=None, description="when_required, for stores that choke on checksums."
    )
    s3_response_checksum_validation: ChecksumMode | None = Field(
        default=None, description="when_required, for stores that send wrong checksums."
    )
    s3_sse: Encryption | None = Field(
        default=None, description="Encryption by the store: AES256, aws:kms, aws:kms:dsse."
    )
    s3_sse_kms_key_id: str | None = Field(default=None, description="Key of the store's key management to use.")
    s3_sse_customer_key_file: Path | None = Field(
        default=None,
        description="File with a key of 256 bits, raw or base64, that the store is to encrypt with (SSE-C).",
    )
    s3_storage_class: str | None = Field(
        default=None, description="Storage class of what segments consist of; one that can be read at once."
    )
    s3_tag: Mapping[str, str] = Field(
        default_factory=dict, description="A tag on every object that is written; may be given several times."
    )
    s3_expected_bucket_owner: str | None = Field(default=None, description="Account that the bucket must belong to.")
    s3_ca_bundle: Path | None = Field(default=None, description="File of certificates to trust, in PEM.")
    s3_max_attempts: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Attempts at each request, the first included."
    )
    s3_read_timeout: Annotated[timedelta | None, _from_text(parse_duration)] = Field(
        default=None, description="How long an answer may take; 60s unless given."
    )

    key_prefix: str = Field(
        default="", description="In the layout aiven: rsm.config.key.prefix, as it is, below the URL."
    )
    chunk_size: Annotated[int, _from_text(parse_size), Field(ge=1, le=MAX_CHUNK_BYTES)] = Field(
        default=CHUNK_BYTES, description="In the layout aiven: what a segment is cut into, and brokers fetch at once."
    )
    chunk_compression: Compression = Field(
        default="none",
        description="In the layout aiven: of chunks; heuristic: of segments whose first batch is not compressed.",
    )
    encryption_public_key: Mapping[str, str] = Field(
        default_factory=dict,
        description="ID=FILE: in the layout aiven, the RSA key in PEM that segments are encrypted for.",
    )
    encryption_private_key: Mapping[str, str] = Field(
        default_factory=dict,
        description="ID=FILE: a private RSA key in PEM that segments of the layout aiven were encrypted for; may be"
        " given several times.",
    )

    log_dirs: Annotated[tuple[Path, ...], _Listed] = Field(default=(), description="log.dirs of the broker.")

    output: Form = Field(default="table", description="Form of the answer.")
    quiet: bool = Field(default=False, description="Nothing but the answer and errors.")
    verbose: bool = Field(default=False, description="Say more; show the traceback of a bug.")

    config: Path | None = Field(default=None, description="TOML file with settings, else ./resnap.toml.")
    server_properties: Path | None = Field(default=None, description="A broker's server.properties to learn from.")
    metadata_log: Path | None = Field(
        default=None, description="The cluster's __cluster_metadata-0, or the log dir that holds it, to learn from."
    )

    origins: Mapping[str, str] = Field(default_factory=dict, exclude=True)
    """Origin by setting, for those that were given."""
    unknown_variables: tuple[str, ...] = Field(default=(), exclude=True)
    """``RESNAP_*`` variables that set nothing."""
    metadata_warnings: tuple[str, ...] = Field(default=(), exclude=True)
    """What a metadata log and other places do not agree on."""
    metadata: InstanceOf[ClusterMetadata] | None = Field(default=None, exclude=True)
    """The metadata log that the settings were read from, if there was one."""

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
        }
        try:
            return cls(**values)
        except ValidationError as error:
            raise _refusal(error, origins) from error

    def origin(self, name: str) -> str:
        """Return where the value of the setting ``name`` was given."""
        return self.origins.get(name, DEFAULT_ORIGIN)

    @property
    def expiration_ms(self) -> int:
        """After how long of silence a broker forgets a producer; where it is not known, longer rather than shorter."""
        if self.producer_id_expiration_ms is not None:
            return self.producer_id_expiration_ms
        return max(DEFAULT_EXPIRATION_MS, self.transactional_id_expiration_ms or 0)

    @property
    def expiration_origin(self) -> str:
        """Where the expiration comes from; ``assumed`` where nothing tells it."""
        return "assumed" if self.producer_id_expiration_ms is None else self.origin("producer_id_expiration_ms")

    @property
    def expiration_note(self) -> str | None:
        """What to say aloud where the expiration is assumed."""
        if self.producer_id_expiration_ms is not None:
            return None
        return (
            f"producer.id.expiration.ms is not known: {self.expiration_ms} ms is assumed, since too long costs reading"
            " and too short costs correctness; set it with --producer-id-expiration-ms, --metadata-log or"
            " --server-properties"
        )

    @property
    def max_reach_back_ms(self) -> int | None:
        """``max_reach_back`` in milliseconds."""
        return None if self.max_reach_back is None else self.max_reach_back // timedelta(milliseconds=1)

    @property
    def as_of_ms(self) -> int | None:
        """The fixed time of ``as_of``, if it is one."""
        return milliseconds(self.as_of) if isinstance(self.as_of, datetime) else None

    def s3(self) -> S3Settings:
        """Return what overrides boto3's own configuration."""
        return S3Settings(
            endpoint_url=self.s3_endpoint_url,
            region=self.s3_region,
            profile=self.s3_profile,
            addressing_style=self.s3_addressing_style,
            request_checksum_calculation=self.s3_request_checksum_calculation,
            response_checksum_validation=self.s3_response_checksum_validation,
            encryption=self.s3_sse,
            kms_key_id=self.s3_sse_kms_key_id,
            customer_key=customer_key(self.s3_sse_customer_key_file),
            storage_class=storage_class(self.s3_storage_class),
            tags=tuple(self.s3_tag.items()),
            expected_bucket_owner=self.s3_expected_bucket_owner,
            ca_bundle=None if self.s3_ca_bundle is None else str(self.s3_ca_bundle),
            max_attempts=self.s3_max_attempts,
            parts_in_flight=self.parallel,
            read_timeout_s=None if self.s3_read_timeout is None else self.s3_read_timeout.total_seconds(),
        )

    def keys(self) -> KeyRing:
        """Return what encrypted segments are read by.

        Raises:
            ConfigurationError: a file cannot be read, or holds no private RSA key.

        """
        return key_ring(self.encryption_private_key)

    def aiven(self) -> AivenForm:
        """Return how segments are written in the layout ``aiven``; in another one what is set for it means nothing.

        Raises:
            UsageError: a flag of it is given, and another layout.
            ConfigurationError: the public key cannot be read, or is none.

        """
        if self.layout == "aiven":
            return AivenForm(
                key_prefix=self.key_prefix,
                chunk_size=self.chunk_size,
                compression=self.chunk_compression,
                encryption_key=public_key(self.encryption_public_key),
            )
        given = [flag_of(name) for name in _OF_AIVEN if self.origin(name).startswith(FLAG_ORIGIN)]
        if given:
            raise UsageError(f"{', '.join(given)}: of the layout aiven alone", hint="give --layout aiven with it")
        return AivenForm()

    def spark(self) -> SparkSettings:
        """Return how Spark shall run.

        Raises:
            ConfigurationError: a value that Spark would not take.

        """
        return SparkSettings(master=self.spark_master, driver_memory=self.spark_driver_memory, conf=self.spark_conf)


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


def process_environment() -> dict[str, str]:
    """Return the variables of this process; for everybody who needs them, so that nobody else reads them."""
    return dict(os.environ)


def state_directory(settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Return where what runs find out is kept for later ones; None for nowhere.

    Raises:
        UsageError: not a directory of this machine.

    """
    if settings.state_dir is not None:
        if is_store_url(settings.state_dir):
            raise UsageError(f"--state-dir {settings.state_dir}: a store cannot keep it",
                             hint="give a directory of this machine, or none")  # fmt: skip
        return None if settings.state_dir == NOWHERE else Path(settings.state_dir).absolute()
    states = environment.get("XDG_STATE_HOME", "")
    if states.startswith("/"):  # other values are to be ignored, says the XDG Base Directory Specification
        return Path(states, "resnap")
    home = environment.get("HOME", "")
    return Path(home, ".local/state/resnap") if home.startswith("/") else None


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    places: Sequence[str] | None = None,
) -> Settings:
    """Return the settings of one command.

    Args:
        flags: what the command line gave, by name of setting; None stands for a flag that was not given.
        environment: the process's own, unless given.
        directory: where ``resnap.toml`` is looked for; the working directory, unless given.
        places: the SOURCE arguments, where what a metadata log says counts; empty for ``log.dirs``, None for a
            command to which it does not matter.

    Raises:
        UsageError: a flag's value cannot be used.
        ConfigurationError: another value cannot be used, or a file cannot be read.
        ResnapError: the metadata log that was named cannot be used.

    """
    variables = process_environment() if environment is None else environment
    names = SETTING_NAMES
    given = flag_layer(flags or {})
    from_environment, unknown = environment_layer(variables, names)
    layers = [given, from_environment]
    file = _path(layers, "config") or _default_file(directory or Path())
    if file is not None:
        layers.append(file_layer(file, names))
    properties = _path(layers, "server_properties")
    static = Layer() if properties is None else server_properties_layer(properties)
    said = NOTHING if places is None else _from_metadata(layers, static, places)
    stranger = None if properties is None else of_another_node(properties, places or ())
    layers += [said.layer, static]
    warnings = (*said.warnings, *filter(None, [stranger]))
    return Settings.from_layers(tuple(layers), unknown, warnings, said.metadata)


def display_name(name: str) -> str:
    """Return Kafka's name of a setting that is Kafka's, and the flag's without dashes in front of any other."""
    kafka = {setting: key for key, setting in reversed(KAFKA_PROPERTIES.items())}
    return kafka.get(name) or flag_of(name).removeprefix("--")


SETTING_NAMES: Final = tuple(name for name, field in Settings.model_fields.items() if not field.exclude)
"""In the order of the class, which is that of ``config show``."""


def _from_metadata(layers: list[Layer], static: Layer, places: Sequence[str]) -> FromMetadata:
    """Return what the metadata log says that was named, or lies in the log dirs that the command works on."""
    named = _path([*layers, static], "metadata_log")
    log_dirs = split_list(str(static["log_dirs"].value)) if "log_dirs" in static else ()
    there = tuple(places) or log_dirs
    found = named or find_metadata_log(there)
    if found is None:
        return NOTHING
    said = metadata_layer(found, there, static, must=named is not None)
    given = next((layer[SETTING] for layer in layers if SETTING in layer), None)
    contradicted = None if given is None else contradiction(given, said)
    return said if contradicted is None else said._replace(warnings=(*said.warnings, contradicted))


def _path(layers: list[Layer], name: str) -> Path | None:
    value = value_in(layers, name)
    return None if value is None else Path(str(value))


def _default_file(directory: Path) -> Path | None:
    path = directory / DEFAULT_FILE
    return path if path.is_file() else None


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
    message = f"{display_name(name)}{within} ({origin}): {expected}, found {shown(problem['input'])!r}"
    return refusal(message, origin)
