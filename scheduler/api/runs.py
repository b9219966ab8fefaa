"""Runs: ``/v1/replays`` for those that somebody asks for, ``/v1/runs`` for all, those of schedules included."""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from resnap.scheduler.api.auth import Operator, Serving, Viewer
from resnap.scheduler.api.bodies import ReplayBody, ReplicasBody, ScanBody
from resnap.scheduler.api.etags import validated
from resnap.scheduler.api.events import LARGEST_ID, event_stream
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.api.problem_kinds import ConflictError, NotFoundError
from resnap.scheduler.api.problems import problems
from resnap.scheduler.api.request_context import context_of
from resnap.scheduler.api.responses import RunAnswer, RunPartition, RunPartitionsAnswer, RunsAnswer
from resnap.scheduler.api.submitting import submit_request
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.run import BY_API, OTHER_FAILURES, REPLAYS, Run, RunKind, RunRequest, RunState
from resnap.scheduler.service.services import Services

RunId = Annotated[str, Path(pattern=r"^[0-9a-hjkmnp-tv-z]{20}$")]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="The same key and request give the same run; another is refused."),
]
TAKEN: dict[int | str, dict[str, Any]] = {
    202: {
        "model": RunAnswer,
        "headers": {"Location": {"description": "Address of the run.", "schema": {"type": "string"}}},
    },
    **problems(
        "unusable-request",
        "place-not-allowed",
        "idempotency-key-reused",
        "stale-plan",
        "queue-full",
        "quota-exceeded",
        "log-dir-unusable",
        "cancelled",
    ),
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events of the run, until it is over: `state`, `progress`, `partition`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The run is over, and its last event was heard."},
}

router = APIRouter(tags=["runs"])
_runs = APIRouter()
"""What can be done with runs, at either address."""
_REPLAYS: Final = "/v1/replays"
_ALL: Final = "/v1/runs"


@router.post(_REPLAYS, status_code=202, summary="Ask for a replay", responses=TAKEN, tags=["replays"])
def create_replay(
    request: Request, services: Serving, who: Operator, body: ReplayBody, idempotency_key: IdempotencyKey = None
) -> Response:
    """Rebuild snapshots, or ship segments; the answer says where to watch it."""
    asked = RunRequest(
        kind=RunKind(body.kind),
        sources=tuple(body.sources),
        partitions=tuple(body.partitions),
        destination=body.destination,
        settings=body.settings(),
    )
    asked = services.within_places(asked)
    run, _ = submit_request(services, asked, who, key=idempotency_key)
    return accepted(request, run)


@router.post("/v1/scans", status_code=202, summary="Scan now", responses=TAKEN)
def create_scan(
    request: Request, services: Serving, who: Operator, body: ScanBody, idempotency_key: IdempotencyKey = None
) -> Response:
    """Look at log dirs now, as a schedule would; the answer tells where to watch it."""
    asked = RunRequest(
        kind=RunKind.SCAN,
        sources=tuple(body.sources),
        settings={"topics": list(body.topics)} if body.topics else {},
    )
    asked = services.of_scanned_sources(services.within_places(asked))
    run, _ = submit_request(services, asked, who, key=idempotency_key)
    return accepted(request, run)


@router.post("/v1/replica-checks", status_code=202, summary="Compare the replicas of the cluster", responses=TAKEN)
def create_replica_check(
    request: Request, services: Serving, who: Operator, body: ReplicasBody, idempotency_key: IdempotencyKey = None
) -> Response:
    """Find replicas that lack producer state which others have; of the cluster that the configuration names, alone."""
    asked = RunRequest(
        kind=RunKind.REPLICAS,
        partitions=tuple(body.partitions),
        settings={"topics": list(body.topics)} if body.topics else {},
    )
    run, _ = submit_request(services, asked, who, key=idempotency_key)
    return accepted(request, run)


def accepted(request: Request, run: Run) -> Response:
    """Return that a run was taken, and where it is."""
    context_of(request).detail["run"] = run.id
    prefix = _REPLAYS if run.kind in REPLAYS else _ALL
    return validated(request, RunAnswer.of(run), 202, {"Location": f"{prefix}/{run.id}"})


async def _kinds(request: Request) -> tuple[RunKind, ...]:
    """Return which runs the address is about: below ``/v1/replays`` those that somebody asked for, else all."""
    return REPLAYS if request.url.path.startswith(_REPLAYS) else tuple(RunKind)


Kinds = Annotated[tuple[RunKind, ...], Depends(_kinds)]


def _found(services: Services, run_id: str, kinds: tuple[RunKind, ...]) -> Run:
    run = services.history.get(run_id)
    if run is None or run.kind not in kinds:
        raise NotFoundError(f"there is no run {run_id} here")
    return run


@_runs.get("", response_model=RunsAnswer, summary="Runs, newest first", responses={304: {}})
def list_runs(
    request: Request,
    services: Serving,
    _: Viewer,
    kinds: Kinds,
    state: Annotated[list[RunState] | None, Query(description="Only these; may be given several times.")] = None,
    kind: Annotated[list[RunKind] | None, Query()] = None,
    origin: Annotated[str | None, Query(max_length=200, description="`api`, or `schedule:NAME`.")] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return a page of runs."""
    wanted = tuple(one for one in kinds if not kind or one in kind)
    before = decoded(cursor, str)
    runs: list[Run] = []
    if wanted:
        chosen = RunFilter(kinds=wanted, states=tuple(state or ()), origin=origin)
        runs = services.history.page(chosen, limit=limit + 1, before=before[0] if before else None)
    page, following = cut(runs, limit, lambda run: encoded(run.id))
    return validated(request, RunsAnswer(runs=[RunAnswer.of(run) for run in page], next_cursor=following))


@_runs.get(
    "/{run_id}",
    response_model=RunAnswer,
    summary="One run",
    responses={304: {}, **problems("not-found")},
)
def get_run(request: Request, services: Serving, _: Viewer, kinds: Kinds, run_id: RunId) -> Response:
    """Return a run, with how far it has come or what it came to."""
    return validated(request, RunAnswer.of(_found(services, run_id, kinds)))


@_runs.get(
    "/{run_id}/partitions",
    response_model=RunPartitionsAnswer,
    summary="What became of its partitions",
    responses={304: {}, **problems("not-found")},
)
def list_run_partitions(
    request: Request,
    services: Serving,
    _: Viewer,
    kinds: Kinds,
    run_id: RunId,
    state: Annotated[list[PartitionState] | None, Query()] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return a page of the partitions that are done, by topic and number."""
    _found(services, run_id, kinds)
    after = decoded(cursor, str, int)
    outcomes = services.history.partitions(
        run_id, limit=limit + 1, after=None if after is None else (after[0], after[1]), states=tuple(state or ())
    )
    page, following = cut(outcomes, limit, lambda one: encoded(one.topic, one.partition))
    partitions = [RunPartition.of(one) for one in page]
    return validated(request, RunPartitionsAnswer(partitions=partitions, next_cursor=following))


@_runs.get(
    "/{run_id}/events",
    summary="Its progress, as server-sent events",
    response_class=StreamingResponse,
    responses={**_EVENTS, **problems("not-found", "too-many-streams")},
)
def stream_run_events(
    request: Request,
    services: Serving,
    _: Viewer,
    kinds: Kinds,
    run_id: RunId,
    last_event_id: Annotated[str | None, Header(max_length=20, description="Number of the last one heard.")] = None,
) -> Response:
    """Tell what happens as it happens; who lost the connection goes on behind `Last-Event-ID`."""
    run = _found(services, run_id, kinds)
    after = int(last_event_id) if last_event_id and last_event_id.isdecimal() else 0
    return event_stream(request.app.state.feeds, services.history, run, min(after, LARGEST_ID))


@_runs.post(
    "/{run_id}/cancel",
    status_code=202,
    response_model=RunAnswer,
    summary="Let a run end",
    responses=problems("not-found", "conflict"),
)
def cancel_run(request: Request, services: Serving, _: Operator, kinds: Kinds, run_id: RunId) -> Response:
    """Let a run end at its next word, or not begin; what is done stays done."""
    run = _found(services, run_id, kinds)
    if not services.worker.cancel(run_id):
        raise ConflictError(f"run {run_id} is over: {run.state}")
    return validated(request, RunAnswer.of(_found(services, run_id, kinds)), 202)


@_runs.post(
    "/{run_id}/retry",
    status_code=202,
    summary="Do again what failed",
    responses={**TAKEN, **problems("not-found", "conflict")},
)
def retry_run(
    request: Request,
    services: Serving,
    who: Operator,
    kinds: Kinds,
    run_id: RunId,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Ask again for the partitions that failed, or for all if the run was cut short or failed otherwise as well."""
    run = _found(services, run_id, kinds)
    if not run.state.is_final or run.state is RunState.SUCCEEDED:
        raise ConflictError(f"run {run_id} has not failed: {run.state}")
    asked = run.request
    if run.state is RunState.PARTIALLY_FAILED and asked.plan is None:
        asked = replace(asked, partitions=_failed(services, run) or asked.partitions)
    if run.origin == BY_API:  # what was allowed then need not be now; schedules name the configuration's own
        asked = services.within_places(asked)
    made, _ = submit_request(services, asked, who, key=idempotency_key, retry_of=run_id)
    return accepted(request, made)


def _failed(services: Services, run: Run) -> tuple[str, ...]:
    """Return the partitions that failed; none if more than these did, such as one that the run did not come to."""
    if OTHER_FAILURES in run.totals:
        return ()
    failed = services.history.partitions(run.id, limit=100_000, states=(PartitionState.FAILED,))
    return tuple(f"{one.topic}-{one.partition}" for one in failed)


router.include_router(_runs, prefix=_REPLAYS, tags=["replays"])
router.include_router(_runs, prefix=_ALL, tags=["runs"])
