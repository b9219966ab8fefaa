"""The settings of ``resnap serve``, beside those that it shares with the shell command."""

import ipaddress
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from resnap.scheduler.settings.declaration import Duration, Listed, Setting, declared_in
from resnap.scheduler.settings.quota import QuotaSettings
from resnap.scheduler.settings.replay import (
    BrokerSettings,
    ReplaySettings,
    RunCacheSettings,
    SelectionSettings,
    WritingSettings,
)
from resnap.scheduler.settings.shipping import ShippingSettings

RUN_SETTINGS: Final = frozenset(
    one.name
    for group in (
        SelectionSettings, BrokerSettings, ReplaySettings, WritingSettings, RunCacheSettings, ShippingSettings,
    )
    for one in declared_in(group)
    if one.setting.for_runs
)  # fmt: skip
"""What a schedule, or a request, may set for its runs alone; all else is the service's."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class ScheduleSpec(BaseModel):
    """A ``[[schedules]]`` table: what to do, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    run: Literal["scan", "census", "regenerate", "tier", "verify", "replicas"]
    every: Duration | None = None
    """Counted from the beginning of the last run."""
    cron: str | None = None
    """Minute, hour, day of the month, month, day of the week."""
    timezone: str = "UTC"
    """Time zone of ``cron``, by its IANA name."""
    sources: Listed = ()
    """``log.dirs`` unless given."""
    topics: Listed = ()
    """Globs; all topics unless given."""
    to: str | None = None
    """Where snapshots or segments go, or what is read back."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """For these runs alone, by name of the setting."""

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
            raise ValueError(f"{value!r} is no time zone, such as Europe/Berlin") from error
        return value

    @field_validator("settings")
    @classmethod
    def _are_of_runs(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        named = {name.replace("-", "_").replace(".", "_"): given for name, given in value.items()}
        if strange := sorted(named.keys() - RUN_SETTINGS):
            raise ValueError(
                f"{strange[0]!r} cannot be set for one schedule; possible: {', '.join(sorted(RUN_SETTINGS))}"
            )
        return named

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise ValueError(f"schedule {self.name}: expected either `every` or `cron`")
        if self.every is not None and self.every < timedelta(seconds=1):
            raise ValueError(f"schedule {self.name}: `every` must be a second or more")
        if self.run == "replicas" and self.sources:
            raise ValueError(f"schedule {self.name}: replicas takes no `sources`: bootstrap-server counts")
        only_reads = self.run in {"scan", "census", "replicas"}
        if only_reads and self.to is not None:
            raise ValueError(f"schedule {self.name}: a {self.run} takes no `to`: it writes nothing")
        if not only_reads and self.to is None:
            raise ValueError(f"schedule {self.name}: a {self.run} needs `to`, a directory or URL")
        return self


class ServiceSettings(QuotaSettings):
    """What an operator sets of the service."""

    title = "Service"

    listen: Annotated[str, Setting("Address of the API and the web page.", "HOST:PORT")] = "127.0.0.1:8936"
    auth: Annotated[
        Literal["token", "none"],
        Setting("token: callers need a token. none: everybody on this machine may call; on loopback only."),
    ] = "none"
    allow_sources: Annotated[
        Listed,
        Setting(
            "Requests may name sources below this place; log.dirs are always allowed.",
            "DIR|URL",
            flag="--allow-source",
        ),
    ] = ()
    allow_destinations: Annotated[
        Listed,
        Setting(
            "Requests may name destinations below this place; those of schedules are always allowed.",
            "DIR|URL",
            flag="--allow-destination",
        ),
    ] = ()
    allow_hosts: Annotated[
        Listed,
        Setting(
            "Host name under which browsers may reach the service, besides its own address.",
            "NAME",
            flag="--allow-host",
        ),
    ] = ()
    trusted_proxies: Annotated[
        Listed,
        Setting(
            "Believe what this proxy, or network of proxies, says of its callers; nobody is believed unless given.",
            "ADDRESS",
            flag="--trusted-proxy",
        ),
    ] = ()
    queue_size: Annotated[Annotated[int, Field(ge=1, le=10_000)], Setting("How many runs may wait.", "N")] = 100
    history_retention: Annotated[Duration, Setting("How long to keep runs that have ended.", "DURATION")] = timedelta(
        days=90
    )
    log_format: Annotated[
        Literal["auto", "json", "console"],
        Setting("Form of the log; auto is readable on a terminal, and JSON elsewhere."),
    ] = "auto"
    stop_grace: Annotated[
        Duration, Setting("How long the current run may go on when the service is stopped.", "DURATION")
    ] = timedelta(seconds=20)
    schedules: Annotated[
        tuple[ScheduleSpec, ...], Setting("What is run when: tables [[schedules]] of the file.", flag="")
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
