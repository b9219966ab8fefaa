"""The layers of one principal as Bloom filters, oldest first, written only at the newest end.

Where an id lies in a filter follows from its hash alone: MurmurHash3_x64_128 of the id's eight bytes, little endian, as
in the KIP. Hashing is a must: producer ids come in blocks of a thousand, and unmixed they fill filters badly. A seed of
one's own keeps clients, who choose the ids they send, from looking for ids that collide.
"""

from __future__ import annotations

import math

import mmh3
import numpy as np
import numpy.typing as npt
from rbloom import Bloom

Ids = npt.NDArray[np.int64]
Answers = npt.NDArray[np.int8]
UNSEEN = -1
MAX_LAYERS = 96
"""Numbers of layers are signed bytes in answers of batches; a life cycle adds some to those that bursts add."""


def bits_for(items: int, false_positive_rate: float) -> int:
    """Return how many bits a filter needs to keep to ``false_positive_rate`` while it holds up to ``items``.

    Source: Bloom (1970); the formula that Guava, Cassandra and the KIP's sketch use.

    Raises:
        ValueError: fewer than one item, or a rate outside (0, 1).

    """
    if items < 1 or not 0 < false_positive_rate < 1:
        raise ValueError(f"no filter for {items} items at a false positive rate of {false_positive_rate}")
    return math.ceil(-items * math.log(false_positive_rate) / math.log(2) ** 2)


class BloomStore:
    """Layers by number, 0 the oldest. Not thread-safe: who holds it, locks."""

    def __init__(self, seed: int) -> None:
        """Begin without a layer; ``seed`` is any number of 32 bits."""
        self._seed = seed
        self._filters: list[Bloom] = []
        self.items: list[int] = []
        """Number of ids that changed each layer: fewer than were put in, if some collide."""

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def size_bytes(self) -> int:
        """Memory of all bits."""
        return sum(one.size_in_bits for one in self._filters) // 8

    def open(self, items: int, false_positive_rate: float) -> None:
        """Add an empty layer at the newest end, for up to ``items`` at a rate of its own."""
        self._filters.append(Bloom(items, false_positive_rate, hash_func=int))  # what it gets are hashes
        self.items.append(0)

    def drop_oldest(self, count: int) -> None:
        """Forget so many layers."""
        del self._filters[:count], self.items[:count]

    def find(self, producer_id: int) -> int:
        """Return the number of the newest layer that has an id, or ``UNSEEN``."""
        hashed = self._hash(producer_id)
        for layer in reversed(range(len(self._filters))):
            if hashed in self._filters[layer]:
                return layer
        return UNSEEN

    def add(self, producer_id: int) -> None:
        """Put an id into the newest layer."""
        hashed, newest = self._hash(producer_id), self._filters[-1]
        if hashed not in newest:
            newest.add(hashed)
            self.items[-1] += 1

    def find_many(self, producer_ids: Ids) -> Answers:
        """Return what ``find`` returns for each of ``producer_ids``."""
        return np.array([self.find(one) for one in producer_ids.tolist()], dtype=np.int8)

    def add_many(self, producer_ids: Ids) -> None:
        """Put ids into the newest layer."""
        for one in producer_ids.tolist():
            self.add(one)

    def _hash(self, producer_id: int) -> int:
        return mmh3.hash128(producer_id.to_bytes(8, "little"), self._seed, signed=True)
