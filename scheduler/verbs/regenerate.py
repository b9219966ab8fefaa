"""`resnap regenerate`: rebuilds producer snapshots as files, which `resnap install` puts beside the segments."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import snapshot_key
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, MEMORY, READING, REPLAY, SOURCE, STORE, WRITE
from resnap.scheduler.job.contract import Request, Verb, View, unread
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.verbs.planned import DryRunView, PlanRow, note_selection, would_replay
from resnap.scheduler.verbs.replayed import Rebuilt, ReplayView, SnapshotsRow
from resnap.tiering.regenerate import regenerate, sink_of

if TYPE_CHECKING:
    from resnap.scheduler.job.contract import Context, Report
    from resnap.tiering.planner import Replayed
    from resnap.tiering.regenerate import RegeneratedPartition


class RegenerateRequest(Request):
    """Rebuild producer snapshots, and write them as DIR/<topic>-<partition>/<offset, 20 digits>.snapshot.

    Safe beside a live broker: nothing is written into a log dir, and nothing in it is changed.
    """

    into: Annotated[str, typer.Option(metavar="DIR|URL", help="Where to write the snapshots.")]


def run(request: RegenerateRequest, context: Context, report: Report) -> None:
    """Rebuild each partition, and report it; with ``dry_run`` what would be rebuilt.

    Raises:
        StalePlanError: what the plan was made for has changed.
        StoreError: no such bucket, or no access to it.
        UsageError: a snapshot that is beside the segments would be replaced.
        UsageError, LogDirError: a source is not what it should be.

    """
    planner = planner_of(context, request.saved.rules if request.saved else None, cached=True)
    boundaries = context.settings.boundaries
    with context.progress("plan") as (progress,):
        planned, selection = planner.plan(
            request.scope,
            boundaries=boundaries,
            saved=request.saved,
            into=request.into,
            warn=context.warn,
            progress=progress,
        )
    note_selection(request.scope, selection, context, request.saved)
    if context.settings.dry_run:
        for result in chain(unread(selection), map(would_replay, planned)):
            report(result)
        return
    sink_url = sink_of(planner, planned, selection, request.into)
    for problem in unread(selection):
        report(problem)

    def heard(made: RegeneratedPartition) -> None:
        _notify(made.replayed, request.into, sink_url, context)
        report(replace(Rebuilt.of(made.replayed), wrong_indexes=made.wrong_indexes))

    with context.progress("replay") as (progress,):
        regenerate(planner, planned, sink_url, progress, heard, warn=context.warn)


def view_of(request: RegenerateRequest, context: Context) -> View[Any]:
    """Return how the results of this run are shown."""
    if context.settings.dry_run:
        return DryRunView(f"snapshots into {request.into}")
    return ReplayView(request.scope, request.into)


def _notify(replayed: Replayed, into: str, sink_url: str, context: Context) -> None:
    """Have what was made of a partition counted, and charged to the principal that asked for it."""
    selected, result = replayed.planned.selected, replayed.result
    made = [boundary.offset for boundary in result.boundaries if boundary.outcome is BoundaryOutcome.REBUILT]
    unchanged = [known.offset for known in replayed.planned.still_valid]
    context.made(selected, "regenerated", into, frozenset([*made, *unchanged]))
    context.snapshots(
        selected.log_dir.cluster_id,
        made=len(made),
        failed=len(result.boundaries) - len(made),
        unchanged=len(unchanged),
    )
    if made:
        context.activated(f"{sink_url}/{snapshot_key(result.topic_partition, max(made))}")


VERB = Verb(
    takes=(SOURCE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, WRITE, STORE),
    request=RegenerateRequest,
    run=run,
    view=view_of,
    reads="log dirs",
    to="into",
    to_url=False,
    carries_out_plans=True,
    rows=(PlanRow, SnapshotsRow),
)
