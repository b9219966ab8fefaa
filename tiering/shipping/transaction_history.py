"""The transactions of a partition across its segments, which are judged in ascending order.

The transactions open at a segment's base offset are those that the segment below has left open. If that one was not
read, the snapshot at that offset shows some: those it shows are trusted, those it does not show prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError
from resnap.storage.log.producer_snapshot import NO_OPEN_TRANSACTION, read_snapshot_array
from resnap.storage.sources.files import PLAIN
from resnap.tiering.shipping.aborted_transactions import OpenTransactions
from resnap.tiering.shipping.segment_indexes import check_aborted

if TYPE_CHECKING:
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions


class HasTransactions(Protocol):
    """The facts about the transactions of a segment."""

    @property
    def aborted(self) -> tuple[AbortedTxn, ...]:
        """The entries of its transaction index."""
        ...

    @property
    def transactions(self) -> SegmentTransactions:
        """The transactions in its batches."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionHistory:
    """Compares transaction indexes with the batches of their segment, and of the segments below."""

    sources: Sources = PLAIN
    snapshots: dict[int, str] = field(default_factory=dict)
    """Locators of snapshots, by offset; may grow."""
    _open_at: dict[int, OpenTransactions] = field(default_factory=dict)

    @classmethod
    def of(cls, partition: PartitionDir, sources: Sources) -> TransactionHistory:
        """Return the history of ``partition``, with its own snapshots."""
        return cls(sources=sources, snapshots={one.offset: one.path for one in partition.snapshots})

    def check(self, segment: Segment, found: HasTransactions) -> tuple[str, ...]:
        """Compare the transaction index of the closed ``segment`` with the batches; return what cannot be decided.

        Raises:
            IndexUnusableError: they differ.
            StoreError: the store that the snapshot lies in failed.

        """
        before = self._before(segment.base_offset)
        if segment.next_base_offset is not None:
            self._open_at[segment.next_base_offset] = found.transactions.after(before)
        return check_aborted(segment, found.transactions, found.aborted, before)

    def _before(self, offset: int) -> OpenTransactions:
        known = self._open_at.get(offset)
        if known is None:
            snapshot = self.snapshots.get(offset)
            shown = {} if snapshot is None else _open_in(snapshot, self.sources)
            known = OpenTransactions(shown, known_from=offset)
        return known


def _open_in(snapshot: str, sources: Sources) -> dict[int, int]:
    """Return the first offsets of the open transactions in ``snapshot``; none if it cannot be read."""
    try:
        entries = read_snapshot_array(sources.read(snapshot))
    except (FormatError, LogDirError, ObjectNotFoundError):
        return {}
    shown = entries[entries["current_txn_first_offset"] != NO_OPEN_TRANSACTION]
    return dict(zip(shown["producer_id"].tolist(), shown["current_txn_first_offset"].tolist(), strict=True))
