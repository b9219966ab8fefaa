"""Quotas for tests: a manager with a clock that a test moves, and ids by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import settings

from resnap.tiering.quota.active_producers import Remembering
from resnap.tiering.quota.client_quotas import UserRates, user_name
from resnap.tiering.quota.layers import BloomStore, ExactStore, LifeCycle, life_cycle
from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager

if TYPE_CHECKING:
    from resnap.tiering.quota.layers import Ids

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
steady = settings(deadline=None, derandomize=True)
"""The same examples each time, however long they take."""
ALICE, BOB = "User:alice", "User:bob"


class Watch:
    """A clock that a test sets."""

    def __init__(self, at_ms: int = START_MS) -> None:
        self.at_ms = at_ms

    def __call__(self) -> int:
        return self.at_ms


def manager(rate: float | None = 50.0, watch: Watch | None = None, **choices: Any) -> ProducerIdQuotaManager:
    """Make a quota that gives every user ``rate`` an hour; ``exact`` and ``cycle`` choose how ids are kept."""
    cycle: LifeCycle = choices.pop("cycle", life_cycle())
    store = ExactStore if choices.pop("exact", False) else BloomStore
    remembering = choices.pop("remembering", Remembering(cycle=cycle, store=store, seed=0))
    rates = choices.pop("rates", UserRates(default=rate))
    return ProducerIdQuotaManager(watch or Watch(), rates, remembering=remembering, **choices)


def bits_of(store: BloomStore, layer: int) -> bytes:
    """Return the bits of a layer."""
    return store._filters[layer].save_bytes()


def tokens(of: ProducerIdQuotaManager, principal: str = ALICE) -> float:
    """Return the tokens of a principal."""
    sensors = of.active.entries()[user_name(principal)].sensors
    assert sensors is not None
    return sensors.bucket.tokens(sensors.rate, of.now_ms())


def charged(of: ProducerIdQuotaManager, principal: str = ALICE) -> int:
    """Return how many ids were charged to a principal."""
    entry = of.active.entries().get(user_name(principal))
    return 0 if entry is None or entry.sensors is None else entry.sensors.charges.ids


def sequential(count: int) -> Ids:
    """Return ids as one controller hands them out."""
    return np.arange(4_000, 4_000 + count, dtype=np.int64)


def blockwise(count: int) -> Ids:
    """Return ids as brokers use up blocks of a thousand, some of them in part."""
    blocks = np.random.default_rng(5).permutation(1_000_000)[: count // 200 + 1].astype(np.int64) * 1000
    return (blocks[:, None] + np.arange(200)).reshape(-1)[:count]


def scattered(count: int) -> Ids:
    """Return ids without any order: an odd factor permutes the numbers below a power of two."""
    spread = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (spread & np.uint64((1 << 62) - 1)).astype(np.int64)
