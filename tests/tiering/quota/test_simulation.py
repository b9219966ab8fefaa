"""A log's producers through the quota: who is throttled, what filters let through, and what a principal needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.scan.header_scan import BLOCK_BYTES, SegmentRange
from resnap.storage.errors import UsageError
from resnap.storage.sources.files import PLAIN
from resnap.tiering.quota.active_producers import THIN_MS, Remembering, Uses, in_time, read_uses, thinned
from resnap.tiering.quota.layers import NAMES, ExactStore, life_cycle
from resnap.tiering.quota.producer_census import UNMAPPED, PrincipalMap, read_principal_map
from resnap.tiering.quota.simulation import LEAST_RATE, Rules, advised_rate, least_rate, simulate, without_limit
from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit
from tests.builders import a_batch, a_marker
from tests.cases import each
from tests.tiering.quota.logs import a_topic
from tests.tiering.quota.quotas import ALICE, HOUR_MS, START_MS, scattered, steady

if TYPE_CHECKING:
    from pathlib import Path

RULES = Rules(config=QuotaConfig(), remembering=Remembering(seed=0))
MINUTE_MS = 60_000


def uses(*pairs: tuple[int, int]) -> Uses:
    times, ids = zip(*pairs, strict=True) if pairs else ((), ())
    return in_time(Uses(START_MS + np.array(times, dtype=np.int64), np.array(ids, dtype=np.int64)))


def flood() -> Uses:
    """Ten steady ids, in use every minute, and a new one every two seconds besides, for an hour."""
    steady_ids = [(minute * MINUTE_MS, producer_id) for minute in range(60) for producer_id in range(10)]
    return uses(*steady_ids, *((2_000 * number + 1, 1_000_000 + number) for number in range(1_800)))


def test_the_one_that_floods_is_throttled_while_its_known_ids_go_on() -> None:
    outcome = simulate(ALICE, flood(), 50.0, RULES)
    assert outcome.new_ids == 1_810
    assert 551 <= outcome.charged <= 551 + 51
    assert outcome.charged + len(outcome.refused_ids) + outcome.free == outcome.new_ids
    assert outcome.refused_ids.isdisjoint(range(10))
    assert outcome.first_throttled_ms is not None
    assert outcome.first_throttled_ms - START_MS == pytest.approx(2_000 * 551, abs=60_000)
    assert outcome.longest_throttle_ms <= 72_000
    assert outcome.least_tokens >= -1
    assert outcome.peak_active == pytest.approx(outcome.charged + outcome.free, abs=5)
    assert 0 < outcome.peak_bytes < 10_000


def test_the_permissive_order_refuses_no_client_and_lets_debts_grow() -> None:
    outcome = simulate(ALICE, flood(), 50.0, replace(RULES, permissive=True))
    assert (outcome.refused_uses, outcome.refused_ids) == (0, set())
    assert outcome.least_tokens < -1_000
    assert outcome.longest_throttle_ms > 1_000 * 72_000
    assert outcome.curve[-1].throttled > 1_000


@pytest.mark.parametrize("profile", NAMES)
def test_the_exact_companion_counts_what_filters_let_through(profile: str) -> None:
    poor = Remembering(cycle=life_cycle(profile, capacity=1_000), false_positive_rate=0.3, seed=0)
    log = uses(*((number * 500, one) for number, one in enumerate(scattered(8_000).tolist())))
    outcome = simulate(ALICE, log, 1e6, Rules(config=QuotaConfig(), remembering=poor))
    assert outcome.charged + outcome.free == outcome.new_ids == 8_000
    assert 0 < outcome.free <= 0.3 * 1.2 * 8_000
    exact = Rules(config=QuotaConfig(), remembering=Remembering(cycle=life_cycle(profile), store=ExactStore))
    assert simulate(ALICE, log, 1e6, exact).free == 0


@pytest.mark.slow
@each("rate", [50.0, 2_000.0])
@each("profile", NAMES)
def test_whatever_was_charged_or_passed_for_free_was_new(profile: str, rate: float) -> None:
    random = np.random.default_rng(5)
    at_ms, ids = random.integers(0, 6 * HOUR_MS, 24_000), random.integers(0, 2_500, 24_000)
    remembering = Remembering(cycle=life_cycle(profile), false_positive_rate=0.001, seed=0)
    rules = Rules(config=QuotaConfig(), remembering=remembering, permissive=True)
    outcome = simulate(ALICE, uses(*zip(at_ms.tolist(), ids.tolist(), strict=True)), rate, rules)
    assert outcome.charged + outcome.free == outcome.new_ids
    assert outcome.free <= 0.001 * 1.2 * 24_000


def test_peaks_and_the_fewest_tokens_are_those_of_a_short_burst_in_a_long_log() -> None:
    burst = [(15 * 24 * HOUR_MS + 1_000 * number, 100 + number) for number in range(300)]
    outcome = simulate(ALICE, uses((0, 1), *burst, (30 * 24 * HOUR_MS, 2)), 50.0, RULES)
    assert outcome.peak_active == outcome.charged + outcome.free - 2
    assert outcome.least_tokens == pytest.approx(550 - 300 + 299 / 72, abs=3)
    assert max(moment.active for moment in outcome.curve) > 290


def test_curves_are_in_time_and_have_few_points() -> None:
    curve = simulate(ALICE, flood(), 50.0, RULES).curve
    assert 100 < len(curve) <= 403
    assert [moment.at_ms for moment in curve] == sorted(moment.at_ms for moment in curve)
    assert [moment.throttled for moment in curve] == sorted(moment.throttled for moment in curve)
    assert simulate(ALICE, uses(), 50.0, RULES).curve == []


@steady
@given(
    st.lists(st.integers(0, 20 * HOUR_MS), min_size=1, max_size=60),
    st.sampled_from(
        [QuotaConfig(), QuotaConfig(samples=1), QuotaConfig(samples=2, window_ms=1000, unit=RateUnit.SECOND)]
    ),
)
def test_the_least_rate_leaves_a_principal_alone_and_a_little_less_does_not(
    gaps: list[int], config: QuotaConfig
) -> None:
    log = uses(*((at_ms, number) for number, at_ms in enumerate(sorted(gaps))))
    rules = Rules(config=config, remembering=Remembering(store=ExactStore))
    arrivals = without_limit(ALICE, log, rules).arrivals_ms
    rate = least_rate(arrivals, config)
    assert not simulate(ALICE, log, rate * (1 + 1e-6), rules).is_throttled
    if rate > LEAST_RATE:
        assert simulate(ALICE, log, rate * (1 - 1e-6), rules).is_throttled


@pytest.mark.parametrize(
    ("rates", "share", "wanted"),
    [
        ([1.0] * 99 + [500.0], 0.99, 1.0),
        ([1.0] * 99 + [500.0], 1.0, 500.0),
        ([12.3], 0.5, 13.0),
        ([0.0123, 7.0], 0.5, 0.013),
        ([95.3], 0.99, 96.0),
        ([996.0], 0.99, 1000.0),
    ],
)
def test_the_advised_rate_is_round_and_leaves_the_share_alone(rates: list[float], share: float, wanted: float) -> None:
    assert advised_rate(rates, share) == wanted


def test_uses_are_thinned_to_the_first_of_each_id_in_a_stretch() -> None:
    found = thinned(uses((0, 1), (5, 2), (10, 1), (THIN_MS, 1), (THIN_MS + 1, 1), (3, 2)))
    assert list(zip((found.at_ms - START_MS).tolist(), found.producer_id.tolist(), strict=True)) == [
        (0, 1), (3, 2), (THIN_MS, 1),
    ]  # fmt: skip


@steady
@given(st.lists(st.tuples(st.integers(0, 5 * THIN_MS), st.integers(0, 4))))
def test_thinning_loses_no_id_and_twice_is_once(pairs: list[tuple[int, int]]) -> None:
    found = thinned(uses(*pairs))
    assert set(found.producer_id.tolist()) == {producer_id for _, producer_id in pairs}
    again = thinned(found)
    assert (again.at_ms.tolist(), again.producer_id.tolist()) == (found.at_ms.tolist(), found.producer_id.tolist())
    assert found.at_ms.tolist() == sorted(found.at_ms.tolist())


def segment(path: Path, *, active: bool = True) -> SegmentRange:
    return SegmentRange(locator=str(path), base_offset=0, next_base_offset=None if active else 1_000)


def test_s41_markers_and_batches_without_a_producer_are_not_uses(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(
        a_batch(offset=0, producer_id=7, transactional=True, timestamps=START_MS)
        + a_marker(offset=1, producer_id=8)
        + a_batch(offset=2, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        + a_batch(offset=3, producer_id=9, timestamps=-1)
    )
    found, uses = read_uses(segment(log), PLAIN)
    assert (uses.producer_id.tolist(), uses.at_ms.tolist()) == ([7, 9], [START_MS, START_MS])
    assert (found.batches, found.errors) == (2, ())


def test_a_time_that_is_missing_is_that_of_the_batch_before_wherever_reads_end(tmp_path: Path) -> None:
    count = 20_000
    plain = a_batch(offset=0, producer_id=7, timestamps=-1)
    assert count * len(plain) > BLOCK_BYTES, "the segment must take more than one read"
    times = [(-1, 5), (-1, 6), (START_MS, 8), *((-1, 7) for _ in range(count)), (-1, 9)]
    path = a_topic(tmp_path, "t", times) / f"{0:020}.log"
    found, uses = read_uses(segment(path), PLAIN)
    assert (sorted(uses.producer_id.tolist()), found.undated) == ([7, 8, 9], 2)


def test_damage_is_reported_and_what_came_before_it_is_kept(tmp_path: Path) -> None:
    directory = a_topic(tmp_path, "t", [(START_MS, 1), (START_MS, 2)])
    path = directory / f"{0:020}.log"
    path.write_bytes(path.read_bytes() + b"\xff" * 200)
    found, _ = read_uses(segment(path, active=False), PLAIN)
    (error,) = found.errors
    assert str(path) in str(error)
    assert read_uses(segment(tmp_path / "gone.log"), PLAIN)[0].errors


MAP = ["producerId,topic,principal", "5,,User:five", "1000-1999,pay*,User:alice", ",pay*,User:bob"]


def owners(principals: PrincipalMap, topic: str, *ids: int) -> dict[int, str]:
    found = np.array(ids, dtype=np.int64)
    return {one: name for name, theirs in principals.split(topic, found) for one in found[theirs].tolist()}


def test_the_first_line_that_matches_gives_the_principal_of_an_id() -> None:
    principals = read_principal_map(MAP, "map.csv")
    assert owners(principals, "payments", 5, 999, 1000, 1999, 2000) == {
        5: "five", 999: "bob", 1000: "alice", 1999: "alice", 2000: "bob",
    }  # fmt: skip
    assert owners(principals, "orders", 5, 6) == {5: "five", 6: UNMAPPED}
    assert owners(PrincipalMap(), "orders", 5, 6) == {5: "topic orders", 6: "topic orders"}


def test_principals_of_odd_characters_may_be_quoted() -> None:
    assert owners(read_principal_map([MAP[0], ',,"CN=a, O=""b"" ~*"'], "map.csv"), "t", 1) == {1: 'CN=a, O="b" ~*'}


@each(
    ("lines", "says"),
    [
        ([], "first line"),
        (["id,topic,principal"], "first line"),
        ([MAP[0], "1,t"], "line 2: expected 3 cells"),
        ([MAP[0], "1,t, "], "line 2: expected 3 cells"),
        ([MAP[0], "x,t,User:a"], "'x' is neither a producer id"),
        ([MAP[0], "9-3,t,User:a"], "'9-3' is empty"),
        ([MAP[0], "-3,t,User:a"], "neither a producer id"),
        ([MAP[0], "", "x,t,User:a"], "line 3: 'x' is neither"),
        ([MAP[0], f"1,{'t' * 200_000},User:a"], "line 2: field larger"),
    ],
)
def test_an_invalid_map_is_refused_by_line(lines: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_principal_map(lines, "map.csv")
