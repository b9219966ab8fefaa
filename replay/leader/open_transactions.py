"""The transactions of one partition that keep its last stable offset down: undecided, or decided but not replicated.

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
        """Take in that a transaction has its first batch."""
        self.ongoing[first_offset] = producer_id

    def complete(self, completed: CompletedTransaction) -> None:
        """Take in that a marker has ended a transaction, which stays unstable until the marker is replicated."""
        if self.ongoing.pop(completed.first_offset, None) is None:
            raise AssertionError(f"no transaction began at offset {completed.first_offset}")
        self._unreplicated[completed.first_offset] = completed.last_offset

    def clear(self) -> None:
        """Forget all."""
        self.ongoing.clear()
        self._unreplicated.clear()

    def replicated_up_to(self, offset: int) -> None:
        """Forget those whose marker lies below ``offset``: the high watermark, or the log start."""
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
        """First offset of the oldest transaction that is undecided, or whose marker is not replicated."""
        return min((*self.ongoing, *self._unreplicated), default=None)

    def last_stable_offset(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset once ``completed`` is, which the transaction index records."""
        others = [first for first, producer_id in self.ongoing.items() if producer_id != completed.producer_id]
        return min(others, default=completed.last_offset + 1)
