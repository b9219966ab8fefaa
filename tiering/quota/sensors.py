"""What is measured of one principal: the token bucket that limits, and the rate and throttle times that only say.

Kafka forgets the sensors of a quota after an hour without a record, and whoever comes back finds a full bucket: with
windows of an hour, a principal deep in debt would be free again after one. These are kept until forgetting them changes
nothing: the bucket is full, and the samples have faded out.

Source: ``ClientQuotaManager``, ``ClientSensors``; ``InactiveSensorExpirationTimeSeconds``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from resnap.tiering.quota.token_bucket import QuotaConfig, SampledRate, SampledStat, TokenBucket

THROTTLE_SAMPLES: Final = 2
THROTTLE_SAMPLE_MS: Final = 30_000
"""``metrics.num.samples`` and ``metrics.sample.window.ms`` of a broker, by which throttle times are averaged."""


class Sensors:
    """One principal's; used under the lock of its entry."""

    __slots__ = ("_faded_ms", "_last_ms", "bucket", "charges", "rate", "rate_of_ids", "throttle")

    def __init__(self, config: QuotaConfig, rate: float, now_ms: int) -> None:
        self.rate = rate
        """The quota that the layers were sized for last."""
        self.bucket = TokenBucket(config, rate, now_ms)
        self.rate_of_ids = SampledRate(config)
        self.throttle = SampledStat(THROTTLE_SAMPLES, THROTTLE_SAMPLE_MS)
        self.charges = Charges()
        self._faded_ms = config.samples * config.window_ms
        self._last_ms = now_ms

    def record(self, ids: int, rate: float, now_ms: int) -> float:
        """Charge new ids, and return the tokens that are left."""
        self._last_ms = now_ms
        self.charges.ids += ids
        self.rate_of_ids.record(ids, now_ms)
        return self.bucket.take(ids, rate, now_ms)

    def record_throttle(self, throttle_ms: int, now_ms: int) -> None:
        """Count a time that somebody had to wait; none is none."""
        if throttle_ms > 0:
            self._last_ms = now_ms
            self.charges.throttled += 1
            self.throttle.record(throttle_ms, now_ms)

    def may_go(self, rate: float, now_ms: int) -> bool:
        """Whether forgetting all this would change no answer and no metric."""
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
        """Count what one answer charged, and how long it lets somebody wait."""
        self.ids += ids
        self.throttled += throttle_ms > 0
        self.throttled_ms += throttle_ms
