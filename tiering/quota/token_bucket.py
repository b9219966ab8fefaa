"""Kafka's arithmetic of rates and token buckets, operation by operation, so that results agree to the last bit.

Times are milliseconds and amounts are floats, as in Kafka. The unit of a rate is explicit: KIP-936 gives 50 as an
example beside a window of an hour, and Kafka's quota classes compute by the second, which would make a burst of
1,980,000 ids of it; so rates here are per hour by default, and seconds exist for parity.

One difference from Kafka: a clock that goes back removes no tokens, as it would there; it counts as standing still.

Source: ``TokenBucket``, ``Rate``, ``SampledStat`` (as of 3.8, with one more slot than samples) and ``Avg`` of
``org.apache.kafka.common.metrics.stats``; ``QuotaUtils``, ``ControllerMutationQuotaManager``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Final

MAX_THROTTLE_MS: Final = (1 << 31) - 1
"""Protocol fields for it have 32 bits. Kafka cuts longer ones off bit by bit, here they stay at the most."""
_MS_IN_A_SECOND: Final = 1000.0


class RateUnit(Enum):
    """The unit of time of a rate; the value is its number of milliseconds."""

    SECOND = _MS_IN_A_SECOND
    HOUR = 60.0 * 60.0 * _MS_IN_A_SECOND

    def of(self, elapsed_ms: float) -> float:
        """Return ``elapsed_ms`` in this unit."""
        return float(elapsed_ms / self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """How a quota is measured: Kafka's ``MetricConfig`` for quotas."""

    samples: int = 11
    """``producer.id.quota.window.num``."""
    window_ms: int = 3_600_000
    """``producer.id.quota.window.size.seconds``, in milliseconds: how long each sample is."""
    unit: RateUnit = RateUnit.HOUR

    def __post_init__(self) -> None:
        if self.samples < 1 or self.window_ms < 1:
            raise ValueError(f"{self.samples} samples of {self.window_ms} ms: both must be 1 or more")

    def burst(self, rate: float) -> float:
        """Return the size of a full bucket."""
        return self.samples * self.unit.of(self.window_ms) * rate


def java_round(value: float) -> int:
    """Return ``Math.round(value)``: halves go up, also below zero; NaN is 0, too large values are limited to a long."""
    if math.isnan(value):
        return 0
    most = (1 << 63) - 1
    if abs(value) >= most:
        return most if value > 0 else -most - 1
    below = math.floor(value)
    return below + (value - below >= 0.5)  # noqa: PLR2004 - adding one half first would round what has no room for it


def throttle_ms(deficit: float, rate: float, unit: RateUnit = RateUnit.SECOND) -> int:
    """Return the time until ``deficit`` tokens have come back, in [0, largest 32-bit integer]."""
    if deficit <= 0:
        return 0
    if rate <= 0:
        return MAX_THROTTLE_MS
    return max(0, min(java_round(deficit / rate * unit.value), MAX_THROTTLE_MS))


class TokenBucket:
    """Tokens that return at a rate, up to a burst; tokens taken beyond them are owed.

    The rate is an argument of each call, since quotas change: tokens are kept, the whole time since the last call
    counts at the new rate, and tokens above the new burst are lost, as in Kafka. Not thread-safe.
    """

    __slots__ = ("_last_ms", "_tokens", "_unit_ms", "_units")

    def __init__(self, config: QuotaConfig, rate: float, now_ms: int) -> None:
        """Begin full: Kafka begins empty and in 1970, which is equivalent unless a clock starts elsewhere."""
        self._units = config.samples * config.unit.of(config.window_ms)
        self._unit_ms: float = config.unit.value
        self._tokens = config.burst(rate)
        self._last_ms = now_ms

    def tokens(self, rate: float, now_ms: int) -> float:
        """Return the number of tokens; negative if some are owed."""
        elapsed_ms = 0
        if now_ms > self._last_ms:
            elapsed_ms, self._last_ms = now_ms - self._last_ms, now_ms
        self._tokens = min(self._units * rate, self._tokens + rate * (elapsed_ms / self._unit_ms))
        return self._tokens

    def take(self, count: float, rate: float, now_ms: int) -> float:
        """Take ``count`` tokens, available or not, and return the rest; a negative count gives back."""
        self._tokens = min(self._units * rate, self.tokens(rate, now_ms) - count)
        return self._tokens

    def is_full(self, rate: float, now_ms: int) -> bool:
        """Whether dropping it would change nothing."""
        return self.tokens(rate, now_ms) >= self._units * rate


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_ms: int
    value: float = 0.0
    events: int = 0

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value, self.events = 0.0, 0


@dataclass(slots=True)
class SampledStat:
    """Values in consecutive time samples that expire."""

    samples: int
    window_ms: int
    _kept: list[_Sample] = field(default_factory=list)
    _current: int = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add ``value``."""
        if not self._kept:
            self._kept.append(_Sample(now_ms, now_ms))
        sample = self._kept[self._current]
        if now_ms - sample.start_ms >= self.window_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.events += 1
        sample.last_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self.samples + 1)
        if self._current >= len(self._kept):
            self._kept.append(_Sample(now_ms, now_ms))
        else:
            self._kept[self._current].reset(now_ms)
        return self._kept[self._current]

    def _purge(self, now_ms: int) -> None:
        for sample in self._kept:
            if now_ms - sample.last_ms >= self.samples * self.window_ms:
                sample.reset(now_ms)

    def elapsed_ms(self, now_ms: int) -> int:
        """Return the time that the samples cover: at least all but the current one."""
        self._purge(now_ms)
        if not self._kept:
            return max((self.samples - 1) * self.window_ms, 1)
        elapsed_ms = now_ms - min(sample.start_ms for sample in self._kept)
        missing = self.samples - 1 - elapsed_ms // self.window_ms
        return max(elapsed_ms + max(missing, 0) * self.window_ms, 1)

    def total(self, now_ms: int) -> float:
        """Return the sum of the unexpired values."""
        self._purge(now_ms)
        # Java adds one by one; sum() of Python would be more exact.
        total = 0.0
        for sample in self._kept:
            total += sample.value
        return total

    def average(self, now_ms: int) -> float | None:
        """Return the mean of the unexpired values, None if there are none."""
        events = self.events(now_ms)
        return self.total(now_ms) / events if events else None

    def events(self, now_ms: int) -> int:
        """Return the number of unexpired values."""
        self._purge(now_ms)
        return sum(sample.events for sample in self._kept)


class SampledRate:
    """Recorded values per unit of time: the ``rate`` metric, and Kafka's way to limit bandwidth."""

    def __init__(self, config: QuotaConfig) -> None:
        self._unit = config.unit
        self._stat = SampledStat(config.samples, config.window_ms)

    def record(self, value: float, now_ms: int) -> None:
        """Add ``value``."""
        self._stat.record(value, now_ms)

    def rate(self, now_ms: int) -> float:
        """Return the rate over the samples."""
        total = self._stat.total(now_ms)
        return total / self._unit.of(self._stat.elapsed_ms(now_ms))

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Return the time until the rate has fallen to ``bound``, which itself is allowed."""
        rate = self.rate(now_ms)
        if rate <= bound:
            return 0
        excess = (rate - bound) / bound * self._stat.elapsed_ms(now_ms)
        return max(0, min(java_round(excess), MAX_THROTTLE_MS))


MOST_CALLERS: Final = 10_000
"""Maximum number of buckets: callers are brokers, and others must not fill the memory."""


class RequestThrottle:
    """Throttles callers: ``requests_per_second`` are free, with bursts of ``burst_s`` seconds' worth."""

    def __init__(self, requests_per_second: float, *, burst_s: int = 10) -> None:
        """Begin; ValueError if the rate or the burst is not above 0."""
        if not requests_per_second > 0:
            raise ValueError(f"{requests_per_second} requests a second: must be above 0")
        self._rate = requests_per_second
        self._config = QuotaConfig(samples=burst_s, window_ms=1_000, unit=RateUnit.SECOND)
        self._buckets: dict[str, TokenBucket] = {}
        self._lock = Lock()

    def __call__(self, caller: str, now_ms: int) -> int:
        """Count a request of ``caller``; return how long to mute its connection, in milliseconds."""
        with self._lock:
            bucket = self._buckets.get(caller)
            if bucket is None:
                self._make_room(now_ms)
                bucket = self._buckets[caller] = TokenBucket(self._config, self._rate, now_ms)
            return throttle_ms(-bucket.take(1, self._rate, now_ms), self._rate)

    def _make_room(self, now_ms: int) -> None:
        if len(self._buckets) >= MOST_CALLERS:
            self._buckets = {
                caller: bucket for caller, bucket in self._buckets.items() if not bucket.is_full(self._rate, now_ms)
            }
        while len(self._buckets) >= MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]
