from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import pytest

from resnap.replay.leader.append_validation import RULES_3_6
from resnap.replay.producer_state import Expiry
from resnap.tiering.controller.expiration import (
    CHECK_INTERVAL,
    EXPIRATION,
    SETTINGS,
    TRANSACTIONAL_EXPIRATION,
    Level,
    expiration_history,
    expiration_of,
    has_own_setting,
    parse_milliseconds,
)
from resnap.tiering.controller.metadata.folding import fold
from resnap.tiering.controller.metadata.image import (
    ALL_BROKERS,
    METADATA_VERSION,
    Broker,
    ConfigChange,
    ConfigResource,
    MetadataImage,
    ResourceType,
)
from resnap.tiering.controller.metadata.records import SupportedFeature
from tests.cases import each
from tests.replay.simulated_partition import SimulatedPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

OWN = ConfigResource(ResourceType.BROKER, "1")
DAY_MS = 86_400_000
WEEK_MS = 604_800_000


def image(configs: dict[ConfigResource, dict[str, str]] | None = None, *, version: int | None = 21) -> MetadataImage:
    features = {} if version is None else {METADATA_VERSION: version}
    return replace(fold([]), configs=configs or {}, features=features)


def broker(broker_id: int, newest: int) -> Broker:
    feature = SupportedFeature(name=METADATA_VERSION, min_supported_version=1, max_supported_version=newest)
    return Broker(
        broker_id=broker_id, epoch=1, incarnation_id="", endpoints=(), features=(feature,), rack=None, fenced=False,
        in_controlled_shutdown=False, is_migrating_zk_broker=False, log_dirs=(),
    )  # fmt: skip


@each(
    ("own", "of_all", "static", "expected"),
    [
        ("1", "2", "3", (1, Level.BROKER, ("dynamic-default=2", "server-properties=3"))),
        (None, "2", "3", (2, Level.ALL_BROKERS, ("server-properties=3",))),
        (None, None, "3", (3, Level.STATIC, ())),
        (None, None, None, (DAY_MS, Level.DEFAULT, ())),
        ("3", "3", "3", (3, Level.BROKER, ())),
        ("0", "2", None, (2, Level.ALL_BROKERS, ())),
        ("2147483648", None, " +7 ", (7, Level.STATIC, ())),
        ("7d", "-1", None, (DAY_MS, Level.DEFAULT, ())),
    ],
)
def test_the_first_of_four_levels_that_says_something_a_broker_takes_counts(
    own: str | None, of_all: str | None, static: str | None, expected: tuple[int, Level, tuple[str, ...]]
) -> None:
    configs = {OWN: own, ALL_BROKERS: of_all}
    found = image({resource: {EXPIRATION: text} for resource, text in configs.items() if text is not None})
    effective = expiration_of(found, 1, {} if static is None else {EXPIRATION: static}).expiration
    assert (effective.value_ms, effective.level, effective.overruled) == expected
    refused = [text for text in (own, of_all) if text is not None and parse_milliseconds(text) is None]
    assert len(effective.problems) == len(refused)


@pytest.mark.parametrize("name", [CHECK_INTERVAL, TRANSACTIONAL_EXPIRATION])
def test_only_the_expiration_itself_can_be_set_at_run_time(name: str) -> None:
    effective = expiration_of(image({OWN: {name: "5"}}), 1, {name: "6"}).settings[name]
    assert (effective.value_ms, effective.level) == (6, Level.STATIC)
    assert effective.problems == ("dynamic-broker=5 is ignored: the setting is not dynamic",)


def test_kafkas_defaults_are_known() -> None:
    found = expiration_of(image(), 1, {})
    values = {name: effective.value_ms for name, effective in found.settings.items()}
    assert values == {EXPIRATION: DAY_MS, CHECK_INTERVAL: 600_000, TRANSACTIONAL_EXPIRATION: WEEK_MS}
    assert found.check_interval_ms == 600_000
    assert {effective.level for effective in found.settings.values()} == {Level.DEFAULT}
    assert [setting.name for setting in SETTINGS if setting.dynamic] == [EXPIRATION]


def test_producers_expire_apart_from_transactional_ids_since_3_4() -> None:
    static = {TRANSACTIONAL_EXPIRATION: "9999", EXPIRATION: "5"}
    assert expiration_of(image(), 1, static).expiration.value_ms == 5


def test_a_broker_before_3_4_uses_the_setting_of_transactional_ids() -> None:
    old = replace(image({ALL_BROKERS: {EXPIRATION: "5"}}, version=7), brokers={1: broker(1, 7), 2: broker(2, 8)})
    static = {TRANSACTIONAL_EXPIRATION: "9999", EXPIRATION: "5"}
    before = expiration_of(old, 1, static)
    assert (before.has_own_setting, before.expiration.name, before.expiration.value_ms) == (
        False,
        TRANSACTIONAL_EXPIRATION,
        9999,
    )
    assert before.settings[CHECK_INTERVAL].level is Level.FIXED
    assert before.check_interval_ms == 600_000
    after = expiration_of(old, 2, static)
    assert (after.has_own_setting, after.expiration.value_ms) == (True, 5)


def test_where_the_release_is_not_known_the_longer_time_counts() -> None:
    unknown = image(version=None)
    assert has_own_setting(unknown, 1) is None
    assert expiration_of(unknown, 1, {}).expiration.value_ms == WEEK_MS
    assert expiration_of(unknown, 1, {EXPIRATION: str(2 * WEEK_MS)}).expiration.name == EXPIRATION


def test_a_live_change_is_in_force_from_when_it_was_made() -> None:
    def change(resource: ConfigResource, value: str | None, timestamp: int) -> ConfigChange:
        return ConfigChange(resource=resource, name=EXPIRATION, value=value, offset=timestamp, timestamp=timestamp)

    other = ConfigResource(ResourceType.BROKER, "2")
    changes = (
        change(ALL_BROKERS, "100", 10),
        change(other, "7", 20),
        change(OWN, "300", 30),
        change(ALL_BROKERS, "200", 40),
        change(OWN, None, 50),
        change(ALL_BROKERS, None, 60),
    )
    changed = replace(image(), broker_config_changes=changes)
    history = [(since_ms, one.value_ms) for since_ms, one in expiration_history(changed, 1, {EXPIRATION: "400"})]
    assert history == [(0, 400), (10, 100), (30, 300), (50, 200), (60, 400)]


@each(
    ("text", "value"),
    [("1", 1), (" 86400000\n", DAY_MS), ("+5", 5), ("2147483647", 2**31 - 1), ("2147483648", None), ("0", None),
     ("-1", None), ("", None), ("1.5", None), ("1d", None), ("0x10", None), ("9" * 50, None),
     ("00086400000", DAY_MS), ("+\u0665", 5), ("\uff15", 5), ("\U0001d7dd", None), ("\x1f5\x00", 5), ("\xa05", None),
     ("5\u2003", None), ("+", None), ("9" * 5000, None)],
)  # fmt: skip
def test_a_value_is_read_as_a_broker_reads_it(text: str, value: int | None) -> None:
    assert parse_milliseconds(text) == value


def test_dynamic_producer_id_expiration_ms() -> None:
    """Three brokers follow one setting: raised they keep a producer, lowered they drop it, a restarted one, too."""
    brokers = {broker_id: SimulatedPartition(RULES_3_6, Expiry(10_000, 500), now_ms=0) for broker_id in (0, 1, 2)}

    def follow(value: str) -> None:
        for broker_id, partition in brokers.items():
            found = expiration_of(image({ALL_BROKERS: {EXPIRATION: value}}), broker_id, {EXPIRATION: "10000"})
            partition.set_expiration(found.expiration.value_ms)

    def who_knows() -> set[int]:
        return {broker_id for broker_id, partition in brokers.items() if partition.manager.producers}

    for partition in brokers.values():
        partition.append(7)
    follow("100000")
    for partition in brokers.values():
        partition.wait(14_000)
    assert who_knows() == {0, 1, 2}
    follow("100")
    assert who_knows() == {0, 1, 2}, "it counts from the next check on"
    brokers[2].restart()
    assert who_knows() == {0, 1}
    for partition in brokers.values():
        partition.wait(500)
    assert who_knows() == set()
