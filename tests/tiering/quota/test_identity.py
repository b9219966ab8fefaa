"""Who is charged, for which ids, and what looking leaves behind (statements 1 to 7 of ``docs/quota.md``)."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.tiering.quota.active_producers import ActiveProducers, Remembering
from resnap.tiering.quota.client_quotas import UserRates, user_name
from resnap.tiering.quota.layers import NAMES, BloomStore, Layers, life_cycle
from resnap.tiering.quota.quota_manager import SEEN, ProducerIdQuotaManager
from tests.tiering.quota.quotas import ALICE, BOB, HOUR_MS, START_MS, Watch, bits_of, charged, manager, steady, tokens

MOST = (1 << 63) - 1


def test_s01_the_same_id_is_charged_to_each_principal_and_a_client_id_to_none() -> None:
    quota = manager()
    assert quota.admit(ALICE, 7).charged == quota.admit(BOB, 7).charged == 1
    assert quota.admit(ALICE, 7) is quota.admit(BOB, 7) is SEEN
    for asked in (ProducerIdQuotaManager.admit, ProducerIdQuotaManager.admit_request):
        assert not {name for name in inspect.signature(asked).parameters if "client" in name}


def test_s02_no_producer_id_is_neither_looked_up_nor_kept_nor_charged() -> None:
    quota = manager()
    assert quota.admit(ALICE, -1) is quota.admit_request(ALICE, [-1, -1]) is SEEN
    assert quota.active.entries() == {}
    assert not quota.active.track(ALICE, -1, START_MS)
    assert not quota.active.has(ALICE, -1, START_MS)
    assert quota.admit_request(ALICE, [-1, 5]).charged == 1


@pytest.mark.parametrize("exact", [False, True])
def test_s03_ids_at_every_edge_are_found_as_long_as_their_layer_lives(exact: bool) -> None:
    quota = manager(rate=1e6, exact=exact)
    ids = [0, 1, 999, 1000, 1001, 1999, (1 << 31) - 1, 1 << 31, (1 << 32) + 1, MOST - 1, MOST]
    assert [quota.admit(ALICE, one).charged for one in ids] == [1] * len(ids)
    assert all(quota.active.has(ALICE, one, START_MS + HOUR_MS - 1) for one in ids)


@steady
@given(st.lists(st.integers(0, MOST), max_size=300), st.sampled_from(NAMES), st.integers(0, (1 << 32) - 1))
def test_s03_no_id_that_was_put_in_is_ever_missed(ids: list[int], profile: str, seed: int) -> None:
    active = ActiveProducers(Remembering(cycle=life_cycle(profile), seed=seed))
    for number, one in enumerate(ids):
        active.track(ALICE, one, number)
    assert all(active.has(ALICE, one, len(ids)) for one in ids)


def test_s04_a_request_is_charged_for_its_distinct_new_ids() -> None:
    quota = manager()
    assert quota.admit_request(ALICE, [5] * 40).charged == 1
    assert quota.admit_request(ALICE, [5, 6, 7, 6, 8]).charged == 3
    assert charged(quota) == 4


def test_s05_a_known_id_costs_nothing_and_passes_however_far_over_quota() -> None:
    quota = manager(permissive=True)
    quota.admit_request(ALICE, np.arange(5_000))
    assert quota.admit(ALICE, 10_000).throttle_time_ms > 0
    before = tokens(quota)
    assert before < -4_000
    assert quota.admit(ALICE, 10_000) is quota.admit_request(ALICE, [0, 4_999]) is SEEN
    assert tokens(quota) == before


def test_s06_the_first_new_id_makes_an_entry_and_a_query_makes_none() -> None:
    quota = manager()
    assert not quota.active.has(ALICE, 1, START_MS)
    assert quota.active.entries() == {}
    quota.admit(ALICE, 1)
    assert list(quota.active.entries()) == ["alice"]
    assert len(quota.active) == 1


def test_s07_all_live_layers_are_read_and_the_newest_alone_is_written() -> None:
    store = BloomStore(seed=3)
    layers = Layers(life_cycle("P-B", 1_000, refresh_on_hit=False), store)
    for number in range(3):
        before = [bits_of(store, layer) for layer in range(len(store.items))]
        layers.add(number, number * 500)
        assert [bits_of(store, layer) for layer in range(number)] == before
    assert [layers.find(number, 1_400) for number in range(3)] == [0, 1, 2]


def test_principals_of_odd_characters_are_distinguished() -> None:
    quota, names = manager(), ["", " ", "User:a,b=c", "User:ä\n", "User:*", "CN=x,O=\u2028", "\x00", "User:alice "]
    for name in names:
        assert quota.admit(name, 1).charged == 1
    assert [quota.admit(name, 1) for name in names] == [SEEN] * len(names)
    assert set(quota.active.entries()) == {user_name(name) for name in names}


def test_a_principal_and_the_user_of_its_name_are_one_with_one_bucket() -> None:
    quota = manager(rates=UserRates({"alice": 1.0, "User:bob": 1.0}))
    for name in ("alice", "bob"):
        admitted = [quota.admit(f"User:{name}" if number % 2 else name, number).admitted for number in range(600)]
        assert sum(admitted) == 12  # the burst of 11 at 1 an hour, and the one that leads into debt
        assert quota.admit_request(f"User:{name}", [7_000]).violation.principal == name  # type: ignore[union-attr]
    assert set(quota.active.entries()) == {"alice", "bob"}
    assert quota.active.has("User:alice", 0, quota.now_ms())
    assert quota.active.population("User:alice") == quota.active.population("alice")
    with pytest.raises(ValueError, match=r"rates of 1\.0 and 2\.0 for 'alice'"):
        UserRates({"alice": 1.0, "User:alice": 2.0})
    assert UserRates({"alice": 1.0, "User:alice": 1.0}) == UserRates({"alice": 1.0})


def test_ten_thousand_principals_at_once_have_a_bucket_each() -> None:
    quota = manager(watch=Watch())
    for name in range(10_000):
        assert quota.admit(f"User:{name}", 1).charged == 1
    assert len(quota.active) == 10_000
    assert quota.active.population().size_bytes < 10_000 * 2_000
    assert {tokens(quota, f"User:{name}") for name in range(0, 10_000, 997)} == {549.0}
