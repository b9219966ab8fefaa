"""``Settings``: all settings of one command as one frozen value, each with its origin.

What is below ``scheduler`` gets plain values out of it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import ConfigDict, Field, InstanceOf

from resnap.scheduler.settings.declaration import GIVEN_ORIGINS, Setting, SettingFiles, SettingGroup, declared_in
from resnap.scheduler.settings.replay import (
    BrokerSettings,
    ClusterSettings,
    EngineSettings,
    ReadingSettings,
    ReplaySettings,
    RunCacheSettings,
    SelectionSettings,
    WritingSettings,
)
from resnap.scheduler.settings.service import ServiceSettings
from resnap.scheduler.settings.store import ShippingSettings, StoreSettings, customer_key, storage_class
from resnap.scheduler.settings.values import Form, json_form
from resnap.storage.stores.s3_settings import S3Settings

if TYPE_CHECKING:
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.controller.metadata.cluster import ClusterMetadata
else:  # which only some commands load
    ClusterMetadata = object


class SharedCluster:
    """One connection to a cluster for all requests of a command, made at the first one; must be closed."""

    def __init__(self) -> None:
        """Begin without a connection."""
        self._guard = Lock()
        self._open: Cluster | None = None

    def get(self, connect: Callable[[], "Cluster"]) -> AbstractContextManager["Cluster"]:
        """Return the connection, which stays open; ``connect`` makes it the first time."""
        with self._guard:
            if self._open is None:
                self._open = connect()
            return nullcontext(self._open)

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()


class OutputSettings(SettingGroup):
    """What is printed, and the file that other settings are read from."""

    title = "Output and configuration"

    output: Annotated[Form, Setting("Output format.")] = "table"
    quiet: Annotated[bool, Setting("Print only the output and errors.", short="-q")] = False
    verbose: Annotated[bool, Setting("Print more; show the traceback of a bug.", short="-v", at_start=True)] = False
    config: Annotated[
        Path | None, Setting("TOML file with settings; ./resnap.toml unless given, if it exists.", "FILE")
    ] = None


class Settings(
    OutputSettings,
    ServiceSettings,
    StoreSettings,
    ShippingSettings,
    WritingSettings,
    RunCacheSettings,
    ReadingSettings,
    EngineSettings,
    ReplaySettings,
    BrokerSettings,
    ClusterSettings,
    SelectionSettings,
):
    """Every setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unknown_variables: tuple[str, ...] = Field(default=(), exclude=True)
    """``RESNAP_*`` variables that set nothing."""
    metadata_warnings: tuple[str, ...] = Field(default=(), exclude=True)
    """What a metadata log and other places do not agree on."""
    metadata: InstanceOf[ClusterMetadata] | None = Field(default=None, exclude=True)
    """The metadata log that the settings were read from, if there was one."""
    files: InstanceOf[SettingFiles] | None = Field(default=None, exclude=True)
    """The content of the files, for further settings from the same files."""
    shared_cluster: InstanceOf[SharedCluster] | None = Field(default=None, exclude=True)
    """The one connection of a command to the running cluster, by which the settings were learned, too."""

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


DECLARED: Final = {setting.name: setting for setting in declared_in(Settings)}
"""Every setting by its name, in the order of ``config show``: by group."""
RUN_SETTINGS: Final = frozenset(name for name, setting in DECLARED.items() if setting.setting.for_runs)
"""What a schedule, or a request, may set for its own runs; all else is set for the service."""
AT_START: Final = tuple(name for name, setting in DECLARED.items() if setting.at_start)
"""Settings of what lives as long as the service: socket, who may speak to it, log, file, engine, quota."""


def taken_over(at_work: Settings, read: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings to use from now on, and the names of those that wait for the next start of the service."""
    old = {name: getattr(at_work, name) for name in AT_START}
    waiting = tuple(DECLARED[name].key for name, value in old.items() if value != getattr(read, name))
    return read.model_copy(update=old), waiting


def given_flags(settings: Settings, names: Iterable[str]) -> Iterator[str]:
    """Yield the words of the flags among ``names`` that the command was given."""
    for name in names:
        flag, value = DECLARED[name].flag, json_form(getattr(settings, name))
        if not flag or not settings.origin(name).startswith(GIVEN_ORIGINS):
            continue
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
            continue
        values = [f"{key}={entry}" for key, entry in value.items()] if isinstance(value, dict) else [value]
        for item in values:
            yield from (flag, str(item))
