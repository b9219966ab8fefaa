"""An open transaction in the log of a partition: whether its coordinator has committed it, and what ends it.

A transaction stays open in a log if its coordinator is not done with it, if its coordinator never knew that the
partition belongs to it, or if this replica has lost its marker. ``kafka-transactions.sh abort`` is right in the second
case alone: in the third it takes committed records from readers. Its ``find-hanging`` does not tell these two apart.
``__transaction_state`` does: with all steps of the epoch at hand, a commit with this partition was made or was not.

Marker and data of a transaction have the same epoch; with transactions v2, and if the coordinator aborts it, the marker
has the next one. So a marker of a later epoch would have ended it in the log. Before transactions v2 an epoch has many
transactions: commits of this epoch are those whose markers the log has if they are no more than these, and not later.

Source: KIP-664, KIP-890; ``TransactionsCommand``; ``TransactionCoordinator.endTransaction``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from resnap.storage.words import instant
from resnap.tiering.controller.transactions.metadata import DONE, PREPARED, TransactionState
from resnap.tiering.controller.transactions.state_log import StateHistory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.controller.transactions.metadata import TransactionMetadata
    from resnap.tiering.controller.transactions.state_log import TransactionStates

ANY_SERVER: Final = "HOST:PORT"
"""In commands that are printed: a broker of the cluster, none of which is named."""

_GOING_ON = PREPARED | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}


class Ending(StrEnum):
    """How an open transaction ends."""

    GOING_ON = "going-on"
    """By its coordinator."""
    COMMITTED = "committed"
    """Its coordinator has committed it: this log lacks its marker."""
    HANGING = "hanging"
    """Only an operator ends it, by an abort: its coordinator has not committed it."""
    UNKNOWN = "unknown"
    """What is at hand does not show whether it was committed."""


class Markers(NamedTuple):
    """The markers of an epoch of a producer that the log has below its open transaction."""

    number: int
    last_ms: int
    """Timestamp of the last; -1 if there is none."""


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
    owner: TransactionMetadata | None = None
    """The transactional id that has the producer id, where that is known."""
    history: StateHistory = field(default_factory=StateHistory)
    """The steps of its owner, where ``__transaction_state`` is at hand."""
    markers: Markers | None = None
    """None where the log was not read."""

    @classmethod
    def of_entry(cls, topic_partition: TopicPartition, entry: ProducerEntry, states: TransactionStates) -> Self:
        """Return the open transaction of a producer snapshot's entry."""
        return cls(
            topic_partition=topic_partition,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            coordinator_epoch=entry.coordinator_epoch,
            first_offset=entry.current_txn_first_offset,
            owner=states.by_producer_id().get(entry.producer_id),
            history=states.history_of(entry.producer_id),
            markers=Markers(0, -1) if entry.coordinator_epoch < 0 else None,
        )

    @property
    def transactional_id(self) -> str | None:
        """Its transactional id; None if unknown."""
        return None if self.owner is None else self.owner.transactional_id

    @property
    def what(self) -> str:
        """What is open, and since when, in words."""
        since = "" if self.since_ms is None else f", {instant(self.since_ms)}"
        return (
            f"{self.topic_partition}: producer {self.producer_id} (epoch {self.producer_epoch}) has a transaction open"
            f" since offset {self.first_offset}{since}"
        )

    @property
    def ending(self) -> Ending:
        """How it ends."""
        if self.owner is None:
            return Ending.UNKNOWN
        shown = self._shown_commit()
        if shown is not None:
            return shown
        is_its_own = self.producer_id == self.owner.producer_id and self.topic_partition in self.owner.partitions
        if is_its_own and self.owner.state in _GOING_ON:
            return Ending.GOING_ON
        return Ending.HANGING if self._is_epoch_whole(self.owner) else Ending.UNKNOWN

    @property
    def _is_history_current(self) -> bool:
        """Whether its last step is the state of its owner, which a cluster may have reported later."""
        steps = self.history.steps
        return self.owner is not None and bool(steps) and _identity(steps[-1]) == _identity(self.owner)

    def _ends(self) -> Iterator[TransactionMetadata]:
        """Yield the decided ends of transactions in the partition, without the last one if its markers are due."""
        steps = self.history.steps
        if self._is_history_current and steps[-1].state in PREPARED:
            steps = steps[:-1]
        for step in steps:
            is_here = step.producer_id == self.producer_id and self.topic_partition in step.partitions
            if is_here and step.state in PREPARED:
                yield step

    def _shown_commit(self) -> Ending | None:
        """Return COMMITTED or UNKNOWN if a step shows a commit of this epoch here that may be its own; else None."""
        epoch, ends = self.producer_epoch, list(self._ends())
        of_epoch = [transaction for transaction in ends if transaction.producer_epoch == epoch]
        commits = [transaction for transaction in ends if transaction.state is TransactionState.PREPARE_COMMIT]
        if any(commit.client_v2 and commit.producer_epoch == epoch + 1 for commit in commits):
            return Ending.COMMITTED
        same = [commit.update_ms for commit in commits if commit.producer_epoch == epoch and not commit.client_v2]
        if not same:
            return None
        if self.markers is None:
            return Ending.UNKNOWN
        are_more, is_later = len(of_epoch) > self.markers.number, max(same) > self.markers.last_ms
        if are_more and is_later:
            return Ending.COMMITTED
        return Ending.UNKNOWN if are_more or is_later else None

    def _is_epoch_whole(self, last: TransactionMetadata) -> bool:
        """Return whether the steps at hand, of which ``last`` is the last, are all those of the transaction's epoch."""
        if last.producer_id == self.producer_id and last.producer_epoch < self.producer_epoch:
            return False  # it is of a time before the transaction
        first = last
        if self._is_history_current:
            first = self.history.steps[0]
            if self.history.is_whole:
                return True
        if first.producer_id != self.producer_id:
            return first.next_producer_id == self.producer_id
        begins = first.state is TransactionState.EMPTY or (first.client_v2 and first.state in DONE)
        return first.producer_epoch < self.producer_epoch + begins

    def abort_command(self, connection: Sequence[str]) -> str:
        """Return the command that aborts it; ``connection`` are flags of Kafka's tools."""
        topic, partition = self.topic_partition
        return f"{_tool(connection)} abort --topic {topic} --partition {partition} --start-offset {self.first_offset}"

    @property
    def instead_of_offset(self) -> str:
        """Return what brokers before 3.0 need in place of ``--start-offset``."""
        return (
            f"brokers before 3.0: --producer-id {self.producer_id} --producer-epoch {self.producer_epoch}"
            f" --coordinator-epoch {max(self.coordinator_epoch, 0)} instead of the offset"
        )

    def advice(self, connection: Sequence[str] = ("--bootstrap-server", ANY_SERVER)) -> str:
        """Return what to do about it; nothing if its coordinator ends it."""
        tool = _tool(connection)
        end = f"{self.abort_command(connection)} ({self.instead_of_offset})"
        described = (
            f"{tool} list, which has the transactional id of producer {self.producer_id} for a user who may Describe it"
        )
        if self.owner is not None:
            described = f"{tool} describe --transactional-id {shlex.quote(self.owner.transactional_id)}"
        topic, partition = self.topic_partition
        replicas = (
            f"{tool} describe-producers --topic {topic} --partition {partition} --broker-id N for each: one that"
            f" shows no CurrentTransactionStartOffset {self.first_offset} of producer {self.producer_id} has the marker"
            ", unless `resnap replicas` names it as one that lost state"
        )
        match self.ending:
            case Ending.GOING_ON:
                return ""
            case Ending.HANGING if self.owner is not None:
                still = f"{described} still shows {self.owner.state.kafka_name} in epoch {self.owner.producer_epoch}"
                return f"If {still}, end it: {end}"
            case Ending.COMMITTED:
                return (
                    "Do not abort it, which takes its committed records from readers. Compare the replicas:"
                    f" {replicas}. Let such a one lead; then, for each replica that lacks the marker: stop its broker,"
                    f" move the directory {topic}-{partition} out of the log dir, and start it, so that it copies the"
                    " partition from the leader. A tiered one loses producer state by that: run `resnap replicas`"
                    " before it may lead. If none has the marker, keep it as it is, and copy the records to another"
                    " topic, read uncommitted"
                )
        return (
            f"Find out before any abort: {described} (it may be committed if that shows PrepareCommit or"
            f" CompleteCommit); {replicas}. Only if it was not committed, and no replica has its marker, end it: {end}"
        )


def _tool(connection: Sequence[str]) -> str:
    return shlex.join(["kafka-transactions.sh", *connection])


def _identity(step: TransactionMetadata) -> tuple[object, ...]:
    return step.state, step.producer_id, step.producer_epoch, step.start_ms
