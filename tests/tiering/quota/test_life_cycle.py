"""How long ids are kept, and what is left of them (statements 8 to 15 of ``docs/quota.md``)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.tiering.quota.active_producers import ActiveProducers, Remembering
from resnap.tiering.quota.client_quotas import UserRates
from resnap.tiering.quota.layers import (
    MOST_ITEMS_AT_FIRST,
    MOST_LAYERS,
    NAMES,
    UNSEEN,
    BloomStore,
    ExactStore,
    Layers,
    LifeCycle,
    life_cycle,
)
from tests.examples import examples
from tests.tiering.quota.quotas import ALICE, HOUR_MS, START_MS, Watch, charged, manager, sequential

W = 1_000
"""A window."""


def layers_of(profile: str, *, refresh: bool = False, store: BloomStore | ExactStore | None = None) -> Layers:
    return Layers(life_cycle(profile, W, refresh_on_hit=refresh), store or BloomStore(seed=1))


def kept_for(profile: str, put_at: int) -> int:
    """Return how long an id is kept that is put in at ``put_at``, its layer having begun at 0."""
    layers = layers_of(profile)
    layers.add(1, 0)
    layers.add(2, put_at)
    return next(at for at in range(put_at, 3 * W) if layers.find(2, at) == UNSEEN) - put_at


def test_s08_under_p_c_an_id_is_known_for_a_window_and_not_a_millisecond_more() -> None:
    layers = layers_of("P-C")
    layers.add(1, 0)
    assert layers.find(1, W - 1) != UNSEEN
    assert layers.find(1, W) == UNSEEN


@pytest.mark.parametrize(
    ("profile", "span", "lifetime"),
    [("P-A", W, 3 * W // 2), ("P-B", W // 2, 3 * W // 2), ("P-C", W // 2, W), ("P-L", W // 4, W)],
)
def test_s08_each_profile_keeps_an_id_for_its_lifetime_less_the_part_of_its_span_that_had_passed(
    profile: str, span: int, lifetime: int
) -> None:
    assert kept_for(profile, 0) == lifetime
    assert kept_for(profile, span - 1) == lifetime - span + 1
    assert kept_for(profile, span) == lifetime


@pytest.mark.parametrize(("profile", "most"), [("P-A", 2), ("P-B", 3), ("P-C", 2), ("P-L", 4)])
def test_s09_no_profile_has_more_layers_at_once_than_it_says(profile: str, most: int) -> None:
    layers, seen = layers_of(profile), set()
    for at in range(0, 20 * W, 7):
        layers.add(at, at)
        layers.expire(at)
        seen.add(len(layers))
    assert max(seen) == most == life_cycle(profile, W).layers


def test_s09_under_p_b_an_id_put_in_at_the_end_of_a_span_is_known_for_a_whole_window_more() -> None:
    assert kept_for("P-B", W // 2 - 1) >= W


def test_s10_a_layer_begins_at_the_first_write_after_a_span_and_not_by_a_timer() -> None:
    layers = layers_of("P-C")
    layers.add(1, 0)
    layers.find(1, W // 2 + 200)
    assert len(layers) == 1
    layers.add(2, W // 2 + 300)
    assert len(layers) == 2
    # The second began at its first write, so it is kept for a lifetime from there.
    assert layers.find(2, W // 2 + 300 + W - 1) != UNSEEN
    assert layers.find(2, W // 2 + 300 + W) == UNSEEN
    layers.expire(10 * W)
    assert len(layers) == 0


def test_s11_what_has_expired_is_never_found_with_or_without_a_clean_up() -> None:
    active = ActiveProducers(Remembering(cycle=life_cycle("P-C", W), seed=0))
    active.track(ALICE, 1, 0)
    assert not active.has(ALICE, 1, W)
    assert active.track(ALICE, 1, W)


def test_s12_a_clean_up_removes_principals_without_layers_and_all_that_was_kept_of_them() -> None:
    watch = Watch()
    quota = manager(watch=watch)
    for name in range(100):
        quota.admit(f"User:{name}", name)
    assert len(quota.active) == 100
    watch.at_ms += HOUR_MS - 1
    quota.clean_up()
    assert (len(quota.active), quota.active.population().size_bytes > 0) == (100, True)
    watch.at_ms += 1
    quota.clean_up()
    assert (len(quota.active), quota.active.population().size_bytes) == (0, 0)
    watch.at_ms += 11 * HOUR_MS
    assert quota.clean_up() == 100
    assert quota.active.entries() == {}


@pytest.mark.parametrize("profile", NAMES)
def test_s13_an_id_in_use_is_never_charged_again_where_it_is_refreshed(profile: str) -> None:
    watch = Watch()
    cycle = life_cycle(profile, W)
    quota = manager(rate=1e9, watch=watch, cycle=cycle)
    for _ in range(100 * W // cycle.span_ms):
        quota.admit(ALICE, 1)
        # The gap that no phase can turn into a charge is how long the layer before the newest is kept.
        watch.at_ms += min(cycle.span_ms, cycle.lifetime_ms - cycle.span_ms)
    assert charged(quota) == 1


@pytest.mark.parametrize("profile", NAMES)
def test_s13_without_refresh_an_id_is_charged_once_each_time_that_it_is_kept(profile: str) -> None:
    watch = Watch()
    cycle = life_cycle(profile, W, refresh_on_hit=False)
    quota = manager(rate=1e9, watch=watch, cycle=cycle)
    for _ in range(20 * W):
        quota.admit(ALICE, 1)
        watch.at_ms += 1
    least, most = 20 * W / cycle.lifetime_ms, 20 * W / (cycle.lifetime_ms - cycle.span_ms)
    assert int(least) <= charged(quota) <= most + 1


@pytest.mark.parametrize("capacity", [None, 300])
def test_s14_a_full_layer_is_closed_early_and_all_stays_known_until_its_own_time_is_over(capacity: int | None) -> None:
    store = BloomStore(seed=9)
    layers = Layers(life_cycle("P-C", W, capacity=capacity), store, expected_items=1_000)
    for number in range(5_000):
        layers.add(number, number // 50)
    assert len(layers) > 2
    assert max(store.items) <= (capacity or 4_000)
    assert all(layers.find(number, 499) != UNSEEN for number in range(5_000))
    assert all(layers.find(number, number // 50 + W - 101) != UNSEEN for number in range(5_000))


def test_s14_ids_in_batches_fill_layers_as_ids_one_by_one_do() -> None:
    one, many = BloomStore(seed=2), BloomStore(seed=2)
    single, batched = (Layers(life_cycle("P-C", W), store, expected_items=1_000) for store in (one, many))
    ids = sequential(3_500)
    for number in ids.tolist():
        single.add(number, 5)
    batched.add_many(ids, 5)
    assert len(single) == len(batched) == 3
    assert (batched.find_many(ids, 6) >= 0).all()


def test_s15_a_changed_quota_sizes_later_layers_alone_and_loses_no_id() -> None:
    watch = Watch()
    quota = manager(rate=50.0, watch=watch)
    quota.admit_request(ALICE, sequential(400))
    layers = quota.active.entries()["alice"].layers
    before = layers.size_bytes
    quota.update(UserRates(default=5_000.0))
    quota.admit(ALICE, 1)
    assert layers.size_bytes == before
    assert all(quota.active.has(ALICE, one, START_MS) for one in sequential(400).tolist())
    watch.at_ms += HOUR_MS // 2
    quota.admit(ALICE, 2)
    assert layers.size_bytes > 10 * before


def test_memory_stays_within_its_bound_and_says_when_that_costs_accuracy() -> None:
    store = BloomStore(seed=4)
    layers = Layers(life_cycle("P-C", W), store, expected_items=1_000, max_bytes=20_000)
    for start in range(0, 200_000, 1_000):
        layers.add_many(np.arange(start, start + 1_000), start // 1_000)
    assert layers.is_saturated
    assert layers.size_bytes <= 20_000
    layers.expire(10 * W)
    assert (layers.size_bytes, layers.is_saturated) == (0, False)


def test_layers_grow_again_once_the_expiry_of_others_has_made_room() -> None:
    layers = Layers(life_cycle("P-C", W), BloomStore(seed=4), expected_items=1_000, max_bytes=8_000)
    layers.add_many(np.arange(20_000), 0)
    assert layers.is_saturated
    for at_ms in range(W // 2, 5 * W, W // 2):  # never idle for as long as a layer lives
        layers.add_many(np.arange(100) + at_ms * 1_000_000, at_ms)
    assert not layers.is_saturated
    burst = np.arange(3_000) + 10**12
    free = 0
    for one in burst.tolist():
        free += layers.find(one, 5 * W) != UNSEEN
        layers.add(one, 5 * W)
    assert free <= 1.2 * 0.01 * len(burst)


def test_a_quota_without_bounds_asks_for_no_memory_in_advance() -> None:
    quota = manager(rate=float((1 << 63) - 1))
    quota.admit(ALICE, 1)
    assert quota.active.population().size_bytes < 2 * MOST_ITEMS_AT_FIRST


@pytest.mark.parametrize(("span", "lifetime"), [(0, 1), (2, 1), (1, MOST_LAYERS + 1)])
def test_life_cycles_that_make_no_sense_are_refused(span: int, lifetime: int) -> None:
    with pytest.raises(ValueError, match=r"ms|layers"):
        LifeCycle(span_ms=span, lifetime_ms=lifetime)


@examples(60)
@given(
    st.sampled_from(NAMES),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 400)), max_size=80),
)
def test_filters_and_exact_sets_live_the_same_life(profile: str, refresh: bool, steps: list[tuple[int, int]]) -> None:
    bloom, exact = (
        Layers(life_cycle(profile, W, refresh_on_hit=refresh), store, false_positive_rate=1e-9)
        for store in (BloomStore(seed=8), ExactStore())
    )
    now_ms = 0
    for producer_id, gap_ms in steps:
        now_ms += gap_ms
        found = [layers.find(producer_id, now_ms) for layers in (bloom, exact)]
        assert found[0] == found[1]
        for layers in (bloom, exact):
            if found[0] == UNSEEN:
                layers.add(producer_id, now_ms)
            else:
                layers.refresh(producer_id, found[0], now_ms)
        assert len(bloom) == len(exact)
