"""Open transactions in a log, as text and rows: whose each is, and what ends it.

Until it ends readers of committed records stop there, and nothing above it is tiered or compacted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.reports import identity
from resnap.storage.errors import ResnapError
from resnap.storage.words import exact_duration, instant
from resnap.tiering.cluster.replica_comparison import describe_producers, describe_transactions
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.controller.transactions.open_transaction import ANY_SERVER, Ending
from resnap.tiering.controller.transactions.state_log import TransactionStates, read_transaction_states

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Place
    from resnap.tiering.cluster.client import Cluster, Connect
    from resnap.tiering.controller.transactions.metadata import TransactionMetadata
    from resnap.tiering.controller.transactions.open_transaction import OpenTransaction

_OF_ENDING: Final = {
    Ending.COMMITTED: "It is committed, and its marker is missing here",
    Ending.HANGING: "It hangs, and was not committed",
    Ending.UNKNOWN: "Whether it is committed is not known here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The transactional ids that use producer ids, as far as known."""

    by_producer_id: Mapping[int, TransactionMetadata]
    states: TransactionStates = field(default_factory=TransactionStates)
    """What ``__transaction_state`` in the log dir has, with the steps of these producer ids."""
    open_now: frozenset[tuple[int, int]] | None = None
    """Transactions open at the leader now, producer id and first offset; None if it was not asked."""


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
