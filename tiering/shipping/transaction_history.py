"""The transactions of a partition across its segments, which are judged in ascending order.

The transactions open at a segment's base offset are those that the segment below has left open. If that one was not
read, the snapshot at that offset shows some: those it shows are trusted, those it does not show prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError
from resnap.storage.sources.files import PLAIN
from resnap.tiering.shipping.aborted_transactions import OpenTransactions, open_in
from resnap.tiering.shipping.segment_indexes import check_aborted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions


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
        return cls(sources=sources, snapshots={snapshot.offset: snapshot.path for snapshot in partition.snapshots})

    def check(
        self, segment: Segment, transactions: SegmentTransactions, aborted: Sequence[AbortedTxn]
    ) -> tuple[str, ...]:
        """Compare the index of the closed ``segment``, ``aborted``, with its batches; return what cannot be decided.

        Raises:
            IndexUnusableError: they differ.
            StoreError: the store that the snapshot is in failed.

        """
        before = self._before(segment.base_offset)
        if segment.next_base_offset is not None:
            self._open_at[segment.next_base_offset] = transactions.after(before)
        return check_aborted(segment, transactions, aborted, before)

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
        return open_in(sources.read(snapshot))
    except (FormatError, LogDirError, ObjectNotFoundError):
        return {}
