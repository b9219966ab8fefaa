"""The job ``plan``: shows what a replay would read and write, partition by partition."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resnap.replay.staging import DISCARD
from resnap.replay.window import ReplayRules
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, MEMORY, READING, REPLAY, SOURCE, STORE
from resnap.scheduler.job.contract import Request, Verb, View, unread
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.job.wiring import rules_of
from resnap.scheduler.verbs.planned import PlanView, note_selection, would_replay
from resnap.scheduler.verbs.replayed import JudgedView, Rebuilt
from resnap.storage.errors import ResnapError
from resnap.storage.whole_file import sync_directory, write_whole
from resnap.tiering.judging.planning import write_saved_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.job.contract import Context, Report
    from resnap.tiering.planner import Planned, Planner


class PlanRequest(Request):
    """Show what would be read and made, partition by partition; with --prove also what existing snapshots are worth."""

    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan to FILE, for regenerate --plan FILE.")
    ] = None
    prove: Annotated[
        bool, typer.Option(help="Replay now, write nothing, and compare the snapshots that are there.")
    ] = False
    rules: ReplayRules | None = None
    """What the replay is done by."""

    def settled(self, context: Context) -> PlanRequest:
        """Return the request with its rules: T is fixed here."""
        return replace(self, rules=rules_of(context.settings, context.clock))


def run(request: PlanRequest, context: Context, report: Report) -> None:
    """Report the plan of each partition, or the proof of its existing snapshots; save the plan if that is asked for.

    Raises:
        UsageError, LogDirError: a source is not what it should be.
        ResnapError: the plan cannot be written.

    """
    # A proof uses nothing that earlier runs found, and a saved plan is for whatever may be known by then.
    cached = not request.prove and request.save is None
    planner = planner_of(context, request.rules, replays=request.prove, cached=cached)
    boundaries = "all" if request.prove else context.settings.boundaries
    with context.progress("plan") as (progress,):
        planned, selection = planner.plan(request.scope, boundaries=boundaries, warn=context.warn, progress=progress)
    note_selection(request.scope, selection, context)
    if request.save is not None:
        _keep(request.save, write_saved_plan(planner.save(request.scope, planned)))
        context.note(f"plan written to {request.save}")
    results = _prove(planner, planned, context) if request.prove else map(would_replay, planned)
    for result in chain(unread(selection), results):
        report(result)


def _prove(planner: Planner, planned: list[Planned], context: Context) -> Iterator[Rebuilt]:
    with context.progress("replay") as (progress,):
        for replayed in planner.replay(planned, DISCARD, progress):
            yield Rebuilt.of(replayed)


def _keep(path: Path, text: str) -> None:
    """Write a plan durably, whole or not at all."""
    try:
        write_whole(path.absolute(), (text.encode(),))
        sync_directory(path.absolute().parent)
    except OSError as error:
        what = f"{path}: the plan cannot be written: {error.strerror}"
        hint = "free some space, or name a file that you can write, in a directory that is there"
        raise ResnapError(what, hint=hint) from error


def view_of(request: PlanRequest, context: Context) -> View[Any]:
    """Return how the results of this run are shown."""
    if request.prove or request.rules is None:
        return JudgedView(request.scope)
    return PlanView(request.scope, request.rules, context.settings, request.save)


VERB = Verb(
    takes=(SOURCE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, STORE),
    request=PlanRequest,
    run=run,
    view=view_of,
    reads="log dirs",
)
