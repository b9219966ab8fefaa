"""The active producer ids of each principal: the cache of KIP-936, which answers "seen lately?" and counts nothing.

A principal has an entry from its first id on, until all its layers have expired and were cleaned up; a look-up never
creates one. Other state of a principal under the same lock is part of its entry, and may keep it for longer, without
layers. Each entry has a lock of its own, so principals do not wait for each other. Only layers take memory, so it
follows the activity of principals, and returns to 0 when they stop. Batches without a producer (-1) are neither looked
up nor stored.

Nothing survives a restart, and nothing is known of other brokers' ids: after a restart or a move, ids in use are new
again, and charged once.

The uses of producer ids in a log show, in few rows, what a quota would have seen. A row is a use: a time and an id.
Further uses within ``THIN_MS`` by the same id in the same segment are skipped, since they could only shift a refresh by
that time. Markers and batches without a producer never reach a quota, and are skipped, too. Times are those of the
batches (``maxTimestamp``), which clients may have set; a batch without one gets that of the previous batch in the
segment; without a previous one, the batch is counted and skipped.

Source: KIP-936, ``ProducerIdQuotaManagerCache``.
"""

from __future__ import annotations

import logging
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
from resnap.storage.errors import FormatError, LogDirError, ResnapError, StoreError
from resnap.storage.log.record_batch import CONTROL, NO_PRODUCER_ID, NO_TIMESTAMP
from resnap.tiering.quota.client_quotas import user_name
from resnap.tiering.quota.layers import LEAST_ITEMS, UNSEEN, BloomStore, Layers, life_cycle
from resnap.tiering.quota.token_bucket import QuotaConfig, SampledRate, SampledStat, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resnap.storage.sources.files import Sources
    from resnap.tiering.quota.layers import LifeCycle, Store

logger = logging.getLogger(__name__)
THROTTLE_SAMPLES: Final = 2
THROTTLE_SAMPLE_MS: Final = 30_000
"""``metrics.num.samples`` and ``metrics.sample.window.ms`` of a broker, by which throttle times are averaged."""
Ints = npt.NDArray[np.int64]
THIN_MS: Final = 1_000
SEED_BITS: Final = 32


class Sensors:
    """The measurements of one principal: the bucket that limits, and the informative rate and throttle times.

    Used under the lock of its entry. Kafka forgets the sensors of a quota after an hour without a record, and a
    principal that comes back finds a full bucket: with windows of an hour, one deep in debt would be free again after
    an hour. These are kept until forgetting them changes nothing: the bucket is full, and the samples have faded out.

    Source: ``ClientQuotaManager``, ``ClientSensors``; ``InactiveSensorExpirationTimeSeconds``.
    """

    __slots__ = ("_faded_ms", "_last_ms", "bucket", "charges", "rate", "rate_of_ids", "throttle")

    def __init__(self, config: QuotaConfig, rate: float, now_ms: int) -> None:
        self.rate = rate
        """The principal's quota as it was set last; layers that are opened are sized for it."""
        self.bucket = TokenBucket(config, rate, now_ms)
        self.rate_of_ids = SampledRate(config)
        self.throttle = SampledStat(THROTTLE_SAMPLES, THROTTLE_SAMPLE_MS)
        self.charges = Charges()
        self._faded_ms = config.samples * config.window_ms
        self._last_ms = now_ms

    def record(self, ids: int, rate: float, now_ms: int) -> float:
        """Charge new ids, and return the remaining tokens."""
        self._last_ms = now_ms
        self.charges.ids += ids
        self.rate_of_ids.record(ids, now_ms)
        return self.bucket.take(ids, rate, now_ms)

    def record_throttle(self, throttle_ms: int, now_ms: int) -> None:
        """Record a throttle time of a client; 0 is not counted."""
        if throttle_ms > 0:
            self._last_ms = now_ms
            self.charges.throttled += 1
            self.throttle.record(throttle_ms, now_ms)

    def may_go(self, rate: float, now_ms: int) -> bool:
        """Whether dropping these would change no decision and no metric."""
        return now_ms - self._last_ms >= self._faded_ms and self.bucket.is_full(rate, now_ms)


@dataclass(slots=True)
class Charges:
    """Totals since the first charge."""

    ids: int = 0
    throttled: int = 0
    """Answers with a throttle time."""
    throttled_ms: int = 0
    """All throttle times together."""

    def add(self, ids: int, throttle_ms: int) -> None:
        """Add the charge and the throttle time of one decision."""
        self.ids += ids
        self.throttled += throttle_ms > 0
        self.throttled_ms += throttle_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering:
    """How ids are stored."""

    cycle: LifeCycle = field(default_factory=life_cycle)
    false_positive_rate: float = 0.01
    """The rate of all layers of a principal together."""
    max_bytes: int = 64 << 20
    """The bound for all layers of a principal together."""
    seed: int = field(default_factory=lambda: secrets.randbits(SEED_BITS))
    """Seed of the hash, 32 bits; secret unless it is given, so that clients cannot search for ids that collide."""
    store: Callable[[int], Store] = BloomStore
    """Makes what a principal's layers are kept in, of the seed. ``ExactStore`` makes no errors and costs some fifty
    times as much: for few ids, and to compare with."""

    def __post_init__(self) -> None:
        if not 0 < self.false_positive_rate < 1:
            raise ValueError(f"a false positive rate of {self.false_positive_rate}: it must be between 0 and 1")
        if self.max_bytes < 1:
            raise ValueError(f"{self.max_bytes} bytes for all layers: it must be 1 or more")
        if not 0 <= self.seed < 1 << SEED_BITS:
            raise ValueError(f"a seed of {self.seed}: it must be a number of 32 bits, not below 0")


@dataclass(slots=True)
class Entry:
    """The entry of one principal; used under its lock, and only while it exists."""

    layers: Layers
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_gone: bool = False
    sensors: Sensors | None = None
    """The quota's sensors, once something was charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Sizes of the entries of one principal, or of all."""

    layers: int = 0
    items: int = 0
    """Ids in all layers; one that was refreshed counts in each."""
    size_bytes: int = 0


class ActiveProducers:
    """The active ids of all principals. Thread-safe; times are milliseconds that never fall."""

    def __init__(self, remembering: Remembering) -> None:
        self.remembering = remembering
        self._entries: dict[str, Entry] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        """Return how many principals have layers."""
        return sum(len(entry.layers) > 0 for entry in self.entries().values())

    def entries(self) -> dict[str, Entry]:
        """Return the existing entries by user name, including principals without layers."""
        return dict(self._entries)

    def locked(self, principal: str, items: Callable[[], int] | None = None) -> Entry:
        """Return the entry of ``principal``, new or existing, with its lock taken; the caller must release it.

        ``items`` says how many ids a layer of a new entry is to hold.
        """
        principal = user_name(principal)
        while True:
            entry = self._entries.get(principal) or self._add_entry(principal, items)
            entry.lock.acquire()
            if not entry.is_gone:
                return entry
            entry.lock.release()

    def _add_entry(self, principal: str, items: Callable[[], int] | None) -> Entry:
        with self._guard:
            if principal not in self._entries:
                remembering = self.remembering
                self._entries[principal] = Entry(
                    Layers(
                        remembering.cycle,
                        remembering.store(remembering.seed),
                        expected_items=items() if items else LEAST_ITEMS,
                        false_positive_rate=remembering.false_positive_rate,
                        max_bytes=remembering.max_bytes,
                    )
                )
            return self._entries[principal]

    def has(self, principal: str, producer_id: int, now_ms: int) -> bool:
        """Whether an id was seen lately; changes nothing."""
        entry = self._entries.get(user_name(principal))
        if entry is None or producer_id <= NO_PRODUCER_ID:
            return False
        with entry.lock:
            return entry.layers.find(producer_id, now_ms) != UNSEEN

    def track(self, principal: str, producer_id: int, now_ms: int) -> bool:
        """Store an id, and return whether it is new."""
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
        """Drop expired layers, and principals without layers that ``may_go``; return the number of principals."""
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
        """Return the sizes of the entry of ``principal``, or of all entries."""
        entries = self.entries()
        wanted = None if principal is None else user_name(principal)
        layers = [entry.layers for name, entry in entries.items() if wanted in (None, name)]
        return Population(
            layers=sum(map(len, layers)),
            items=sum(layer.items for layer in layers),
            size_bytes=sum(layer.size_bytes for layer in layers),
        )


DEFAULT_INTERVAL_MS: Final = 10_000
"""KIP-936 drafts 10 ms (``producer.id.quota.cache.cleanup.scheduler.interval.ms``); layers live for hours."""


class Cleaner:
    """A thread that calls ``clean_up`` every ``interval_ms`` until closed; use it in ``with``, or ``close`` it.

    Decisions do not depend on it, only memory does: it may fail, and stop.
    """

    def __init__(self, clean_up: Callable[[], object], interval_ms: int = DEFAULT_INTERVAL_MS) -> None:
        if interval_ms < 1:
            raise ValueError(f"cleaning up every {interval_ms} ms: it must be 1 or more")
        self._clean_up = clean_up
        self._interval_s = interval_ms / 1000
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="resnap-quota-cleaner", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether its thread is running."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread, and wait for it."""
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self._clean_up()
            except Exception:
                logger.exception("cleaning up the producer ids of principals failed; the next attempt follows")


class Uses(NamedTuple):
    """Uses of producer ids, in the order of the log."""

    at_ms: Ints
    producer_id: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUses:
    """How much of a log, or of a segment, was read, and what could not be."""

    segments: int = 0
    batches: int = 0
    """Batches of producers, those skipped included."""
    undated: int = 0
    """Batches that no time is known of, and that are skipped."""
    errors: tuple[ResnapError, ...] = ()

    def joined(self, other: LogUses) -> LogUses:
        """Return the sum of both."""
        return LogUses(
            segments=self.segments + other.segments,
            batches=self.batches + other.batches,
            undated=self.undated + other.undated,
            errors=(*self.errors, *other.errors),
        )


NO_USES: Final = Uses(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def read_uses(segment: SegmentRange, sources: Sources) -> tuple[LogUses, Uses]:
    """Read the headers of a segment; damage and unreadable files are part of the result, not exceptions."""
    facts, parts, batches, undated, last_ms = ScanFacts(), list[Uses](), 0, 0, NO_TIMESTAMP
    errors: tuple[ResnapError, ...] = ()
    try:
        with sources.open(segment.locator) as reader:
            for headers in (block.headers for block in read_blocks(reader, segment, facts)):
                data = headers[(headers["producer_id"] >= 0) & ((headers["attributes"] & CONTROL) == 0)]
                batches += len(data)
                uses = _uses(data, last_ms)
                undated += len(data) - len(uses.at_ms)
                last_ms = int(uses.at_ms[-1]) if len(uses.at_ms) else last_ms
                parts.append(thinned(uses))
    except (FormatError, LogDirError, StoreError) as caught:
        errors = (caught,)
    return LogUses(segments=1, batches=batches, undated=undated, errors=errors), thinned(joined(parts))


def _uses(headers: npt.NDArray[np.void], before_ms: int) -> Uses:
    """Return the uses of batches after one at ``before_ms``, if that is known."""
    at_ms = np.append(np.int64(before_ms), headers["max_timestamp"].astype(np.int64))
    last = np.maximum.accumulate(np.where(at_ms >= 0, np.arange(len(at_ms)), 0))[1:]
    known = at_ms[last] >= 0
    return Uses(at_ms[last][known], headers["producer_id"].astype(np.int64)[known])


def joined(parts: Iterable[Uses]) -> Uses:
    """Return uses, concatenated."""
    found = [NO_USES, *parts]
    return Uses(np.concatenate([uses.at_ms for uses in found]), np.concatenate([uses.producer_id for uses in found]))


def in_time(uses: Uses) -> Uses:
    """Return uses by time; those of the same time keep their order."""
    order = np.argsort(uses.at_ms, kind="stable")
    return Uses(uses.at_ms[order], uses.producer_id[order])


def thinned(uses: Uses) -> Uses:
    """Return the first use of each id in each stretch of ``THIN_MS``, by time."""
    stretch = uses.at_ms // THIN_MS
    order = np.lexsort((uses.at_ms, stretch, uses.producer_id))
    ids, at = uses.producer_id[order], stretch[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1]) | (at[1:] != at[:-1])
    return in_time(Uses(uses.at_ms[order][is_first], ids[is_first]))
