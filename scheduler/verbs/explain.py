"""`resnap explain`: the batches that made each entry of a producer snapshot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from resnap.replay.explain import BatchRole, Explanation, find_ends, log_end
from resnap.replay.explain import explain as explain_entries
from resnap.replay.window import SegmentSpan
from resnap.scheduler.cli.flags import CLUSTER, REMOTE, STORE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Verb, View
from resnap.scheduler.job.open_transactions import Holders, holders_of, transaction_row, transaction_text
from resnap.scheduler.job.reports import BatchRow, explanation_rows
from resnap.scheduler.job.wiring import reading_of, scope_of
from resnap.scheduler.output.answer import connection_of
from resnap.scheduler.output.records import columns_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.names import TopicPartition, parse_partition_dir_name
from resnap.storage.sources.files import Sources
from resnap.tiering.controller.transactions.open_transaction import Markers, OpenTransaction
from resnap.tiering.judging.lost_producer_state import state_of_replica
from resnap.tiering.judging.planning import load_facts
from resnap.tiering.lost_leader import LostLeader, lost_leader
from resnap.tiering.selection import Scope, SelectedPartition, select


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(Request):
    """Show the batches that made each entry of the producer snapshot at OFFSET."""

    source: Annotated[str, typer.Argument(metavar="LOG_DIR", help="A log dir, the partition's directory, or a URL.")]
    topic_partition: Annotated[
        str, typer.Argument(metavar="TOPIC-PARTITION", help="The partition, named like its directory.")
    ]
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", help="Offset of the snapshot; only batches below it count.", min=0)
    ]
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", metavar="N", help="Only this producer.", min=0)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Result):
    """The batches that made the entry of one producer, and its transactional id if it is known."""

    explanation: Explanation
    transactional_id: str | None = None
    open_transaction: OpenTransaction | None = None
    """The transaction that is open at the offset, unless it has ended since, by the log or at the leader."""


def run(request: ExplainRequest, context: Context, report: Report) -> None:
    """Report what made each entry, by producer id; then what is wrong with a replica that lost its producer state.

    Raises:
        UsageError: there is no such partition, or its log ends below the offset.
        FormatError, LogDirError: a segment cannot be read.

    """
    name = parse_partition_dir_name(request.topic_partition)
    if name is None:
        what = f"{request.topic_partition!r} is not a partition"
        raise UsageError(what, hint="a topic and a number, such as payments-0")
    scope, sources = scope_of(context.settings, [request.source]), reading_of(context.settings).sources
    selected = select(scope, sources).find(name.topic_partition)
    segments, found = _explain(selected, request.offset, request.producer_id, sources)
    try:
        find_ends(found, segments, request.offset, sources=sources)
    except ResnapError as error:  # of what is above the offset, which is not asked about
        context.warn(f"whether transactions that are open at {request.offset} have ended is not known: {error}")
    producer_ids = [
        entry.producer_id for entry in found if any(batch.is_transactional for batch in entry.roles.values())
    ]
    live = selected.live_facts
    led = None if live is None or live.leader is None else (selected.topic_partition, live.leader)
    holders = holders_of(selected.log_dir.path, scope.connect, producer_ids, context.warn, led)
    for explanation in found:
        holder = holders.by_producer_id.get(explanation.producer_id)
        open_transaction = _open_transaction(selected.topic_partition, explanation, holders)
        transactional_id = None if holder is None else holder.transactional_id
        report(Explained(explanation=explanation, transactional_id=transactional_id, open_transaction=open_transaction))
    lost = _lost_its_state(selected, segments, sources, scope, context)
    if lost is not None:
        report(Reported(what=lost))


def _explain(
    selected: SelectedPartition, offset: int, producer_id: int | None, sources: Sources
) -> tuple[Sequence[SegmentSpan], list[Explanation]]:
    """Return the segments, and what made each entry at an offset that is not above the log's end; raises as ``run``."""
    segments = load_facts(selected.inventory.partition, sources).segments
    if segments and segments[-1].base_offset < offset:
        end = log_end(segments[-1].locator, segments[-1].base_offset, sources)
        if offset > end:
            what = f"{selected.topic_partition} ends at offset {end}: there is no producer state at {offset}"
            raise UsageError(what, hint=f"give an offset up to {end}")
    return segments, explain_entries(segments, offset, producer_id, sources=sources)


def _lost_its_state(
    selected: SelectedPartition, segments: Sequence[SegmentSpan], sources: Sources, scope: Scope, context: Context
) -> LostLeader | None:
    """Return what is wrong with a replica that is proven to have lost its producer state; warn of one that may have."""
    lost = state_of_replica(selected.inventory.partition, sources, context.settings.expiration_ms)
    if lost is not None and lost.is_proven:
        try:
            return lost_leader(selected, lost, segments, sources, connect=scope.connect, warn=context.warn)
        except ResnapError as error:
            context.warn(f"{lost.detail}: what this replica has answered wrongly is not known: {error}")
    elif lost is not None:
        how = "--remote URL, the store that brokers tier to," if scope.remote is None else "`resnap verify --remote`"
        what = f"if it leads, it may answer wrongly; {how} shows it"
        context.warn(f"this replica seems to have lost its producer state: {lost.detail}: {what}")
    return None


def explanations(
    scope: Scope, topic_partition: TopicPartition, offset: int, producer_id: int | None, sources: Sources
) -> list[Explanation]:
    """Return what made each entry, by producer id; ``sources`` say how segments are reached; raises as ``run``."""
    return _explain(select(scope, sources).find(topic_partition), offset, producer_id, sources)[1]


def _open_transaction(of: TopicPartition, one: Explanation, holders: Holders) -> OpenTransaction | None:
    start, last, marker = one.roles.get(BatchRole.TRANSACTION_START), one.last, one.roles.get(BatchRole.LAST_MARKER)
    if start is None or last is None or one.ended_at is not None:
        return None
    if holders.open_now is not None and (one.producer_id, start.base_offset) not in holders.open_now:
        return None
    return OpenTransaction(
        topic_partition=of,
        producer_id=one.producer_id,
        producer_epoch=last.producer_epoch,
        coordinator_epoch=-1 if marker is None else marker.coordinator_epoch,
        first_offset=start.base_offset,
        since_ms=start.timestamp,
        owner=holders.by_producer_id.get(one.producer_id),
        history=holders.states.history_of(one.producer_id),
        markers=Markers(one.markers, -1 if marker is None else marker.timestamp),
    )


class ExplainView(View["Explained | Reported[LostLeader]"]):
    """A row per batch and role."""

    kind = "batch"
    columns = (
        Column(key="producerId", title="PRODUCER", right=True),
        Column(key="role", title="ROLE"),
        *columns_of(BatchRow, "baseOffset", "lastOffset", "timestamp"),
        Column(key="transactionalId", title="TRANSACTIONAL ID"),
        *columns_of(BatchRow, "producerEpoch", "baseSequence", "lastSequence", "isTransactional", "coordinatorEpoch"),
    )

    def __init__(self, request: ExplainRequest, connection: Sequence[str]) -> None:
        self._request, self._connection, self._producers = request, connection, 0
        self._open: list[OpenTransaction] = []
        self._lost: LostLeader | None = None

    def rows(self, result: Explained | Reported[LostLeader]) -> list[Row]:
        """Return the rows of one producer; the batch that began a still open transaction has that in its row."""
        if isinstance(result, Reported):
            self._lost = result.what
            return []
        self._producers += 1
        still_open, more = result.open_transaction, {}
        if still_open is not None:
            self._open.append(still_open)
            more = {"openTransaction": transaction_row(still_open, self._connection)}
        return [
            {
                **row,
                "transactionalId": result.transactional_id,
                **(more if row["role"] == BatchRole.TRANSACTION_START else {}),
            }
            for row in explanation_rows(result.explanation)
        ]

    def totals(self) -> Row:
        """Return how many producers there are, and what is wrong with a replica that lost its state."""
        lost = {} if self._lost is None else {"lostProducerState": self._lost.row(self._connection)}
        return {"producers": self._producers, **lost}

    def closing(self) -> Iterator[str]:
        """Yield that a producer has no entry, which an empty table would not say, and transactions that stay open."""
        asked = self._request
        if self._producers or asked.producer_id is None:
            yield f"producers  {self._producers}"
        else:
            nothing = f"Producer {asked.producer_id} has no batch below offset {asked.offset}"
            hint = "a snapshot there has no entry of it. Without --producer-id all are shown."
            yield f"{nothing} in the existing segments of {asked.topic_partition}: {hint}"
        yield from (transaction_text(transaction, self._connection) for transaction in self._open)
        if self._lost is not None:
            yield from self._lost.lines(self._connection)


VERB = Verb(
    takes=(CLUSTER, REMOTE, STORE),
    request=ExplainRequest,
    run=run,
    view=lambda request, context: ExplainView(request, connection_of(context.settings)),
    reads="other",
)
