"""The transactions that hold a partition's last stable offset: without a marker, or with an unreplicated one.

Source: ``ProducerStateManager`` (``ongoingTxns`` and ``unreplicatedTxns``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resnap.replay.leader.append_validation import CompletedTransaction


class OpenTransactions:
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
