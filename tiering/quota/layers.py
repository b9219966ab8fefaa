"""The layers of one principal's producer ids over time: which ids are known, and where new ones are stored.

Layers follow a ``LifeCycle``. The texts of KIP-936 contradict each other, so the life cycle is data, and each text has
a named profile. With W the quota window (``producer.id.quota.window.size.seconds``):

    P-A   written for W,   remembered for 1.5 W: the first text; an id is forgotten after 0.5 W to 1.5 W
    P-B   written for W/2, remembered for 1.5 W: the comment in the KIP's sketch of a class; after W to 1.5 W
    P-C   written for W/2, remembered for W:     the last prose, "two filters, one of them writable"; after 0.5 W to W
    P-L   written for W/4, remembered for W:     the layered filter of the discussion; after 0.75 W to W

Edges: a layer expires at exactly its lifetime, and accepts no ids from exactly its span on.

A layer begins at the first write at or after the end of the previous one, never by a timer, so an idle principal has
none; it expires at its lifetime, whether or not it was cleaned up. A full layer is closed early, and the next one has
twice its capacity: a burst adds layers, and does not raise the false positive rate. The rate is for all layers
together: each span has its share, of which its first layer takes four fifths, and each layer that a burst adds takes a
fifth of the previous one's.

Memory is bounded: if another layer would exceed ``max_bytes``, the newest one is filled further. Then more new ids
count as seen, which is an error in the client's favour, and ``is_saturated`` reports it.

A store has the ids of one principal's layers, by layer number, 0 the oldest; only the newest is written.

The bits of an id in a Bloom filter depend only on its hash: MurmurHash3_x64_128 of the id's eight bytes, little endian,
as in the KIP. Hashing is necessary: producer ids come in blocks of a thousand, and would fill filters unevenly. A
private seed keeps clients, which choose the ids they send, from finding ids that collide.

No store is thread-safe: the caller must lock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import mmh3
import numpy as np
import numpy.typing as npt
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


Ids: TypeAlias = npt.NDArray[np.int64]
Answers: TypeAlias = npt.NDArray[np.int8]
"""The newest layer of each id, or ``UNSEEN``."""

DEFAULT_WINDOW_MS: Final = 3_600_000
"""``producer.id.quota.window.size.seconds``, 3600 of them."""
LAYERS: Final = 4
"""Layers of P-L in one window."""
MOST_LAYERS: Final = 24
"""Each look-up of an id reads each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeCycle:
    """The layers of one principal over time; all times in milliseconds."""

    span_ms: int
    """How long a layer is written."""
    lifetime_ms: int
    """How long it counts as known, from its first write on."""
    capacity: int | None = None
    """Ids that a layer is made for; None to follow the quota. A layer that holds more is closed early."""
    refresh_on_hit: bool = True
    """Whether an id that is seen again moves on into the newest layer, so that one in use is never charged again."""

    def __post_init__(self) -> None:
        if not 0 < self.span_ms <= self.lifetime_ms:
            raise ValueError(f"a span of {self.span_ms} ms in a lifetime of {self.lifetime_ms} ms")
        if self.layers > MOST_LAYERS:
            raise ValueError(f"{self.layers} layers at a time, the most is {MOST_LAYERS}")
        if self.capacity is not None and self.capacity < 1:
            raise ValueError(f"a layer for {self.capacity} ids")

    @property
    def layers(self) -> int:
        """The largest number of layers at once, not counting those closed early."""
        return -(-self.lifetime_ms // self.span_ms)


NAMES: Final = ("P-A", "P-B", "P-C", "P-L")
DEFAULT: Final = "P-C"
_PARTS: Final = {"P-A": (2, 3), "P-B": (1, 3), "P-C": (1, 2)}
"""Span and lifetime in halves of the window."""


def life_cycle(
    profile: str = DEFAULT,
    window_ms: int = DEFAULT_WINDOW_MS,
    *,
    capacity: int | None = None,
    refresh_on_hit: bool = True,
) -> LifeCycle:
    """Return the life cycle of a named profile.

    Raises:
        ValueError: there is no such profile, or the window is too short to be divided.

    """
    if profile == "P-L":
        span_ms, lifetime_ms = window_ms // LAYERS, window_ms
    elif profile in _PARTS:
        span, lifetime = _PARTS[profile]
        span_ms, lifetime_ms = window_ms * span // 2, window_ms * lifetime // 2
    else:
        raise ValueError(f"there is no profile {profile!r}: {', '.join(NAMES)}")
    return LifeCycle(span_ms=span_ms, lifetime_ms=lifetime_ms, capacity=capacity, refresh_on_hit=refresh_on_hit)


FIRST_SHARE: Final = 0.8
"""The first layer's share of a span's false positive rate; the others are a geometric series."""
LEAST_ITEMS: Final = 1_000
"""A smaller filter would not save noticeable memory."""
MOST_ITEMS_AT_FIRST: Final = 1 << 20
"""However high the quota: what is needed beyond it, a burst adds."""
_BITS_PER_BYTE: Final = 8
_BITS_PER_WORD: Final = 64


def items_for(burst: float, per_ms: float, span_ms: int) -> int:
    """Return how many new ids a quota admits in one span at most, within the limits of a first layer."""
    most = min(burst, MOST_ITEMS_AT_FIRST) + 1 + min(per_ms * span_ms, MOST_ITEMS_AT_FIRST)
    return int(min(max(most + 1, LEAST_ITEMS), MOST_ITEMS_AT_FIRST))


def rate_of_one(joint: float, filters: int) -> float:
    """Return the false positive rate of each of ``filters`` that gives ``joint`` for all together."""
    return float(-math.expm1(math.log1p(-joint) / filters))


class Layers:
    """The layers of one principal; times are milliseconds that never fall. Not thread-safe: the caller must lock."""

    def __init__(
        self,
        cycle: LifeCycle,
        store: Store,
        *,
        expected_items: int = LEAST_ITEMS,
        false_positive_rate: float = 0.01,
        max_bytes: int = 64 << 20,
    ) -> None:
        """Begin without a layer.

        Args:
            cycle: how long layers are written and remembered.
            store: stores the ids.
            expected_items: ids in one span; a change applies to layers opened later.
            false_positive_rate: of all layers together.
            max_bytes: the bound for all layers together.

        """
        self.expected_items = expected_items
        self._false_positive_rate = false_positive_rate
        self._max_bytes = max_bytes
        self._cycle = cycle
        self._store = store
        self._starts: list[int] = []
        """When each layer was opened, oldest first."""
        self._capacities: list[int] = []
        self._spans: list[int] = []
        """Start of the span that each layer belongs to: that of its first layer."""
        self.is_saturated = False

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def size_bytes(self) -> int:
        """Memory of all layers."""
        return self._store.size_bytes

    @property
    def items(self) -> int:
        """Ids in all layers; a refreshed id counts in each layer that has it."""
        return sum(self._store.items)

    def expire(self, now_ms: int) -> None:
        """Drop the layers whose lifetime is over."""
        lifetime_ms, count = self._cycle.lifetime_ms, 0
        while count < len(self._starts) and now_ms - self._starts[count] >= lifetime_ms:
            count += 1
        if count:
            self._store.drop_oldest(count)
            del self._starts[:count], self._capacities[:count], self._spans[:count]
            self.is_saturated = False  # there is room again; if not enough, the next full layer says so

    def find(self, producer_id: int, now_ms: int) -> int:
        """Return the newest layer with an id, or ``UNSEEN``; changes nothing but by time."""
        if self._starts and now_ms - self._starts[0] >= self._cycle.lifetime_ms:
            self.expire(now_ms)
        return self._store.find(producer_id) if self._starts else UNSEEN

    def find_many(self, producer_ids: Ids, now_ms: int) -> Answers:
        """Return what ``find`` returns for each."""
        self.expire(now_ms)
        return np.array([self._store.find(producer_id) for producer_id in producer_ids.tolist()], dtype=np.int8)

    def refresh(self, producer_id: int, layer: int, now_ms: int) -> None:
        """Store an id found in ``layer`` again before it expires, if the life cycle requires it."""
        if self._cycle.refresh_on_hit and (layer < len(self._starts) - 1 or self._span_is_over(now_ms)):
            self.add(producer_id, now_ms)

    def refresh_many(self, producer_ids: Ids, found: Answers, now_ms: int) -> None:
        """Refresh all ids that were found."""
        if self._cycle.refresh_on_hit and len(self._starts):
            old = found >= 0 if self._span_is_over(now_ms) else (found >= 0) & (found < len(self._starts) - 1)
            if old.any():
                self.add_many(producer_ids[old], now_ms)

    def add(self, producer_id: int, now_ms: int) -> None:
        """Store an id in the newest layer, after opening another if that is due."""
        self._make_room(now_ms)
        self._store.add(producer_id)

    def add_many(self, producer_ids: Ids, now_ms: int) -> None:
        """Store ids, one after the other."""
        for producer_id in producer_ids.tolist():
            self.add(producer_id, now_ms)

    def _span_is_over(self, now_ms: int) -> bool:
        return now_ms - self._spans[-1] >= self._cycle.span_ms

    def _make_room(self, now_ms: int) -> None:
        if not self._starts:
            self._open(now_ms, now_ms, max(self._expected_capacity(), 1))
        elif self._span_is_over(now_ms):
            self.expire(now_ms)
            # What the last span has held is the best guess for the next.
            lately = sum(self._store.items[number] for number in self._in_span()) if self._starts else 0
            self._open(now_ms, now_ms, max(self._expected_capacity(), 0 if self._cycle.capacity else lately))
        elif self._store.items[-1] >= self._capacities[-1] and not self.is_saturated:
            grown = self._capacities[-1] if self._cycle.capacity else 2 * self._capacities[-1]
            self._open(now_ms, self._spans[-1], grown, bursts=len(self._in_span()))

    def _expected_capacity(self) -> int:
        return self._cycle.capacity or self.expected_items

    def _in_span(self) -> list[int]:
        """Return the layers of the newest span."""
        return [number for number, start in enumerate(self._spans) if start == self._spans[-1]]

    def _open(self, now_ms: int, span_ms: int, capacity: int, *, bursts: int = 0) -> None:
        span_rate = rate_of_one(self._false_positive_rate, self._cycle.layers)
        rate = span_rate * FIRST_SHARE * (1 - FIRST_SHARE) ** bursts
        if not self._has_room(capacity, rate):
            self.is_saturated = True
            if bursts:
                return
            capacity = LEAST_ITEMS  # the first layer of a span must be there, however little room is left for it
        self._store.open(capacity, rate)
        self._starts.append(now_ms)
        self._spans.append(span_ms)
        self._capacities.append(capacity)

    def _has_room(self, capacity: int, rate: float) -> bool:
        room = (self._max_bytes - self._store.size_bytes) * _BITS_PER_BYTE
        return bits_for(capacity, rate) <= room - _BITS_PER_WORD and len(self._starts) < MAX_LAYERS
