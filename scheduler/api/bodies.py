"""The forms of requests: JSON under Kafka's own names, in camel case."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from resnap.scheduler.runs.run import RunRequest

Place = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
PartitionName = Annotated[str, StringConstraints(min_length=3, max_length=260, pattern=r"^[a-zA-Z0-9._-]+-[0-9]+$")]
Glob = Annotated[str, StringConstraints(min_length=1, max_length=260)]
DurationText = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(ms|s|m|h|d)$")]
_DATE, _TIME = "20[0-9]{2}-[01][0-9]-[0-3][0-9]", "[0-2][0-9]:[0-5][0-9](:[0-5][0-9])?"
Moment = Annotated[
    str,
    StringConstraints(pattern=rf"^(now|roll|{_DATE}T{_TIME}(Z|[+-][01][0-9]:[0-5][0-9]))$"),
]
"""`now`, `roll`, or an ISO 8601 time with a zone."""
Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]


_MOST_KEYS: Final = 64
"""Of an object; more than any form has. Each one that is not known is an error of its own."""


class Form(BaseModel):
    """Camel case outside, and nothing that is not known."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Asked(Form):
    """What is asked for; nothing in it is taken for something else, such as a text for a number."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_not_too_many_keys(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > _MOST_KEYS:
            raise ValueError(f"an object of {len(value)} keys, expected {_MOST_KEYS} at most")
        return value


class Window(Asked):
    """What a replay takes into account; as the flags of the shell command of the same names."""

    as_of: Moment = "now"
    full: bool = False
    max_reach_back: DurationText | None = None
    producer_id_expiration_ms: Annotated[int, Field(ge=1, le=(1 << 63) - 1)] | None = None
    history_expiration_ms: Annotated[int, Field(ge=1, le=(1 << 63) - 1)] | None = None

    def settings(self) -> dict[str, Any]:
        """Return them as settings of a run; what was not given stays the service's."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class PlanBody(Asked):
    """What to plan."""

    sources: Annotated[list[Place], Field(max_length=64)] = []
    """Log dirs, partitions' directories or URLs; `log.dirs` if there are none."""
    topics: Annotated[list[Glob], Field(max_length=64)] = []
    partitions: Annotated[list[PartitionName], Field(max_length=10_000)] = []
    boundaries: Literal["missing", "all"] = "missing"
    window: Window = Window()

    @classmethod
    def of(cls, request: RunRequest) -> Self:
        """Return the body that asks for the same."""
        window = {name: request.settings[name] for name in Window.model_fields if name in request.settings}
        asked = {name: request.settings[name] for name in ("topics", "boundaries") if name in request.settings}
        places = {"sources": list(request.sources), "partitions": list(request.partitions)}
        return cls.model_validate({**places, **asked, "window": window})

    def settings(self) -> dict[str, Any]:
        """Return what the run is to set."""
        topics = {"topics": list(self.topics)} if self.topics else {}
        return {**topics, "boundaries": self.boundaries, **self.window.settings()}


class ReplayBody(PlanBody):
    """A replay: snapshots as files (`regenerate`), or segments with them into a store (`tier`)."""

    kind: Literal["regenerate", "tier"] = "regenerate"
    destination: Place
    dry_run: bool = False
    verify_crc: bool = False

    def settings(self) -> dict[str, Any]:
        """Return what the run is to set."""
        return {**super().settings(), "dry_run": self.dry_run, "verify_crc": self.verify_crc}


class PlannedRunBody(Asked):
    """How to carry out a plan."""

    kind: Literal["regenerate", "tier"] = "regenerate"
    destination: Place
    dry_run: bool = False
