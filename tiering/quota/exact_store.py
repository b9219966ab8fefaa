"""The layers of one principal as exact sets: the oracle of the Bloom filters, and enough where ids are few.

An id costs some 80 bytes here and one or two there, and a set grows without bound with what clients send.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from resnap.tiering.quota.bloom_store import UNSEEN, Answers, Ids

BYTES_PER_ID: Final = 82
"""Size of an entry in a Python set of distinct integers, measured over a million of them, table included."""


class ExactStore:
    """What ``BloomStore`` is, without false positives; sizes are taken and not used."""

    def __init__(self, seed: int = 0) -> None:  # noqa: ARG002 - of filters
        self._layers: list[set[int]] = []

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def items(self) -> list[int]:
        """Ids in each layer."""
        return [len(layer) for layer in self._layers]

    @property
    def size_bytes(self) -> int:
        """Memory of all layers, about."""
        return sum(self.items) * BYTES_PER_ID

    def open(self, items: int, false_positive_rate: float) -> None:  # noqa: ARG002 - of filters
        """Add an empty layer at the newest end."""
        self._layers.append(set())

    def drop_oldest(self, count: int) -> None:
        """Forget so many layers."""
        del self._layers[:count]

    def find(self, producer_id: int) -> int:
        """Return the number of the newest layer that has an id, or ``UNSEEN``."""
        for layer in reversed(range(len(self._layers))):
            if producer_id in self._layers[layer]:
                return layer
        return UNSEEN

    def add(self, producer_id: int) -> None:
        """Put an id into the newest layer."""
        self._layers[-1].add(producer_id)

    def find_many(self, producer_ids: Ids) -> Answers:
        """Return what ``find`` returns for each of ``producer_ids``."""
        return np.array([self.find(one) for one in producer_ids.tolist()], dtype=np.int8)

    def add_many(self, producer_ids: Ids) -> None:
        """Put ids into the newest layer."""
        self._layers[-1].update(producer_ids.tolist())
