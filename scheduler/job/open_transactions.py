"""Open transactions in a log: whose each is, whether it hangs, and the command that aborts it.

A transaction hangs if its coordinator does not complete it: its marker was lost, or the coordinator never knew of the
partition. Then only an operator can end it; until then readers of committed records stop there, and nothing above it is
tiered or compacted.

Source: KIP-664; ``TransactionsCommand`` in Kafka's tools, whose ``find-hanging`` decides in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from resnap.scheduler.clock import instant
from resnap.scheduler.job.reports import identity
from resnap.storage.errors import ResnapError
from resnap.tiering.cluster.producers import describe_producers, describe_transactions
from resnap.tiering.controller.transactions.metadata import PREPARED, TransactionState
from resnap.tiering.controller.transactions.state_log import read_transaction_states

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Place
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.cluster.client import Cluster, Connect
    from resnap.tiering.controller.transactions.metadata import TransactionMetadata

_GOING_ON = PREPARED | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}


class Led(NamedTuple):
    """A partition and its leader's node id."""

    topic_partition: TopicPartition
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The transactional ids that use producer ids, as far as known."""

    by_producer_id: dict[int, TransactionMetadata]
    is_complete: bool
    """Whether a producer id without a holder has none: the cluster was asked, which knows all."""
    open_now: frozenset[tuple[int, int]] | None = None
    """Transactions open at the leader now, producer id and first offset; None if it was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One open transaction in the log of a partition."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    since_ms: int | None = None
    """Timestamp of its first batch, where that was read."""
    holder: TransactionMetadata | None = None
    is_holder_known: bool = False
    """Whether ``holder`` None means that it is not held."""

    @property
    def transactional_id(self) -> str | None:
        """Its transactional id; None if unknown."""
        return None if self.holder is None else self.holder.transactional_id

    @property
    def is_hanging(self) -> bool | None:
        """Whether its coordinator will not end it; None if its transactional id is unknown."""
        if self.holder is None:
            return True if self.is_holder_known else None
        is_its_own = self.topic_partition in self.holder.partitions and self.holder.state in _GOING_ON
        return not (is_its_own and self.producer_id in {self.holder.producer_id, self.holder.previous_producer_id})

    @classmethod
    def of_entry(cls, topic_partition: TopicPartition, entry: ProducerEntry) -> Self:
        """Return the open transaction of a producer snapshot's entry."""
        return cls(
            topic_partition=topic_partition,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            coordinator_epoch=entry.coordinator_epoch,
            first_offset=entry.current_txn_first_offset,
        )

    @property
    def what(self) -> str:
        """What is open, and since when, as text."""
        since = "" if self.since_ms is None else f", {instant(self.since_ms)}"
        return (
            f"{self.topic_partition}: producer {self.producer_id} (epoch {self.producer_epoch}) has a transaction open"
            f" since offset {self.first_offset}{since}"
        )

    def abort_command(self, bootstrap_server: str | None) -> str:
        """Return the command that aborts it."""
        topic, partition = self.topic_partition
        return (
            f"kafka-transactions.sh --bootstrap-server {bootstrap_server or 'HOST:PORT'} abort --topic {topic}"
            f" --partition {partition} --start-offset {self.first_offset}"
        )

    @property
    def instead_of_offset(self) -> str:
        """Return what brokers before 3.0 need in place of ``--start-offset``."""
        return (
            f"brokers before 3.0: --producer-id {self.producer_id} --producer-epoch {self.producer_epoch}"
            f" --coordinator-epoch {max(self.coordinator_epoch, 0)} instead of the offset"
        )

    def row(self, bootstrap_server: str | None) -> Row:
        """Return it as a row for programs."""
        return {
            **identity(self.topic_partition),
            "producerId": self.producer_id,
            "producerEpoch": self.producer_epoch,
            "coordinatorEpoch": self.coordinator_epoch,
            "firstOffset": self.first_offset,
            "since": self.since_ms,
            "transactionalId": self.transactional_id,
            "state": None if self.holder is None else self.holder.state.kafka_name,
            "hanging": self.is_hanging,
            "abortCommand": None if self.is_hanging is False else self.abort_command(bootstrap_server),
        }

    def text(self, bootstrap_server: str | None) -> str:
        """Return it as text, with what to do."""
        what = self.what
        end = f"{self.abort_command(bootstrap_server)} ({self.instead_of_offset})"
        if self.is_hanging is None:
            asked = "" if bootstrap_server else "; --bootstrap-server gets it from the cluster"
            return f"{what}. Its owner is not known{asked}. If it hangs, end it: {end}"
        if self.is_hanging:
            whose = "no transactional id has this producer" if self.holder is None else _held(self.holder)
            return f"{what}. It hangs: {whose}, so no coordinator ends it. End it: {end}"
        return f"{what}: {_going_on(self.holder)}"


def holders_of(
    log_dir: Place,
    connect: Connect | None,
    producer_ids: Collection[int],
    warn: Callable[[str], None],
    led: Led | None = None,
) -> Holders:
    """Return the transactional ids of ``producer_ids``, from the running cluster if configured, else from ``log_dir``.

    A failure only causes a warning: the names are only informative. The leader of the partition ``led`` is asked which
    transactions are open now, because a log dir may be a copy.
    """
    if not producer_ids:
        return Holders(by_producer_id={}, is_complete=False)
    try:
        if connect is not None:
            with connect() as cluster:
                return Holders(
                    by_producer_id=describe_transactions(cluster, producer_ids).by_producer_id(),
                    is_complete=True,
                    open_now=None if led is None else _open_now(cluster, led),
                )
    except ResnapError as error:
        warn(f"the cluster does not say who holds transactions: {error}")
    try:
        states = read_transaction_states([log_dir] if isinstance(log_dir, Path) else [])
    except ResnapError as error:
        warn(f"who holds transactions is not known: {error}")
        return Holders(by_producer_id={}, is_complete=False)
    return Holders(by_producer_id=states.by_producer_id(), is_complete=False)


def _open_now(cluster: Cluster, led: Led) -> frozenset[tuple[int, int]] | None:
    answer = describe_producers(cluster, led.leader, [led.topic_partition])[led.topic_partition]
    starts = ((one.producer_id, one.current_transaction_start_offset) for one in answer.producers)
    return None if answer.error else frozenset((pid, start) for pid, start in starts if start is not None)


def _held(holder: TransactionMetadata) -> str:
    since = "" if holder.update_ms < 0 else f" since {instant(holder.update_ms)}"
    return f"transactional id {holder.transactional_id!r}, which held it, is {holder.state.kafka_name}{since}"


def _going_on(holder: TransactionMetadata | None) -> str:
    if holder is None:
        return ""
    since = "" if holder.start_ms < 0 else f" since {instant(holder.start_ms)}"
    what = f"transactional id {holder.transactional_id!r} holds it, and is {holder.state.kafka_name}{since}"
    if holder.state is TransactionState.ONGOING:
        return f"{what}; its coordinator aborts it after {holder.timeout_ms} ms"
    return f"{what}; its markers are being written"
