"""Runs: the list, and one with its progress as it goes on, what became of its partitions, and what went wrong."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.api.problem_kinds import NotFoundError
from resnap.scheduler.api.runs import RunId
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.run import Run, RunKind, RunState
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, Shell, install
from resnap.scheduler.web.pages import api_command, link, page, plan_command, post_command
from resnap.scheduler.web.words import RUN_STATES, human_facts

router = APIRouter(include_in_schema=False)


@router.get("/runs")
def show_runs(
    request: Request,
    services: Serving,
    who: Viewer,
    state: Annotated[list[RunState] | None, Query()] = None,
    kind: Annotated[list[RunKind] | None, Query()] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Show a page of runs, newest first."""
    wanted = RunFilter(kinds=tuple(kind or ()), states=tuple(state or ()))
    before = decoded(cursor, str)
    found = services.history.page(wanted, limit=limit + 1, before=before[0] if before else None)
    shown, following = cut(found, limit, lambda run: encoded(run.id))
    asked = {"state": [one.value for one in wanted.states], "kind": [one.value for one in wanted.kinds]}
    values = {
        "runs": shown,
        "wanted": wanted,
        "kinds": list(RunKind),
        "states": RUN_STATES,
        "first_url": link("/runs", **asked) if cursor else None,
        "next_url": link("/runs", **asked, cursor=following) if following else None,
        "commands": [api_command(request, services, link("/v1/runs", **asked), "the same from the API")],
    }
    return page(request, services, who, "runs.html", values)


@router.get("/runs/{run_id}")
def show_run(
    request: Request,
    services: Serving,
    who: Viewer,
    run_id: RunId,
    state: Annotated[list[PartitionState] | None, Query()] = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Show one run."""
    run = services.history.get(run_id)
    if run is None:
        raise NotFoundError(f"there is no run {run_id}", hint="the list of runs has those that are kept")
    after = decoded(cursor, str, int)
    found = services.history.partitions(
        run_id, limit=limit + 1, after=None if after is None else (after[0], after[1]), states=tuple(state or ())
    )
    shown, following = cut(found, limit, lambda one: encoded(one.topic, one.partition))
    path, asked = f"/runs/{run_id}", {"state": [one.value for one in state or ()]}
    values = {
        "run": run,
        "status": _status(run),
        "totals": human_facts(run.totals),
        "outcomes": shown,
        "wanted": tuple(state or ()),
        "states": list(PartitionState),
        "link": link,
        "first_url": link(path, **asked) if cursor else None,
        "next_url": link(path, **asked, cursor=following) if following else None,
        "commands": _commands(request, services, run),
    }
    return page(request, services, who, "run.html", values)


def _commands(request: Request, services: Services, run: Run) -> list[Command]:
    """Return what to do about a run, then how to do the same, and to ask for it."""
    path, asked = f"/v1/runs/{run.id}", run.request
    todo = []
    if not run.state.is_final:
        todo.append(post_command(request, services, f"{path}/cancel", "cancel it"))
    elif run.state is not RunState.SUCCEEDED:
        todo.append(post_command(request, services, f"{path}/retry", "try again what failed"))
    installs = [install(str(asked.destination), path) for path in services.sightings.prepared_by(run.id)]
    plan = [] if asked.plan is None else [plan_command(request, services, asked.plan)]
    return [
        *todo,
        *installs,
        *plan,
        Command(says="the same in a shell", line=Shell.of(services).run(asked)),
        api_command(request, services, path, "this run from the API"),
        api_command(request, services, f"{path}/events", "its progress, as it goes on"),
    ]


def _status(run: Run) -> str:
    """Return what a screen reader says of a run, no oftener than each tenth of the way."""
    text = f"{run.kind.value} {RUN_STATES[run.state].text}"
    parts = [(int(str(row["bytes"])), int(str(row["bytesTotal"]))) for row in run.progress.values()]
    done, everything = sum(done for done, _ in parts), sum(of for _, of in parts)
    if run.state.is_final or not everything:
        return text
    return f"{text}, {10 * done // everything * 10} % done"
