"""The settings of ``resnap serve``, beside those that it shares with the shell command."""

import ipaddress
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from resnap.scheduler.settings.kinds import Duration, Listed

RUN_SETTINGS: Final = frozenset(
    {
        "topics", "boundaries", "high_watermark", "as_of", "producer_id_expiration_ms",
        "producer_id_expiration_check_interval_ms", "history_expiration_ms", "transaction_max_timeout_ms",
        "max_reach_back", "full", "verify_crc", "dry_run", "fresh", "parallel", "bwlimit", "verify_upload",
        "io_priority", "layout", "key_prefix", "chunk_size", "chunk_compression",
    }
)  # fmt: skip
"""What a schedule, or a request, may set for its runs alone; all else is the service's."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class ScheduleSpec(BaseModel):
    """A ``[[schedules]]`` table: what to do, and when."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    run: Literal["scan", "regenerate", "tier", "verify"]
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
        if self.run == "scan" and self.to is not None:
            raise ValueError(f"schedule {self.name}: a scan takes no `to`: it writes nothing")
        if self.run != "scan" and self.to is None:
            raise ValueError(f"schedule {self.name}: a {self.run} needs `to`, a directory or URL")
        return self


class ServiceSettings(BaseModel):
    """What an operator sets of the service."""

    listen: str = Field(default="127.0.0.1:8936", description="Address and port of the HTTP API and the page.")
    auth: Literal["token", "none"] = Field(
        default="none", description="Who may: holders of a token, or, on a loopback address only, everybody."
    )
    allow_sources: Listed = Field(
        default=(), description="Directory or URL below which requests may name sources, log.dirs aside."
    )
    allow_destinations: Listed = Field(
        default=(), description="Directory or URL below which requests may name destinations, schedules' own aside."
    )
    allow_hosts: Listed = Field(
        default=(), description="Name under which browsers may reach the service, besides the address itself."
    )
    trusted_proxies: Listed = Field(
        default=(),
        description="Address or network of a proxy, whose X-Forwarded-For and X-Forwarded-Proto are believed.",
    )
    queue_size: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=100, description="Runs that may wait; more are refused with 429."
    )
    history_retention: Duration = Field(
        default=timedelta(days=90), description="How long runs that ended are remembered."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="Of the service's log; auto: readable on a terminal, else JSON."
    )
    stop_grace: Duration = Field(
        default=timedelta(seconds=20), description="How long the service waits for its run when it is told to end."
    )
    schedules: tuple[ScheduleSpec, ...] = Field(default=(), description="What is run when; [[schedules]] in the file.")

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
