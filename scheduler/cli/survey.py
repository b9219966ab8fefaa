"""Commands that tell what is there and what would be done: scan, plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, MEMORY, READING, REPLAY, SOURCE, STORE, Sources
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.scheduler.use_cases.sources import Sight
    from resnap.scheduler.use_cases.work_items import Planned
    from resnap.storage.log.survey import PartitionProblem


def report_problems(run: Invocation, problems: "Iterable[PartitionProblem]") -> None:
    """Report each directory or checkpoint that could not be read; the rest goes on."""
    for problem in problems:
        run.error(problem.error)
        run.partly_done = True


def report_sight(run: Invocation, sight: "Sight") -> None:
    """Report what could not be read, and say what is left aside."""
    from resnap.tiering.planning import can_be_tiered

    report_problems(run, sight.problems)
    compacted = sum(not can_be_tiered(sighted.inventory) for sighted in sight.partitions)
    if compacted:
        run.note(f"{human_count(compacted)} compacted partitions are left aside: nobody can tier them")


def _read(value: object) -> str:
    return human_bytes(value["bytes"]) if isinstance(value, dict) else ""


@with_settings(SOURCE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, STORE)
def plan(
    run: Invocation,
    sources: Sources = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to FILE, for regenerate --plan FILE.")
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Replay now, write nothing, and compare the snapshots that are there.")
    ] = False,
) -> None:
    """Show what would be read and made, partition by partition; with --prove also what existing snapshots are worth."""
    from resnap.scheduler.answers.reports import plan_row
    from resnap.scheduler.cli.replayed import answer_replay, beginnings_gone
    from resnap.scheduler.wiring import scope_of

    # Proving is finding out anew, and a saved plan is for whatever may be known by then.
    service = run.service(replays=prove, remembers=not prove and save is None)
    scope = scope_of(run.settings, sources)
    planned, sight = service.plan(scope, boundaries="all" if prove else run.settings.boundaries)
    report_sight(run, sight)
    if save is not None:
        from resnap.tiering.planning import write_saved_plan

        _keep(save, write_saved_plan(service.save(scope, planned)))
        run.note(f"plan written to {save}")
    if prove:
        with run.progress("replay") as (progress,):
            answer_replay(run, service.prove(planned, progress), judged=True)
        return
    run.answer(
        Answer(
            head={
                "asOf": str(service.rules.as_of),
                "producerIdExpirationMs": service.rules.expiry.expiration_ms,
                "producerIdExpirationFrom": run.settings.expiration_origin,
            },
            name="partitions",
            kind="partition",
            rows=[plan_row(one) for one in planned],
            columns=(
                PARTITION,
                Column(key="snapshots", title="SNAPSHOTS", right=True),
                Column(key="segments", title="SEGMENTS", right=True),
                Column(key="read", title="READ", right=True, show=_read),
                Column(key="runs", title="OFFSETS READ", show=_runs),
            ),
            tail=lambda: totals_of(planned),
            closing=lambda: [
                _sum(planned),
                *beginnings_gone({one.sighted.topic_partition: one.plan.known_from() for one in planned}),
            ],
        )
    )


def _keep(path: Path, text: str) -> None:
    """Write a plan, whole or not at all."""
    from resnap.storage.errors import ResnapError
    from resnap.storage.whole_file import write_whole

    try:
        write_whole(path.absolute(), (text.encode(),))
    except OSError as error:
        what = f"{path}: the plan cannot be written: {error.strerror}"
        raise ResnapError(what, hint="free some space, or name a file where you may write") from error


def _runs(value: object) -> str:
    runs = value if isinstance(value, list) else []
    return ", ".join(
        f"[{one['baseOffset']}, {'end' if one['nextBaseOffset'] is None else one['nextBaseOffset']})" for one in runs
    )


def totals_of(planned: "list[Planned]") -> Row:
    """Return what a plan comes to."""
    return {
        "snapshots": sum(len(one.plan.boundaries) for one in planned),
        "segmentsToRead": sum(one.cost.segments for one in planned),
        "bytesToRead": sum(one.cost.size_bytes for one in planned),
    }


def _sum(planned: "list[Planned]") -> str:
    total = totals_of(planned)
    return (
        f"would make {human_count(int(str(total['snapshots'])))} snapshots from the headers of"
        f" {human_count(int(str(total['segmentsToRead'])))} segments ({human_bytes(int(str(total['bytesToRead'])))})."
        " Nothing was written."
    )
