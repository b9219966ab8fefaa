"""Settings of ``resnap serve``, besides those that it shares with the shell commands."""

import ipaddress
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, field_validator, model_validator

from resnap.scheduler.registry import KINDS
from resnap.scheduler.settings.declaration import (
    Count,
    Duration,
    KnownKeys,
    Listed,
    Milliseconds,
    Setting,
    SettingGroup,
)


class QuotaSettings(SettingGroup):
    """How new producer ids are counted, and how long they count as known; rates are those of ``resnap quota set``."""

    title = "Quota of producer ids"
    at_start = True

    producer_id_quota_window_num: Annotated[Count, Setting("Samples that a rate is measured over.", is_kafkas=True)] = (
        11
    )
    producer_id_quota_window_size_seconds: Annotated[
        Annotated[int, Field(ge=1, le=31_536_000)],
        Setting("Time span of each sample, and how long an id counts as known.", "SECONDS", is_kafkas=True),
    ] = 3600
    producer_id_quota_cache_cleanup_scheduler_interval_ms: Annotated[
        Milliseconds, Setting("How often expired ids are removed from memory.", is_kafkas=True)
    ] = 10_000
    producer_id_quota_false_positive_rate: Annotated[
        Annotated[float, Field(ge=1e-9, le=0.5)],
        Setting("Share of new ids that may pass without being counted.", "SHARE"),
    ] = 0.01
    producer_id_quota_profile: Annotated[
        Literal["P-A", "P-B", "P-C", "P-L"],
        Setting("Which text of the KIP defines how long an id counts as known; see docs/quota.md."),
    ] = "P-C"


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class ScheduleSpec(KnownKeys):
    """A ``[[schedules]]`` table: what to do, and when."""

    model_config = ConfigDict(frozen=True)

    name: str
    run: Literal[tuple(KINDS)]  # type: ignore[valid-type] # read from the table
    every: Duration | None = None
    """Counted from the beginning of the last run."""
    cron: str | None = None
    """Minute, hour, day of the month, month, day of the week (0 and 7 are Sunday); both days must match."""
    timezone: str = "UTC"
    """Time zone of ``cron``, by its IANA name."""
    sources: Listed = ()
    """``log.dirs`` unless given; of a verification, the store."""
    topics: Listed = ()
    """Globs; all topics unless given."""
    to: str | None = None
    """Where snapshots or segments go; of a verification, another spelling of its source."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """Settings of these runs alone, by name."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("expected small letters, digits, and . _ - between them, at most 64")
        return value

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"{value!r} is not a time zone, such as Europe/Berlin") from error
        return value

    @field_validator("settings")
    @classmethod
    def _are_named(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        return {name.replace("-", "_").replace(".", "_"): given for name, given in value.items()}

    @model_validator(mode="before")
    @classmethod
    def _verifies_a_source(cls, value: Any) -> Any:  # noqa: ANN401 - as it was written
        if isinstance(value, dict) and value.get("run") == "verify" and value.get("to") and not value.get("sources"):
            return {**value, "sources": [value["to"]], "to": None}
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise ValueError(f"schedule {self.name}: expected either `every` or `cron`")
        if self.every is not None and self.every < timedelta(seconds=1):
            raise ValueError(f"schedule {self.name}: `every` must be a second or more")
        return self


class FleetEntry(KnownKeys):
    """A ``[[fleet]]`` table: the service beside one broker of the cluster, and how it is asked."""

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    broker: Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
    """The node id of the broker whose log dirs the service scans."""
    url: str
    token_file: Path | None = None
    """Holds the token of a viewer; read again each time."""
    ca_file: Path | None = None
    """Certificates to trust, in PEM; the machine's own unless given."""

    @field_validator("url")
    @classmethod
    def _is_of_a_service(cls, value: str) -> str:
        parts = urlsplit(value)
        is_plain = (
            not (parts.query or parts.fragment or "@" in parts.netloc) and value.isascii() and value.isprintable()
        )
        if parts.scheme not in {"http", "https"} or not parts.hostname or not is_plain or parts.port == 0:
            raise ValueError("expected the address of a service, such as https://broker-1.example.com:8936")
        return value.rstrip("/")

    @field_validator("token_file", "ca_file")
    @classmethod
    def _is_a_whole_path(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("expected a path from the root on")
        return value


class ServiceSettings(QuotaSettings):
    """What an operator sets of the service."""

    title = "Service"
    at_start = False

    listen: Annotated[str, Setting("Address of the API and the web page.", "HOST:PORT", at_start=True)] = (
        "127.0.0.1:8936"
    )
    auth: Annotated[
        Literal["token", "none"],
        Setting(
            "token: callers need a token. none: every user of this machine may call; on loopback only.", at_start=True
        ),
    ] = "none"
    tokens_file: Annotated[
        Path | None,
        Setting("File with tokens beside those of `resnap token`, a line each: NAME ROLE SECRET.", "FILE"),
    ] = None
    allow_sources: Annotated[
        Listed, Setting("Requests may name sources below this place; log.dirs are always allowed.", "DIR|URL")
    ] = ()
    allow_destinations: Annotated[
        Listed,
        Setting("Requests may name destinations below this place; those of schedules are always allowed.", "DIR|URL"),
    ] = ()
    allow_hosts: Annotated[
        Listed,
        Setting(
            "Host name under which browsers may reach the service, besides its own address.", "NAME", at_start=True
        ),
    ] = ()
    trusted_proxies: Annotated[
        Listed,
        Setting(
            "Trust what this proxy, or network of proxies, reports of its clients; by default no proxy is trusted.",
            "ADDRESS",
            at_start=True,
        ),
    ] = ()
    queue_size: Annotated[Annotated[int, Field(ge=1, le=10_000)], Setting("How many runs may wait.")] = 100
    history_retention: Annotated[Duration, Setting("How long to keep runs that have ended.")] = timedelta(days=90)
    log_format: Annotated[
        Literal["auto", "json", "console"],
        Setting("Format of the log; auto is readable on a terminal, and JSON elsewhere.", at_start=True),
    ] = "auto"
    stop_grace: Annotated[Duration, Setting("How long the current run may go on when the service is stopped.")] = (
        timedelta(seconds=20)
    )
    schedules: Annotated[
        tuple[ScheduleSpec, ...], Setting("Schedules: tables [[schedules]] of the file.", flag="")
    ] = ()
    fleet: Annotated[
        tuple[FleetEntry, ...], Setting("The services beside the brokers: tables [[fleet]] of the file.", flag="")
    ] = ()

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            try:
                ipaddress.ip_network(address)
            except ValueError as error:
                raise ValueError(
                    f"{error}: expected an address or a network, such as 10.0.0.7 or 10.0.0.0/24"
                ) from error
        return value

    @field_validator("schedules")
    @classmethod
    def _are_different(cls, value: tuple[ScheduleSpec, ...]) -> tuple[ScheduleSpec, ...]:
        names = [spec.name for spec in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two schedules are called {twice[0]!r}")
        return value

    @field_validator("fleet")
    @classmethod
    def _are_of_different_brokers(cls, value: tuple[FleetEntry, ...]) -> tuple[FleetEntry, ...]:
        brokers = [entry.broker for entry in value]
        if twice := sorted({broker for broker in brokers if brokers.count(broker) > 1}):
            raise ValueError(f"two entries are of broker {twice[0]}")
        return value
