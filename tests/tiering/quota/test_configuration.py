"""Quotas of users: order, checks, records and filters (statements 27 to 31 of ``docs/quota.md``)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.tiering.quota.active_producers import Cleaner, Remembering
from resnap.tiering.quota.client_quotas import (
    CLIENT_ID,
    IP,
    PRODUCER_IDS_RATE,
    USER,
    ClientQuotas,
    FilterPart,
    Match,
    QuotaChange,
    QuotaRecord,
    QuotaRequestError,
    UserRates,
    entity_of,
    user,
)
from resnap.tiering.quota.quota_manager import SEEN
from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit
from tests.cases import each
from tests.tiering.quota.quotas import ALICE, BOB, manager, sequential, steady, tokens

RATE = PRODUCER_IDS_RATE
KEYS = [RATE, "producer_byte_rate", "request_percentage"]


def quotas(*changes: tuple[str | None, float]) -> ClientQuotas:
    return ClientQuotas({user(name): {RATE: value} for name, value in changes})


def test_s27_a_users_own_rate_overrides_the_defaults_and_no_rate_means_no_limit() -> None:
    rates = quotas(("alice", 5.0), (None, 7.0)).rates()
    assert (rates.of("alice"), rates.of("bob")) == (5.0, 7.0)
    assert quotas(("alice", 5.0)).rates().of("bob") is None
    assert quotas().rates() == UserRates()


def test_s27_the_default_gives_each_user_a_bucket_of_its_own() -> None:
    quota = manager(rates=UserRates(default=50.0))
    quota.admit_request(ALICE, sequential(551))
    assert not quota.admit(ALICE, 1).admitted
    assert quota.admit(BOB, 1).charged == 1
    assert (tokens(quota, ALICE), tokens(quota, BOB)) == (-1, 549)


def test_s27_a_rate_of_ones_own_that_is_set_later_begins_with_the_tokens_that_are_left() -> None:
    quota = manager(rates=UserRates(default=50.0))
    quota.admit_request(ALICE, sequential(551))
    quota.update(UserRates(users={ALICE: 500.0}, default=50.0))
    assert quota.admit(ALICE, 1).throttle_time_ms == 7_200
    quota.update(UserRates(users={"User:new": 1.0}, default=None))
    assert quota.admit("User:new", 1).charged == 1
    assert tokens(quota, "User:new") == 10


@pytest.mark.parametrize(
    "entity",
    [{CLIENT_ID: "c"}, {CLIENT_ID: None}, {USER: "u", CLIENT_ID: "c"}, {USER: None, CLIENT_ID: None}, {IP: "10.0.0.1"}],
)
def test_s28_the_rate_is_refused_for_all_but_users(entity: dict[str, str | None]) -> None:
    with pytest.raises(QuotaRequestError, match="for users alone") as refused:
        ClientQuotas().altered({entity_of(entity.items()): [QuotaChange(RATE, 5.0)]})
    assert refused.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, -math.inf, math.nan])
def test_s28_a_rate_must_be_greater_than_zero(value: float) -> None:
    with pytest.raises(QuotaRequestError, match="greater than 0") as refused:
        ClientQuotas().altered({user("u"): [QuotaChange(RATE, value)]})
    assert refused.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize("value", [math.inf, 1e19, 1e308])
def test_s28_a_rate_beyond_the_largest_long_is_refused_and_counts_as_that_where_a_cluster_has_it(value: float) -> None:
    with pytest.raises(QuotaRequestError, match="too large"):
        ClientQuotas().altered({user("a"): [QuotaChange(RATE, value)]})
    rate = quotas(("a", value)).rates().users["a"]
    assert math.isfinite(QuotaConfig().burst(rate))


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_s28_a_rate_that_a_program_gives_is_checked(rate: float) -> None:
    for give in (lambda: UserRates({"a": rate}), lambda: UserRates(default=rate)):
        with pytest.raises(ValueError, match=f"a rate of {rate}"):
            give()


@pytest.mark.parametrize("parts", [[(USER, "b\udcff")], [(USER, None), (USER, "a")]])
def test_s28_a_name_that_is_not_utf_8_or_a_default_beside_a_name_is_refused(
    parts: list[tuple[str, str | None]],
) -> None:
    with pytest.raises(QuotaRequestError):
        entity_of(parts)


def test_s28_half_an_id_an_hour_is_a_rate() -> None:
    assert ClientQuotas().altered({user("u"): [QuotaChange(RATE, 0.5)]}) == [QuotaRecord(user("u"), RATE, 0.5)]


@each(
    ("entity", "key", "value", "says"),
    [
        ((), RATE, 1.0, "without any type"),
        ((("group", "g"),), RATE, 1.0, "unknown entity type"),
        (((USER, ""),), RATE, 1.0, "empty name"),
        (((USER, "a"), (USER, "b")), RATE, 1.0, "twice"),
        (((USER, "a"), (IP, "1.2.3.4")), "connection_creation_rate", 1.0, "cannot be combined"),
        (((USER, "a"),), "producer_id_rate", 1.0, "unknown quota"),
        (((USER, "a"),), "connection_creation_rate", 1.0, "unknown quota"),
        (((USER, "a"),), "producer_byte_rate", 1.5, "whole number"),
        (((USER, "a"),), "producer_byte_rate", 1e19, "too large"),
        (((IP, "1.2.3.4"),), "connection_creation_rate", 2.0**31, "too large"),
    ],
)
def test_s28_what_the_controller_refuses_is_refused(
    entity: tuple[tuple[str, str | None], ...], key: str, value: float, says: str
) -> None:
    with pytest.raises(QuotaRequestError, match=says):
        ClientQuotas().altered({entity: [QuotaChange(key, value)]})


def test_s28_what_a_record_should_not_say_is_ignored_with_a_warning() -> None:
    told: list[str] = []
    there = ClientQuotas(
        {
            user("good"): {RATE: 3.0, "unknown_key": 1.0},
            user("zero"): {RATE: 0.0},
            user("bad"): {RATE: -1.0},
            user("nan"): {RATE: math.nan},
            entity_of([(USER, "u"), (CLIENT_ID, "c")]): {RATE: 4.0},
        }
    )
    assert there.rates(told.append) == UserRates(users={"good": 3.0, "zero": 0.0})
    assert len(told) == 3
    assert any("user 'bad'" in text for text in told)


def test_s29_records_set_and_remove_keys_and_the_last_key_takes_its_entity_along() -> None:
    one, default = user("alice"), user(None)
    changes = {one: [QuotaChange(RATE, 5.0), QuotaChange("producer_byte_rate", 9.0)], default: [QuotaChange(RATE, 1.0)]}
    made = ClientQuotas().applied(ClientQuotas().altered(changes))
    assert made.entities == {one: {RATE: 5.0, "producer_byte_rate": 9.0}, default: {RATE: 1.0}}
    fewer = made.applied(made.altered({one: [QuotaChange(RATE, None)]}))
    assert fewer.entities == {one: {"producer_byte_rate": 9.0}, default: {RATE: 1.0}}
    gone = fewer.applied(fewer.altered({one: [QuotaChange("producer_byte_rate", None)]}))
    assert gone.entities == {default: {RATE: 1.0}}


def test_s29_what_changes_nothing_makes_no_record() -> None:
    there = quotas(("alice", 5.0))
    assert there.altered({user("alice"): [QuotaChange(RATE, 5.0)], user("bob"): [QuotaChange(RATE, None)]}) == []


def test_s29_a_key_twice_is_refused_and_a_request_is_all_or_nothing() -> None:
    with pytest.raises(QuotaRequestError, match="twice"):
        ClientQuotas().altered({user("alice"): [QuotaChange(RATE, 5.0), QuotaChange(RATE, 6.0)]})
    with pytest.raises(QuotaRequestError, match="greater than 0"):
        ClientQuotas().altered({user("alice"): [QuotaChange(RATE, 5.0)], user("bob"): [QuotaChange(RATE, 0.0)]})


def test_s29_what_a_snapshot_lacks_is_gone() -> None:
    quota = manager(rates=quotas(("alice", 5.0), ("bob", 5.0)).rates())
    assert quota.admit("alice", 1).charged == 1
    quota.update(quotas(("bob", 5.0)).rates())
    assert quota.admit("alice", 2) is SEEN


@steady
@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from(KEYS), st.none() | st.integers(1, 5))))
def test_s29_the_records_of_any_requests_rebuild_what_the_requests_made(
    requests: list[tuple[str | None, str, int | None]],
) -> None:
    live, log = ClientQuotas(), list[QuotaRecord]()
    wanted: dict[tuple[str | None, str], float] = {}
    for name, key, value in requests:
        records = live.altered({user(name): [QuotaChange(key, value if value is None else float(value))]})
        live, log = live.applied(records), log + records
        if value is None:
            wanted.pop((name, key), None)
        else:
            wanted[name, key] = value
    assert ClientQuotas().applied(log) == live
    assert {
        (entity[0][1], key): value for entity, values in live.entities.items() for key, value in values.items()
    } == wanted


EVERYBODY = ClientQuotas(
    {
        user("alice"): {RATE: 1.0},
        user(None): {RATE: 2.0},
        entity_of([(USER, "alice"), (CLIENT_ID, "c")]): {"producer_byte_rate": 3.0},
        entity_of([(IP, None)]): {"connection_creation_rate": 4.0},
    }
)


@pytest.mark.parametrize(
    ("parts", "strict", "values"),
    [
        ([], False, [4, 3, 2, 1]),
        ([FilterPart(USER, Match.EXACT, "alice")], False, [3, 1]),
        ([FilterPart(USER, Match.EXACT, "alice")], True, [1]),
        ([FilterPart(USER, Match.DEFAULT)], False, [2]),
        ([FilterPart(USER, Match.ANY)], True, [2, 1]),
        ([FilterPart(USER, Match.ANY), FilterPart(CLIENT_ID, Match.ANY)], True, [3]),
        ([FilterPart(IP, Match.ANY)], False, [4]),
    ],
)
def test_s30_filters_pick_by_exact_name_default_or_any_and_strictly(
    parts: list[FilterPart], strict: bool, values: list[float]
) -> None:
    found = [value for _, keys in EVERYBODY.described(parts, strict=strict) for value in keys.values()]
    assert sorted(found) == sorted(values)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([FilterPart(USER, Match.ANY), FilterPart(USER, Match.DEFAULT)], "INVALID_REQUEST"),
        ([FilterPart(USER, Match.ANY), FilterPart(IP, Match.ANY)], "INVALID_REQUEST"),
        ([FilterPart(USER, Match.EXACT)], "INVALID_REQUEST"),
        ([FilterPart("group", Match.ANY)], "UNSUPPORTED_VERSION"),
    ],
)
def test_s30_filters_that_kafka_refuses_are_refused(parts: list[FilterPart], code: str) -> None:
    with pytest.raises(QuotaRequestError) as refused:
        list(ClientQuotas().described(parts))
    assert refused.value.code == code


def test_s31_the_defaults_are_the_kips_and_ten_milliseconds_between_clean_ups_are_accepted() -> None:
    assert QuotaConfig() == QuotaConfig(samples=11, window_ms=3_600_000, unit=RateUnit.HOUR)
    with Cleaner(lambda: None, interval_ms=10) as cleaner:
        assert cleaner.is_running


@pytest.mark.parametrize("numbers", [{"samples": 0}, {"window_ms": 0}, {"samples": -1}])
def test_s31_fewer_than_one_sample_or_millisecond_is_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        QuotaConfig(**numbers)
    with pytest.raises(ValueError, match="1 or more"):
        Cleaner(lambda: None, interval_ms=0)


@each(
    "wrong", [{"false_positive_rate": 0}, {"false_positive_rate": 1}, {"max_bytes": 0}, {"seed": -1}, {"seed": 1 << 32}]
)
def test_what_no_filter_can_have_is_refused_before_the_first_id(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        Remembering(**wrong)  # type: ignore[arg-type]


@each("wrong", [{"max_throttle_ms": -1}, {"warm_up_ms": -1}])
def test_s23_times_below_0_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        manager(**wrong)


def test_s31_where_no_quota_was_ever_set_nothing_is_kept() -> None:
    quota = manager(rate=None)
    assert [quota.admit(ALICE, one) for one in range(1_000)] == [SEEN] * 1_000
    assert quota.admit_request(ALICE, sequential(1_000)) is SEEN
    assert quota.active.entries() == {}


def test_a_rate_of_a_user_named_as_a_principal_is_ignored_as_a_broker_ignores_it() -> None:
    heard: list[str] = []
    quotas = ClientQuotas({user("User:alice"): {PRODUCER_IDS_RATE: 9.0}, user("bob"): {PRODUCER_IDS_RATE: 2.0}})
    rates = quotas.rates(heard.append)
    assert (rates.of("alice"), rates.of("User:alice"), rates.of("User:bob")) == (None, None, 2.0)
    assert heard == ["producer_ids_rate of user 'User:alice' is ignored: the user's name is 'alice'"]
