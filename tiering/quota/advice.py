"""The least rate that would have left a principal alone, and the one that would have left most principals alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from resnap.tiering.quota.token_bucket import QuotaConfig

LEAST_RATE: Final = 0.01
_HALVINGS: Final = 60
_DIGITS: Final = 2


def least_rate(charges_ms: Sequence[int], config: QuotaConfig) -> float:
    """Return the least rate at which none of these charges, by time, would have met a bucket in debt.

    With a burst of ``c`` times the rate ``R``, a charge at ``t`` meets as many tokens as the emptiest stretch up to it
    leaves: ``c R - (charges before it in the stretch) + R (time of the stretch)``. That must be 0 or more for every
    stretch; what is looked for is monotone in ``R``, so halving an interval finds it.
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
    """Return a round rate that leaves at least ``share`` of principals alone, by the least rate of each."""
    wanted = sorted(rates)[max(0, math.ceil(share * len(rates)) - 1)]
    scale = 10.0 ** (math.floor(math.log10(wanted)) - _DIGITS + 1)
    return float(f"{math.ceil(wanted / scale * (1 - 1e-12)) * scale:.6g}")
