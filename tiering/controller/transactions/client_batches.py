"""Batches in a Java producer, and its sequences in one partition.

A batch gets its sequence when it is first sent, and keeps it in every retry, unless it is renumbered.

Source: ``ProducerBatch``, ``TxnPartitionEntry`` and ``RecordAccumulator`` in Kafka's clients module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, wrap_sequence

if TYPE_CHECKING:
    from resnap.storage.log.names import TopicPartition

NO_PRODUCERS: Final = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


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
