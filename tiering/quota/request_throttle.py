"""A limit on how often each caller may ask, as KIP-730 wants for blocks of producer ids: a token bucket for each."""

from __future__ import annotations

from threading import Lock
from typing import Final

from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit, TokenBucket, throttle_ms

MOST_CALLERS: Final = 10_000
"""Buckets that are kept at most: callers are brokers, and who else asks is not to fill the memory."""


class RequestThrottle:
    """How long to keep each caller waiting: ``requests_per_second`` are free, those of ``burst_s`` seconds at once."""

    def __init__(self, requests_per_second: float, *, burst_s: int = 10) -> None:
        """ValueError where a rate or a burst is not above 0."""
        if requests_per_second <= 0:
            raise ValueError(f"{requests_per_second} requests a second: must be above 0")
        self._rate = requests_per_second
        self._config = QuotaConfig(samples=burst_s, window_ms=1_000, unit=RateUnit.SECOND)
        self._buckets: dict[str, TokenBucket] = {}
        self._lock = Lock()

    def __call__(self, caller: str, now_ms: int) -> int:
        """Count a request of ``caller``; return for how many milliseconds its connection is to be muted."""
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
