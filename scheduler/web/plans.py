"""The pages of stored plans: what each would read and write, whether the log is unchanged, and how to execute it."""

from typing import Final

from fastapi import APIRouter, Response

from resnap.scheduler.api.bodies import PlanBody
from resnap.scheduler.api.paging import Paging, encoded
from resnap.scheduler.api.plans import PlanId, found_plan
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command
from resnap.scheduler.web.pages import Context, PageContext, turned
from resnap.scheduler.web.words import human_facts
from resnap.storage.errors import ResnapError, StalePlanError

router = APIRouter(prefix="/plans", include_in_schema=False)
RUNS: Final = 10
"""The newest that carried a plan out are shown on its page."""


@router.get("")
def show_plans(context: Context, paging: Paging) -> Response:
    """Show a page of plans, newest first."""
    plans = context.services.plans.page(limit=paging.most, before=paging.after(str))
    shown, following = paging.cut(plans, lambda plan: plan.id)
    values = {
        "plans": shown,
        **turned("/plans", paging, following),
        "commands": [
            context.api("/v1/plans", "make a plan for everything that lacks snapshots", {}),
            context.api("/v1/plans", "the same from the API"),
        ],
    }
    return context.page("plans.html", values)


@router.get("/{plan_id}")
def show_plan(context: Context, plan_id: PlanId, paging: Paging) -> Response:
    """Show a plan, and whether it can still be carried out."""
    plan = found_plan(context.services, plan_id)
    begin = paging.after(int) or 0
    end = begin + paging.limit
    stale, unread = _state(context.services, plan)
    values = {
        "plan": plan,
        "stale": stale,
        "unread": unread,
        "totals": human_facts({name: value for name, value in plan.totals.items() if name != "dryRun"}),
        "runs": context.services.history.page(RunFilter(plan=plan.id), limit=RUNS),
        "rows": plan.rows[begin:end],
        **turned(f"/plans/{plan_id}", paging, encoded(end) if end < len(plan.rows) else None),
        "commands": _commands(context, plan, is_stale=stale is not None),
    }
    return context.page("plan.html", values)


def _state(services: Services, plan: KeptPlan) -> tuple[ResnapError | None, ResnapError | None]:
    """Return why a plan is stale, or why that cannot be found out now; nothing of it is read but small files."""
    try:
        services.plans.check_fresh(plan)
    except StalePlanError as error:
        return error, None
    except ResnapError as error:
        return None, error
    return None, None


def _commands(context: PageContext, plan: KeptPlan, *, is_stale: bool) -> list[Command]:
    """Return what to do with a plan; one that is stale can only be made again."""
    path = f"/v1/plans/{plan.id}"
    carry_out, again = context.shell.plan(plan)
    if is_stale:
        body = PlanBody.of(plan.request).model_dump(by_alias=True, exclude_defaults=True)
        return [context.api("/v1/plans", "make it again", body), again]
    return [
        context.api(f"{path}/replays", "let this service carry it out", {"destination": context.destination}),
        context.plan(plan.id),
        carry_out,
        again,
        context.api(path, "this plan from the API"),
    ]
