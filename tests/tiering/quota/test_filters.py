"""How good the filters are (statements 34 to 38 of ``docs/quota.md``); seeds are fixed, so bounds hold or do not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rbloom import Bloom

from resnap.tiering.quota.active_producers import Remembering
from resnap.tiering.quota.layers import (
    BYTES_PER_ID,
    NAMES,
    UNSEEN,
    BloomStore,
    ExactStore,
    Layers,
    bits_for,
    life_cycle,
    rate_of_one,
)
from resnap.tiering.quota.quota_manager import SEEN
from tests.cases import each
from tests.examples import examples
from tests.tiering.quota.quotas import ALICE, HOUR_MS, Watch, bits_of, blockwise, manager, scattered, sequential

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.tiering.quota.layers import Ids

W = 1_000
OTHERS = np.arange(1 << 62, (1 << 62) + 20_000, dtype=np.int64)
"""Ids that were never put in."""
NOISE = 4 / math.sqrt(len(OTHERS) * 0.01)
"""Four standard deviations of a measured rate of one per cent, relative to it."""


def found_by(layers: Layers, now_ms: int) -> float:
    """Return the share of ids never put in that is found all the same."""
    return float((layers.find_many(OTHERS, now_ms) != UNSEEN).mean())


@pytest.mark.parametrize(
    ("items", "rate", "bits"),
    [(50, 0.01, 480), (10**6, 0.01, 9_585_059), (10**6, 0.001, 14_377_588), (10**7, 0.001, 143_775_876)],
)
def test_s34_bits_are_those_of_the_formula(items: int, rate: float, bits: int) -> None:
    assert bits_for(items, rate) == bits
    store = BloomStore(seed=1)
    store.open(items, rate)
    assert bits - 64 <= 8 * store.size_bytes <= bits + 64


def test_s34_a_joint_rate_is_shared_by_the_filters_that_are_read_together() -> None:
    each = rate_of_one(0.01, 2)
    assert 1 - (1 - each) ** 2 == pytest.approx(0.01)
    assert bits_for(10**6, each) / 10**6 == pytest.approx(11.02, abs=0.02)


@pytest.mark.parametrize(("items", "rate"), [(0, 0.01), (-1, 0.01), (5, 1.0), (5, 0.0)])
def test_s34_no_filter_is_made_for_nothing(items: int, rate: float) -> None:
    with pytest.raises(ValueError, match="no filter"):
        bits_for(items, rate)


@each("ids", [sequential, blockwise, scattered])
@each("count", [50, 1_000, 50_000])
def test_s35_all_live_layers_together_keep_to_the_rate_whatever_the_ids(ids: Callable[[int], Ids], count: int) -> None:
    layers = Layers(life_cycle("P-C", W, capacity=count), BloomStore(seed=11), false_positive_rate=0.01)
    known = ids(2 * count)
    layers.add_many(known[:count], 0)
    layers.add_many(known[count:], W // 2)
    assert len(layers) >= 2
    assert found_by(layers, W // 2) <= 1.2 * 0.01
    assert (layers.find_many(known, W // 2) != UNSEEN).all()


@pytest.mark.slow
@each("profile", NAMES)
@each("per_span", [[1_000] * 12, [1_000, 40_000, 1_000, 0, 0, 7_000, 7_000, 100_000, 10]])
def test_s35_through_bursts_and_idle_times_the_rate_is_kept_at_every_moment(profile: str, per_span: list[int]) -> None:
    cycle = life_cycle(profile, W)
    layers = Layers(cycle, BloomStore(seed=12), expected_items=1_000, false_positive_rate=0.01)
    known, done = scattered(200_000), 0
    for span, count in enumerate(per_span):
        for part in range(4):
            at_ms = span * cycle.span_ms + part * cycle.span_ms // 4
            layers.add_many(known[done : done + count // 4], at_ms)
            done += count // 4
            assert found_by(layers, at_ms) <= 0.01 * (1 + NOISE)


@pytest.mark.parametrize("profile", NAMES)
def test_s36_no_more_ids_pass_for_free_than_the_rate_says_and_no_client_is_refused_wrongly(profile: str) -> None:
    offered, free = 0, 0
    watch = Watch()
    cycle = life_cycle(profile)
    quota = manager(rate=1e5, watch=watch, cycle=cycle)
    oracle = manager(rate=1e5, watch=watch, cycle=cycle, exact=True)
    for one in scattered(20_000).tolist():
        watch.at_ms += 1_500
        made, wanted = quota.admit(ALICE, one), oracle.admit(ALICE, one)
        assert made.admitted >= wanted.admitted
        assert made.charged <= wanted.charged
        offered += 1
        free += made is SEEN
    assert free <= 1.2 * 0.01 * offered


STEPS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, HOUR_MS // 4)), max_size=150)
POOR = Remembering(false_positive_rate=0.9, seed=0)


@examples(50)
@given(STEPS)
def test_s36_no_client_waits_longer_than_with_exact_sets(steps: list[tuple[int, int]]) -> None:
    watch = Watch()
    quota = manager(rate=1.0, watch=watch, permissive=True, remembering=POOR)
    oracle = manager(rate=1.0, watch=watch, permissive=True, exact=True)
    for producer_id, gap_ms in steps:
        watch.at_ms += gap_ms
        made, wanted = quota.admit(ALICE, producer_id), oracle.admit(ALICE, producer_id)
        assert made.throttle_time_ms <= wanted.throttle_time_ms


@examples(50)
@given(STEPS)
def test_s36_no_id_is_refused_that_exact_sets_of_the_same_decisions_contain(steps: list[tuple[int, int]]) -> None:
    watch = Watch()
    quota = manager(rate=1.0, watch=watch, remembering=POOR)
    exact = Layers(life_cycle(), ExactStore())
    for producer_id, gap_ms in steps:
        watch.at_ms += gap_ms
        layer = exact.find(producer_id, watch.at_ms)
        made = quota.admit(ALICE, producer_id)
        assert made is SEEN or layer == UNSEEN
        if made.admitted and layer == UNSEEN:
            exact.add(producer_id, watch.at_ms)
        elif made.admitted:
            exact.refresh(producer_id, layer, watch.at_ms)


VECTORS = {4_000: (5175817007706408070, 868318775456050695), 0: (2945182322382062539, -984742418921750958)}


@pytest.mark.parametrize("producer_id", VECTORS)
def test_s37_the_hash_is_murmurhash3_of_eight_bytes_little_endian(producer_id: int) -> None:
    low, high = VECTORS[producer_id]
    expected = Bloom(480, 0.01, hash_func=int)
    expected.add((high << 64) | (low & ((1 << 64) - 1)))
    store = BloomStore(0)
    store.open(480, 0.01)
    store.add(producer_id)
    assert bits_of(store, 0) == expected.save_bytes()


def test_s37_another_seed_gives_other_bits_and_the_same_one_the_same() -> None:
    made = []
    for seed in (1, 1, 2):
        store = BloomStore(seed)
        store.open(1_000, 0.01)
        for producer_id in sequential(500).tolist():
            store.add(producer_id)
        made.append(bits_of(store, 0))
    assert made[0] == made[1] != made[2]


def test_s37_a_seed_that_is_not_given_is_secret() -> None:
    assert len({Remembering().seed for _ in range(5)}) == 5


@pytest.mark.slow
def test_s38_two_filters_for_a_million_ids_take_two_and_a_half_megabytes_and_sets_25_times_that() -> None:
    two = 2 * bits_for(10**6, 0.01) / 8
    assert two <= 2.5e6
    assert 25 * two <= 10**6 * BYTES_PER_ID
    both = Layers(life_cycle("P-C", W, capacity=10**6), BloomStore(seed=1), false_positive_rate=0.01)
    ids = sequential(10**6)
    both.add_many(ids[: 10**6 // 2], 0)
    both.add_many(ids[10**6 // 2 :], W // 2)
    assert both.size_bytes < 3e6
    exact = ExactStore()
    exact.open(1_000, 0.01)
    for producer_id in ids[:1_000].tolist():
        exact.add(producer_id)
    assert exact.size_bytes == 1_000 * BYTES_PER_ID
