"""How often an address may fail, by which names the service goes, and who may listen where."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.scheduler.access.control import NO_ADDRESS, AttemptLimit, Hosts, check_listening, site_of
from resnap.scheduler.access.roles import CrossSiteError, UnknownHostError
from resnap.storage.errors import ConfigurationError
from tests.clocks import FixedClock


def test_attempts_come_back_with_time_and_never_add_up_beyond_the_burst(clock: FixedClock) -> None:
    limit = AttemptLimit(clock, burst=3, refill_s=10)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 10]
    clock.advance(4_000)
    assert limit.take("a") == 6
    clock.advance(6_000)
    assert [limit.take("a"), limit.take("a")] == [0, 10]
    clock.advance(3_600_000)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 10]


def test_each_address_has_its_own(clock: FixedClock) -> None:
    limit = AttemptLimit(clock, burst=1)
    assert limit.take("10.0.0.1") == 0
    assert limit.take("10.0.0.1") > 0
    assert limit.take("10.0.0.2") == 0


def test_who_has_many_addresses_gains_ten_times_as_much_at_most(clock: FixedClock) -> None:
    limit = AttemptLimit(clock, burst=2, refill_s=10)
    assert [limit.take(f"10.0.0.{n}") for n in range(21)] == [0] * 20 + [1]
    clock.advance(1_000)
    assert [limit.take("10.0.1.1"), limit.take("10.0.1.2")] == [0, 1]


@given(st.lists(st.integers(0, 50), max_size=200))
def test_memory_is_bounded_for_any_number_of_callers(callers: list[int]) -> None:
    limit = AttemptLimit(FixedClock(0), addresses=10)
    for caller in callers:
        limit.take(str(ipaddress.IPv4Address(caller)))
    assert len(limit) == min(10, len(set(callers)))


def test_a_clock_that_stands_still_gives_no_more_than_the_burst() -> None:
    limit = AttemptLimit(FixedClock(0), burst=5)
    assert sum(limit.take("a") == 0 for _ in range(100)) == 5


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("local", NO_ADDRESS),
        ("9" * 60_000, NO_ADDRESS),
    ],
)
def test_a_site_is_one_address_or_one_network_of_64_bits(address: str, site: str) -> None:
    assert site_of(address) == site


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker-1", "localhost.example", ""])  # noqa: S104
def test_without_tokens_the_service_does_not_listen_on_public_addresses(host: str) -> None:
    with pytest.raises(ConfigurationError, match="auth is none"):
        check_listening(host, "none")
    check_listening(host, "token")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_without_tokens_the_loopback_interface_will_do(host: str) -> None:
    check_listening(host, "none")


def test_names_may_be_added_to_those_of_the_loopback_interface() -> None:
    hosts = Hosts("127.0.0.1", ("resnap.example",))
    hosts.check({"host": "Resnap.example:443"}, changes=False)
    with pytest.raises(UnknownHostError):
        hosts.check({"host": "evil.example"}, changes=False)
    with pytest.raises(UnknownHostError):
        hosts.check({}, changes=False)


def test_where_others_reach_it_names_count_once_there_are_some() -> None:
    Hosts("0.0.0.0").check({"host": "10.0.0.7:8936"}, changes=False)  # noqa: S104
    named = Hosts("0.0.0.0", ("resnap.example",))  # noqa: S104
    named.check({"host": "resnap.example"}, changes=False)
    named.check({"host": "127.0.0.1:8936"}, changes=False)
    with pytest.raises(UnknownHostError):
        named.check({"host": "10.0.0.7:8936"}, changes=False)


def test_an_origin_counts_by_its_whole_authority() -> None:
    hosts = Hosts("127.0.0.1")
    hosts.check({"host": "localhost:8936", "origin": "http://localhost:8936"}, changes=True)
    hosts.check({"host": "localhost:8936", "origin": "http://evil.example"}, changes=False)
    for origin in ("http://localhost:1", "http://localhost", "null", "", "http://127.0.0.1:8936"):
        with pytest.raises(CrossSiteError):
            hosts.check({"host": "localhost:8936", "origin": origin}, changes=True)
