"""Which producer ids are active, by principal: the cache of KIP-936, which answers "seen lately?" and counts nothing.

A principal has an entry from its first id on, and none any more once all its layers are over and somebody has cleaned
up; looking never makes one. What else must be known of a principal under the same lock hangs on its entry, and may keep
it for longer, without layers. Each entry has a lock of its own, so principals do not wait for each other. The memory is
that of layers alone, so it follows what principals do, and is 0 again when they stop.

Nothing is kept over a restart, and nothing is known of what another broker has seen: after either, ids in use are new
once more, and charged once.

Source: KIP-936, ``ProducerIdQuotaManagerCache``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.tiering.quota.bloom_store import UNSEEN, BloomStore
from resnap.tiering.quota.client_quotas import user_name
from resnap.tiering.quota.layers import Layers, Sizing
from resnap.tiering.quota.profiles import life_cycle

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.tiering.quota.layers import Store
    from resnap.tiering.quota.profiles import LifeCycle
    from resnap.tiering.quota.sensors import Sensors

NO_PRODUCER_ID: Final = -1
"""Marks batches without a producer, which are neither looked up nor kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering:
    """How ids are remembered."""

    cycle: LifeCycle = field(default_factory=life_cycle)
    false_positive_rate: float = 0.01
    """The rate of all layers of a principal together."""
    max_bytes: int = 64 << 20
    """The bound for all layers of a principal together."""
    seed: int = 0
    """Seed of the hash, 32 bits; each process has its own, so that clients cannot look for ids that collide."""
    store: Callable[[int], Store] = BloomStore
    """Makes what a principal's layers are kept in, of the seed. ``ExactStore`` makes no errors and costs some fifty
    times as much: for few ids, and to compare with."""

    def sizing(self, items: int) -> Sizing:
        """Return what layers are made for that shall hold so many ids in a span."""
        return Sizing(items=items, false_positive_rate=self.false_positive_rate, max_bytes=self.max_bytes)


@dataclass(slots=True)
class Entry:
    """One principal's; used under its lock, and only while it is not gone."""

    layers: Layers
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_gone: bool = False
    sensors: Sensors | None = None
    """The quota's sensors, once something was charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """What is kept of one principal, or of all."""

    layers: int = 0
    items: int = 0
    """Ids in all layers; one that was refreshed counts in each."""
    size_bytes: int = 0
    saturated: bool = False
    """Whether the bound on memory has stopped layers from growing."""


class ActiveProducers:
    """The ids of all principals. Thread-safe; times are milliseconds that never fall."""

    def __init__(self, remembering: Remembering) -> None:
        self.remembering = remembering
        self._entries: dict[str, Entry] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        """Return how many principals have layers."""
        return sum(len(entry.layers) > 0 for entry in self.entries().values())

    def entries(self) -> dict[str, Entry]:
        """Return the entries there are by the name of the user, of principals without layers, too."""
        return dict(self._entries)

    def locked(self, principal: str, items: Callable[[], int] | None = None) -> Entry:
        """Return the entry of ``principal``, made if there is none, with its lock taken: release it.

        ``items`` says how many ids a layer of a new entry is to hold.
        """
        principal = user_name(principal)
        while True:
            entry = self._entries.get(principal) or self._added(principal, items)
            entry.lock.acquire()
            if not entry.is_gone:
                return entry
            entry.lock.release()

    def _added(self, principal: str, items: Callable[[], int] | None) -> Entry:
        with self._guard:
            if principal not in self._entries:
                remembering = self.remembering
                sizing = remembering.sizing(items()) if items else remembering.sizing(Sizing().items)
                store = remembering.store(remembering.seed)
                self._entries[principal] = Entry(Layers(remembering.cycle, sizing, store))
            return self._entries[principal]

    def has(self, principal: str, producer_id: int, now_ms: int) -> bool:
        """Whether an id was seen lately; changes nothing."""
        entry = self._entries.get(user_name(principal))
        if entry is None or producer_id <= NO_PRODUCER_ID:
            return False
        with entry.lock:
            return entry.layers.find(producer_id, now_ms) != UNSEEN

    def track(self, principal: str, producer_id: int, now_ms: int) -> bool:
        """Remember an id, and say whether it is new."""
        if producer_id <= NO_PRODUCER_ID:
            return False
        entry = self.locked(principal)
        try:
            layer = entry.layers.find(producer_id, now_ms)
            if layer == UNSEEN:
                entry.layers.add(producer_id, now_ms)
            else:
                entry.layers.refresh(producer_id, layer, now_ms)
        finally:
            entry.lock.release()
        return layer == UNSEEN

    def clean_up(self, now_ms: int, may_go: Callable[[Entry], bool] = lambda _: True) -> int:
        """Forget layers that are over, and principals without any and that ``may_go``; return how many of these."""
        gone = 0
        for principal, entry in self.entries().items():
            with entry.lock:
                entry.layers.expire(now_ms)
                if len(entry.layers) == 0 and not entry.is_gone and may_go(entry):
                    entry.is_gone = True
                    del self._entries[principal]
                    gone += 1
        return gone

    def population(self, principal: str | None = None) -> Population:
        """Return what is kept of ``principal``, or of all."""
        entries = self.entries()
        wanted = None if principal is None else user_name(principal)
        layers = [entry.layers for name, entry in entries.items() if wanted in (None, name)]
        return Population(
            layers=sum(map(len, layers)),
            items=sum(one.items for one in layers),
            size_bytes=sum(one.size_bytes for one in layers),
            saturated=any(one.is_saturated for one in layers),
        )
