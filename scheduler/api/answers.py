"""The forms of answers about runs, plans, schedules, the audit and the service: as those of requests."""

from typing import Any, Literal, Self

from resnap.scheduler.api.bodies import Form
from resnap.scheduler.clock import instant
from resnap.scheduler.daemon.schedules import ScheduleView
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.runs.run import PartitionOutcome, PartitionState, Run, RunKind, RunRequest, RunState


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
