"""Routes of runs: each verb has its address to ask for one, and ``/v1/runs`` has them all, scheduled ones included.

``Submission`` turns a request into a run: once per idempotency key, within the quota.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from resnap.scheduler.api.auth import Operator, Serving, Viewer
from resnap.scheduler.api.bodies import ReplayBody, asked_by, body_of
from resnap.scheduler.api.events import LARGEST_ID, event_stream
from resnap.scheduler.api.paging import Paging, TaggedRoute
from resnap.scheduler.api.problems import HttpError, problems
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.api.responses import RunAnswer, RunPartition, RunPartitionsAnswer, RunsAnswer
from resnap.scheduler.job.contract import Door, PartitionState, Verb, verbs_of_service
from resnap.scheduler.output.records import plain
from resnap.scheduler.runs.run import BY_API, OTHER_FAILURES, Run, RunKind, RunRequest, RunState
from resnap.scheduler.service.services import Services
from resnap.scheduler.state.database import insert_row

RUNS_PATH: Final = "/v1/runs"
TAKEN: Final[dict[int | str, dict[str, Any]]] = {
    202: {"headers": {"Location": {"description": "Address of the run.", "schema": {"type": "string"}}}},
    **problems(
        "unusable-request", "place-not-allowed", "idempotency-key-reused", "stale-plan", "queue-full", "quota-exceeded",
        "log-dir-unusable", "cancelled",
    ),
}  # fmt: skip
"""What a route may answer that makes a run."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Takes what an operator asks for as a run."""

    request: Request
    response: Response
    services: Serving
    who: Operator
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1, max_length=200, description="The same key and request give the same run; another is refused."
        ),
    ] = None

    def take(
        self,
        asked: RunRequest,
        *,
        retry_of: str | None = None,
        origin: str = BY_API,
        check: Callable[[], None] = lambda: None,
    ) -> RunAnswer:
        """Return the run that is made of a request; the same key gives the same run.

        Args:
            asked: what the run is to do.
            retry_of: the run that is done again.
            origin: of the run.
            check: called before a run is made; what it raises is the answer. A run that the key has made before is the
                answer whatever has changed since.

        Raises:
            HttpError: the key came with another request before.
            QueueFullError: no more runs are taken for now.
            QuotaExceededError: the principal is to wait.

        """
        services, key, principal = self.services, self.idempotency_key, self.who.name
        charge = partial(services.admission.charge, principal, quota_items(asked))
        submit = partial(services.worker.submit, asked, origin=origin, principal=principal, retry_of=retry_of)
        if key is None:
            check()
            charge()
            return self._accepted(submit())
        parts = [plain(asked), retry_of, *([] if origin == BY_API else [origin])]
        fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        run = self._earlier_run(key, fingerprint)
        if run is None:
            check()
            with services.submitting:
                run = self._once(key, fingerprint, charge, submit)
        return self._accepted(run)

    def _earlier_run(self, key: str, fingerprint: str) -> Run | None:
        """Return the run that a key has made, if it is kept; raises HttpError if it came with another request."""
        query = "SELECT run_id, fingerprint FROM idempotency_keys WHERE principal = ? AND key = ?"
        known = self.services.database.row(query, (self.who.name, key))
        if known is not None and known["fingerprint"] != fingerprint:
            raise HttpError("idempotency-key-reused", f"Idempotency-Key {key[:100]!r} came with another request before")
        return None if known is None else self.services.history.get(known["run_id"])

    def _once(self, key: str, fingerprint: str, charge: Callable[[], object], submit: Callable[[], Run]) -> Run:
        services, run = self.services, self._earlier_run(key, fingerprint)
        if run is not None:
            return run
        charge()
        with services.database.write() as connection:
            run = submit()
            values = {"principal": self.who.name, "key": key, "fingerprint": fingerprint, "run_id": run.id}
            insert_row(connection, "idempotency_keys", {**values, "created_ms": services.clock.now_ms()})
        return run

    def _accepted(self, run: Run) -> RunAnswer:
        """Return that a run was taken, and where it is."""
        context_in(self.request.scope).detail["run"] = run.id
        self.response.headers["Location"] = f"{RUNS_PATH}/{run.id}"
        return RunAnswer.model_validate(run)


Submitting: TypeAlias = Annotated[Submission, Depends()]


def quota_items(asked: RunRequest) -> list[str]:
    """Return what a request is about, piece by piece, for the quota: partitions, or sources where it names none."""
    sources = asked.sources or ("log.dirs",)
    return [f"{source} {name}" for source in sources for name in (asked.partitions or ("",))]


RunId = Annotated[str, Path(max_length=200)]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events of the run, until it is over: `state`, `progress`, `partition`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The run is over, and its last event was received."},
}

router = APIRouter(tags=["runs"], route_class=TaggedRoute)


@router.post("/v1/replays", status_code=202, summary="Ask for a replay", responses=TAKEN, tags=["replays"])
def create_replay(submission: Submitting, body: ReplayBody) -> RunAnswer:
    """Rebuild snapshots, or ship segments; the response has the address of the run."""
    return submission.take(submission.services.within_places(asked_by(body, body.kind)))


def _create(kind: str, verb: Verb, door: Door) -> None:
    """Add the route that makes a run of a verb; the response has the address of the run."""
    body_type = body_of(kind, verb, door)

    def create(submission: Submitting, body: body_type) -> RunAnswer:  # type: ignore[valid-type]
        asked, services = asked_by(body, kind), submission.services
        if verb.reads != "cluster":
            asked = services.within_places(asked)
        return submission.take(services.of_scanned_sources(asked) if kind == "scan" else asked)

    name = f"create_{door.path.removeprefix('/v1/').removesuffix('s').replace('-', '_')}"
    router.post(door.path, status_code=202, name=name, summary=door.summary, description=door.does, responses=TAKEN)(
        create
    )


for _kind, _verb in verbs_of_service():
    if _verb.door is not None:
        _create(_kind, _verb, _verb.door)


def found_run(services: Services, run_id: str) -> Run:
    """Return a run.

    Raises:
        HttpError: there is none of this id.

    """
    run = services.history.get(run_id)
    if run is None:
        raise HttpError("not-found", f"there is no run {run_id}")
    return run


@router.get(RUNS_PATH, summary="Runs, newest first")
def list_runs(
    services: Serving,
    _: Viewer,
    paging: Paging,
    state: Annotated[list[RunState] | None, Query(description="Only these; may be given several times.")] = None,
    kind: Annotated[list[RunKind] | None, Query()] = None,
    origin: Annotated[str | None, Query(max_length=200, description="`api`, or `schedule:NAME`.")] = None,
) -> RunsAnswer:
    """Return a page of runs."""
    runs = services.history.page(
        kinds=kind or (), states=state or (), origin=origin, limit=paging.most, before=paging.after(str)
    )
    page, following = paging.cut(runs, lambda run: run.id)
    answers, unreadable = [RunAnswer.model_validate(run) for run in page], dict(services.history.unreadable)
    return RunsAnswer(runs=answers, unreadable=unreadable, next_cursor=following)


@router.get(f"{RUNS_PATH}/{{run_id}}", summary="One run", responses=problems("not-found"))
def get_run(services: Serving, _: Viewer, run_id: RunId) -> RunAnswer:
    """Return a run, with its progress or its result."""
    return RunAnswer.model_validate(found_run(services, run_id))


@router.get(
    f"{RUNS_PATH}/{{run_id}}/partitions", summary="The outcomes of its partitions", responses=problems("not-found")
)
def list_run_partitions(
    services: Serving,
    _: Viewer,
    run_id: RunId,
    paging: Paging,
    state: Annotated[list[PartitionState] | None, Query()] = None,
) -> RunPartitionsAnswer:
    """Return a page of the partitions that are done, by topic and number."""
    found_run(services, run_id)
    after = paging.after(str, int)
    outcomes = services.history.partitions(run_id, limit=paging.most, after=after, states=tuple(state or ()))
    page, following = paging.cut(outcomes, lambda outcome: (outcome.topic, outcome.partition))
    partitions = [RunPartition.model_validate(outcome) for outcome in page]
    return RunPartitionsAnswer(partitions=partitions, next_cursor=following)


@router.get(
    f"{RUNS_PATH}/{{run_id}}/events",
    summary="Its progress, as server-sent events",
    response_class=StreamingResponse,
    responses={**_EVENTS, **problems("not-found", "too-many-streams")},
)
def stream_run_events(
    request: Request,
    services: Serving,
    _: Viewer,
    run_id: RunId,
    last_event_id: Annotated[
        str | None, Header(max_length=20, description="Number of the last one that was received.")
    ] = None,
) -> Response:
    """Report events as they happen; after a lost connection, continue with `Last-Event-ID`."""
    run = found_run(services, run_id)
    after = int(last_event_id) if last_event_id and last_event_id.isdecimal() else 0
    return event_stream(request.app.state.feeds, services.history, run, min(after, LARGEST_ID))


@router.post(
    f"{RUNS_PATH}/{{run_id}}/cancel",
    status_code=202,
    summary="Cancel a run",
    responses=problems("not-found", "conflict"),
)
def cancel_run(services: Serving, _: Operator, run_id: RunId) -> RunAnswer:
    """Cancel a run: it ends at its next report, or does not begin; finished work is kept."""
    run = found_run(services, run_id)
    if not services.worker.cancel(run_id):
        raise HttpError("conflict", f"run {run_id} is over: {run.state}")
    return RunAnswer.model_validate(found_run(services, run_id))


@router.post(
    f"{RUNS_PATH}/{{run_id}}/retry",
    status_code=202,
    summary="Retry what failed",
    responses={**TAKEN, **problems("not-found", "conflict")},
)
def retry_run(submission: Submitting, run_id: RunId) -> RunAnswer:
    """Ask again for the partitions that failed, or for all if the run was cut short or failed otherwise as well."""
    services = submission.services
    run = found_run(services, run_id)
    if not run.state.is_final or run.state is RunState.SUCCEEDED:
        raise HttpError("conflict", f"run {run_id} has not failed: {run.state}")
    asked = run.request
    if run.state is RunState.PARTIALLY_FAILED and asked.plan is None:
        asked = replace(asked, partitions=_failed_partitions(services, run) or asked.partitions)
    if run.origin == BY_API:  # what was allowed then need not be now; schedules name the configuration's own
        asked = services.within_places(asked)
    return submission.take(asked, retry_of=run_id)


def _failed_partitions(services: Services, run: Run) -> tuple[str, ...]:
    """Return the partitions that failed; none if more than these did, such as one that the run did not come to."""
    if OTHER_FAILURES in run.totals:
        return ()
    failed = services.history.partitions(run.id, limit=100_000, states=(PartitionState.FAILED,))
    return tuple(f"{outcome.topic}-{outcome.partition}" for outcome in failed)
