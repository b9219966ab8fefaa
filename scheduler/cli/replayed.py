"""How results of replays are shown, and which of them are errors."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.cli.invocation import Invocation
from scheduler.rendering import Answer, Column, Row, human_bytes, human_count

if TYPE_CHECKING:
    from replay.rebuild import BoundaryResult, PartitionResult
    from scheduler.service import Replayed
    from scheduler.sources import Sight


def answer_replay(run: Invocation, found: "Iterable[Replayed]", *, judged: bool, strict: bool = False) -> None:
    """Print what replays gave; ``judged`` shows the verdicts, ``strict`` makes a difference an error."""
    from replay.rebuild import Outcome  # noqa: PLC0415
    from scheduler.reports import boundary_row, replay_tail  # noqa: PLC0415
    from storage.errors import ResnapError, VerificationError  # noqa: PLC0415

    results: list[PartitionResult] = []

    def rows() -> Iterator[Row]:
        for replayed in found:
            results.append(replayed.result)
            for boundary in replayed.result.boundaries:
                run.partly_done = run.partly_done or boundary.outcome is Outcome.REBUILT
                row = boundary_row(replayed.result.topic_partition, boundary)
                yield {**row, "place": str(replayed.result.topic_partition)} if run.output.form == "table" else row

    shared = [
        Column(key="place", title="PARTITION"),
        Column(key="offset", title="SNAPSHOT", right=True),
        Column(key="outcome", title="OUTCOME"),
        Column(key="entries", title="ENTRIES", right=True),
        Column(key="coverage", title="COVERAGE"),
    ]
    left_out = Column(key="leftOut", title="LEFT OUT", right=True, show=count_of)
    verdicts = [
        Column(key="verdict", title="VERDICT"),
        Column(key="missing", title="MISSING", right=True, show=count_of),
        Column(key="different", title="DIFFERENT", right=True, show=count_of),
    ]
    answer = Answer(
        name="boundaries",
        kind="boundary",
        rows=rows(),
        columns=[*shared, *(verdicts if judged else [left_out])],
        tail=lambda: replay_tail(results),
        closing=lambda: [_replay_sum(results)],
    )
    try:
        run.answer(answer)
    except ResnapError as error:
        run.error(error)  # what was made before it stays made
    for result in results:
        _report_result(run, result)
    if strict:
        run.partly_done = False
        wrong = sum(_is_wrong(found) for result in results for found in result.boundaries)
        if wrong:
            run.error(
                VerificationError(
                    f"{wrong} snapshots are not what a replay gives",
                    hint="`resnap regenerate` makes them anew; `resnap explain` shows what an entry rests on",
                )
            )


def _is_wrong(found: "BoundaryResult") -> bool:
    comparison = found.comparison
    return comparison is not None and comparison.verdict != "proven"


def count_of(value: object) -> str:
    """Return how many there are in a list, for a cell of a table; nothing for none."""
    return str(len(value)) if isinstance(value, list) and value else ""


def _replay_sum(results: "list[PartitionResult]") -> str:
    from scheduler.reports import replay_tail  # noqa: PLC0415

    total = replay_tail(results)
    failed = f", {total['failed']} not" if total["failed"] else ""
    snapshots, batches, segments = (
        human_count(int(str(total[key]))) for key in ("snapshots", "batches", "segmentsRead")
    )
    read = human_bytes(int(str(total["bytesRead"])))
    return f"{snapshots} snapshots rebuilt{failed}, from {batches} batches of {segments} segments ({read} read)."


def _report_result(run: Invocation, result: "PartitionResult") -> None:
    from replay.rebuild import Outcome  # noqa: PLC0415
    from storage.errors import DataError  # noqa: PLC0415

    if result.error is not None:
        run.error(result.error)
    illegal = [found for found in result.boundaries if found.outcome is Outcome.ILLEGAL]
    if illegal:
        run.error(
            DataError(
                f"{result.topic_partition}: {illegal[0].reason}: {len(illegal)} boundaries above it are refused",
                hint="a broker refuses to load this log, too: take the partition from another replica",
            )
        )
    for found in result.boundaries:
        if found.left_out:
            ids = ", ".join(str(pid) for pid, _ in found.left_out[:5])
            run.warn(
                f"{result.topic_partition}: {len(found.left_out)} producers are left out of the snapshot at"
                f" {found.boundary.offset}, their past is not in what could be read: {ids}"
            )


def report_unusable(run: Invocation, sight: "Sight") -> None:
    """Report the snapshots that are there and that no broker could load."""
    from storage.errors import VerificationError  # noqa: PLC0415

    for sighted in sight.partitions:
        for boundary in sighted.inventory.boundaries:
            if not boundary.state.is_usable and boundary.path is not None:
                what = boundary.detail or "no byte in it"
                run.error(VerificationError(f"{boundary.path}: {boundary.state}: {what}", hint="`resnap regenerate`"))


def report_staged(run: Invocation, sight: "Sight", root: Path) -> None:
    """Report the regenerated snapshots that no broker could load, and say how many there should be besides."""
    from scheduler.staged import check_staged  # noqa: PLC0415

    checked = check_staged(sight, root)
    for error in checked.broken:
        run.error(error)
    if checked.absent:
        run.warn(f"{human_count(checked.absent)} boundaries that need a snapshot have none in {root}")
