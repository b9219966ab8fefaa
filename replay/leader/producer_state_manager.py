"""``ProducerStateManager``: a broker's state of the producers of one partition, and which batches it accepts.

Unlike the fold (``producer_state``), which applies a log without checks, this is the leader's side: an append is
validated first (``append_validation``), then applied whole or not at all. Producers are kept until they expire
(KIP-854): neither retention nor DeleteRecords removes one. After a restart the state is what a snapshot and the batches
above it give: only the last of five cached batches, and no verifications. The last stable offset is held by the
transactions without a marker, or with an unreplicated one (``UnstableTransactions``).

Time is an argument, the caller decides where snapshots are stored (``known_snapshots``), and nothing here is
thread-safe.

Source: ``ProducerStateManager`` (``ongoingTxns`` and ``unreplicatedTxns`` of open transactions) and the append path of
``UnifiedLog``, as in 3.9.1, 4.1.1 and 4.4.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.replay.leader.append_validation import (
    RULES_3_6,
    AppendOrigin,
    KnownProducer,
    ProducerAppend,
    ValidationRules,
    Verification,
)
from resnap.replay.leader.known_snapshots import KnownSnapshots
from resnap.replay.producer_state import DataBatch, Expiry
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.record_batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.replay.leader.append_validation import (
        BatchMetadata,
        CompletedTransaction,
        ProducerBatch,
        VerificationGuard,
    )
    from resnap.replay.leader.known_snapshots import SnapshotStore
    from resnap.storage.log.producer_snapshot import ProducerEntry

LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000


@dataclass(slots=True, kw_only=True)
class ManagerSettings:
    """Settings that a broker may change while it runs; a manager uses the new values at once."""

    expiry: Expiry
    """``producer.id.expiration.ms`` and its check interval."""
    max_transaction_timeout_ms: int = 900_000
    """``transaction.max.timeout.ms``."""
    verification_enabled: bool = True
    """``transaction.partition.verification.enable``; of no effect before 3.6."""
    rules: ValidationRules = RULES_3_6


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of an accepted append."""

    completed: tuple[CompletedTransaction, ...] = ()
    """Transactions with data that it ended."""
    duplicate: BatchMetadata | None = None
    """The batch that had come before; then nothing was appended, and the producer gets the earlier offsets."""


class ProducerStateManager:
    """The producer state of one partition."""

    def __init__(self, snapshots: SnapshotStore, settings: ManagerSettings, *, where: str = "the log") -> None:
        """Begin with an empty state and the existing snapshots.

        Args:
            snapshots: the partition's snapshots.
            settings: referenced, not copied: changes take effect at once.
            where: name of the partition, for messages.

        """
        self.settings = settings
        self.producers: dict[int, KnownProducer] = {}
        self.verifications: dict[int, Verification] = {}
        self.transactions = UnstableTransactions()
        self.snapshots = KnownSnapshots(snapshots)
        self.end_offset = 0
        """Exclusive end of what the state covers."""
        self._snapshot_offset = 0
        self._oldest_transaction_ms = NO_TIMESTAMP
        self._where = where

    def append(
        self,
        batches: Iterable[ProducerBatch],
        *,
        end_offset: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> Appended:
        """Validate the batches of one append, in offset order, and apply all of them.

        The first duplicate ends the call: it is returned, and the batches before it are dropped. Kafka does the same; a
        client sends only one batch per partition.

        Args:
            batches: those with a producer id, at their final offsets.
            end_offset: log end offset after the append, including batches without a producer id.
            origin: origin of the append.
            guard: of the verification, if a transaction begins.
            transaction_version: of the transactions that markers end, as ``WriteTxnMarkers`` says it.

        Raises:
            RefusedError: a batch breaks a rule; nothing is applied.

        """
        appends: dict[int, ProducerAppend] = {}
        completed: list[CompletedTransaction] = []
        for batch in batches:
            if origin is AppendOrigin.CLIENT and (duplicate := self._duplicate_of(batch)):
                return Appended(duplicate=duplicate)
            self._check_verified(batch, origin, guard)
            append = appends.get(batch.producer_id) or self.prepare(
                batch.producer_id, origin, transaction_version=transaction_version
            )
            appends[batch.producer_id] = append
            ended = append.append(batch)
            if ended:
                completed.append(ended)
            self._end_verification(batch)
        for append in appends.values():
            self.update(append)
        for ended in completed:
            self.complete(ended)
        self.end_offset = end_offset
        return Appended(completed=tuple(completed))

    def prepare(
        self, producer_id: int, origin: AppendOrigin = AppendOrigin.CLIENT, *, transaction_version: int = 0
    ) -> ProducerAppend:
        """Begin an append of a producer; nothing is changed before ``update``."""
        known = self.producers.get(producer_id) or KnownProducer.unknown(producer_id)
        return ProducerAppend(
            known,
            origin,
            self.verifications.get(producer_id),
            self._where,
            rules=self.settings.rules,
            transaction_version=transaction_version,
        )

    def update(self, append: ProducerAppend) -> None:
        """Apply the result of an append."""
        self.producers[append.producer_id] = append.result()
        for first_offset in append.started:
            self.transactions.start(first_offset, append.producer_id)
        self._note_oldest_transaction()

    def complete(self, completed: CompletedTransaction) -> None:
        """Record the end of a transaction; it stays unstable until the high watermark passes its marker."""
        self.transactions.complete(completed)
        self._note_oldest_transaction()

    def start_verification(
        self, producer_id: int, *, sequence: int, epoch: int, now_ms: int, supports_epoch_bump: bool = False
    ) -> VerificationGuard | None:
        """Begin to verify the transaction of a waiting batch; return the guard that the batch must carry, if any.

        Args:
            producer_id: of the batch.
            sequence: first of the batch.
            epoch: of the batch.
            now_ms: wall time, milliseconds.
            supports_epoch_bump: whether the request uses transactions v2; no effect before 4.0.

        Raises:
            RefusedError: from 4.1 on, INVALID_PRODUCER_EPOCH if the epoch is below the known one.

        """
        rules = self.settings.rules
        if rules.checks_transactions_v2_early:
            self._check_epoch(producer_id, epoch)
        if self._is_in_transaction(producer_id, epoch):
            return None
        return self.verify(
            producer_id, sequence=sequence, epoch=epoch, now_ms=now_ms,
            supports_epoch_bump=supports_epoch_bump and rules.transactions_v2,
        ).guard  # fmt: skip

    def verify(
        self, producer_id: int, *, sequence: int, epoch: int, now_ms: int, supports_epoch_bump: bool = False
    ) -> Verification:
        """Return the verification of a producer, new or existing, with this batch recorded."""
        found = self.verifications.get(producer_id)
        if found is None:
            found = self.verifications[producer_id] = Verification(
                started_ms=now_ms, lowest_sequence=sequence, epoch=epoch, supports_epoch_bump=supports_epoch_bump
            )
        found.note(sequence, epoch)
        return found

    def remove_expired(self, now_ms: int) -> tuple[int, ...]:
        """Remove expired producers and verifications; return the ids of the producers."""
        expiry = self.settings.expiry
        expired = tuple(pid for pid, known in self.producers.items() if expiry.is_expired(known.entry, now_ms))
        for producer_id in expired:
            del self.producers[producer_id]
        lasting = {
            pid: one for pid, one in self.verifications.items() if now_ms - one.started_ms < expiry.expiration_ms
        }
        self.verifications = lasting
        return expired

    def has_late_transaction(self, now_ms: int) -> bool:
        """Return whether the oldest open transaction is older than the limit: it hangs."""
        oldest = self._oldest_transaction_ms
        return oldest > 0 and now_ms - oldest > self.settings.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS

    def take_snapshot(self) -> int | None:
        """Write a snapshot at the end offset; return that, or None if the last snapshot is there already."""
        if self.end_offset <= self._snapshot_offset:
            return None
        self.snapshots.write(self.end_offset, self.entries())
        self._snapshot_offset = self.end_offset
        return self.end_offset

    def entries(self) -> list[ProducerEntry]:
        """Return the entries that a snapshot would hold, by producer id."""
        return sorted(known.entry for known in self.producers.values())

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the newest snapshot up to ``log_end_offset``; the caller must replay the batches above it.

        Snapshots outside ``(log_start_offset, log_end_offset]`` are deleted. Nothing is loaded if the end is unchanged,
        and producers that have expired by ``now_ms`` are not loaded.
        """
        self.snapshots.delete([at for at in self.snapshots.offsets if not log_start_offset < at <= log_end_offset])
        if log_end_offset == self.end_offset:
            self.log_start_incremented(log_start_offset)
            return
        self.producers.clear()
        self.transactions.clear()
        self.end_offset = self._snapshot_offset = log_start_offset
        self._load(now_ms)
        self._note_oldest_transaction()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything, and delete every snapshot."""
        self.producers.clear()
        self.transactions.clear()
        self.snapshots.delete(self.snapshots.offsets)
        self._snapshot_offset, self.end_offset = 0, offset
        self._note_oldest_transaction()

    def truncate_fully_and_reload_snapshots(self) -> None:
        """Forget everything, delete every known snapshot, and list the existing ones."""
        self.truncate_fully_and_start_at(0)
        self.snapshots.look_again()

    def log_start_incremented(self, log_start_offset: int) -> None:
        """Record a higher log start offset; no producer is forgotten by that."""
        self.transactions.replicated_up_to(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)
        latest = self.snapshots.latest
        self._snapshot_offset = log_start_offset if latest is None else latest

    def _duplicate_of(self, batch: ProducerBatch) -> BatchMetadata | None:
        known = self.producers.get(batch.producer_id)
        return known.duplicate_of(batch) if known and isinstance(batch, DataBatch) else None

    def _check_verified(self, batch: ProducerBatch, origin: AppendOrigin, guard: VerificationGuard | None) -> None:
        """Refuse the first batch of a transaction that its coordinator does not know, and before that a stale epoch.

        Brokers before 4.1 leave the epoch to the coordinator, whose answer is the same (KAFKA-19690).
        """
        verifies = self.settings.rules.verifies_transactions and self.settings.verification_enabled
        if not verifies or origin not in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR):
            return
        if not isinstance(batch, DataBatch) or not batch.transactional:
            return
        if self._is_in_transaction(batch.producer_id, batch.producer_epoch):
            return
        self._check_epoch(batch.producer_id, batch.producer_epoch)
        verification = self.verifications.get(batch.producer_id)
        if guard is None or verification is None or verification.guard is not guard:
            why = (
                f"producer {batch.producer_id} at offset {batch.base_offset} of {self._where}: not verified as part of"
            )
            raise RefusedError(KafkaError.INVALID_TXN_STATE, f"{why} an open transaction")

    def _check_epoch(self, producer_id: int, epoch: int) -> None:
        known = self.producers.get(producer_id)
        if known and epoch < known.entry.producer_epoch:
            why = f"producer {producer_id}: epoch {epoch} is below {known.entry.producer_epoch}, the last seen"
            raise RefusedError(KafkaError.INVALID_PRODUCER_EPOCH, why)

    def _is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        known = self.producers.get(producer_id)
        if known is None or not known.entry.has_open_transaction:
            return False
        return not self.settings.rules.transactions_v2 or known.entry.producer_epoch == epoch

    def _end_verification(self, batch: ProducerBatch) -> None:
        if isinstance(batch, DataBatch):
            if batch.transactional:
                self.verifications.pop(batch.producer_id, None)
            return
        found = self.verifications.get(batch.producer_id)
        # A marker of transactions v2 carries the epoch of the next transaction, which may be on its way already.
        if found and not (found.supports_epoch_bump and batch.producer_epoch == found.epoch):
            del self.verifications[batch.producer_id]

    def _load(self, now_ms: int) -> None:
        loaded = self.snapshots.load_latest()
        if loaded is None:
            return
        self.end_offset = self._snapshot_offset = loaded[0]
        for entry in loaded[1].values():
            if not self.settings.expiry.is_expired(entry, now_ms):
                self.load(entry)

    def load(self, entry: ProducerEntry) -> None:
        """Load a producer from a snapshot entry."""
        self.producers[entry.producer_id] = KnownProducer.from_snapshot(entry)
        if entry.has_open_transaction:
            self.transactions.start(entry.current_txn_first_offset, entry.producer_id)

    def _note_oldest_transaction(self) -> None:
        oldest = self.transactions.oldest_producer_id
        known = None if oldest is None else self.producers.get(oldest)
        self._oldest_transaction_ms = known.entry.timestamp if known else NO_TIMESTAMP


class UnstableTransactions:
    """Transactions by their first offset."""

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        """First offset -> producer id."""
        self._unreplicated: dict[int, int] = {}
        """First offset -> offset of the marker."""

    def start(self, first_offset: int, producer_id: int) -> None:
        """Record the first batch of a transaction."""
        self.ongoing[first_offset] = producer_id

    def complete(self, completed: CompletedTransaction) -> None:
        """Record the marker of a transaction, which stays unstable until the marker is replicated."""
        if self.ongoing.pop(completed.first_offset, None) is None:
            raise AssertionError(f"no transaction began at offset {completed.first_offset}")
        self._unreplicated[completed.first_offset] = completed.last_offset

    def clear(self) -> None:
        """Forget all transactions."""
        self.ongoing.clear()
        self._unreplicated.clear()

    def replicated_up_to(self, offset: int) -> None:
        """Forget transactions with a marker below ``offset``: the high watermark, or the log start offset."""
        self._unreplicated = {first: last for first, last in self._unreplicated.items() if last >= offset}

    @property
    def oldest_producer_id(self) -> int | None:
        """Producer of the oldest undecided transaction."""
        return self.ongoing[min(self.ongoing)] if self.ongoing else None

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest transaction without a marker."""
        return min(self.ongoing, default=None)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction without a marker, or with one that is not replicated."""
        return min((*self.ongoing, *self._unreplicated), default=None)

    def last_stable_offset(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset after ``completed``, as the transaction index records it."""
        others = [first for first, producer_id in self.ongoing.items() if producer_id != completed.producer_id]
        return min(others, default=completed.last_offset + 1)
