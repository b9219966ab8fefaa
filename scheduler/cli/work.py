"""Commands that replay: regenerate, tier, verify, and explain, which shows a replay of one entry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import Answer, human_bytes, human_count
from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, MEMORY, READING, REPLAY, SOURCE, STORE, UPLOAD, WRITE, Sources
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.cli.plan_file import PlanFile, saved_plan
from resnap.scheduler.cli.replayed import answer_replay, report_staged, report_unusable
from resnap.scheduler.cli.shipped import answer_tier, doubts, report_held
from resnap.scheduler.cli.survey import report_problems, report_sight, totals_of
from resnap.scheduler.cli.verified import answer_store

if TYPE_CHECKING:
    from resnap.scheduler.use_cases.service import Service
    from resnap.scheduler.use_cases.sources import Sight
    from resnap.scheduler.use_cases.work_items import Planned


@with_settings(SOURCE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, WRITE, STORE)
def regenerate(
    run: Invocation,
    into: Annotated[str, typer.Option("--into", metavar="DIR|URL", help="Where to write the snapshots.")],
    sources: Sources = None,
    plan_file: PlanFile = None,
) -> None:
    """Rebuild producer snapshots, and write them as DIR/<topic>-<partition>/<offset, 20 digits>.snapshot.

    Safe beside a live broker: nothing is written into a log dir, and nothing in it is changed.
    """
    service, planned, sight = _planned(run, sources, plan_file, into)
    sink_url = service.sink_url(into, sight)
    report_sight(run, sight)
    if run.settings.dry_run:
        _answer_dry_run(run, planned, f"snapshots into {into}")
        return
    with run.progress("replay") as (progress,):
        answer_replay(run, service.regenerate(planned, sink_url, progress), judged=False)


@with_settings(SOURCE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, WRITE, UPLOAD, STORE)
def tier(
    run: Invocation,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The store to ship to: s3://, file:/// or memory://.")],
    sources: Sources = None,
    plan_file: PlanFile = None,
) -> int:
    """Ship every eligible segment with its indexes, leader epochs and aligned snapshot, rebuilding what is missing.

    What is shipped already stays as it is; where its snapshots lack producers that this run would keep, they are named
    (exit code 13). Frees no local disk by itself.
    """
    from resnap.scheduler.answers.progress import CountedProgress
    from resnap.scheduler.io_priority import set_io_priority
    from resnap.scheduler.wiring import scope_of
    from resnap.storage.stores.urls import open_store

    set_io_priority(run.settings.io_priority)
    saved = saved_plan(plan_file, sources)
    service = run.service(saved.rules if saved else None, remembers=True)
    scope = scope_of(run.settings, saved.sources if saved else sources)
    store = open_store(to, run.settings.s3())
    orders, sight = service.tier_orders(scope, store, saved)
    report_problems(run, sight.problems)
    for error in (error for order in orders for error in order.failures):
        run.error(error)
        run.partly_done = True
    planned = service.plan_orders(orders)
    if run.settings.dry_run:
        left = [segment for order in orders for segment in order.candidates.segments]
        size = human_bytes(sum(segment.size_bytes for segment in left))
        _answer_dry_run(run, planned, f"up to {human_count(len(left))} segments ({size}) into {to}")
        for order in (one for one in orders if one.doubted):
            run.warn(f"{doubts(order)}: the run will hold them against a replay")
        return OK
    with run.progress("replay", "ship") as (replaying, shipping):
        counted = CountedProgress(shipping)
        shipments = service.tier(orders, planned, store, replaying=replaying, shipping=counted)
        if not answer_tier(run, orders, shipments, counted) or not any(order.doubted for order in orders):
            return OK
    with run.progress("verify") as (progress,):
        return report_held(run, service.check_held(orders, progress, run.warn))


@with_settings(SOURCE, REPLAY, ENGINE, READING, MEMORY, STORE)
def verify(
    run: Invocation,
    sources: Sources = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            "--snapshots",
            metavar="DIR|URL",
            help="Compare the snapshots that `resnap regenerate --into DIR|URL` wrote.",
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Read back everything in this store.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|DURATION", help="With --store: only segments shipped since then."),
    ] = None,
) -> None:
    """Recompute and compare snapshots, or read a store back; any difference is listed, and ends with exit code 13.

    With --store every object is compared with its manifest, and every snapshot with a replay of what is stored.
    """
    from resnap.scheduler.wiring import scope_of
    from resnap.storage.errors import UsageError

    if (sources or snapshots) and store:
        raise UsageError("either SOURCE or --store is to be verified", hint="`resnap verify --help` shows both forms")
    if since and not store:
        raise UsageError("--since is of what was shipped", hint="give --store URL with it")
    service = run.service()
    if store:
        answer_store(run, service, store, since)
        return
    with run.progress("replay") as (progress,):
        found, sight = service.verify_source(scope_of(run.settings, sources), snapshots=snapshots, progress=progress)
        report_sight(run, sight)
        if snapshots is None:
            report_unusable(run, sight)
        else:
            report_staged(run, service, sight, snapshots)
        answer_replay(run, found, judged=True, strict=True)


def _planned(
    run: Invocation, sources: list[str] | None, plan_file: Path | None, into: str
) -> "tuple[Service, list[Planned], Sight]":
    from resnap.scheduler.wiring import scope_of

    saved = saved_plan(plan_file, sources)
    service = run.service(saved.rules if saved else None, remembers=True)
    scope = scope_of(run.settings, saved.sources if saved else sources)
    planned, sight = service.plan(scope, boundaries=run.settings.boundaries, saved=saved, into=into)
    return service, planned, sight


def _answer_dry_run(run: Invocation, planned: "list[Planned]", what: str) -> None:
    total = totals_of(planned)
    run.answer(Answer(head={"dryRun": True, **total}))
    run.output.line(f"would write {what}. Nothing was written.")
