"""A day of one principal under each profile: what filters and life cycles cost those who did nothing.

200 ids are in use all day, each with a batch every 20 minutes on average, at random moments; from 06:00 to 08:00 a
crash loop brings 30,000 new ones besides. The quota is 50 an hour, in 11 samples of an hour.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resnap.tiering.quota.active_producers import Remembering
from resnap.tiering.quota.layers import life_cycle
from resnap.tiering.quota.simulation import Rules, simulate
from resnap.tiering.quota.token_bucket import QuotaConfig
from tests.benchmarks.tables import Table, amount, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.tiering.quota.simulation import PrincipalOutcome
    from tests.benchmarks.options import Options

NAME = "quota-day"
PROFILES = ("P-A", "P-B", "P-C", "P-L")
HOUR_MS = 3_600_000
KNOWN, FLOOD = 200, 30_000
RATE, NO_LIMIT = 50, 1e9


class Day(NamedTuple):
    """Uses of ids, by time; as ``producer_activity.Uses``."""

    at_ms: np.ndarray
    producer_id: np.ndarray


def run(options: Options) -> Iterator[Table]:
    """Replay the day under each profile."""
    flood = FLOOD // 100 if options.quick else FLOOD
    table = Table(
        f"A day of {KNOWN} ids in use and {flood:,} in a crash loop, {RATE} an hour",
        ["profile", "charges for the ids in use, without the flood", "... without refresh", "ids admitted",
         "of those in use, refused at some time", "memory at most",
         "free, permissive", "memory, permissive", "time, strict"],
    )  # fmt: skip
    whole, quiet = _day(flood)
    for profile in PROFILES:
        rules = Rules(config=QuotaConfig(), remembering=Remembering(cycle=life_cycle(profile), seed=1))
        hasty = replace(rules, remembering=Remembering(cycle=life_cycle(profile, refresh_on_hit=False), seed=1))
        begun_s = time.process_time()
        strict = simulate("User:a", whole, RATE, rules)
        took_s = time.process_time() - begun_s
        lenient = simulate("User:a", whole, RATE, replace(rules, permissive=True))
        table.add(
            profile,
            f"{simulate('User:a', quiet, NO_LIMIT, rules).charged:,}",
            f"{simulate('User:a', quiet, NO_LIMIT, hasty).charged:,}",
            f"{strict.charged:,}",
            str(sum(one <= KNOWN for one in strict.refused_ids)),
            amount(strict.peak_bytes),
            _free(lenient),
            amount(lenient.peak_bytes),
            seconds(took_s),
        )
    yield table


def _free(outcome: PrincipalOutcome) -> str:
    return f"{outcome.free} of {outcome.new_ids:,} ({outcome.free / outcome.new_ids:.2%})"


def _day(flood: int) -> tuple[Day, Day]:
    """Return the whole day, and the same without the flood."""
    random = np.random.default_rng(936)
    uses = KNOWN * 24 * 3
    at_ms = np.concatenate([random.integers(0, 24 * HOUR_MS, uses), random.integers(6 * HOUR_MS, 8 * HOUR_MS, flood)])
    ids = np.concatenate([np.tile(np.arange(1, KNOWN + 1), 24 * 3), np.arange(10_000, 10_000 + flood)])
    order = np.argsort(at_ms, kind="stable")
    at_ms, ids = at_ms[order] + 10**12, ids[order]
    return Day(at_ms, ids), Day(at_ms[ids <= KNOWN], ids[ids <= KNOWN])
