"""Stores for the ids in one principal's layers, by layer number, 0 the oldest; only the newest is written.

The bits of an id in a Bloom filter depend only on its hash: MurmurHash3_x64_128 of the id's eight bytes, little endian,
as in the KIP. Hashing is necessary: producer ids come in blocks of a thousand, and would fill filters unevenly. A
private seed keeps clients, which choose the ids they send, from finding ids that collide.

No store is thread-safe: the caller must lock.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import mmh3
from rbloom import Bloom

UNSEEN: Final = -1
MAX_LAYERS: Final = 96
"""Numbers of layers are signed bytes in answers of batches; a life cycle adds some to those that bursts add."""
BYTES_PER_ID: Final = 82
"""Size of an entry in a Python set of distinct integers, measured over a million of them, table included."""


class Store(Protocol):
    """Layers by number."""

    @property
    def items(self) -> list[int]:
        """Number of ids that changed each layer: fewer than were added, if some collide."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory of all layers."""
        ...

    def open(self, items: int, false_positive_rate: float) -> None:
        """Add an empty newest layer, for up to ``items`` at a false positive rate of its own."""
        ...

    def drop_oldest(self, count: int) -> None:
        """Drop so many of the oldest layers."""
        ...

    def find(self, producer_id: int) -> int:
        """Return the number of the newest layer with an id, or ``UNSEEN``."""
        ...

    def add(self, producer_id: int) -> None:
        """Add an id to the newest layer."""
        ...


def bits_for(items: int, false_positive_rate: float) -> int:
    """Return the number of bits with which a filter of up to ``items`` keeps ``false_positive_rate``.

    Source: Bloom (1970); the formula that Guava, Cassandra and the KIP's sketch use.

    Raises:
        ValueError: fewer than one item, or a rate outside (0, 1).

    """
    if items < 1 or not 0 < false_positive_rate < 1:
        raise ValueError(f"no filter for {items} items at a false positive rate of {false_positive_rate}")
    return math.ceil(-items * math.log(false_positive_rate) / math.log(2) ** 2)


class BloomStore:
    """Layers as Bloom filters; ``seed`` of the hash is any number of 32 bits."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._filters: list[Bloom] = []
        self.items: list[int] = []

    @property
    def size_bytes(self) -> int:
        """Memory of all bits."""
        return sum(layer.size_in_bits for layer in self._filters) // 8

    def open(self, items: int, false_positive_rate: float) -> None:
        """Add an empty layer."""
        self._filters.append(Bloom(items, false_positive_rate, hash_func=int))  # what it gets are hashes
        self.items.append(0)

    def drop_oldest(self, count: int) -> None:
        """Drop so many of the oldest layers."""
        del self._filters[:count], self.items[:count]

    def find(self, producer_id: int) -> int:
        """Return the newest layer with an id; sometimes one without it."""
        hashed = self._hash(producer_id)
        for layer in reversed(range(len(self._filters))):
            if hashed in self._filters[layer]:
                return layer
        return UNSEEN

    def add(self, producer_id: int) -> None:
        """Add an id to the newest layer."""
        hashed, newest = self._hash(producer_id), self._filters[-1]
        if hashed not in newest:
            newest.add(hashed)
            self.items[-1] += 1

    def _hash(self, producer_id: int) -> int:
        return mmh3.hash128(producer_id.to_bytes(8, "little"), self._seed, signed=True)


class ExactStore:
    """Layers as sets: without errors, at some 80 bytes an id instead of one or two; the test oracle of filters."""

    def __init__(self, seed: int = 0) -> None:  # noqa: ARG002 - of filters
        self._layers: list[set[int]] = []

    @property
    def items(self) -> list[int]:
        """Ids in each layer."""
        return [len(layer) for layer in self._layers]

    @property
    def size_bytes(self) -> int:
        """Memory of all layers, about."""
        return sum(self.items) * BYTES_PER_ID

    def open(self, items: int, false_positive_rate: float) -> None:  # noqa: ARG002 - of filters
        """Add an empty layer."""
        self._layers.append(set())

    def drop_oldest(self, count: int) -> None:
        """Drop so many of the oldest layers."""
        del self._layers[:count]

    def find(self, producer_id: int) -> int:
        """Return the newest layer with an id."""
        for layer in reversed(range(len(self._layers))):
            if producer_id in self._layers[layer]:
                return layer
        return UNSEEN

    def add(self, producer_id: int) -> None:
        """Add an id to the newest layer."""
        self._layers[-1].add(producer_id)


class WatchedStore:
    """Another store with exact sets beside it: returns the store's results, and counts its errors.

    The sets follow the store's own layers, opened and dropped with them. An oracle with layers of its own and another
    size would close them early at other times, and so remember ids for longer or shorter: it would count decisions of
    the life cycle as errors of the filters.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._layers: list[set[int]] = []
        self._dropped = 0
        self._newest: dict[int, int] = {}
        """The newest layer of each id, counted from the first layer there ever was."""
        self.mistaken = 0
        """Ids that were found and had never been put in."""

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
        """Number of distinct ids in the layers, exactly."""
        return len(self._newest)

    def open(self, items: int, false_positive_rate: float) -> None:
        """Add an empty layer."""
        self._store.open(items, false_positive_rate)
        self._layers.append(set())

    def drop_oldest(self, count: int) -> None:
        """Drop layers, and the ids that no newer layer has."""
        self._store.drop_oldest(count)
        for layer in self._layers[:count]:
            for producer_id in layer:
                if self._newest[producer_id] == self._dropped:
                    del self._newest[producer_id]
            self._dropped += 1
        del self._layers[:count]

    def find(self, producer_id: int) -> int:
        """Return the layer that the store finds; an id found by mistake is admitted, and so is known from now on."""
        layer = self._store.find(producer_id)
        if layer != UNSEEN and producer_id not in self._newest:
            self.mistaken += 1
            self._put(producer_id)
        return layer

    def add(self, producer_id: int) -> None:
        """Add an id to the newest layer."""
        self._store.add(producer_id)
        self._put(producer_id)

    def _put(self, producer_id: int) -> None:
        self._layers[-1].add(producer_id)
        self._newest[producer_id] = self._dropped + len(self._layers) - 1
