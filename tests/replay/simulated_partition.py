"""A simulated partition: a log in memory, a state manager, and a clock that the test sets.

Of clients only their counters are simulated: a batch without a given epoch and sequence gets those that the producer
would send next. Values that a step gives are sent unchanged, right or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from resnap.replay.leader.append_validation import TRANSACTIONS_V2, AppendOrigin, ProducerBatch
from resnap.replay.leader.known_snapshots import MemorySnapshots
from resnap.replay.leader.producer_state_manager import ManagerSettings, ProducerStateManager
from resnap.replay.producer_state import DataBatch, Expiry, Marker
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.names import MAX_OFFSET
from resnap.storage.log.record_batch import wrap_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.replay.leader.append_validation import ValidationRules, VerificationGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a step."""

    verdict: str
    """``accepted``, ``duplicate``, ``refused`` or ``done``."""
    error: KafkaError = KafkaError.NONE
    detail: str = ""


@dataclass(slots=True)
class _Client:
    """The counters of a producer."""

    epoch: int = 0
    next_sequence: int = 0


class SimulatedPartition:
    """Each step is a method, called one at a time; ``now_ms`` is wall-clock time in milliseconds."""

    def __init__(self, rules: ValidationRules, expiry: Expiry, now_ms: int) -> None:
        self._settings = ManagerSettings(expiry=expiry, verification_enabled=True, rules=rules)
        self._snapshots = MemorySnapshots()
        self._log: list[tuple[int, ProducerBatch]] = []
        """Each batch with the offset after it."""
        self._bases = [0]
        """Where segments begin."""
        self._clients: dict[int, _Client] = {}
        self._checked_ms = now_ms
        self.log_start_offset = self.log_end_offset = 0
        self.now_ms = now_ms
        self.manager = ProducerStateManager(self._snapshots, self._settings, where="the partition")

    def append(
        self,
        producer_id: int,
        *,
        epoch: int | None = None,
        sequence: int | None = None,
        records: int = 1,
        transactional: bool = False,
        verified: bool = True,
    ) -> Verdict:
        """Append a data batch; ``verified`` says whether its coordinator knows the transaction."""
        client = self._clients.setdefault(producer_id, _Client())
        epoch = client.epoch if epoch is None else epoch
        sequence = client.next_sequence if sequence is None else sequence
        base = self.log_end_offset
        batch = DataBatch(
            producer_id, epoch, sequence, wrap_sequence(sequence + records - 1), base, base + records - 1,
            self.now_ms, transactional,
        )  # fmt: skip
        verdict = self._appended(batch, batch.last_offset + 1, AppendOrigin.CLIENT, verified=verified)
        if verdict.verdict == "accepted":
            client.epoch, client.next_sequence = epoch, wrap_sequence(sequence + records)
        return verdict

    def end_transaction(self, producer_id: int, *, epoch: int | None = None) -> Verdict:
        """Append a commit marker; with transactions v2 it has the next epoch, in which the producer continues."""
        client = self._clients.setdefault(producer_id, _Client())
        bumps = self._settings.rules.transactions_v2
        if epoch is None:
            epoch = client.epoch + 1 if bumps else client.epoch
        marker = Marker(producer_id, epoch, 0, self.log_end_offset, self.now_ms, commit=True)
        verdict = self._appended(marker, marker.offset + 1, AppendOrigin.COORDINATOR, verified=False)
        if verdict.verdict == "accepted" and epoch > client.epoch:
            client.epoch, client.next_sequence = epoch, 0
        return verdict

    def bump(self, producer_id: int) -> Verdict:
        """Move the producer to the next epoch, from sequence 0 on, as after ``InitProducerId``."""
        client = self._clients.setdefault(producer_id, _Client())
        client.epoch, client.next_sequence = client.epoch + 1, 0
        return Verdict(verdict="done", detail=f"the producer sends epoch {client.epoch} from now on")

    def wait(self, ms: int) -> Verdict:
        """Let time pass; the broker's periodic check runs as often as it is due."""
        self.now_ms += ms
        interval = self._settings.expiry.check_interval_ms
        checks = (self.now_ms - self._checked_ms) // interval
        if not checks:
            return Verdict(verdict="done", detail="no check was due")
        self._checked_ms += checks * interval
        return self._expired(self.manager.remove_expired(self._checked_ms))

    def set_expiration(self, expiration_ms: int) -> Verdict:
        """Change ``producer.id.expiration.ms`` of the running broker, effective at the next check."""
        self._settings.expiry = self._settings.expiry._replace(expiration_ms=expiration_ms)
        return Verdict(verdict="done", detail="from the next check on")

    def roll(self) -> Verdict:
        """Roll the segment, with a snapshot at the log end."""
        self._bases = sorted({*self._bases, self.log_end_offset})
        taken = self.manager.take_snapshot()
        return Verdict(
            verdict="done", detail="no snapshot: nothing is new" if taken is None else f"snapshot at {taken}"
        )

    def restart(self, *, clean: bool = True, keep_snapshots: bool = True) -> Verdict:
        """Stop the broker, cleanly (which writes a snapshot) or not, and start it, with its snapshots or without.

        After a clean shutdown a broker without any snapshot reads nothing, knows no producer, and writes empty
        snapshots at the base offsets of its last two segments and at the log end.
        """
        if clean:
            self.manager.take_snapshot()
        if not keep_snapshots:
            self._snapshots.files.clear()
        self.manager = ProducerStateManager(self._snapshots, self._settings, where="the partition")
        self._checked_ms = self.now_ms
        if clean and not keep_snapshots:
            for offset in (*self._bases[-2:], self.log_end_offset):
                self.manager.end_offset = offset
                self.manager.take_snapshot()
            return Verdict(verdict="done", detail="no snapshot after an orderly stop: no producer is known")
        return self._reload(self._bases[-2:] if clean else self._bases)

    def truncate(self, offset: int) -> Verdict:
        """Truncate the log, as a follower does whose leader never had the rest."""
        self._log = [(end, batch) for end, batch in self._log if end <= offset]
        self.log_end_offset = offset
        self._bases = [base for base in self._bases if base <= offset]
        return self._reload(self._bases[-2:])

    def delete_records(self, offset: int) -> Verdict:
        """Move the log start to ``offset``; no producer is forgotten by that."""
        self.log_start_offset = offset
        self._bases = [base for base, end in pairwise([*self._bases, MAX_OFFSET]) if end > offset]
        self.manager.log_start_incremented(offset)
        snapshots = self.manager.snapshots
        snapshots.delete([at for at in snapshots.offsets if at < offset])
        return Verdict(verdict="done", detail=f"producers that are still known: {len(self.manager.producers)}")

    def _verified(self, batch: ProducerBatch) -> VerificationGuard | None:
        """Verify the transaction that ``batch`` may begin; the coordinator knows it."""
        settings = self._settings
        if not isinstance(batch, DataBatch) or not settings.verification_enabled:
            return None
        if not batch.transactional or not settings.rules.verifies_transactions:
            return None
        return self.manager.start_verification(
            batch.producer_id, sequence=batch.base_sequence, epoch=batch.producer_epoch, now_ms=self.now_ms,
            supports_epoch_bump=settings.rules.transactions_v2,
        )  # fmt: skip

    def _appended(self, batch: ProducerBatch, end_offset: int, origin: AppendOrigin, *, verified: bool) -> Verdict:
        try:
            guard = self._verified(batch) if verified else None
            appended = self.manager.append(
                [batch],
                end_offset=end_offset,
                origin=origin,
                guard=guard,
                transaction_version=TRANSACTIONS_V2 if self._settings.rules.transactions_v2 else 0,
            )
        except RefusedError as error:
            return Verdict(verdict="refused", error=error.error, detail=error.why)
        if appended.duplicate:
            first, last = appended.duplicate.first_offset, appended.duplicate.last_offset
            return Verdict(verdict="duplicate", detail=f"answered with offsets {first} to {last}, appended nothing")
        self._log.append((end_offset, batch))
        offsets = f"offsets {self.log_end_offset} to {end_offset - 1}"
        self.log_end_offset = end_offset
        return Verdict(verdict="accepted", detail=offsets)

    def _expired(self, producer_ids: tuple[int, ...]) -> Verdict:
        named = ", ".join(map(str, producer_ids))
        return Verdict(verdict="done", detail=f"expired: {named}" if named else "nothing expired")

    def _reload(self, boundaries: Sequence[int]) -> Verdict:
        """Load the newest valid snapshot, and replay the batches above it, as a starting broker does.

        It takes a snapshot at each of ``boundaries``: the base offsets of its last two segments, or, after a crash, of
        every segment that it reads again.
        """
        self.manager.truncate_and_reload(self.log_start_offset, self.log_end_offset, self.now_ms)
        begun = self.manager.end_offset
        replayed = [(end, batch) for end, batch in self._log if end > begun]
        try:
            for end, batch in replayed:
                self.manager.append([batch], end_offset=end, origin=AppendOrigin.REPLICATION)
                if end in boundaries:
                    self.manager.take_snapshot()
        except RefusedError as error:
            detail = f"the broker cannot load the log, and takes the partition offline: {error.why}"
            return Verdict(verdict="refused", error=error.error, detail=detail)
        self.manager.end_offset = self.log_end_offset
        self.manager.take_snapshot()
        loaded = f"loaded the snapshot at {begun}" if begun in self.manager.snapshots else "loaded no snapshot"
        return Verdict(verdict="done", detail=f"{loaded}; batches replayed: {len(replayed)}")
