"""The fold: what ``ProducerStateManager`` holds after a run of batches, one batch at a time.

This is the readable specification. The columnar path (``header_scan``, ``partial_state``) must equal it, batch for
batch; nothing in production runs it.

A log is a sequence of events in offset order. Per producer id, with origin REPLICATION (no sequence is validated, lower
epochs and older coordinator epochs are applied as they stand):

- a *data batch* of another epoch than the entry's forgets the cached batch; then it becomes the last batch, and its
  largest timestamp the entry's. If transactional and no transaction is open, one opens at its base offset. If one is
  open and the batch is not transactional, Kafka refuses to load the log (``InvalidTxnStateException``): so do we,
  from that offset on.
- a *marker* of another epoch forgets the cached batch; it closes the transaction, and brings its coordinator epoch and
  its record timestamp. The last batch of an equal epoch stays.
- an emptied control batch, a batch without producer id and a legacy message change nothing here.

Entries never expire while the fold runs, since Kafka expires by wall clock and not by log position. One trace of
expiry is in the log all the same: **rebirth**. A producer that writes data after ``expiration + check interval`` of
silence had been dropped by the broker in between and starts afresh, without a coordinator epoch. It is applied only
when certain: no open transaction, a last timestamp that is not negative, and min(timestamp of the batch, newest server
clock of its segment) that late. A server clock is a marker's timestamp or LogAppendTime. In doubt the coordinator
epoch is kept, since an older one harms nobody. The rule was found by comparing with brokers; no text mentions it.

Source: ``ProducerStateManager``, ``ProducerAppendInfo`` and ``ProducerStateEntry`` in Kafka's storage module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from storage.log.producer_snapshot import NO_LAST_OFFSET, NO_OPEN_TRANSACTION, ProducerEntry
from storage.log.record_batch import NO_SEQUENCE

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
    """The one record of a control batch that ends a transaction."""

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


class Expiry(NamedTuple):
    """When a broker forgets a producer (KIP-854), both in milliseconds."""

    expiration_ms: int
    check_interval_ms: int

    @property
    def certain_silence_ms(self) -> int:
        """After this long without a batch the periodic check has surely run."""
        return self.expiration_ms + self.check_interval_ms

    def is_expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        """Tell whether a broker that loads ``entry`` at ``now_ms`` drops it (``isProducerExpired``)."""
        return not entry.has_open_transaction and now_ms - entry.timestamp >= self.expiration_ms


class ProducerStates:
    """State of every producer of one partition, fed segment by segment."""

    def __init__(self, expiry: Expiry) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.illegal: dict[int, int] = {}
        """Producer id -> offset of its first non-transactional batch inside an open transaction."""
        self._expiry = expiry
        self._reborn_if: dict[int, int] = {}

    def append_segment(self, events: Iterable[Event]) -> None:
        """Apply the events of one whole segment, in offset order."""
        clock = -1
        for event in events:
            clock = max(clock, _server_clock(event))
            match event:
                case DataBatch():
                    self._append_data(event)
                case Marker():
                    self._append_marker(event)
                case ServerTime():
                    pass
        self._settle_rebirths(clock)

    def _append_data(self, batch: DataBatch) -> None:
        producer_id = batch.producer_id
        entry = self.entries.get(producer_id)
        open_since = entry.current_txn_first_offset if entry else NO_OPEN_TRANSACTION
        if entry and open_since == NO_OPEN_TRANSACTION and entry.timestamp >= 0:
            certain_at = entry.timestamp + self._expiry.certain_silence_ms
            if batch.timestamp >= certain_at:
                self._reborn_if[producer_id] = min(certain_at, self._reborn_if.get(producer_id, certain_at))
        if open_since == NO_OPEN_TRANSACTION and batch.transactional:
            open_since = batch.base_offset
        elif open_since != NO_OPEN_TRANSACTION and not batch.transactional:
            self.illegal.setdefault(producer_id, batch.base_offset)
        self.entries[producer_id] = ProducerEntry(
            producer_id=producer_id,
            producer_epoch=batch.producer_epoch,
            last_sequence=batch.last_sequence,
            last_offset=batch.last_offset,
            offset_delta=batch.last_offset - batch.base_offset,
            timestamp=batch.timestamp,
            coordinator_epoch=entry.coordinator_epoch if entry else NO_COORDINATOR_EPOCH,
            current_txn_first_offset=open_since,
        )

    def _append_marker(self, marker: Marker) -> None:
        entry = self.entries.get(marker.producer_id)
        keeps_batch = entry is not None and entry.producer_epoch == marker.producer_epoch
        self._reborn_if.pop(marker.producer_id, None)
        self.entries[marker.producer_id] = ProducerEntry(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            last_sequence=entry.last_sequence if entry and keeps_batch else NO_SEQUENCE,
            last_offset=entry.last_offset if entry and keeps_batch else NO_LAST_OFFSET,
            offset_delta=entry.offset_delta if entry and keeps_batch else 0,
            timestamp=marker.timestamp,
            coordinator_epoch=marker.coordinator_epoch,
            current_txn_first_offset=NO_OPEN_TRANSACTION,
        )

    def _settle_rebirths(self, clock: int) -> None:
        for producer_id, certain_at in self._reborn_if.items():
            if clock >= certain_at:
                entry = self.entries[producer_id]
                self.entries[producer_id] = entry._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
        self._reborn_if.clear()


def _server_clock(event: Event) -> int:
    match event:
        case DataBatch(append_time=False):
            return -1
        case _:
            return event.timestamp
