"""A store beside exact sets of what it was given: the oracle of a simulation.

The sets follow the store's own layers, opened and dropped with them. An oracle with layers of its own would close them
early at other moments, as soon as it is sized otherwise, and then remember ids for longer or for less long: it would
take the life cycle's decisions for errors of the filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resnap.tiering.quota.bloom_store import UNSEEN, Answers, Ids

if TYPE_CHECKING:
    from resnap.tiering.quota.layers import Store


class WatchedStore:
    """Answers as ``store`` does, and counts what is so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._layers: list[set[int]] = []
        self._dropped = 0
        self._newest: dict[int, int] = {}
        """The newest layer of each id, counted from the first layer there ever was."""
        self.mistaken = 0
        """Ids that were found and had never been put in."""

    def __len__(self) -> int:
        return len(self._store)

    @property
    def items(self) -> list[int]:
        """Ids in each layer, as the store counts them."""
        return self._store.items

    @property
    def size_bytes(self) -> int:
        """Memory of the store alone."""
        return self._store.size_bytes

    @property
    def remembered(self) -> int:
        """How many different ids are in the layers, exactly."""
        return len(self._newest)

    def has(self, producer_id: int) -> bool:
        """Whether an id is in the layers, exactly."""
        return producer_id in self._newest

    def open(self, items: int, false_positive_rate: float) -> None:
        """Add an empty layer."""
        self._store.open(items, false_positive_rate)
        self._layers.append(set())

    def drop_oldest(self, count: int) -> None:
        """Forget layers, and the ids that no newer one has."""
        self._store.drop_oldest(count)
        for layer in self._layers[:count]:
            for producer_id in layer:
                if self._newest[producer_id] == self._dropped:
                    del self._newest[producer_id]
            self._dropped += 1
        del self._layers[:count]

    def find(self, producer_id: int) -> int:
        """Return the layer that the store finds; who is found by mistake passes, and so is known from now on."""
        layer = self._store.find(producer_id)
        if layer != UNSEEN and producer_id not in self._newest:
            self.mistaken += 1
            self._put(producer_id)
        return layer

    def add(self, producer_id: int) -> None:
        """Write into the newest layer."""
        self._store.add(producer_id)
        self._put(producer_id)

    def find_many(self, producer_ids: Ids) -> Answers:
        """Return the newest layer of each."""
        return np.array([self.find(one) for one in producer_ids.tolist()], dtype=np.int8)

    def add_many(self, producer_ids: Ids) -> None:
        """Write many."""
        self._store.add_many(producer_ids)
        for one in producer_ids.tolist():
            self._put(one)

    def _put(self, producer_id: int) -> None:
        self._layers[-1].add(producer_id)
        self._newest[producer_id] = self._dropped + len(self._layers) - 1
