"""Commands that tell what is there and what would be done: scan, plan."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count, partition_name
from resnap.scheduler.cli.failures import MISSING_FOUND, OK
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, MEMORY, READING, REPLAY, SOURCE, STORE, Sources
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from resnap.scheduler.use_cases.sources import Sight
    from resnap.scheduler.use_cases.work_items import PartitionScan, Planned
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


def _why(value: object) -> str:
    return f"{value['reason']} at {value['baseOffset']}" if isinstance(value, dict) else "-"


@with_settings(SOURCE, CLUSTER, REPLAY, STORE)
def scan(
    run: Invocation,
    sources: Sources = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 4 if snapshots are missing.")] = False,
) -> int:
    """Tell which boundaries have no usable producer snapshot, what blocks each partition, and what a replay would cost.

    Reads file names, sizes and the small files beside the segments; of segments that the leader-epoch checkpoint does
    not cover, the first batch header of a few.
    """
    from resnap.scheduler.wiring import scope_of

    scans, problems = run.service(replays=False).scan(scope_of(run.settings, sources))
    told = _Scanned(len(problems))
    run.answer(
        Answer(
            name="partitions",
            kind="partition",
            rows=told.rows(scans),
            columns=_SCANNED,
            tail=lambda: told.totals,
            closing=told.closing,
        )
    )
    report_problems(run, problems)
    return MISSING_FOUND if exit_code and told.totals["lost"] else OK


class _Scanned:
    """The rows of a scan, and what is counted while they are made; compacted partitions count as partitions only."""

    def __init__(self, problems: int) -> None:
        self.totals = dict.fromkeys(("partitions", "segments", "boundaries", "lost", "compacted"), 0)
        self.totals["problems"] = problems
        self._first_stop: str | None = None
        self._hint = ""

    def rows(self, scans: "Iterable[PartitionScan]") -> Iterator[Row]:
        """Yield a row per partition."""
        from resnap.scheduler.answers.reports import scan_row

        for scanned in scans:
            row = scan_row(scanned)
            self.totals["partitions"] += 1
            if row["compaction"] == "compacted":
                self.totals["compacted"] += 1
            else:
                self._count(row)
            yield row

    def _count(self, row: Row) -> None:
        for key in ("segments", "boundaries", "lost"):
            self.totals[key] += int(str(row[key]))
        stop = row["brokerStops"]
        if isinstance(stop, dict) and self._first_stop is None:
            self._first_stop = f"{partition_name(row)}, {stop['detail']}"
            self._hint = str(stop["hint"])

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do next."""
        lost, boundaries, partitions, compacted = (
            human_count(count)
            for count in (
                self.totals["lost"],
                self.totals["boundaries"],
                self.totals["partitions"] - self.totals["compacted"],
                self.totals["compacted"],
            )
        )
        yield ""
        yield f"{lost} of {boundaries} boundaries in {partitions} partitions have no usable producer snapshot."
        if self.totals["compacted"]:
            yield f"Left aside: {compacted} compacted partitions, which nobody can tier."
        if self._first_stop is not None:
            yield f"First stop of a broker's own tiering: {self._first_stop}."
            replay = "`resnap plan SOURCE` to see what a replay reads, `resnap tier SOURCE --to URL` to do it all"
            yield f"Next: {replay if self.totals['lost'] else self._hint}."


_SCANNED: Final = (
    PARTITION,
    Column(key="segments", title="SEGMENTS", right=True),
    Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
    Column(key="lost", title="MISSING", right=True),
    Column(key="replayNow", title="READ NOW", right=True, show=_read),
    Column(key="replayRoll", title="READ ROLL", right=True, show=_read),
    Column(key="brokerStops", title="BROKER STOPS", show=_why),
    Column(key="blocking", title="RESNAP STOPS", show=_why),
)


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
        with run.progress("replay") as progress:
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
