"""Plans that are kept: what each would read and make, whether the log is still as it was, and how to carry it out."""

from typing import Final

from fastapi import APIRouter, Request, Response

from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.bodies import PlanBody
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.api.plans import PlanId, found_plan
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, Shell
from resnap.scheduler.web.pages import api_command, destination_of, link, page, plan_command
from resnap.scheduler.web.words import human_facts
from resnap.storage.errors import ResnapError, StalePlanError

router = APIRouter(include_in_schema=False)
RUNS: Final = 10
"""The newest that carried a plan out are shown on its page."""


@router.get("/plans")
def show_plans(
    request: Request, services: Serving, who: Viewer, limit: Limit = PAGE, cursor: Cursor = None
) -> Response:
    """Show a page of plans, newest first."""
    before = decoded(cursor, str)
    plans = services.plans.page(limit=limit + 1, before=before[0] if before else None)
    shown, following = cut(plans, limit, lambda plan: encoded(plan.id))
    values = {
        "plans": shown,
        "first_url": "/plans" if cursor else None,
        "next_url": link("/plans", cursor=following) if following else None,
        "commands": [
            api_command(request, services, "/v1/plans", "have a plan made, of all that lacks snapshots", {}),
            api_command(request, services, "/v1/plans", "the same from the API"),
        ],
    }
    return page(request, services, who, "plans.html", values)


@router.get("/plans/{plan_id}")
def show_plan(
    request: Request, services: Serving, who: Viewer, plan_id: PlanId, limit: Limit = PAGE, cursor: Cursor = None
) -> Response:
    """Show a plan, and whether it can still be carried out."""
    plan = found_plan(services, plan_id)
    at = (decoded(cursor, int) or (0,))[0]
    path = f"/plans/{plan_id}"
    following = at + limit if at + limit < len(plan.rows) else None
    stale, unread = _state(services, plan)
    values = {
        "plan": plan,
        "stale": stale,
        "unread": unread,
        "totals": human_facts({name: value for name, value in plan.totals.items() if name != "dryRun"}),
        "runs": services.history.page(RunFilter(plan=plan.id), limit=RUNS),
        "rows": plan.rows[at : at + limit],
        "link": link,
        "first_url": path if cursor else None,
        "next_url": None if following is None else link(path, cursor=encoded(following)),
        "commands": _commands(request, services, plan, is_stale=stale is not None),
    }
    return page(request, services, who, "plan.html", values)


def _state(services: Services, plan: KeptPlan) -> tuple[ResnapError | None, ResnapError | None]:
    """Return why a plan is stale, or why that cannot be found out now; nothing of it is read but small files."""
    try:
        services.plans.check_fresh(plan)
    except StalePlanError as error:
        return error, None
    except ResnapError as error:
        return None, error
    return None, None


def _commands(request: Request, services: Services, plan: KeptPlan, *, is_stale: bool) -> list[Command]:
    """Return what to do with a plan; one that is stale can only be made again."""
    path, shell = f"/v1/plans/{plan.id}", Shell.of(services)
    anew = PlanBody.of(plan.request).model_dump(by_alias=True, exclude_defaults=True)
    again = Command(says="make it again in a shell", line=shell.plan(plan))
    if is_stale:
        return [api_command(request, services, "/v1/plans", "have it made anew", anew), again]
    to = destination_of(services)
    return [
        api_command(request, services, f"{path}/replays", "have this service carry it out", {"destination": to}),
        plan_command(request, services, plan.id),
        Command(says="carry it out in a shell", line=shell.carry_out(plan)),
        again,
        api_command(request, services, path, "this plan from the API"),
    ]
