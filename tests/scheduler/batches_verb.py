"""The verb ``batches``, which is not Resnap's: counts the batches of each partition. ``test_new_verb`` adds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.cli.flags import PARTITIONS
from resnap.scheduler.job.contract import Door, PartitionState, Request, Result, Verb, View, unread
from resnap.scheduler.job.reports import Identity
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.log.record_batch import read_header
from resnap.tiering.selection import select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.partition_dir import PartitionDir


class BatchesRow(Identity):
    """One partition of `resnap batches`."""

    batches: Annotated[int, Column(title="BATCHES", right=True)]


class BatchesRequest(Request):
    """Count the record batches of each partition."""

    least: Annotated[int, typer.Option("--least", metavar="N", min=1, help="Only partitions of so many batches.")] = 1


class Counted(Result):
    """A partition, and how many batches it has."""

    batches: int


def run(request: BatchesRequest, context: Context, report: Report) -> None:
    """Report the partitions that have enough batches."""
    selection = select(request.scope, context.engine().reading.sources)
    for problem in unread(selection):
        report(problem)
    for partition in selection.partitions:
        batches = _count(partition.inventory.partition)
        if batches >= request.least:
            report(Counted(topic_partition=partition.topic_partition, state=PartitionState.DONE, batches=batches))


def _count(partition: PartitionDir) -> int:
    count = 0
    for segment in partition.segments:
        data, position = Path(segment.path).read_bytes(), 0
        while position < len(data):
            position += read_header(data, position).size_bytes
            count += 1
    return count


class BatchesView(View[Result]):
    """A row per partition."""

    name = "partitions"
    kind = "partition"
    columns = columns_of(BatchesRow)

    def __init__(self) -> None:
        self._batches = 0

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition, and count it."""
        if not isinstance(result, Counted) or result.topic_partition is None:
            return None
        self._batches += result.batches
        return {**row_of(BatchesRow, result)}

    def totals(self) -> Row:
        """Return the number of batches."""
        return {"batches": self._batches}

    def closing(self) -> Iterator[str]:
        """Yield the number in words."""
        yield f"{self._batches} batches."


VERB = Verb(
    takes=(PARTITIONS,),
    request=BatchesRequest,
    run=run,
    view=lambda *_: BatchesView(),
    reads="log dirs",
    is_short=True,
    door=Door(
        path="/v1/batch-counts",
        summary="Count batches",
        does="Count the batches of each partition.",
        body="What to count.",
        asks=("topics", "sources", "least"),
    ),
    rows=(BatchesRow,),
)
