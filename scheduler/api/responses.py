"""Response bodies: partitions, runs, plans, schedules, the audit log, the fleet and the service, in camel case.

Each is made of the value that it shows, field by field (``RunAnswer.model_validate(run)``); what has another name or
place there, or another form, says so.
"""

from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import AliasPath, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import TypedDict

from resnap.scheduler.api.bodies import Form
from resnap.scheduler.fleet.status import FleetBrokerRow, FleetTopicRow
from resnap.scheduler.job.contract import PartitionState, verbs_of_service
from resnap.scheduler.output.answer import KnownFaultRow
from resnap.scheduler.output.rendering import Row
from resnap.scheduler.runs.run import RunKind, RunState
from resnap.scheduler.verbs import planned, scan
from resnap.storage.words import instant
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy

Instant: TypeAlias = Annotated[str, BeforeValidator(instant)]
"""ISO 8601, of milliseconds since 1970."""
Milliseconds: TypeAlias = Annotated[int, BeforeValidator(lambda span: span // timedelta(milliseconds=1))]


class Described:
    """Describes a value by another type, and gives it as it is: keys may have been added, or kept by older versions."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 - a type, or several
        self.kind = kind

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the type."""
        return handler(TypeAdapter(self.kind).core_schema)


class NotDoneRow(TypedDict):
    """A partition that a run could not read or did not reach; nothing where there is nothing to be said."""

    reason: NotRequired[str]


ScanRow: TypeAlias = Annotated[dict[str, Any], Described(scan.ScanRow)]
PlanRow: TypeAlias = Annotated[dict[str, Any], Described(planned.PlanRow)]
OutcomeRow: TypeAlias = Annotated[
    dict[str, Any],
    Described(reduce(or_, [*(row for _, verb in verbs_of_service() for row in verb.rows), NotDoneRow])),
]


class ResponseModel(Form):
    """An answer, or a part of one, that is made of any value with the attributes of its fields."""

    model_config = ConfigDict(from_attributes=True)


class RequestAnswer(ResponseModel):
    """What was asked for."""

    kind: RunKind
    sources: list[str]
    partitions: list[str]
    destination: str | None
    settings: dict[str, Any]
    plan: str | None


class ErrorAnswer(ResponseModel):
    """What went wrong in a run."""

    code: str
    message: str
    hint: str | None


class RunAnswer(ResponseModel):
    """A run. Times are ISO 8601; `progress` has segments and bytes by task."""

    id: str
    kind: RunKind
    state: RunState
    origin: str
    principal: str
    request: RequestAnswer
    retry_of: str | None
    created: Instant = Field(validation_alias="created_ms")
    started: Instant | None = Field(validation_alias="started_ms")
    finished: Instant | None = Field(validation_alias="finished_ms")
    progress: dict[str, Any]
    totals: dict[str, Any]
    errors: list[ErrorAnswer]


class RunsAnswer(ResponseModel):
    """A page of runs, newest first."""

    runs: list[RunAnswer]
    unreadable: dict[str, str]
    """Why runs that were met so far are in no list, by id: their rows are damaged, or of a later release."""
    next_cursor: str | None


class RunPartition(ResponseModel):
    """The outcome of a partition; `row` is, by the kind of the run, what its command prints with `--output json`."""

    topic: str
    partition: int
    state: PartitionState
    row: OutcomeRow


class RunPartitionsAnswer(ResponseModel):
    """A page of a run's partitions."""

    partitions: list[RunPartition]
    next_cursor: str | None


class PlanAnswer(ResponseModel):
    """A plan that is kept: what it would read and make."""

    id: str
    created: Instant = Field(validation_alias="created_ms")
    principal: str
    request: RequestAnswer
    totals: dict[str, Any]
    partitions: list[PlanRow] = Field(validation_alias="rows")


class PlansAnswer(ResponseModel):
    """A page of plans, newest first, without their partitions."""

    plans: list[PlanAnswer]
    next_cursor: str | None


class ScheduleAnswer(ResponseModel):
    """A schedule and its state."""

    name: str = Field(validation_alias=AliasPath("spec", "name"))
    run: str = Field(validation_alias=AliasPath("spec", "run"))
    every_ms: Milliseconds | None = Field(validation_alias=AliasPath("spec", "every"))
    cron: str | None = Field(validation_alias=AliasPath("spec", "cron"))
    timezone: str = Field(validation_alias=AliasPath("spec", "timezone"))
    request: RequestAnswer
    next: Instant | None = Field(validation_alias="next_ms")
    paused: Instant | None = Field(validation_alias="paused_ms")
    paused_by: str | None
    last_run: RunAnswer | None = Field(validation_alias="last")


class SchedulesAnswer(ResponseModel):
    """Every schedule, by name."""

    schedules: list[ScheduleAnswer]


class AuditEntryAnswer(ResponseModel):
    """Who did what, or tried to."""

    seq: int
    at: Instant = Field(validation_alias="at_ms")
    principal: str
    role: str
    action: str
    resource: str
    outcome: str
    detail: dict[str, Any]


class AuditAnswer(ResponseModel):
    """A page of the audit, newest first."""

    entries: list[AuditEntryAnswer]
    next_cursor: str | None


class Readyz(ResponseModel):
    """Whether the service can do its work; the store is reported and does not count."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


class PartitionPart(ResponseModel):
    """What is of one partition in one source."""

    source: str
    topic: str
    partition: int


class PartitionAnswer(PartitionPart):
    """Whether tiering can be turned on for a partition, why not, and what to do."""

    verdict: Verdict = Field(validation_alias=AliasPath("judgement", "verdict"))
    unblocked_by: UnblockedBy | None = Field(validation_alias=AliasPath("judgement", "unblocked_by"))
    until: Instant | None = Field(validation_alias=AliasPath("judgement", "until_ms"))
    reason: str | None = Field(validation_alias=AliasPath("judgement", "reason"))
    detail: str = Field(validation_alias=AliasPath("judgement", "detail"))
    next_step: str = Field(validation_alias=AliasPath("judgement", "next_step"))
    missing: int
    scanned: Instant = Field(validation_alias="scanned_ms")
    row: ScanRow | None
    """What `resnap scan --output json` has of it; not in lists."""


class PartitionsAnswer(ResponseModel):
    """A page of partitions, and how many have each verdict under the same filter."""

    partitions: list[PartitionAnswer]
    counts: dict[Verdict, int]
    next_cursor: str | None


class SourceAnswer(ResponseModel):
    """A source, and when it was scanned."""

    source: str
    scanned: Instant | None = Field(validation_alias="scanned_ms")
    tried: Instant = Field(validation_alias="tried_ms")
    error: str | None


class SourcesAnswer(ResponseModel):
    """Every source that was scanned."""

    sources: list[SourceAnswer]


class BoundaryAnswer(ResponseModel):
    """A boundary of a partition: which segment ends there, and what its snapshot is worth."""

    offset: int
    base_offset: int | None
    """Base offset of the segment that ends there."""
    size_bytes: int | None
    state: str
    detail: str | None
    made: bool
    """Whether a run has made a snapshot for it that is not beside the segments yet."""


class BoundariesAnswer(PartitionPart):
    """The boundaries of a partition, from the log start on."""

    boundaries: list[BoundaryAnswer]
    next_cursor: str | None


class SnapshotAnswer(PartitionPart):
    """Entries of a producer snapshot under the names of Kafka's dump tool."""

    offset: int
    file: str
    entries: list[Row]
    count: int
    next_cursor: str | None


class ChangedEntry(ResponseModel):
    """An entry that two snapshots both have, with different values."""

    producer_id: int
    before: Row
    after: Row


class DifferenceAnswer(PartitionPart):
    """What is between two snapshots; at most as many of each list as asked for."""

    from_offset: int
    to_offset: int
    added: list[Row]
    removed: list[Row]
    changed: list[ChangedEntry]
    same: int
    is_cut: bool
    """Whether there is more than is listed."""


class ExplanationAnswer(ResponseModel):
    """The batches that made the entries at an offset, a row per role."""

    batches: list[Row]


class FleetAnswer(ResponseModel):
    """A page of topics by name, and the brokers asked. `collected` is null before the first answers are there.

    `knownFaults` are those of Kafka that any tiered topic may meet; null where the brokers' releases are not known.
    """

    collected: str | None
    verdict: Verdict
    counts: dict[Verdict, int]
    unanswered: str | None
    known_faults: list[KnownFaultRow] | None
    brokers: list[FleetBrokerRow]
    topics: list[FleetTopicRow]
    next_cursor: str | None
