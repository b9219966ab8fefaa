"""The pages of runs: the list, and one run with its progress, the outcomes of its partitions, and its errors."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from resnap.scheduler.api.paging import Paging
from resnap.scheduler.api.problem_kinds import NotFoundError
from resnap.scheduler.api.runs import RunId
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.registry import KINDS
from resnap.scheduler.runs.history import RunFilter
from resnap.scheduler.runs.run import Run, RunKind, RunState
from resnap.scheduler.web.commands import Command, install
from resnap.scheduler.web.pages import Context, PageContext, link, turned
from resnap.scheduler.web.words import RUN_STATES, human_facts

router = APIRouter(prefix="/runs", include_in_schema=False)


@router.get("")
def show_runs(
    context: Context,
    paging: Paging,
    state: Annotated[list[RunState] | None, Query()] = None,
    kind: Annotated[list[RunKind] | None, Query()] = None,
) -> Response:
    """Show a page of runs, newest first."""
    wanted = RunFilter(kinds=tuple(kind or ()), states=tuple(state or ()))
    found = context.services.history.page(wanted, limit=paging.most, before=paging.after(str))
    shown, following = paging.cut(found, lambda run: run.id)
    asked = {"state": [state.value for state in wanted.states], "kind": [*wanted.kinds]}
    values = {
        "runs": shown,
        "unreadable": dict(context.services.history.unreadable),
        "wanted": wanted,
        "kinds": list(KINDS),
        **turned("/runs", paging, following, **asked),
        "commands": [context.api(link("/v1/runs", **asked), "the same from the API")],
    }
    return context.page("runs.html", values)


@router.get("/{run_id}")
def show_run(
    context: Context, run_id: RunId, paging: Paging, state: Annotated[list[PartitionState] | None, Query()] = None
) -> Response:
    """Show one run."""
    history, states = context.services.history, tuple(state or ())
    run = history.get(run_id)
    if run is None:
        raise NotFoundError(f"there is no run {run_id}", hint="the list of runs has those that are kept")
    found = history.partitions(run_id, limit=paging.most, after=paging.after(str, int), states=states)
    shown, following = paging.cut(found, lambda outcome: (outcome.topic, outcome.partition))
    values = {
        "run": run,
        "status": _status(run),
        "totals": human_facts(run.totals),
        "outcomes": shown,
        "wanted": states,
        **turned(f"/runs/{run_id}", paging, following, state=[one.value for one in states]),
        "commands": _commands(context, run),
    }
    return context.page("run.html", values)


def _commands(context: PageContext, run: Run) -> list[Command]:
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
