"""The fold: the state of ``ProducerStateManager`` after a run of batches, applied one batch at a time.

This is the readable specification. The compiled fold (``replay.kernel``) must equal it, batch for batch.
``append_validation`` runs a broker's checks before the same two steps, ``after_data`` and ``after_marker``.

A log is a sequence of events in offset order. Per producer id, with origin REPLICATION (no sequence is validated, lower
epochs and older coordinator epochs are applied as they stand):

- a *data batch* of another epoch than the entry's forgets the cached batch; then it becomes the last batch, and its
  largest timestamp the entry's. If transactional and no transaction is open, one opens at its base offset. If one is
  open and the batch is not transactional, Kafka refuses to load the log (``InvalidTxnStateException``): so do we,
  from that offset on.
- a *marker* of another epoch forgets the cached batch; it closes the transaction, and brings its coordinator epoch and
  its record timestamp. The last batch of an equal epoch stays.
- a starting replica replays segment by segment, and compares epochs only after each segment: if an epoch changed and
  changed back within a segment, it would keep the earlier batch. A leader applies batch by batch, as this does, and
  refuses a lower epoch, so that no log holds such a history.
- an emptied control batch, a batch without producer id and a legacy message change nothing here.

Entries never expire while the fold runs, since Kafka expires by wall clock and not by log position. One trace of expiry
is in the log all the same: **rebirth**. If a producer writes data after ``expiration + check interval`` of silence, the
broker has dropped its entry in between, and the new entry has no coordinator epoch. It is applied only when certain,
and only server clocks make it certain: the producer's last batch was a marker, and a server clock between that marker
and the data is that much later. A server clock is a marker's timestamp or a LogAppendTime, also that of the data
itself. Clients' clocks never count: one that is ahead would feign silence, and one that is behind would make an entry
look expired from the start. In doubt the coordinator epoch is kept, since an older one does no harm. The rule was found
by comparing with brokers; no document mentions it.

Source: ``ProducerStateManager``, ``ProducerAppendInfo`` and ``ProducerStateEntry`` in Kafka's storage module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.log.producer_snapshot import NO_LAST_OFFSET, NO_OPEN_TRANSACTION, ProducerEntry
from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_COORDINATOR_EPOCH: Final = -1


class DataBatch(NamedTuple):
    """A data batch of an idempotent or transactional producer."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """Largest timestamp in the batch, milliseconds."""
    transactional: bool
    append_time: bool = False
    """Whether ``timestamp`` is the broker's (LogAppendTime)."""


class Marker(NamedTuple):
    """The record of a control batch that ends a transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    offset: int
    timestamp: int
    """Timestamp of the record, milliseconds, the coordinator's clock."""
    commit: bool


class ServerTime(NamedTuple):
    """A batch without producer id that the broker stamped (LogAppendTime): only its clock matters."""

    timestamp: int


Event = DataBatch | Marker | ServerTime


NEVER_MS: Final = 1 << 62
"""Longer than any clock runs. An expiration may be 2^63 - 1; what is added to it must still fit into a long."""


class Expiry(NamedTuple):
    """When a broker forgets a producer (KIP-854), both in milliseconds."""

    expiration_ms: int
    check_interval_ms: int

    @property
    def certain_silence_ms(self) -> int:
        """After this long without a batch the periodic check has certainly run."""
        return min(self.expiration_ms + self.check_interval_ms, NEVER_MS)

    def is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        """Return whether a broker that loads ``entry`` at ``now_ms`` drops it (``isProducerExpired``)."""
        return not entry.has_open_transaction and now_ms - entry.timestamp >= self.expiration_ms


def no_entry(producer_id: int) -> ProducerEntry:
    """Return the entry of an unknown producer (``ProducerStateEntry.empty``)."""
    return ProducerEntry(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        last_sequence=NO_SEQUENCE,
        last_offset=NO_LAST_OFFSET,
        offset_delta=0,
        timestamp=NO_TIMESTAMP,
        coordinator_epoch=NO_COORDINATOR_EPOCH,
        current_txn_first_offset=NO_OPEN_TRANSACTION,
    )


def after_data(entry: ProducerEntry, batch: DataBatch) -> ProducerEntry:
    """Return ``entry`` after a data batch, which is applied without checks; it may open a transaction."""
    opens = batch.transactional and not entry.has_open_transaction
    return ProducerEntry(
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        last_sequence=batch.last_sequence,
        last_offset=batch.last_offset,
        offset_delta=batch.last_offset - batch.base_offset,
        timestamp=batch.timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_first_offset=batch.base_offset if opens else entry.current_txn_first_offset,
    )


def after_marker(entry: ProducerEntry, marker: Marker) -> ProducerEntry:
    """Return ``entry`` after a marker: without a transaction, and without a last batch if the epoch differs."""
    keeps_batch = entry.producer_epoch == marker.producer_epoch
    return ProducerEntry(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        last_sequence=entry.last_sequence if keeps_batch else NO_SEQUENCE,
        last_offset=entry.last_offset if keeps_batch else NO_LAST_OFFSET,
        offset_delta=entry.offset_delta if keeps_batch else 0,
        timestamp=marker.timestamp,
        coordinator_epoch=marker.coordinator_epoch,
        current_txn_first_offset=NO_OPEN_TRANSACTION,
    )


class ProducerStates:
    """State of every producer of one partition."""

    def __init__(self, expiry: Expiry) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.illegal: dict[int, int] = {}
        """Producer id -> offset of its first non-transactional batch inside an open transaction."""
        self._expiry = expiry
        self._clock_ms: list[int] = []
        """The server clock of each event so far; -1 if it has none."""
        self._closed_at: dict[int, int] = {}
        """Producer id -> index of its last event, where that is a marker."""

    def append(self, events: Iterable[Event]) -> None:
        """Apply events in offset order."""
        for event in events:
            is_by_client = isinstance(event, DataBatch) and not event.append_time
            self._clock_ms.append(-1 if is_by_client else event.timestamp)
            if isinstance(event, DataBatch):
                self._append_data(event)
            elif isinstance(event, Marker):
                self._append_marker(event)

    def _append_data(self, batch: DataBatch) -> None:
        producer_id = batch.producer_id
        entry = self.entries.get(producer_id)
        if entry and self._is_reborn(entry):
            entry = entry._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
        if entry and entry.has_open_transaction and not batch.transactional:
            self.illegal.setdefault(producer_id, batch.base_offset)
        self._closed_at.pop(producer_id, None)
        self.entries[producer_id] = after_data(entry or no_entry(producer_id), batch)

    def _is_reborn(self, entry: ProducerEntry) -> bool:
        closed_at = self._closed_at.get(entry.producer_id)
        if closed_at is None or entry.timestamp < 0:
            return False
        newest_since = max(self._clock_ms[closed_at + 1 :])
        return newest_since - entry.timestamp >= self._expiry.certain_silence_ms

    def _append_marker(self, marker: Marker) -> None:
        entry = self.entries.get(marker.producer_id) or no_entry(marker.producer_id)
        self._closed_at[marker.producer_id] = len(self._clock_ms) - 1
        self.entries[marker.producer_id] = after_marker(entry, marker)
