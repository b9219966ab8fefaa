"""`resnap explain`: the batches that made each entry of a producer snapshot, and what ends its open transaction.

Until that ends readers of committed records stop there, and nothing above it is tiered or compacted.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from resnap.replay.explain import BatchRole, Explanation, find_ends, log_end
from resnap.replay.explain import explain as explain_entries
from resnap.replay.window import SegmentSpan
from resnap.scheduler.cli.flags import CLUSTER, REMOTE, STORE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Verb, View
from resnap.scheduler.job.reports import BatchRow, explanation_rows, identity
from resnap.scheduler.job.wiring import reading_of, scope_of
from resnap.scheduler.output.answer import connection_of
from resnap.scheduler.output.records import columns_of
from resnap.scheduler.output.rendering import Column, Row
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.names import TopicPartition, parse_partition_dir_name
from resnap.storage.log.partition_dir import Place
from resnap.storage.sources.files import Sources
from resnap.storage.words import exact_duration, instant
from resnap.tiering.cluster.client import Cluster, Connect
from resnap.tiering.cluster.replica_comparison import describe_producers, describe_transactions
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState
from resnap.tiering.controller.transactions.open_transaction import ANY_SERVER, Ending, Markers, OpenTransaction
from resnap.tiering.controller.transactions.state_log import TransactionStates, read_transaction_states
from resnap.tiering.judging.lost_producer_state import state_of_replica
from resnap.tiering.judging.planning import load_facts
from resnap.tiering.lost_leader import LostLeader, lost_leader
from resnap.tiering.selection import Scope, SelectedPartition, select


class ExplainRequest(Request):
    """Show the batches that made each entry of the producer snapshot at OFFSET."""

    source: Annotated[str, typer.Argument(metavar="LOG_DIR", help="A log dir, the partition's directory, or a URL.")]
    topic_partition: Annotated[
        str, typer.Argument(metavar="TOPIC-PARTITION", help="The partition, named like its directory.")
    ]
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", help="Offset of the snapshot; only batches below it count.", min=0)
    ]
    producer_id: Annotated[int | None, typer.Option(metavar="N", help="Only this producer.", min=0)] = None


class Explained(Result):
    """The batches that made the entry of one producer, and its transactional id if it is known."""

    explanation: Explanation
    transactional_id: str | None = None
    open_transaction: OpenTransaction | None = None
    """The transaction that is open at the offset, unless it has ended since, by the log or at the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The transactional ids that use producer ids, as far as known."""

    by_producer_id: Mapping[int, TransactionMetadata]
    states: TransactionStates = field(default_factory=TransactionStates)
    """What ``__transaction_state`` in the log dir has, with the steps of these producer ids."""
    open_now: frozenset[tuple[int, int]] | None = None
    """Transactions open at the leader now, producer id and first offset; None if it was not asked."""


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


_OF_ENDING: Final = {
    Ending.COMMITTED: "It is committed, and its marker is missing here",
    Ending.HANGING: "It hangs, and was not committed",
    Ending.UNKNOWN: "Whether it is committed is not known here",
}


def transaction_row(one: OpenTransaction, connection: Sequence[str]) -> Row:
    """Return an open transaction as a row for programs."""
    ending = one.ending
    abort = one.abort_command(connection) if ending is Ending.HANGING else None
    return {
        **identity(one.topic_partition),
        "producerId": one.producer_id,
        "producerEpoch": one.producer_epoch,
        "coordinatorEpoch": one.coordinator_epoch,
        "firstOffset": one.first_offset,
        "since": one.since_ms,
        "transactionalId": one.transactional_id,
        "state": None if one.owner is None else one.owner.state.kafka_name,
        "hanging": None if ending is Ending.UNKNOWN else ending is Ending.HANGING,
        "ending": ending.value,
        "abortCommand": abort,
    }


def transaction_text(one: OpenTransaction, connection: Sequence[str]) -> str:
    """Return an open transaction as text, with what to do."""
    if one.ending is Ending.GOING_ON:
        return f"{one.what}: {_going_on(one.owner)}"
    is_unasked = one.owner is None and ANY_SERVER in connection
    asked = "; --bootstrap-server gets it from the cluster" if is_unasked else ""
    return f"{one.what}. {_OF_ENDING[one.ending]}: {_holder_text(one.owner)}{asked}. {one.advice(connection)}"


def holders_of(
    log_dir: Place,
    connect: Connect | None,
    producer_ids: Collection[int],
    warn: Callable[[str], None],
    led: tuple[TopicPartition, int] | None,
) -> Holders:
    """Return the transactional ids of ``producer_ids``, from the running cluster if configured, else from ``log_dir``.

    A failure only causes a warning: the names are only informative. The leader of the partition in ``led`` is
    asked which transactions are open now, because a log dir may be a copy.
    """
    if not producer_ids:
        return Holders(by_producer_id={})
    states = TransactionStates()
    try:
        states = read_transaction_states([log_dir] if isinstance(log_dir, Path) else [], steps_of=producer_ids)
    except ResnapError as error:
        warn(f"who holds transactions is not known: {error}")
    try:
        if connect is not None:
            with connect() as cluster:
                return Holders(
                    by_producer_id=describe_transactions(cluster, producer_ids).by_producer_id(),
                    states=states,
                    open_now=None if led is None else _open_now(cluster, *led),
                )
    except ResnapError as error:
        warn(f"the cluster does not say who holds transactions: {error}")
    return Holders(by_producer_id=states.by_producer_id(), states=states)


def _open_now(cluster: Cluster, topic_partition: TopicPartition, leader: int) -> frozenset[tuple[int, int]] | None:
    answer = describe_producers(cluster, leader, [topic_partition])[topic_partition]
    starts = ((producer.producer_id, producer.current_transaction_start_offset) for producer in answer.producers)
    return None if answer.error else frozenset((pid, start) for pid, start in starts if start is not None)


def _holder_text(holder: TransactionMetadata | None) -> str:
    if holder is None:
        return "no transactional id is known that has this producer"
    since = "" if holder.update_ms < 0 else f" since {instant(holder.update_ms)}"
    return f"transactional id {holder.transactional_id!r}, which held it, is {holder.state.kafka_name}{since}"


def _going_on(holder: TransactionMetadata | None) -> str:
    if holder is None:
        return ""
    since = "" if holder.start_ms < 0 else f" since {instant(holder.start_ms)}"
    what = f"transactional id {holder.transactional_id!r} holds it, and is {holder.state.kafka_name}{since}"
    if holder.state is TransactionState.ONGOING:
        return f"{what}; its coordinator aborts it after {exact_duration(holder.timeout_ms)}"
    return f"{what}; its markers are being written"


VERB = Verb(
    takes=(CLUSTER, REMOTE, STORE),
    request=ExplainRequest,
    run=run,
    view=lambda request, context: ExplainView(request, connection_of(context.settings)),
)
