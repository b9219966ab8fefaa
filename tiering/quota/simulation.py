"""Simulates the effect of a quota on a principal: replays its uses of producer ids in log time through the manager.

Exact sets with the same layers accompany the filters, and show what filters cannot: how many new ids were admitted for
free. The next batch of a refused client counts as its retry; what it would really have done is not in a log. Principals
do not affect each other, so each is replayed separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.tiering.quota.client_quotas import UserRates, user_name
from resnap.tiering.quota.layers import ExactStore, WatchedStore
from resnap.tiering.quota.quota_manager import SEEN, ProducerIdQuotaManager

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from resnap.tiering.quota.active_producers import Remembering, Uses
    from resnap.tiering.quota.token_bucket import QuotaConfig

POINTS: Final = 200
"""Points of a curve by time, and as many by uses, so that a burst between two points in time is seen, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The quota settings of the simulation."""

    config: QuotaConfig
    remembering: Remembering
    permissive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in the curves of one principal."""

    at_ms: int
    active: int
    """Known ids, counted exactly."""
    tokens: float
    throttled: int
    """Batches that were refused, or let through with a throttle time, up to here."""


@dataclass(slots=True, kw_only=True)
class PrincipalOutcome:
    """The result for one principal."""

    principal: str
    rate: float
    uses: int = 0
    """Uses that were checked."""
    new_ids: int = 0
    """Ids that were new when they came; one that is refused counts once until it is admitted."""
    charged: int = 0
    free: int = 0
    """New ids that a filter took for known ones."""
    refused_uses: int = 0
    refused: int = 0
    """Ids that were refused at least once."""
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

    def counted(self) -> PrincipalOutcome:
        """Return the result without single ids and their times, whose number is unbounded."""
        return replace(self, refused_ids=set(), arrivals_ms=[])

    @property
    def is_throttled(self) -> bool:
        """Whether the quota refused or throttled anything."""
        return self.first_throttled_ms is not None


def simulate(principal: str, uses: Uses, rate: float, rules: Rules) -> PrincipalOutcome:
    """Replay the uses of one principal, by time, at ``rate``."""
    return _Simulation(principal, rate, rules).run(uses)


class _Simulation:
    def __init__(self, principal: str, rate: float, rules: Rules) -> None:
        self._principal = user_name(principal)
        self._rate = rate
        self._now_ms = 0
        self._rules = rules
        self._store = WatchedStore(rules.remembering.store(rules.remembering.seed))
        self._waiting: set[int] = set()
        """New ids that were refused, and not admitted since."""
        self._owed_until_ms = 0
        self._outcome = PrincipalOutcome(principal=self._principal, rate=rate, least_tokens=rules.config.burst(rate))

    def run(self, uses: Uses) -> PrincipalOutcome:
        times, ids = uses.at_ms.tolist(), uses.producer_id.tolist()
        if not times:
            return self._outcome
        self._now_ms = times[0]
        manager = ProducerIdQuotaManager(
            lambda: self._now_ms,
            UserRates({self._principal: self._rate}),
            config=self._rules.config,
            remembering=replace(self._rules.remembering, store=lambda _: self._store),
            permissive=self._rules.permissive,
        )
        step_ms, step = max(1, (times[-1] - times[0]) // POINTS), -(-len(times) // POINTS)
        next_point_ms = times[0]
        for number, (now_ms, producer_id) in enumerate(zip(times, ids, strict=True)):
            self._now_ms = now_ms
            self._use(manager, producer_id)
            if now_ms >= next_point_ms or number % step == 0:
                self._sample(manager)
                next_point_ms = now_ms + step_ms
        self._sample(manager)
        return self._outcome

    def _use(self, manager: ProducerIdQuotaManager, producer_id: int) -> None:
        outcome, mistaken = self._outcome, self._store.mistaken
        answer = manager.admit(self._principal, producer_id)
        is_free = self._store.mistaken > mistaken
        outcome.uses += 1
        outcome.charged += answer.charged
        outcome.free += is_free
        if (is_free or answer is not SEEN) and producer_id not in self._waiting:
            outcome.new_ids += 1
            outcome.arrivals_ms.append(self._now_ms)
        if answer.admitted:
            self._waiting.discard(producer_id)
        else:
            self._waiting.add(producer_id)
            outcome.refused_uses += 1
            outcome.refused_ids.add(producer_id)
            outcome.refused = len(outcome.refused_ids)
        if answer.violation is not None:
            self._note_throttle(answer.throttle_time_ms)
        if is_free or answer.charged:
            self._measure(manager)

    def _note_throttle(self, throttle_ms: int) -> None:
        outcome, now_ms = self._outcome, self._now_ms
        until_ms = now_ms + throttle_ms
        outcome.throttled_ms += max(0, until_ms - max(now_ms, self._owed_until_ms))
        self._owed_until_ms = max(self._owed_until_ms, until_ms)
        outcome.longest_throttle_ms = max(outcome.longest_throttle_ms, throttle_ms)
        outcome.last_throttled_ms = now_ms
        if outcome.first_throttled_ms is None:
            outcome.first_throttled_ms = now_ms

    def _measure(self, manager: ProducerIdQuotaManager) -> float:
        """Update the extremes, which only new ids can change, and return the tokens."""
        outcome = self._outcome
        sensors = manager.active.entries()[self._principal].sensors
        tokens = outcome.least_tokens if sensors is None else sensors.bucket.tokens(self._rate, self._now_ms)
        outcome.least_tokens = min(outcome.least_tokens, tokens)
        outcome.peak_active = max(outcome.peak_active, self._store.remembered)
        outcome.peak_bytes = max(outcome.peak_bytes, self._store.size_bytes)
        return tokens

    def _sample(self, manager: ProducerIdQuotaManager) -> None:
        """Add a point to the curves."""
        tokens = self._measure(manager)
        sensors = manager.active.entries()[self._principal].sensors
        throttled = 0 if sensors is None else sensors.charges.throttled
        moment = Moment(at_ms=self._now_ms, active=self._store.remembered, tokens=tokens, throttled=throttled)
        self._outcome.curve.append(moment)


def without_limit(principal: str, uses: Uses, rules: Rules) -> PrincipalOutcome:
    """Replay the uses of one principal without a limit and without filters, to find when ids were new."""
    unlimited = replace(rules, remembering=replace(rules.remembering, store=ExactStore), permissive=True)
    return simulate(principal, uses, float(1 << 53), unlimited)


LEAST_RATE: Final = 0.01
_HALVINGS: Final = 60
_DIGITS: Final = 2


def least_rate(charges_ms: Sequence[int], config: QuotaConfig) -> float:
    """Return the lowest rate at which none of these charges, by time, would have found a bucket in debt.

    With a burst of ``c`` times the rate ``R``, a charge at ``t`` meets as many tokens as the emptiest stretch up to it
    leaves: ``c R - (charges before it in the stretch) + R (time of the stretch)``. That must be 0 or more for every
    stretch; it is monotone in ``R``, so bisection finds the lowest rate.
    """
    if len(charges_ms) <= 1:
        return LEAST_RATE
    times = (np.asarray(charges_ms, dtype=np.float64) - charges_ms[0]) / config.unit.value
    before = np.arange(len(times), dtype=np.float64)
    burst_of_one = config.burst(1.0)

    def leaves_alone(rate: float) -> bool:
        owed = before - rate * times
        return bool((burst_of_one * rate - (owed - np.minimum.accumulate(owed)) >= 0).all())

    low, high = 0.0, max(LEAST_RATE, (len(times) - 1) / burst_of_one * (1 + 1e-9))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if leaves_alone(middle) else (middle, high)
    return max(high, LEAST_RATE)


def advised_rate(rates: Collection[float], share: float) -> float:
    """Return a round rate that leaves at least ``share`` of principals unthrottled, from the lowest rate of each."""
    wanted = sorted(rates)[max(0, math.ceil(share * len(rates)) - 1)]
    scale = 10.0 ** (math.floor(math.log10(wanted)) - _DIGITS + 1)
    return float(f"{math.ceil(wanted / scale * (1 - 1e-12)) * scale:.6g}")
