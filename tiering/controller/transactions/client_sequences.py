"""Simulates the batches that a Java producer has in flight: their sequences and epochs, and which is sent next.

``client_errors`` has a producer's reaction to one error; this module applies its consequences to all other batches that
were sent or are queued. A batch gets its sequence when it is first sent, and keeps it in every retry, unless a bumped
epoch renumbers the partition's batches. There is no network and no clock: the caller reports what was acknowledged,
refused or expired, in any order, and requests the next batch of a partition.

Source: ``TransactionManager``, ``TxnPartitionEntry``, ``ProducerBatch``, ``Sender`` and ``RecordAccumulator`` in
Kafka's clients module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.record_batch import MAX_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, wrap_sequence
from resnap.tiering.controller.transactions.client_errors import (
    BatchOutcome,
    ClientState,
    CoordinatorRequest,
    ProduceSituation,
    Reaction,
    after_unresolved,
    on_coordinator_error,
    on_produce_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.names import TopicPartition

RETRIES: Final = 2**31 - 1
"""Default of ``retries`` since 2.1."""
EPOCH_VERSION: Final = 3
"""Version of ``InitProducerId`` since which coordinators give the next epoch: 2.5."""
NO_PRODUCERS: Final = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class ClientSequences:
    """The sequences and epochs of an idempotent or transactional producer.

    Attributes:
        producer: its producer id and epoch.
        state: whether it can continue.
        needs_bump: whether its next epoch is due: an idempotent producer's at the next ``step``, a transactional one's
            when it aborts.
        partitions: what it knows of each partition that it has sent to.

    """

    def __init__(
        self,
        *,
        transactional: bool = False,
        release: tuple[int, ...] = (3, 9),
        retries: int = RETRIES,
        transactions_v2: bool = False,
    ) -> None:
        """Begin without a producer id; ``release`` and ``transactions_v2`` are as in ``ProduceSituation``."""
        self.producer = NO_PRODUCERS
        self.state = ClientState.UNCHANGED
        self.needs_bump = False
        self.partitions: dict[TopicPartition, PartitionSequences] = {}
        self._transactional, self._release, self._retries = transactional, release, retries
        self._can_bump, self._v2 = True, transactions_v2
        self._to_rewrite: dict[TopicPartition, None] = {}
        self._ending: CoordinatorRequest | None = None
        self._is_aborting = self._was_added = False

    # -- what the application does

    def add(self, partition: TopicPartition, records: int = 1) -> ClientBatch:
        """Put a full batch in the queue."""
        batch = ClientBatch(partition=partition, records=records)
        self._of(partition).queue.append(batch)
        return batch

    def added_to_transaction(self) -> None:
        """Record that the coordinator has added a partition, or offsets, to the open transaction."""
        self._was_added = True

    def commit(self) -> tuple[CoordinatorRequest, ...]:
        """Begin to commit; return the requests to the coordinator, for when nothing is queued or in flight any more."""
        self._ending = CoordinatorRequest.END_TXN
        return (self._ending,) if self._was_added else ()

    def abort(self) -> tuple[CoordinatorRequest, ...]:
        """Begin to abort; return the requests to the coordinator, in order, for when nothing is in flight any more.

        Batches that were never sent fail; those that wait for a retry are sent again, as in Kafka.
        """
        self._ending, self._is_aborting, self.state = CoordinatorRequest.END_TXN, True, ClientState.UNCHANGED
        for known in self.partitions.values():
            for batch in known.unsent:
                known.queue.remove(batch)
                self._complete(
                    batch, KafkaError.UNKNOWN_SERVER_ERROR
                )  # as which clients know TransactionAbortedException
        end = (CoordinatorRequest.END_TXN,) if self._was_added else ()
        return (*end, CoordinatorRequest.INIT_PRODUCER_ID) if self.needs_bump else end

    def ended(self) -> None:
        """Record the end of the transaction; with transactions v2 ``got_producer`` brings its next epoch as well."""
        self._ending, self._is_aborting, self._was_added = None, False, False

    # -- what the coordinator says

    def found_coordinator(self, init_producer_id: int) -> None:
        """Set the newest ``InitProducerId`` version of the coordinator, valid until another one is found."""
        self._can_bump = init_producer_id >= EPOCH_VERSION

    def got_producer(self, producer_id: int, epoch: int) -> None:
        """Process the response to ``InitProducerId``; a transactional producer begins at sequence 0 everywhere."""
        self.producer, self.state = (producer_id, epoch), ClientState.UNCHANGED
        if self._transactional:
            for known in self.partitions.values():
                known.forget()
            self.needs_bump = False

    def coordinator_refused(self, request: CoordinatorRequest, error: KafkaError) -> Reaction:
        """Record that the coordinator refused a request, apply the reaction, and return it."""
        reaction = on_coordinator_error(
            request, error, release=self._release, can_bump=self._can_bump, transactions_v2=self._v2
        )
        self._become(reaction.state)
        self.needs_bump = self.needs_bump or reaction.bumps_epoch
        return reaction

    # -- what the sender does

    def step(self) -> bool:
        """Do what precedes any sending; return whether a producer id must be requested."""
        for partition, known in self.partitions.items():
            if known.unresolved is not None and not known.in_flight:
                self._resolve(partition, known)
        if self.state is ClientState.FATAL:
            return False
        if self.needs_bump and not self._transactional:
            self._bump()
        return self.producer == NO_PRODUCERS

    def next_batch(self, partition: TopicPartition) -> ClientBatch | None:
        """Send the next batch of a partition; None if there is none, or it must wait for others."""
        known = self._of(partition)
        if not known.queue or self._must_wait(known, known.queue[0]):
            return None
        batch = known.queue.pop(0)
        if batch.sequence == NO_SEQUENCE:
            known.assign(batch, self.producer)
        batch.was_renumbered = False
        return batch

    def _must_wait(self, known: PartitionSequences, first: ClientBatch) -> bool:
        if self.producer == NO_PRODUCERS or self.state in (ClientState.FATAL, ClientState.UNINITIALIZED):
            return True
        if first.sequence == NO_SEQUENCE:
            is_stale = bool(known.in_flight) and known.producer != self.producer
            return self.state is ClientState.ABORTABLE or known.unresolved is not None or is_stale
        return bool(known.in_flight) and first.sequence != known.first_in_flight.sequence

    # -- what becomes of batches

    def acknowledged(self, batch: ClientBatch, base_offset: int = -1) -> None:
        """Record that a batch was written; -1 if the broker did not return its offset."""
        self._of(batch.partition).take_acknowledgement(batch, base_offset)
        self._complete(batch, KafkaError.NONE)

    def refused(self, batch: ClientBatch, error: KafkaError, *, log_start_offset: int = -1) -> Reaction:
        """Record that a broker refused a batch, apply the reaction, and return it."""
        if batch.is_done:  # it expired before the answer came
            return Reaction(batch=BatchOutcome.FAIL)
        reaction = on_produce_error(error, self._situation(batch, log_start_offset))
        outcomes: dict[BatchOutcome, Callable[[ClientBatch], None]] = {
            BatchOutcome.RETRY: self._put_back, BatchOutcome.RENUMBER: self._renumber, BatchOutcome.SPLIT: self._split,
            BatchOutcome.SUCCEED: self.acknowledged,
        }  # fmt: skip
        if reaction.batch in outcomes:
            outcomes[reaction.batch](batch)
            self._note_bump(batch.partition, reaction)
        else:
            self._fail(batch, error, reaction, closes_gap=batch.attempts < self._retries)
        return reaction

    def expired(self, batch: ClientBatch) -> Reaction:
        """Let a batch, queued or in flight, reach ``delivery.timeout.ms``, and return the reaction."""
        known = self._of(batch.partition)
        if batch in known.queue:
            known.queue.remove(batch)
        at = self._situation(batch, -1, answered=False)
        reaction = on_produce_error(KafkaError.REQUEST_TIMED_OUT, at)
        self._fail(batch, KafkaError.REQUEST_TIMED_OUT, reaction, closes_gap=False)
        if batch.attempts:
            known.unresolved = max(known.unresolved or 0, batch.last_sequence + 1)
        return reaction

    def _situation(self, batch: ClientBatch, log_start_offset: int, *, answered: bool = True) -> ProduceSituation:
        known = self._of(batch.partition)
        return ProduceSituation(
            transactional=self._transactional, release=self._release, has_retries=batch.attempts < self._retries,
            in_time=answered, answered=answered, records=batch.records,
            follows_last_acked=known.follows_last_acked(batch.sequence),
            was_renumbered=batch.was_renumbered, has_unresolved=known.unresolved is not None,
            starts_at_unresolved=batch.sequence == known.unresolved, log_start_offset=log_start_offset,
            last_acked_offset=known.last_acked_offset, can_bump=self._can_bump, is_ending=self._ending is not None,
            is_aborting=self._is_aborting, transactions_v2=self._v2,
        )  # fmt: skip

    def _put_back(self, batch: ClientBatch) -> None:
        batch.attempts += 1
        self._of(batch.partition).put_back(batch)

    def _renumber(self, batch: ClientBatch) -> None:
        self._of(batch.partition).begin_at_zero(self.producer)
        self._put_back(batch)

    def _split(self, batch: ClientBatch) -> None:
        self._of(batch.partition).split(batch)

    def _fail(self, batch: ClientBatch, error: KafkaError, reaction: Reaction, *, closes_gap: bool) -> None:
        self._complete(batch, error)
        if self.state is ClientState.FATAL:
            return
        self._become(reaction.state)
        self._note_bump(batch.partition, reaction)
        if not self._transactional or reaction.state is ClientState.FATAL:
            return
        if error is KafkaError.UNKNOWN_PRODUCER_ID:
            self._of(batch.partition).forget()
        elif closes_gap:
            self._of(batch.partition).close_gap(batch)

    def _become(self, state: ClientState) -> None:
        """Enter the state after an error; a transaction that aborts already need not abort once more."""
        is_no_news = state is ClientState.ABORTABLE and self._is_aborting
        if state is not ClientState.UNCHANGED and not is_no_news:
            self.state = state

    def _note_bump(self, partition: TopicPartition, reaction: Reaction) -> None:
        if reaction.bumps_epoch:
            self.needs_bump = True
            if not self._transactional:
                self._to_rewrite[partition] = None

    def _complete(self, batch: ClientBatch, error: KafkaError) -> None:
        known = self._of(batch.partition)
        if not batch.is_done:
            batch.is_done, batch.error = True, error
        if batch in known.in_flight:
            known.in_flight.remove(batch)

    def _resolve(self, partition: TopicPartition, known: PartitionSequences) -> None:
        all_acked = known.follows_last_acked(known.next_sequence)
        known.unresolved = None
        reaction = after_unresolved(transactional=self._transactional, can_bump=self._can_bump, all_acked=all_acked)
        self._become(reaction.state)
        self._note_bump(partition, reaction)

    def _bump(self) -> None:
        """Take the next epoch; after the last one a new producer id is requested."""
        producer_id, epoch = self.producer
        self.producer = NO_PRODUCERS if epoch == MAX_EPOCH else (producer_id, epoch + 1)
        for partition in self._to_rewrite:
            known = self._of(partition)
            known.begin_at_zero(self.producer)
            known.unresolved = None
        self._to_rewrite.clear()
        self.needs_bump = False

    def _of(self, partition: TopicPartition) -> PartitionSequences:
        return self.partitions.setdefault(partition, PartitionSequences())


@dataclass(slots=True, kw_only=True, eq=False)
class ClientBatch:
    """A batch of records in the client."""

    partition: TopicPartition
    records: int
    producer: tuple[int, int] = NO_PRODUCERS
    """Producer id and epoch."""
    sequence: int = NO_SEQUENCE
    """Sequence of its first record."""
    attempts: int = 0
    """Number of retries."""
    was_renumbered: bool = False
    """Whether it got another sequence since it was last sent."""
    is_done: bool = False
    error: KafkaError = KafkaError.NONE
    """Why it failed, once it is done."""

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record."""
        return wrap_sequence(self.sequence + self.records - 1)

    @property
    def order(self) -> tuple[int, int, int]:
        """The order of batches in flight; before 3.3 by sequence only."""
        return (*self.producer, self.sequence)

    def renumber(self, producer: tuple[int, int], sequence: int) -> None:
        """Give another sequence to a batch in flight."""
        self.producer, self.sequence, self.was_renumbered = producer, sequence, True


@dataclass(slots=True, kw_only=True)
class PartitionSequences:
    """A producer's sequences in one partition."""

    producer: tuple[int, int] = NO_PRODUCERS
    next_sequence: int = 0
    last_acked_sequence: int = -1
    last_acked_offset: int = -1
    in_flight: list[ClientBatch] = field(default_factory=list)
    """Sent and undecided, whether waiting for a retry or not."""
    queue: list[ClientBatch] = field(default_factory=list)
    """To be sent; retries come first, in the order of their sequences."""
    unresolved: int | None = None
    """The sequence after batches that expired though they had been sent: whether they were written is unknown."""

    @property
    def unsent(self) -> list[ClientBatch]:
        """Queued batches that were never sent."""
        return [batch for batch in self.queue if batch.sequence == NO_SEQUENCE]

    @property
    def first_in_flight(self) -> ClientBatch:
        """The batch with the lowest sequence."""
        return min(self.in_flight, key=lambda batch: batch.order)

    def begin_at_zero(self, producer: tuple[int, int]) -> None:
        """Renumber all batches in flight, from 0 on."""
        sequence = 0
        for batch in sorted(self.in_flight, key=lambda batch: batch.order):
            batch.renumber(producer, sequence)
            sequence += batch.records
        self.producer, self.next_sequence, self.last_acked_sequence = producer, sequence, -1

    def close_gap(self, failed: ClientBatch) -> None:
        """Renumber the batches after a failed one, so that they take its sequences."""
        self.next_sequence -= failed.records
        for batch in self.in_flight:
            if batch.sequence >= failed.sequence:
                batch.renumber(batch.producer, batch.sequence - failed.records)

    def assign(self, batch: ClientBatch, producer: tuple[int, int]) -> None:
        """Give a sequence to a batch that is sent for the first time; under a new epoch, from 0 on."""
        if self.producer != producer and not self.in_flight:
            self.begin_at_zero(producer)
        batch.producer, batch.sequence = producer, self.next_sequence
        self.next_sequence = wrap_sequence(self.next_sequence + batch.records)
        self.in_flight.append(batch)

    def put_back(self, batch: ClientBatch) -> None:
        """Queue a batch for a retry, after those with lower sequences."""
        before = sum(1 for other in self.queue if other.sequence != NO_SEQUENCE and other.sequence < batch.sequence)
        self.queue.insert(before, batch)

    def split(self, batch: ClientBatch) -> None:
        """Queue the records of a batch one by one, with their sequences: no smaller batches are possible."""
        self.in_flight.remove(batch)
        for number in range(batch.records):
            sequence = wrap_sequence(batch.sequence + number)
            part = ClientBatch(partition=batch.partition, records=1, producer=batch.producer, sequence=sequence)
            self.in_flight.append(part)
            self.put_back(part)

    def take_acknowledgement(self, batch: ClientBatch, base_offset: int) -> None:
        """Record that a batch was written; -1 if the broker did not return its offset."""
        self.last_acked_sequence = max(self.last_acked_sequence, batch.last_sequence)
        if base_offset >= 0:
            self.last_acked_offset = max(self.last_acked_offset, base_offset + batch.records - 1)

    def forget(self) -> None:
        """Start again at sequence 0; queued batches stay."""
        self.producer, self.next_sequence, self.unresolved = NO_PRODUCERS, 0, None
        self.last_acked_sequence = self.last_acked_offset = -1
        self.in_flight.clear()

    def follows_last_acked(self, sequence: int) -> bool:
        """Whether nothing is missing before ``sequence``; like Kafka, this ignores that sequences wrap."""
        return sequence - self.last_acked_sequence == 1
