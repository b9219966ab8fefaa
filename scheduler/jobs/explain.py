"""`resnap explain`: the batches that made each entry of a producer snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from resnap.replay.explain import Explanation
from resnap.replay.explain import explain as explain_entries
from resnap.scheduler.cli.flags import REMOTE, STORE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.job.contract import Caller, Context, Result, View
from resnap.scheduler.job.reports import explanation_rows
from resnap.scheduler.job.sources import Scope, look
from resnap.scheduler.job.wiring import reading_of, scope_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.storage.errors import UsageError
from resnap.storage.log.names import TopicPartition, parse_partition_dir_name
from resnap.storage.sources.files import Sources
from resnap.tiering.planning import load_facts

CALLERS: Final[frozenset[Caller]] = frozenset({"shell"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which snapshot is to be explained; ``producer_id`` is the only producer to be explained, None for all."""

    scope: Scope
    topic_partition: TopicPartition
    offset: int
    producer_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Result):
    """What made the entry of one producer."""

    explanation: Explanation


def run(request: Request, context: Context) -> Iterator[Explained]:
    """Yield what made each entry, by producer id.

    Raises:
        UsageError: there is no such partition.
        FormatError, LogDirError: a segment cannot be read.

    """
    sources = reading_of(context.settings).sources
    for one in explanations(request, sources):
        yield Explained(explanation=one)


def explanations(request: Request, sources: Sources) -> list[Explanation]:
    """Return what ``run`` yields; ``sources`` say how segments are reached."""
    selected = look(request.scope, sources).find(request.topic_partition)
    segments = load_facts(selected.inventory.partition, sources).segments
    return explain_entries(segments, request.offset, request.producer_id, sources=sources)


class ExplainView(View[Explained]):
    """A row per batch and role."""

    name = "batches"
    kind = "batch"
    columns = tuple(
        Column(key=key, right=key not in {"role", "isTransactional"})
        for key in ("producerId", "role", "baseOffset", "lastOffset", "producerEpoch", "baseSequence", "lastSequence",
                    "timestamp", "isTransactional", "coordinatorEpoch")
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self._request, self._producers = request, 0

    def rows(self, result: Explained) -> list[Row]:
        """Return the rows of one producer."""
        self._producers += 1
        return explanation_rows(result.explanation)

    def totals(self) -> Row:
        """Return how many producers there are."""
        return {"producers": self._producers}

    def closing(self) -> list[str]:
        """Say that a producer has no entry, which an empty table would not."""
        asked = self._request
        if self._producers or asked.producer_id is None:
            return [f"producers  {self._producers}"]
        nothing = f"Producer {asked.producer_id} has no batch below offset {asked.offset} in what is left of"
        hint = "a snapshot there has no entry of it. Without --producer-id all are shown."
        return [f"{nothing} {asked.topic_partition}: {hint}"]


@with_settings(REMOTE, STORE)
def explain(
    context: Invocation,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A log dir, the partition's directory, or a URL.")],
    topic_partition: Annotated[
        str, typer.Argument(metavar="TOPIC-PARTITION", help="The partition, named like its directory.")
    ],
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", help="Offset of the snapshot; only batches below it count.", min=0)
    ],
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", metavar="N", help="Only this producer.", min=0)
    ] = None,
) -> None:
    """Show the batches that made each entry of the producer snapshot at OFFSET."""
    name = parse_partition_dir_name(topic_partition)
    if name is None:
        what = f"{topic_partition!r} is not a partition"
        raise UsageError(what, hint="a topic and a number, such as payments-0")
    request = Request(
        scope=scope_of(context.settings, [source]),
        topic_partition=name.topic_partition,
        offset=offset,
        producer_id=producer_id,
    )
    context.show(run(request, context), ExplainView(request))
