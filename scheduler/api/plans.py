"""Plans: made and kept, looked at, carried out later, and refused where what they depend on has changed."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from resnap.scheduler.api.auth import Operator, Serving, Viewer
from resnap.scheduler.api.bodies import PlanBody, PlannedRunBody
from resnap.scheduler.api.etags import validated
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.api.problem_kinds import NotFoundError
from resnap.scheduler.api.problems import problems
from resnap.scheduler.api.request_context import context_of
from resnap.scheduler.api.responses import PlanAnswer, PlansAnswer
from resnap.scheduler.api.runs import TAKEN, IdempotencyKey, accepted
from resnap.scheduler.api.submitting import quota_items, submit_request
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.runs.run import RunKind, RunRequest
from resnap.scheduler.service.services import Services

router = APIRouter(prefix="/v1/plans", tags=["plans"])
PlanId = Annotated[str, Path(pattern=r"^[0-9a-hjkmnp-tv-z]{20}$")]


@router.post(
    "",
    status_code=201,
    response_model=PlanAnswer,
    summary="Plan a replay",
    responses=problems(
        "unusable-request", "place-not-allowed", "log-dir-unusable", "unusable-data", "store-failed",
        "store-denied", "store-unavailable", "object-not-found", "file-gone", "quota-exceeded",
    ),
)  # fmt: skip
def make_plan(request: Request, services: Serving, who: Operator, body: PlanBody) -> Response:
    """Find out what a replay would read and make, and keep it; no segment is read."""
    asked = RunRequest(
        kind=RunKind.REGENERATE,
        sources=tuple(body.sources),
        partitions=tuple(body.partitions),
        settings=body.settings(),
    )
    asked = services.within_places(asked)
    services.admission.charge(who.name, quota_items(asked))
    plan = services.plans.make(asked, who.name)
    context_of(request).detail["plan"] = plan.id
    return validated(request, PlanAnswer.of(plan), 201, {"Location": f"/v1/plans/{plan.id}"})


@router.get("", response_model=PlansAnswer, summary="Plans, newest first", responses={304: {}})
def list_plans(request: Request, services: Serving, _: Viewer, limit: Limit = PAGE, cursor: Cursor = None) -> Response:
    """Return a page of plans, without their partitions."""
    before = decoded(cursor, str)
    plans = services.plans.page(limit=limit + 1, before=before[0] if before else None)
    page, following = cut(plans, limit, lambda plan: encoded(plan.id))
    answers = [PlanAnswer.of(plan, rows=False) for plan in page]
    return validated(request, PlansAnswer(plans=answers, next_cursor=following))


@router.get("/{plan_id}", response_model=PlanAnswer, summary="One plan", responses={304: {}, **problems("not-found")})
def get_plan(request: Request, services: Serving, _: Viewer, plan_id: PlanId) -> Response:
    """Return a plan, partition by partition."""
    return validated(request, PlanAnswer.of(found_plan(services, plan_id)))


@router.get(
    "/{plan_id}/file",
    response_model=dict[str, Any],
    summary="One plan, as the shell command takes it",
    responses=problems("not-found"),
)
def get_plan_file(services: Serving, _: Viewer, plan_id: PlanId) -> Response:
    """Return what `resnap plan --save` would have written, for `--plan FILE`."""
    return Response(found_plan(services, plan_id).text, media_type="application/json")


@router.post(
    "/{plan_id}/replays",
    status_code=202,
    summary="Carry out a plan",
    responses={**TAKEN, **problems("not-found", "log-dir-unusable", "unusable-data", "store-failed", "store-denied",
                                   "store-unavailable", "object-not-found", "file-gone")},
)  # fmt: skip
def run_plan(
    request: Request,
    services: Serving,
    who: Operator,
    plan_id: PlanId,
    body: PlannedRunBody,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Carry a plan out, unless what it depends on has changed since."""
    plan = found_plan(services, plan_id)
    services.plans.check_fresh(plan)
    asked = RunRequest(
        kind=RunKind(body.kind),
        sources=plan.request.sources,
        partitions=plan.request.partitions,
        destination=body.destination,
        settings={**plan.request.settings, "dry_run": body.dry_run},
        plan=plan.id,
    )
    run, _ = submit_request(services, services.within_places(asked), who, key=idempotency_key)
    return accepted(request, run)


def found_plan(services: Services, plan_id: str) -> KeptPlan:
    """Return a plan.

    Raises:
        NotFoundError: there is none of this id.

    """
    plan = services.plans.get(plan_id)
    if plan is None:
        raise NotFoundError(f"there is no plan {plan_id}", hint="the list of plans has those that are kept")
    return plan
