"""Bodies of responses: partitions, runs, plans, schedules, the audit and the service, in camel case."""

from typing import Any, Literal, Self

from resnap.scheduler.api.bodies import Form
from resnap.scheduler.clock import instant
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.runs.run import PartitionOutcome, Run, RunKind, RunRequest, RunState
from resnap.scheduler.runs.sightings import SeenPartition, SeenSource
from resnap.scheduler.service.schedules import ScheduleView
from resnap.tiering.readiness import Readiness


def maybe_instant(at_ms: int | None) -> str | None:
    """Return a time as answers have it; None for none."""
    return None if at_ms is None else instant(at_ms)


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
        """Return its representation."""
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
        """Return its representation."""
        return cls(
            id=run.id,
            kind=run.kind,
            state=run.state,
            origin=run.origin,
            principal=run.principal,
            request=RequestAnswer.of(run.request),
            retry_of=run.retry_of,
            created=instant(run.created_ms),
            started=maybe_instant(run.started_ms),
            finished=maybe_instant(run.finished_ms),
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
        """Return its representation."""
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
        """Return it as it is shown; in lists without its rows."""
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
        """Return its representation."""
        spec = view.spec
        return cls(
            name=spec.name,
            run=spec.run,
            every_ms=None if spec.every is None else int(spec.every.total_seconds() * 1000),
            cron=spec.cron,
            timezone=spec.timezone,
            request=RequestAnswer.of(request),
            next=maybe_instant(view.next_ms),
            paused=maybe_instant(view.paused_ms),
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
        """Return its representation."""
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
        """Return its representation."""
        return cls(
            source=seen.source, scanned=maybe_instant(seen.scanned_ms), tried=instant(seen.tried_ms), error=seen.error
        )


class SourcesAnswer(Form):
    """Every source that was looked at."""

    sources: list[SourceAnswer]


class BoundaryAnswer(Form):
    """A boundary of a partition: which segment ends there, and what its snapshot is worth."""

    offset: int
    base_offset: int | None
    """Base offset of the segment that ends there."""
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
