"""Routes of plans: make, list, show and execute them; a plan is refused if something it depends on has changed."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from resnap.scheduler.api.auth import Operator, Serving, Viewer
from resnap.scheduler.api.bodies import PlanBody, PlannedRunBody, asked_by
from resnap.scheduler.api.paging import Paging, TaggedRoute
from resnap.scheduler.api.problems import HttpError, problems
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.api.responses import PlanAnswer, PlansAnswer, RunAnswer
from resnap.scheduler.api.runs import TAKEN, Submitting, quota_items
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.service.services import Services

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=TaggedRoute)
PlanId = Annotated[str, Path(max_length=200)]


@router.post(
    "",
    status_code=201,
    summary="Plan a replay",
    responses=problems(
        "unusable-request", "place-not-allowed", "log-dir-unusable", "unusable-data", "store-failed",
        "store-denied", "store-unavailable", "object-not-found", "file-gone", "quota-exceeded",
    ),
)  # fmt: skip
def make_plan(request: Request, response: Response, services: Serving, who: Operator, body: PlanBody) -> PlanAnswer:
    """Find out what a replay would read and make, and keep it; no segment is read."""
    asked = services.within_places(asked_by(body, "regenerate"))
    services.admission.charge(who.name, quota_items(asked))
    plan = services.plans.make(asked, who.name)
    context_in(request.scope).detail["plan"] = plan.id
    response.headers["Location"] = f"/v1/plans/{plan.id}"
    return PlanAnswer.model_validate(plan)


@router.get("", summary="Plans, newest first")
def list_plans(services: Serving, _: Viewer, paging: Paging) -> PlansAnswer:
    """Return a page of plans, without their partitions."""
    plans = services.plans.page(limit=paging.most, before=paging.after(str))
    page, following = paging.cut(plans, lambda plan: plan.id)
    answers = [PlanAnswer.model_validate(replace(plan, rows=())) for plan in page]
    return PlansAnswer(plans=answers, next_cursor=following)


@router.get("/{plan_id}", summary="One plan", responses=problems("not-found"))
def get_plan(services: Serving, _: Viewer, plan_id: PlanId) -> PlanAnswer:
    """Return a plan, partition by partition."""
    return PlanAnswer.model_validate(found_plan(services, plan_id))


@router.get(
    "/{plan_id}/file",
    response_model=dict[str, Any],
    summary="One plan, as the shell command takes it",
    responses=problems("not-found"),
)
def get_plan_file(services: Serving, _: Viewer, plan_id: PlanId) -> Response:
    """Return what `resnap plan --save` would have written, for `--plan FILE`."""
    return Response(found_plan(services, plan_id).plan, media_type="application/json")


@router.post(
    "/{plan_id}/replays",
    status_code=202,
    summary="Carry out a plan",
    responses={**TAKEN, **problems("not-found", "log-dir-unusable", "unusable-data", "store-failed", "store-denied",
                                   "store-unavailable", "object-not-found", "file-gone")},
)  # fmt: skip
def run_plan(submission: Submitting, plan_id: PlanId, body: PlannedRunBody) -> RunAnswer:
    """Carry a plan out, unless what it depends on has changed since."""
    services = submission.services
    plan = found_plan(services, plan_id)
    asked = replace(
        plan.request,
        kind=body.kind,
        destination=body.destination,
        settings={**plan.request.settings, "dry_run": body.dry_run},
        plan=plan.id,
    )
    return submission.take(services.within_places(asked), check=lambda: services.plans.check_fresh(plan))


def found_plan(services: Services, plan_id: str) -> KeptPlan:
    """Return a plan.

    Raises:
        HttpError: there is none of this id.

    """
    plan = services.plans.get(plan_id)
    if plan is None:
        raise HttpError("not-found", f"there is no plan {plan_id}", hint="the list of plans shows the existing ones")
    return plan
