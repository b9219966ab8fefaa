"""One partition's state manager, on a clock that tests set: appends in few words."""

from __future__ import annotations

from dataclasses import replace

from resnap.replay.leader.append_validation import (
    RULES_2_5,
    AppendOrigin,
    CompletedTransaction,
    KnownProducer,
    ValidationRules,
)
from resnap.replay.leader.known_snapshots import MemorySnapshots, SnapshotStore
from resnap.replay.leader.producer_state_manager import (
    LATE_TRANSACTION_BUFFER_MS,
    Appended,
    ManagerSettings,
    ProducerStateManager,
)
from resnap.replay.producer_state import DataBatch, Expiry, Marker
from resnap.storage.log.record_batch import wrap_sequence

PID = 1
EPOCH = 0
EXPIRATION_MS = 60_000
MAX_TRANSACTION_TIMEOUT_MS = 5 * 60 * 1000
LATE_MS = MAX_TRANSACTION_TIMEOUT_MS + LATE_TRANSACTION_BUFFER_MS


class Leader:
    """A manager with a clock; transactions are not verified unless a test says so."""

    def __init__(self, store: SnapshotStore | None = None, *, rules: ValidationRules = RULES_2_5) -> None:
        self.store = MemorySnapshots() if store is None else store
        self.settings = ManagerSettings(
            expiry=Expiry(EXPIRATION_MS, 1_000), max_transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS, rules=rules
        )
        self.manager = ProducerStateManager(self.store, self.settings)
        self.now = 1_000_000

    def data(
        self,
        sequence: int,
        offset: int,
        *,
        pid: int = PID,
        epoch: int = EPOCH,
        records: int = 1,
        at: int | None = None,
        transactional: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Appended:
        stamp = self.now if at is None else at
        last = wrap_sequence(sequence + records - 1) if sequence >= 0 else sequence
        batch = DataBatch(pid, epoch, sequence, last, offset, offset + records - 1, stamp, transactional)
        return self.manager.append([batch], end_offset=offset + records, origin=origin)

    def end(
        self,
        offset: int,
        *,
        pid: int = PID,
        epoch: int = EPOCH,
        coordinator_epoch: int = 0,
        commit: bool = True,
        at: int | None = None,
        origin: AppendOrigin = AppendOrigin.COORDINATOR,
    ) -> tuple[CompletedTransaction, ...]:
        stamp = self.now if at is None else at
        marker = Marker(pid, epoch, coordinator_epoch, offset, stamp, commit)
        return self.manager.append([marker], end_offset=offset + 1, origin=origin).completed

    def restarted(self, start: int, end: int, *, at: int | None = None) -> Leader:
        """Return the leader after a restart with the same snapshots."""
        other = Leader(self.store, rules=self.settings.rules)
        other.settings = replace(self.settings)
        other.now = self.now
        other.manager.truncate_and_reload(start, end, self.now if at is None else at)
        return other

    def known(self, pid: int = PID) -> KnownProducer:
        return self.manager.producers[pid]

    @property
    def late(self) -> bool:
        return self.manager.has_late_transaction(self.now)

    @property
    def unstable(self) -> int | None:
        return self.manager.transactions.first_unstable_offset

    @property
    def undecided(self) -> int | None:
        return self.manager.transactions.first_undecided_offset
