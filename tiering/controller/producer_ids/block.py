"""A block of producer ids: what a controller gives to a broker at once (KIP-730).

Source: ``ProducerIdsBlock``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from resnap.tiering.controller.metadata.records import NO_BROKER, PRODUCER_ID_BLOCK_SIZE

MAX_PRODUCER_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsBlock:
    """``size`` ids from ``first`` on, for one broker."""

    broker_id: int
    first: int
    size: int = PRODUCER_ID_BLOCK_SIZE

    @property
    def last(self) -> int:
        """The last id, inclusive; -1 where there is none."""
        return self.first + self.size - 1

    @property
    def next_first(self) -> int:
        """First id of the block that follows."""
        return self.first + self.size


EMPTY: Final = ProducerIdsBlock(broker_id=NO_BROKER, first=0, size=0)


class ClaimedBlock:
    """A block that ids are taken from, each once. Not safe for threads: who shares it locks."""

    def __init__(self, block: ProducerIdsBlock) -> None:
        self.block = block
        self._next = block.first

    def claim(self) -> int | None:
        """Take the next id; None when all are taken."""
        if self._next > self.block.last:
            return None
        self._next += 1
        return self._next - 1
