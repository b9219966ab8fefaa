"""Tokens, rates and throttle times, to the millisecond (statements 16 to 26 of ``docs/quota.md``).

What Kafka's own classes give for the golden rows is in ``tests/kafka/test_quota_arithmetic.py``, with much more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.tiering.quota.client_quotas import UserRates
from resnap.tiering.quota.quota_manager import SEEN, ForwardClock, combined_throttle_ms, kafka_metrics, series
from resnap.tiering.quota.token_bucket import (
    MAX_THROTTLE_MS,
    QuotaConfig,
    RateUnit,
    SampledRate,
    TokenBucket,
    java_round,
    throttle_ms,
)
from tests.cases import each
from tests.tiering.quota.quotas import (
    ALICE,
    BOB,
    HOUR_MS,
    START_MS,
    Watch,
    charged,
    manager,
    sequential,
    steady,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.tiering.quota.quota_manager import ProducerIdQuotaManager

S, H = RateUnit.SECOND, RateUnit.HOUR
Step = tuple[int, float]
"""How long after the last one, and how much."""


def config(samples: int, window_ms: int, unit: RateUnit = S) -> QuotaConfig:
    return QuotaConfig(samples=samples, window_ms=window_ms, unit=unit)


def rated(of: QuotaConfig, bound: float, steps: list[Step]) -> list[int]:
    """Return the throttle time after each step of a sampled rate."""
    rate, now_ms, found = SampledRate(of), START_MS, []
    for gap_ms, value in steps:
        now_ms += gap_ms
        rate.record(value, now_ms)
        found.append(rate.throttle_ms(bound, now_ms))
    return found


def strictly(of: QuotaConfig, rate: float, steps: list[Step]) -> list[str]:
    """Return, for each step, what is left after it was admitted, or for how long it is refused."""
    bucket, now_ms, found = TokenBucket(of, rate, START_MS), START_MS, []
    for gap_ms, count in steps:
        now_ms += gap_ms
        before = bucket.tokens(rate, now_ms)
        if before < 0:
            found.append(f"refused {throttle_ms(-before, rate, of.unit)}")
        else:
            found.append(f"{bucket.take(count, rate, now_ms):g}")
    return found


def test_s16_golden_rows_of_the_sampled_rate() -> None:
    r1 = [(0, 400.0), *[(1000, 400.0)] * 9, (500, 2300.0)]
    assert rated(config(11, 1000), 500, r1) == [0] * 10 + [2100]
    assert rated(config(11, 1000), 10, [(0, 110)]) == [1000]
    assert rated(config(11, 1000), 10, [(0, 1000)]) == [90_000]
    assert rated(config(2, 1000), 1, [(0, 10)]) == [9000]
    r4 = [(0, 10.0), (400, 10.0), (700, 10.0), (900, 10.0), (1500, 10.0), (3000, 10.0), (100, 0.0)]
    assert rated(config(3, 1000), 5, r4) == [0, 1600, 3900, 6000, 3600, 0, 0]


def test_s16_golden_rows_of_the_token_bucket() -> None:
    t1 = [(0, 90.0), (0, 90.0), (0, 90.0), (5000, 90.0), (2999, 90.0), (1, 90.0)]
    assert strictly(config(10, 1000), 10, t1) == ["10", "-80", "refused 8000", "refused 3000", "refused 1", "-90"]
    assert strictly(config(100, 1000), 5, [(0, 560), (0, 1)]) == ["-60", "refused 12000"]
    t4 = [(0, 550.0), (0, 1.0), (0, 1.0), (72_000, 1.0), (0, 1.0)]
    assert strictly(config(11, HOUR_MS, H), 50, t4) == ["0", "-1", "refused 72000", "-1", "refused 72000"]
    t5 = [(0, 50.0), (0, 1.0), (0, 1.0), (71_999, 1.0), (1, 1.0)]
    assert strictly(config(1, HOUR_MS, H), 50, t5) == ["0", "-1", "refused 72000", "refused 1", "refused 0"]
    t6 = [(0, 1_980_000.0), (0, 1.0), (0, 1.0), (20, 1.0)]
    assert strictly(config(11, HOUR_MS), 50, t6) == ["0", "-1", "refused 20", "-1"]
    bucket = TokenBucket(config(10, 2000), 5, START_MS)
    given_back = [
        bucket.take(-60, 5, START_MS),
        bucket.take(60, 5, START_MS + 2000),
        bucket.take(-60, 5, START_MS + 4000),
    ]
    assert given_back == [100, 40, 100]


def test_s16_golden_row_of_the_permissive_order() -> None:
    bucket, found = TokenBucket(config(10, 1000), 10, START_MS), []
    for at_ms, count in ((0, 90), (0, 90), (0, 90), (5000, 0)):
        found.append(throttle_ms(-bucket.take(count, 10, START_MS + at_ms), 10))
    assert found == [0, 8000, 17_000, 12_000]


@pytest.mark.parametrize("start_ms", [0, 1, START_MS, 1 << 52])
def test_s17_a_bucket_begins_full_whenever_its_clock_began(start_ms: int) -> None:
    assert TokenBucket(config(11, HOUR_MS, H), 50, start_ms).tokens(50, start_ms) == 550
    assert TokenBucket(config(11, HOUR_MS), 50, start_ms).tokens(50, start_ms) == 1_980_000
    assert manager(watch=Watch(start_ms)).admit_request(ALICE, sequential(550)).charged == 550


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0, 50.0, 77.7])
def test_s18_of_a_full_bucket_one_more_id_than_its_burst_passes_at_an_instant(rate: float) -> None:
    quota = manager(rate=rate, exact=True)
    admitted = [quota.admit(ALICE, one).admitted for one in range(2_000)]
    assert sum(admitted) == math.floor(quota.config.burst(rate)) + 1
    assert admitted == sorted(admitted, reverse=True)
    assert tokens(quota) >= -1


def test_s19_a_refusal_changes_nothing_so_the_same_id_is_refused_again() -> None:
    quota = manager()
    quota.admit_request(ALICE, sequential(551))
    entry = quota.active.entries()["alice"]
    assert entry.sensors is not None
    before = tokens(quota), charged(quota), entry.layers.items, entry.sensors.rate_of_ids.rate(START_MS)
    for _ in range(5):
        refused = quota.admit(ALICE, 1)
        assert (refused.admitted, refused.throttle_time_ms) == (False, 72_000)
        assert not quota.admit_request(ALICE, [4_000, 1, 2]).admitted
    assert not quota.active.has(ALICE, 1, START_MS)
    assert (tokens(quota), charged(quota), entry.layers.items, entry.sensors.rate_of_ids.rate(START_MS)) == before


@steady
@given(st.floats(10, 5_000), st.integers(1, 5_000))
def test_s20_after_the_throttle_time_a_retry_passes(rate: float, over: int) -> None:
    watch = Watch()
    quota = manager(rate=rate, watch=watch, exact=True)
    quota.admit_request(ALICE, sequential(math.floor(quota.config.burst(rate)) + over))
    refused = quota.admit(ALICE, 1)
    assert not refused.admitted
    watch.at_ms += refused.throttle_time_ms + 1
    assert quota.admit(ALICE, 1).charged == 1


def test_s21_in_the_permissive_order_all_pass_and_each_later_one_waits_longer() -> None:
    quota = manager(permissive=True)
    quota.admit_request(ALICE, sequential(550))
    answers = [quota.admit(ALICE, one) for one in range(5)]
    assert all(answer.admitted and answer.charged == 1 for answer in answers)
    assert [answer.throttle_time_ms for answer in answers] == [72_000, 144_000, 216_000, 288_000, 360_000]
    assert quota.admit(ALICE, 0) is SEEN


def test_s22_no_tokens_left_and_a_rate_at_its_bound_are_within_the_quota() -> None:
    quota = manager()
    quota.admit_request(ALICE, sequential(550))
    assert tokens(quota) == 0
    assert quota.admit(ALICE, 1).violation is None
    rate = SampledRate(config(11, 1000))
    rate.record(100, START_MS)
    assert (rate.rate(START_MS), rate.throttle_ms(10, START_MS)) == (10, 0)


@pytest.mark.parametrize(
    ("deficit", "rate", "wanted"),
    [(-1, 1, 0), (0, 0, 0), (1, 0, MAX_THROTTLE_MS), (1e300, 1e-9, MAX_THROTTLE_MS), (1, 1e308, 0), (1e-16, 50, 0)],
)
def test_s23_throttle_times_are_never_negative_and_never_wrap(deficit: float, rate: float, wanted: int) -> None:
    assert throttle_ms(deficit, rate, H) == wanted


def test_s23_a_cap_is_kept_and_the_longest_of_several_quotas_counts() -> None:
    quota = manager(max_throttle_ms=30_000)
    quota.admit_request(ALICE, sequential(551))
    assert quota.admit(ALICE, 1).throttle_time_ms == 30_000
    assert combined_throttle_ms(5, 0, 17, -3) == 17
    assert combined_throttle_ms() == 0


@each(
    ("value", "wanted"), [(0.5, 1), (-0.5, 0), (-0.51, -1), (1.5, 2), (2.5, 3), (0.49999999999999994, 0), (math.nan, 0),
                          (math.inf, (1 << 63) - 1), (-math.inf, -(1 << 63))]
)  # fmt: skip
def test_rounding_is_javas(value: float, wanted: int) -> None:
    assert java_round(value) == wanted


@steady
@given(st.lists(st.tuples(st.integers(-HOUR_MS, HOUR_MS), st.integers(0, 9)), max_size=40))
def test_s24_a_clock_that_goes_back_gives_no_tokens_and_no_negative_time(steps: list[tuple[int, int]]) -> None:
    watch, best = Watch(), Watch()
    quota, steady = manager(watch=watch), manager(watch=best)
    new = iter(range(1_000_000))
    for gap_ms, count in steps:
        watch.at_ms += gap_ms
        best.at_ms += max(gap_ms, 0)
        ids = [next(new) for _ in range(count)]
        answers = [one.admit_request(ALICE, ids) for one in (quota, steady)]
        assert answers[0] == answers[1]
        assert answers[0].throttle_time_ms >= 0
        if ids:
            assert tokens(quota) <= 550


def test_s24_time_goes_on_at_once_after_the_clock_was_set_back() -> None:
    watch = Watch()
    clock = ForwardClock(watch)
    readings = [clock()]
    for step in (10, -HOUR_MS, 10, 10):
        watch.at_ms += step
        readings.append(clock() - readings[0])
    assert readings[1:] == [10, 10, 20, 30]
    bucket = TokenBucket(config(11, 1000), 1, START_MS)
    bucket.take(20, 1, START_MS)
    assert bucket.tokens(1, START_MS - 5_000) == bucket.tokens(1, START_MS) == -9


def test_s25_debts_outlive_an_hour_of_silence() -> None:
    watch = Watch()
    quota = manager(watch=watch, permissive=True)
    quota.admit_request(ALICE, sequential(550 + 200))
    watch.at_ms += HOUR_MS + 1
    quota.clean_up()
    assert tokens(quota) == pytest.approx(-150, abs=1e-3)
    watch.at_ms += 14 * HOUR_MS
    quota.clean_up()
    assert quota.active.entries() == {}


def test_s26_a_changed_quota_keeps_the_tokens_within_the_new_burst() -> None:
    watch = Watch()
    quota = manager(watch=watch)
    quota.admit_request(ALICE, sequential(150))
    quota.update(UserRates(default=100.0))
    quota.admit(ALICE, 1)
    assert tokens(quota) == 399
    watch.at_ms += HOUR_MS
    assert tokens(quota) == 499
    quota.update(UserRates(default=10.0))
    quota.admit(ALICE, 2)
    assert tokens(quota) == 109
    quota.update(UserRates(users={BOB: 1.0}, default=20.0))
    quota.admit(ALICE, 3)
    assert tokens(quota) == 108
    quota.update(UserRates())
    assert [quota.admit(ALICE, one) for one in range(100, 105)] == [SEEN] * 5


@pytest.mark.parametrize("look", [lambda quota: list(kafka_metrics(quota)), lambda quota: list(series(quota))])
def test_s26_reading_the_metrics_after_a_change_changes_nothing(
    look: Callable[[ProducerIdQuotaManager], object],
) -> None:
    watch = Watch()
    quota = manager(watch=watch, permissive=True)
    quota.admit_request(ALICE, sequential(5_550))
    quota.update(UserRates(default=5_000.0))
    watch.at_ms += HOUR_MS
    look(quota)
    assert [metric.value for metric in kafka_metrics(quota) if metric.name == "tokens"] == [0.0]
    assert quota.admit(ALICE, 1).throttle_time_ms == 720


def test_a_rate_of_zero_admits_one_id_and_then_none() -> None:
    watch = Watch()
    quota = manager(rate=0.0, watch=watch)
    assert quota.admit(ALICE, 1).charged == 1
    for _ in range(3):
        watch.at_ms += 1_000 * HOUR_MS
        refused = quota.admit(ALICE, 2)
        assert (refused.admitted, refused.throttle_time_ms) == (False, MAX_THROTTLE_MS)
    assert quota.admit(BOB, 1).charged == 1
