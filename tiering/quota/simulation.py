"""What a quota would have done to a principal: its uses of producer ids, replayed in log time through the real manager.

Beside the filters an exact memory lives through the same decisions, and tells what filters cannot: how many new ids
passed for free. A client that is refused shows again with its next batch, which counts as its retry; what it would
really have done is not in a log. Principals do not touch each other, so each is replayed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tiering.quota.bloom_store import UNSEEN
from tiering.quota.client_quotas import UserRates
from tiering.quota.exact_store import ExactStore
from tiering.quota.layers import Layers, Sizing
from tiering.quota.quota_manager import SEEN, ProducerIdQuotaManager

if TYPE_CHECKING:
    from tiering.quota.active_producers import Remembering
    from tiering.quota.producer_activity import Uses
    from tiering.quota.token_bucket import QuotaConfig

POINTS: Final = 400
"""Of a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is tried out."""

    config: QuotaConfig
    remembering: Remembering
    permissive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of the curves of one principal."""

    at_ms: int
    active: int
    """Ids that are remembered, counted exactly."""
    tokens: float
    throttled: int
    """Batches that were refused, or let through with a throttle time, up to here."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of one principal."""

    principal: str
    rate: float
    uses: int = 0
    """Uses that were asked about."""
    new_ids: int = 0
    """Ids that were new when they came; one that is refused counts once until it is admitted."""
    charged: int = 0
    free: int = 0
    """New ids that a filter took for known ones."""
    refused_uses: int = 0
    refused_ids: set[int] = field(default_factory=set)
    throttled_ms: int = 0
    """Sum of the stretches in which new ids would have had to wait."""
    longest_throttle_ms: int = 0
    first_throttled_ms: int | None = None
    last_throttled_ms: int | None = None
    least_tokens: float = 0.0
    peak_active: int = 0
    peak_bytes: int = 0
    arrivals_ms: list[int] = field(default_factory=list)
    """When new ids came."""
    curve: list[Moment] = field(default_factory=list)

    @property
    def is_throttled(self) -> bool:
        """Whether the quota had anything to say."""
        return self.first_throttled_ms is not None


def simulate(principal: str, uses: Uses, rate: float, rules: Rules) -> Outcome:
    """Replay the uses of one principal, by time, at ``rate``."""
    return _Simulation(principal, rate, rules).run(uses)


class _Simulation:
    def __init__(self, principal: str, rate: float, rules: Rules) -> None:
        self._principal = principal
        self._rate = rate
        self._now_ms = 0
        self._rules = rules
        self._manager: ProducerIdQuotaManager | None = None
        self._exact = Layers(rules.remembering.cycle, Sizing(), ExactStore())
        self._waiting: set[int] = set()
        """New ids that were refused, and not admitted since."""
        self._active: dict[int, int] = {}
        """When each id was used last."""
        self._owed_until_ms = 0
        self._outcome = Outcome(principal=principal, rate=rate, least_tokens=rules.config.burst(rate))

    def run(self, uses: Uses) -> Outcome:
        times, ids = uses.at_ms.tolist(), uses.producer_id.tolist()
        if not times:
            return self._outcome
        self._now_ms = times[0]
        self._manager = ProducerIdQuotaManager(
            lambda: self._now_ms,
            UserRates({self._principal: self._rate}),
            config=self._rules.config,
            remembering=self._rules.remembering,
            permissive=self._rules.permissive,
        )
        step = max(1, (times[-1] - times[0]) // POINTS)
        next_point = times[0]
        for now_ms, producer_id in zip(times, ids, strict=True):
            self._now_ms = now_ms
            self._use(self._manager, producer_id)
            if now_ms >= next_point:
                self._look(self._manager)
                next_point = now_ms + step
        self._look(self._manager)
        return self._outcome

    def _use(self, manager: ProducerIdQuotaManager, producer_id: int) -> None:
        outcome, now_ms = self._outcome, self._now_ms
        layer = self._exact.find(producer_id, now_ms)
        answer = manager.admit(self._principal, producer_id)
        outcome.uses += 1
        outcome.charged += answer.charged
        if layer == UNSEEN:
            outcome.free += answer is SEEN
            if producer_id not in self._waiting:
                outcome.new_ids += 1
                outcome.arrivals_ms.append(now_ms)
        if answer.admitted:
            self._remember(producer_id, layer)
        else:
            self._waiting.add(producer_id)
            outcome.refused_uses += 1
            outcome.refused_ids.add(producer_id)
        if answer.violation is not None:
            self._throttled(answer.throttle_time_ms)

    def _remember(self, producer_id: int, layer: int) -> None:
        """Do exactly what the filters' layers do with an id that was admitted."""
        if layer == UNSEEN:
            self._exact.add(producer_id, self._now_ms)
        else:
            self._exact.refresh(producer_id, layer, self._now_ms)
        self._waiting.discard(producer_id)
        self._active[producer_id] = self._now_ms

    def _throttled(self, throttle_ms: int) -> None:
        outcome, now_ms = self._outcome, self._now_ms
        until_ms = now_ms + throttle_ms
        outcome.throttled_ms += max(0, until_ms - max(now_ms, self._owed_until_ms))
        self._owed_until_ms = max(self._owed_until_ms, until_ms)
        outcome.longest_throttle_ms = max(outcome.longest_throttle_ms, throttle_ms)
        outcome.last_throttled_ms = now_ms
        if outcome.first_throttled_ms is None:
            outcome.first_throttled_ms = now_ms

    def _look(self, manager: ProducerIdQuotaManager) -> None:
        """Take a point of the curves; what is counted here has these moments alone."""
        outcome, now_ms = self._outcome, self._now_ms
        since_ms = now_ms - self._rules.remembering.cycle.lifetime_ms
        self._active = {one: at_ms for one, at_ms in self._active.items() if at_ms > since_ms}
        population = manager.active.population(self._principal)
        entry = manager.active.entries().get(self._principal)
        sensors = entry.sensors if entry is not None else None
        tokens = self._rules.config.burst(self._rate) if sensors is None else sensors.bucket.tokens(self._rate, now_ms)
        outcome.peak_active = max(outcome.peak_active, len(self._active))
        outcome.peak_bytes = max(outcome.peak_bytes, population.size_bytes)
        outcome.least_tokens = min(outcome.least_tokens, tokens)
        throttled = 0 if sensors is None else sensors.charges.throttled
        outcome.curve.append(Moment(at_ms=now_ms, active=len(self._active), tokens=tokens, throttled=throttled))


def without_limit(principal: str, uses: Uses, rules: Rules) -> Outcome:
    """Replay the uses of one principal as if it had no limit, and without filters, to learn when new ids came."""
    unlimited = replace(rules, remembering=replace(rules.remembering, store="exact"), permissive=True)
    return simulate(principal, uses, float(1 << 53), unlimited)
