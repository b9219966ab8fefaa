"""The pages of runs, of stored plans, of schedules, of the API's description, and, for admins, of the audit log.

Of a run: its progress, the outcomes of its partitions, and its errors. Of a plan: what it would read and write, whether
the log is unchanged, and how to execute it.
"""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from resnap.scheduler.api.auth import Admin
from resnap.scheduler.api.bodies import PlanBody
from resnap.scheduler.api.paging import Paging, encode_cursor
from resnap.scheduler.api.plans import PlanId, found_plan
from resnap.scheduler.api.runs import RunId, found_run
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.registry import KINDS
from resnap.scheduler.runs.plans import KeptPlan
from resnap.scheduler.runs.run import Run, RunKind, RunState
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, install
from resnap.scheduler.web.pages import Context, PageContext, link, page_links
from resnap.scheduler.web.words import RUN_STATES, human_facts
from resnap.storage.errors import ResnapError, StalePlanError

router = APIRouter(include_in_schema=False)
Text = Annotated[str, Query(max_length=200)]


@router.get("/runs")
def show_runs(
    context: Context,
    paging: Paging,
    state: Annotated[list[RunState] | None, Query()] = None,
    kind: Annotated[list[RunKind] | None, Query()] = None,
) -> Response:
    """Show a page of runs, newest first."""
    kinds, states, history = kind or (), state or (), context.services.history
    found = history.page(kinds=kinds, states=states, limit=paging.most, before=paging.after(str))
    shown, following = paging.cut(found, lambda run: run.id)
    asked = {"state": [state.value for state in states], "kind": [*kinds]}
    values = {
        "runs": shown,
        "unreadable": dict(history.unreadable),
        "wanted": asked,
        "kinds": list(KINDS),
        **page_links("/runs", paging, following, **asked),
        "commands": [context.api(link("/v1/runs", **asked), "the same from the API")],
    }
    return context.page("runs.html", values)


@router.get("/runs/{run_id}")
def show_run(
    context: Context, run_id: RunId, paging: Paging, state: Annotated[list[PartitionState] | None, Query()] = None
) -> Response:
    """Show one run."""
    history, states = context.services.history, tuple(state or ())
    run = found_run(context.services, run_id)
    found = history.partitions(run_id, limit=paging.most, after=paging.after(str, int), states=states)
    shown, following = paging.cut(found, lambda outcome: (outcome.topic, outcome.partition))
    values = {
        "run": run,
        "status": _status(run),
        "totals": human_facts(run.totals),
        "outcomes": shown,
        "wanted": states,
        **page_links(f"/runs/{run_id}", paging, following, state=[wanted.value for wanted in states]),
        "commands": _run_commands(context, run),
    }
    return context.page("run.html", values)


def _run_commands(context: PageContext, run: Run) -> list[Command]:
    """Return what to do about a run, then how to do the same, and to ask for it."""
    path, asked = f"/v1/runs/{run.id}", run.request
    todo = []
    if not run.state.is_final:
        todo.append(context.post(f"{path}/cancel", "cancel it"))
    elif run.state is not RunState.SUCCEEDED:
        todo.append(context.post(f"{path}/retry", "try again what failed"))
    todo += [install(str(asked.destination), place) for place in context.services.scans.prepared_by(run.id)]
    todo += [] if asked.plan is None else [context.plan(asked.plan)]
    return [
        *todo,
        Command("the same in a shell", context.shell.run(asked)),
        context.api(path, "this run from the API"),
        context.api(f"{path}/events", "its progress, continuously"),
    ]


def _status(run: Run) -> str:
    """Return what a screen reader says of a run, which changes at each tenth of the way at most."""
    text = f"{run.kind} {RUN_STATES[run.state].text}"
    parts = [(row["bytes"], row["bytesTotal"]) for row in run.progress.values()]
    done, everything = sum(done for done, _ in parts), sum(of for _, of in parts)
    if run.state.is_final or not everything:
        return text
    return f"{text}, {10 * done // everything * 10} % done"


RUNS_OF_PLAN: Final = 10
"""The newest that carried a plan out are shown on its page."""


@router.get("/plans")
def show_plans(context: Context, paging: Paging) -> Response:
    """Show a page of plans, newest first."""
    plans = context.services.plans.page(limit=paging.most, before=paging.after(str))
    shown, following = paging.cut(plans, lambda plan: plan.id)
    values = {
        "plans": shown,
        **page_links("/plans", paging, following),
        "commands": [
            context.api("/v1/plans", "make a plan for everything that lacks snapshots", {}),
            context.api("/v1/plans", "the same from the API"),
        ],
    }
    return context.page("plans.html", values)


@router.get("/plans/{plan_id}")
def show_plan(context: Context, plan_id: PlanId, paging: Paging) -> Response:
    """Show a plan, and whether it can still be carried out."""
    plan = found_plan(context.services, plan_id)
    begin = paging.after(int) or 0
    end = begin + paging.limit
    stale, unread = _staleness(context.services, plan)
    values = {
        "plan": plan,
        "stale": stale,
        "unread": unread,
        "totals": human_facts({name: value for name, value in plan.totals.items() if name != "dryRun"}),
        "runs": context.services.history.page(plan=plan.id, limit=RUNS_OF_PLAN),
        "rows": plan.rows[begin:end],
        **page_links(f"/plans/{plan_id}", paging, encode_cursor(end) if end < len(plan.rows) else None),
        "commands": _plan_commands(context, plan, is_stale=stale is not None),
    }
    return context.page("plan.html", values)


def _staleness(services: Services, plan: KeptPlan) -> tuple[ResnapError | None, ResnapError | None]:
    """Return why a plan is stale, or why that cannot be found out now; nothing of it is read but small files."""
    try:
        services.plans.check_fresh(plan)
    except StalePlanError as error:
        return error, None
    except ResnapError as error:
        return None, error
    return None, None


def _plan_commands(context: PageContext, plan: KeptPlan, *, is_stale: bool) -> list[Command]:
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


@router.get("/schedules")
def show_schedules(context: Context) -> Response:
    """Show every schedule, when it is due next, and its last run."""
    found = [(view, context.shell.run(view.request)) for view in context.services.schedules.all()]
    commands = [context.api("/v1/schedules", "the same from the API")]
    return context.page("schedules.html", {"schedules": found, "commands": commands})


@router.get("/docs")
def show_api(context: Context) -> Response:
    """Show what the HTTP API can be asked for; ``/openapi.json`` has the whole description."""
    paths = context.request.app.openapi()["paths"]
    operations = [
        (method.upper(), path, operation) for path, methods in paths.items() for method, operation in methods.items()
    ]
    commands = [context.api("/openapi.json", "the whole description")]
    return context.page("api.html", {"operations": operations, "commands": commands})


@router.get("/audit")
def show_audit(
    context: Context, _: Admin, paging: Paging, principal: Text = "", action: Text = "", outcome: Text = ""
) -> Response:
    """Show a page of the audit, newest first."""
    asked = {"principal": principal, "action": action, "outcome": outcome}
    found = context.services.access.audit.page(**asked, before=paging.after(int), limit=paging.most)
    shown, following = paging.cut(found, lambda entry: entry.seq)
    values = {
        "entries": shown,
        "wanted": asked,
        **page_links("/audit", paging, following, **asked),
        "commands": [context.api(link("/v1/audit", **asked), "the same from the API")],
    }
    return context.page("audit.html", values)
