"""A partition leader's checks of a producer's batch: epoch, sequence, transaction (KIP-98, KIP-360).

``ProducerAppend`` is one producer's part of one append. It starts from the known state of the producer, and adds
batches one after the other, each validated against the ones before it; they have no effect outside until the manager
applies the whole append. The effect of an accepted batch on the entry is in ``producer_state``.

By origin:

| check | client | coordinator | replication | Raft leader |
|---|---|---|---|---|
| epoch below the known one: INVALID_PRODUCER_EPOCH | yes | yes | taken as it stands | yes |
| sequence: OUT_OF_ORDER_SEQUENCE_NUMBER | yes | | | |
| not transactional within a transaction: INVALID_TXN_STATE | yes | yes | yes | yes |
| coordinator epoch below the known one: TRANSACTION_COORDINATOR_FENCED | yes | yes | taken as it stands | yes |

A sequence must follow the last one (0 follows 2,147,483,647), and be 0 in a new epoch. An unknown producer may begin
with any: since 2.5 no broker answers UNKNOWN_PRODUCER_ID. Two exceptions came later: from 4.1 on a producer of
transactions v2 begins with 0 (KAFKA-18202), from 4.5 on any producer in a log that never held a record (KAFKA-15591):
there a batch that precedes it may still be in flight.

A marker of transactions v2 brings the next epoch. From 4.2 on the leader insists on it (KIP-1228): one of the known
epoch is refused with INVALID_PRODUCER_EPOCH while a transaction is open, since it may be meant for the one before. With
none open it is a coordinator's retry, and taken; from 4.3 on it is taken in the last epoch there is, too.

``rules_of`` says which release has which of these rules.

Source: ``ProducerAppendInfo``, ``ProducerStateEntry`` and ``VerificationStateEntry``, as in 4.4.0. The rules of
releases: ``ProducerAppendInfo`` and ``UnifiedLog``, as in 3.9.1, 4.0.0, 4.1.1, 4.2.0, 4.3.0 and 4.4.0; of 4.5 the
change that was merged for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from resnap.replay.producer_state import DataBatch, Marker, after_data, after_marker, no_entry
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.producer_snapshot import NO_LAST_OFFSET, ProducerEntry
from resnap.storage.log.record_batch import MAX_EPOCH, MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_SEQUENCE

BATCHES_TO_RETAIN: Final = 5
"""How many batches of a producer are kept, to recognise a duplicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRules:
    """The rules that differ between Kafka releases."""

    verifies_transactions: bool
    """From 3.6 on: the first batch of a transaction needs a guard, and no batch may overtake a lower one (KIP-890)."""
    transactions_v2: bool
    """From 4.0 on: each transaction has an epoch of its own."""
    checks_transactions_v2_early: bool = False
    """From 4.1 on: an epoch below the known one is refused before the transaction is verified (KAFKA-18042), and a
    producer of transactions v2 of which no batch is known must begin with sequence 0 (KAFKA-18202)."""
    markers_bring_next_epoch: bool = False
    """From 4.2 on: a marker of transactions v2 with the known epoch ends no open transaction (KIP-1228)."""
    markers_end_last_epoch: bool = False
    """From 4.3 on: but one with the last epoch there is does."""
    new_logs_begin_with_0: bool = False
    """From 4.5 on: a log that never held a record takes a first batch of sequence 0 alone (KAFKA-15591)."""


RULES_2_5: Final = ValidationRules(verifies_transactions=False, transactions_v2=False)
RULES_3_6: Final = ValidationRules(verifies_transactions=True, transactions_v2=False)
RULES_4_0: Final = ValidationRules(verifies_transactions=True, transactions_v2=True)
RULES_4_1: Final = replace(RULES_4_0, checks_transactions_v2_early=True)
RULES_4_2: Final = replace(RULES_4_1, markers_bring_next_epoch=True)
RULES_4_3: Final = replace(RULES_4_2, markers_end_last_epoch=True)
RULES_4_5: Final = replace(RULES_4_3, new_logs_begin_with_0=True)
NEWEST_RELEASE: Final = (4, 5)
"""Up to 4.4 the rules were compared with Kafka's own classes; of younger ones than this nothing is known here."""
_FIRST_RELEASES: Final = (
    *(((4, 5), RULES_4_5), ((4, 3), RULES_4_3), ((4, 2), RULES_4_2), ((4, 1), RULES_4_1), ((4, 0), RULES_4_0)),
    *(((3, 6), RULES_3_6), ((2, 5), RULES_2_5)),
)


def rules_of(release: tuple[int, int]) -> ValidationRules:
    """Return the rules of a release, major and minor.

    Raises:
        ValueError: it is older than 2.5, which had other checks, or newer than ``NEWEST_RELEASE``.

    """
    if release > NEWEST_RELEASE:
        newest = ".".join(map(str, NEWEST_RELEASE))
        raise ValueError(f"Kafka {release[0]}.{release[1]} is not known: the newest known release is {newest}")
    for first, rules in _FIRST_RELEASES:
        if release >= first:
            return rules
    raise ValueError(f"Kafka {release[0]}.{release[1]} is older than 2.5, the first release with these rules")


class AppendOrigin(Enum):
    """The origin of an append; the less it is trusted, the more is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft-leader"


TRANSACTIONS_V2: Final = 2
"""The version in ``WriteTxnMarkers`` of a transaction whose marker has the next epoch; brokers before 4.2 ignore it."""


class EmptiedControl(NamedTuple):
    """A control batch whose marker the log cleaner has removed: it changes nothing, but makes its producer known."""

    producer_id: int
    producer_epoch: int


ProducerBatch: TypeAlias = DataBatch | Marker | EmptiedControl
"""Any batch that carries a producer id."""


class BatchMetadata(NamedTuple):
    """One cached batch; offsets and sequences are inclusive."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    """Largest of the batch, milliseconds."""

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record."""
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


def decrement_sequence(sequence: int, by: int) -> int:
    """Return ``sequence`` minus ``by``; the one before 0 is ``MAX_SEQUENCE``."""
    return sequence - by if sequence >= by else MAX_SEQUENCE - (by - sequence) + 1


@dataclass(frozen=True, slots=True)
class KnownProducer:
    """A leader's state of a producer: its snapshot entry, and its last batches, of which a snapshot has only one."""

    entry: ProducerEntry
    batches: tuple[BatchMetadata, ...] = ()
    """Oldest first, at most ``BATCHES_TO_RETAIN``, all of the entry's epoch."""

    @classmethod
    def unknown(cls, producer_id: int) -> KnownProducer:
        """Return the state of an unknown producer."""
        return cls(no_entry(producer_id))

    @classmethod
    def from_snapshot(cls, entry: ProducerEntry) -> KnownProducer:
        """Return the state that a snapshot entry gives, with the last batch only."""
        if entry.last_offset < 0:
            return cls(entry)
        last = BatchMetadata(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
        return cls(entry, (last,))

    @property
    def last_sequence(self) -> int:
        """Last sequence of the last batch, or ``NO_SEQUENCE``."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def first_sequence(self) -> int:
        """First sequence of the oldest cached batch, or ``NO_SEQUENCE``."""
        return self.batches[0].first_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, batch: DataBatch) -> BatchMetadata | None:
        """Return the cached batch with the same epoch and sequences as ``batch``."""
        if batch.producer_epoch != self.entry.producer_epoch:
            return None
        wanted = (batch.base_sequence, batch.last_sequence)
        return next((batch for batch in self.batches if (batch.first_sequence, batch.last_sequence) == wanted), None)

    def after(self, entry: ProducerEntry, *added: BatchMetadata) -> KnownProducer:
        """Return this producer with ``entry`` and further batches; those of another epoch are dropped."""
        kept = self.batches if entry.producer_epoch == self.entry.producer_epoch else ()
        batches = (*kept, *added)[-BATCHES_TO_RETAIN:]
        return KnownProducer(_with_last(entry, batches), batches)


def _with_last(entry: ProducerEntry, batches: tuple[BatchMetadata, ...]) -> ProducerEntry:
    if not batches:
        return entry._replace(last_sequence=NO_SEQUENCE, last_offset=NO_LAST_OFFSET, offset_delta=0)
    last = batches[-1]
    return entry._replace(
        last_sequence=last.last_sequence, last_offset=last.last_offset, offset_delta=last.offset_delta
    )


class VerificationGuard:
    """An identity only: the first batch of a transaction must carry the guard that its verification returned."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """A transaction that is being verified with its coordinator (KIP-890)."""

    started_ms: int
    lowest_sequence: int
    """The lowest seen in ``epoch``: a batch above it would overtake one that will be sent again."""
    epoch: int
    supports_epoch_bump: bool = False
    """Whether the producer takes part in transactions v2."""
    guard: VerificationGuard = field(default_factory=VerificationGuard)

    def note(self, sequence: int, epoch: int) -> None:
        """Record that a batch of this sequence and epoch waits for the verification."""
        if epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
        elif epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence


class CompletedTransaction(NamedTuple):
    """A transaction with data that a marker has completed."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    aborted: bool


class ProducerAppend:
    """One producer's part of one append.

    Attributes:
        updated: the producer's state after the append; ``batches`` holds only those of this append.
        started: first offset of each transaction that it opened.

    """

    def __init__(
        self,
        known: KnownProducer,
        origin: AppendOrigin,
        verification: Verification | None,
        where: str = "the log",
        *,
        rules: ValidationRules = RULES_3_6,
        transaction_version: int = 0,
    ) -> None:
        self.known = known
        self.updated = KnownProducer(_with_last(known.entry, ()))
        self.started: deque[int] = deque()
        self._origin = origin
        self._verification = verification
        self._where = where
        self._rules = rules
        self._of_transactions_v2 = transaction_version >= TRANSACTIONS_V2 and origin is not AppendOrigin.REPLICATION

    @property
    def producer_id(self) -> int:
        """Id of the producer that appends."""
        return self.known.entry.producer_id

    def append(self, batch: ProducerBatch) -> CompletedTransaction | None:
        """Add one batch; return the transaction that it completed, if that had data.

        Raises:
            RefusedError: it breaks a rule; the whole append must be dropped.

        """
        match batch:
            case DataBatch():
                self._append_data(batch)
                return None
            case Marker():
                return self._append_marker(batch)
            case EmptiedControl():
                return None

    def result(self) -> KnownProducer:
        """Return the state of the producer after the append."""
        return self.known.after(self.updated.entry, *self.updated.batches)

    def _append_data(self, batch: DataBatch) -> None:
        """Validate a data batch, and apply it to the state after the append."""
        self._check_epoch(batch.producer_epoch, batch.base_offset)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        before = self.updated.entry
        if before.has_open_transaction and not batch.transactional:
            raise self._refusal(
                KafkaError.INVALID_TXN_STATE,
                batch.base_offset,
                f"not transactional, but the transaction that began at {before.current_txn_first_offset} is open",
            )
        if batch.transactional and not before.has_open_transaction:
            self.started.append(batch.base_offset)
        delta = batch.last_offset - batch.base_offset
        taken = BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.timestamp)
        self.updated = self.updated.after(after_data(before, batch), taken)

    def _append_marker(self, marker: Marker) -> CompletedTransaction | None:
        """Validate a marker, and apply it; return the transaction that it completed, if that had data."""
        self._check_epoch(marker.producer_epoch, marker.offset)
        before = self.updated.entry
        if self._is_of_the_transaction_before(before, marker.producer_epoch):
            why = f"epoch {marker.producer_epoch} is the last seen, and a marker of transactions v2 brings the next one"
            raise self._refusal(KafkaError.INVALID_PRODUCER_EPOCH, marker.offset, why)
        if before.coordinator_epoch > marker.coordinator_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise self._refusal(
                KafkaError.TRANSACTION_COORDINATOR_FENCED,
                marker.offset,
                f"coordinator epoch {marker.coordinator_epoch} is below {before.coordinator_epoch}, the last seen",
            )
        self.updated = self.updated.after(after_marker(before, marker))
        if not before.has_open_transaction:
            return None
        return CompletedTransaction(
            self.producer_id, before.current_txn_first_offset, marker.offset, aborted=not marker.commit
        )

    def _check_epoch(self, epoch: int, offset: int) -> None:
        seen = self.updated.entry.producer_epoch
        if epoch < seen and self._origin is not AppendOrigin.REPLICATION:
            why = f"epoch {epoch} is below {seen}, the last seen"
            raise self._refusal(KafkaError.INVALID_PRODUCER_EPOCH, offset, why)

    def _is_of_the_transaction_before(self, known: ProducerEntry, epoch: int) -> bool:
        """Whether a marker of ``epoch`` may belong to a transaction before the open one."""
        if not (self._rules.markers_bring_next_epoch and self._of_transactions_v2 and known.has_open_transaction):
            return False
        is_forgiven = epoch == MAX_EPOCH and self._rules.markers_end_last_epoch
        return epoch == known.producer_epoch and not is_forgiven

    def _check_sequence(self, batch: DataBatch) -> None:
        """Refuse a batch that does not follow the last one of its producer."""
        sequence, epoch = batch.base_sequence, batch.producer_epoch
        why = self._overtakes(sequence) or self._skips_the_first(batch)
        if why is None and epoch != self.updated.entry.producer_epoch:
            known_epoch = self.updated.entry.producer_epoch
            if sequence != 0 and known_epoch != NO_PRODUCER_EPOCH:
                why = f"sequence {sequence} begins epoch {epoch}, which must begin with 0 ({known_epoch} was the last)"
        elif why is None and self.known.entry.producer_epoch != NO_PRODUCER_EPOCH:
            last = self._last_sequence(epoch)
            if sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
                why = f"sequence {sequence} does not follow on {last}, the last in epoch {epoch}"
        if why is not None:
            raise self._refusal(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, batch.base_offset, why)

    def _overtakes(self, sequence: int) -> str | None:
        """Return why a batch is refused while the transaction is verified, whatever the epoch."""
        verification = self._verification
        if verification is None:
            return None
        must_begin = self._rules.checks_transactions_v2_early and verification.supports_epoch_bump
        if must_begin and sequence != 0 and not self.known.batches:
            return f"sequence {sequence} of a producer of transactions v2 without batches, which must begin with 0"
        if sequence > verification.lowest_sequence:
            return f"sequence {sequence} overtakes {verification.lowest_sequence}, which is being verified"
        return None

    def _skips_the_first(self, batch: DataBatch) -> str | None:
        """Return why a batch cannot be a log's first one; an earlier batch would then be refused for good."""
        is_first = batch.base_offset == 0 and self.known.entry.producer_epoch == NO_PRODUCER_EPOCH
        if self._rules.new_logs_begin_with_0 and is_first and batch.base_sequence != 0:
            return f"sequence {batch.base_sequence} in a log that never held a record, which must begin with 0"
        return None

    def _last_sequence(self, epoch: int) -> int:
        if self.updated.batches:
            return self.updated.last_sequence
        return self.known.last_sequence if epoch == self.known.entry.producer_epoch else NO_SEQUENCE

    def _refusal(self, error: KafkaError, offset: int, why: str) -> RefusedError:
        return RefusedError(error, f"producer {self.producer_id} at offset {offset} of {self._where}: {why}")
