"""The forms of requests and answers: JSON under Kafka's own names, in camel case."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from scheduler.clock import instant
from scheduler.daemon.schedules import ScheduleView
from scheduler.runs.plans import KeptPlan
from scheduler.runs.readiness import Readiness
from scheduler.runs.run import PartitionOutcome, PartitionState, Run, RunKind, RunRequest, RunState
from scheduler.runs.sightings import SeenPartition, SeenSource

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


class Form(BaseModel):
    """Camel case outside, and nothing that is not known."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Asked(Form):
    """What is asked for; nothing in it is taken for something else, such as a text for a number."""

    model_config = ConfigDict(strict=True)


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


class RequestAnswer(Form):
    """What was asked for."""

    kind: RunKind
    sources: list[str]
    partitions: list[str]
    destination: str | None
    settings: dict[str, Any]
    plan: str | None

    @classmethod
    def of(cls, request: RunRequest) -> Self:
        """Return it as it is told."""
        return cls(
            kind=request.kind,
            sources=list(request.sources),
            partitions=list(request.partitions),
            destination=request.destination,
            settings=dict(request.settings),
            plan=request.plan,
        )


class ErrorAnswer(Form):
    """What went wrong in a run."""

    code: str
    message: str
    hint: str | None


class RunAnswer(Form):
    """A run. Times are ISO 8601; `progress` has segments and bytes by task."""

    id: str
    kind: RunKind
    state: RunState
    origin: str
    principal: str
    request: RequestAnswer
    retry_of: str | None
    created: str
    started: str | None
    finished: str | None
    progress: dict[str, Any]
    totals: dict[str, Any]
    errors: list[ErrorAnswer]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return it as it is told."""
        return cls(
            id=run.id,
            kind=run.kind,
            state=run.state,
            origin=run.origin,
            principal=run.principal,
            request=RequestAnswer.of(run.request),
            retry_of=run.retry_of,
            created=instant(run.created_ms),
            started=_time(run.started_ms),
            finished=_time(run.finished_ms),
            progress=dict(run.progress),
            totals=dict(run.totals),
            errors=[ErrorAnswer(code=one.code, message=one.message, hint=one.hint) for one in run.errors],
        )


class RunsAnswer(Form):
    """A page of runs, newest first."""

    runs: list[RunAnswer]
    next_cursor: str | None


class RunPartition(Form):
    """What became of a partition; `row` is what the shell command prints with `--output json`."""

    topic: str
    partition: int
    state: PartitionState
    row: dict[str, Any]

    @classmethod
    def of(cls, outcome: PartitionOutcome) -> Self:
        """Return it as it is told."""
        return cls(topic=outcome.topic, partition=outcome.partition, state=outcome.state, row=dict(outcome.row))


class RunPartitionsAnswer(Form):
    """A page of a run's partitions."""

    partitions: list[RunPartition]
    next_cursor: str | None


class PlanAnswer(Form):
    """A plan that is kept: what it would read and make."""

    id: str
    created: str
    principal: str
    request: RequestAnswer
    totals: dict[str, Any]
    partitions: list[dict[str, Any]]

    @classmethod
    def of(cls, plan: KeptPlan, *, rows: bool = True) -> Self:
        """Return it as it is told; in lists without its rows."""
        return cls(
            id=plan.id,
            created=instant(plan.created_ms),
            principal=plan.principal,
            request=RequestAnswer.of(plan.request),
            totals=dict(plan.totals),
            partitions=[dict(row) for row in plan.rows] if rows else [],
        )


class PlansAnswer(Form):
    """A page of plans, newest first, without their partitions."""

    plans: list[PlanAnswer]
    next_cursor: str | None


class PartitionAnswer(Form):
    """Whether tiering can be turned on for a partition, why not, and what to do."""

    source: str
    topic: str
    partition: int
    readiness: Readiness
    reason: str | None
    detail: str
    next_step: str
    missing: int
    scanned: str
    row: dict[str, Any] | None
    """What `resnap scan --output json` has of it; not in lists."""

    @classmethod
    def of(cls, seen: SeenPartition, *, row: bool) -> Self:
        """Return it as it is told."""
        return cls(
            source=seen.source,
            topic=seen.topic,
            partition=seen.partition,
            readiness=seen.judgement.readiness,
            reason=seen.judgement.reason,
            detail=seen.judgement.detail,
            next_step=seen.judgement.next_step,
            missing=seen.missing,
            scanned=instant(seen.scanned_ms),
            row=dict(seen.row) if row else None,
        )


class PartitionsAnswer(Form):
    """A page of partitions, and how many there are of each kind under the same filter."""

    partitions: list[PartitionAnswer]
    counts: dict[Readiness, int]
    next_cursor: str | None


class SourceAnswer(Form):
    """A source, and when it was looked at."""

    source: str
    scanned: str | None
    tried: str
    error: str | None

    @classmethod
    def of(cls, seen: SeenSource) -> Self:
        """Return it as it is told."""
        return cls(source=seen.source, scanned=_time(seen.scanned_ms), tried=instant(seen.tried_ms), error=seen.error)


class SourcesAnswer(Form):
    """Every source that was looked at."""

    sources: list[SourceAnswer]


class BoundaryAnswer(Form):
    """A boundary of a partition: which segment ends there, and what its snapshot is worth."""

    offset: int
    base_offset: int | None
    """Of the segment that ends there."""
    size_bytes: int | None
    state: str
    detail: str | None
    made: bool
    """Whether a run has made a snapshot for it that is not beside the segments yet."""


class BoundariesAnswer(Form):
    """The boundaries of a partition, from the log start on."""

    source: str
    topic: str
    partition: int
    boundaries: list[BoundaryAnswer]
    next_cursor: str | None


class SnapshotAnswer(Form):
    """Entries of a producer snapshot under the names of Kafka's dump tool."""

    source: str
    topic: str
    partition: int
    offset: int
    file: str
    entries: list[dict[str, Any]]
    count: int
    next_cursor: str | None


class ChangedEntry(Form):
    """An entry that two snapshots both have, with different values."""

    producer_id: int
    before: dict[str, Any]
    after: dict[str, Any]


class DifferenceAnswer(Form):
    """What lies between two snapshots; at most as many of each list as asked for."""

    source: str
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    added: list[dict[str, Any]]
    removed: list[dict[str, Any]]
    changed: list[ChangedEntry]
    same: int
    is_cut: bool
    """Whether there is more than is listed."""


class ExplanationAnswer(Form):
    """The batches that made the entries at an offset, a row per role."""

    batches: list[dict[str, Any]]


class ScheduleAnswer(Form):
    """A schedule as it stands."""

    name: str
    run: str
    every_ms: int | None
    cron: str | None
    timezone: str
    request: RequestAnswer
    next: str | None
    paused: str | None
    paused_by: str | None
    last_run: RunAnswer | None

    @classmethod
    def of(cls, view: ScheduleView, request: RunRequest) -> Self:
        """Return it as it is told."""
        spec = view.spec
        return cls(
            name=spec.name,
            run=spec.run,
            every_ms=None if spec.every is None else int(spec.every.total_seconds() * 1000),
            cron=spec.cron,
            timezone=spec.timezone,
            request=RequestAnswer.of(request),
            next=_time(view.next_ms),
            paused=_time(view.paused_ms),
            paused_by=view.paused_by,
            last_run=None if view.last is None else RunAnswer.of(view.last),
        )


class SchedulesAnswer(Form):
    """Every schedule, by name."""

    schedules: list[ScheduleAnswer]


class AuditEntryAnswer(Form):
    """Who did what, or tried to."""

    seq: int
    at: str
    principal: str
    role: str
    action: str
    resource: str
    outcome: str
    detail: dict[str, Any]


class AuditAnswer(Form):
    """A page of the audit, newest first."""

    entries: list[AuditEntryAnswer]
    next_cursor: str | None


class Readyz(Form):
    """Whether the service can do its work; the store is reported and does not count."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else instant(at_ms)
