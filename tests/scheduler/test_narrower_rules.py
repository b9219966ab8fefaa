"""What was shipped under rules that keep fewer producers is named by ``tier`` and ``verify``; daily use is silent."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from scheduler.clock import instant
from storage.remote.manifest import read_manifest
from tests.scheduler.files import tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Tier = Callable[..., Ran]

JSON: Final = ("--output", "json", "-q")
LOCAL: Final = ("--engine", "local", *JSON)
NARROW: Final = ("--as-of", "roll", "--producer-id-expiration-ms", "1000", *LOCAL)
WIDE_FLAGS: Final = ("--producer-id-expiration-ms", "604800000")
WIDE: Final = ("--as-of", "roll", *WIDE_FLAGS, *LOCAL)


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet]) -> Path:
    return fixture_set("kafka-2.7.2-nine-days").data


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def tier(command: Resnap, data: Path, store: Path) -> Tier:
    return lambda *arguments: command("tier", data, "--to", store.as_uri(), "--partition", "payments-1", *arguments)


def differing(ran: Ran) -> int:
    found: dict[str, Any] = ran.document["summary"]
    return int(found["snapshotsDifferent"])


def test_a_shorter_expiration_is_named_by_the_next_tier_and_by_verify_with_the_flag(
    command: Resnap, tier: Tier, store: Path
) -> None:
    assert tier(*NARROW).code == 0
    before = tree(store)
    ran = tier(*WIDE)
    assert (ran.code, ran.document["summary"]["shipped"]) == (13, 0)
    assert tree(store) == before
    said = ran.error["message"]
    assert said.startswith(f"payments-1: what {store.as_uri()} holds of the offsets [")
    assert (
        "was made under producer.id.expiration.ms 1000, at its roll; under producer.id.expiration.ms 604800000" in said
    )
    assert "it lacks producers" in said
    verify = ("verify", "--store", store.as_uri(), *LOCAL)
    at_defaults = command(*verify)
    assert (at_defaults.code, differing(at_defaults)) == (0, 0)
    with_flag = command(*verify, *WIDE_FLAGS)
    assert with_flag.code == 13
    assert differing(with_flag) > 15
    assert "it was made under producer.id.expiration.ms 1000, at its roll" in with_flag.err
    # A file is not a flag: what it asks for counts where it keeps more than the manifest's rules.
    asked = {"RESNAP_AS_OF": "roll", "RESNAP_PRODUCER_ID_EXPIRATION_MS": "604800000"}
    assert differing(command(*verify, **asked)) == differing(with_flag)
    assert command(*verify, RESNAP_PRODUCER_ID_EXPIRATION_MS="1000").code == 0


def test_what_keeps_more_than_is_asked_for_is_right(command: Resnap, tier: Tier, store: Path) -> None:
    assert tier(*WIDE).code == 0
    for rules in (NARROW, ("--as-of", "now", *LOCAL)):
        ran = tier(*rules)
        assert (ran.code, ran.err) == (0, "")
    assert command("verify", "--store", store.as_uri(), *LOCAL).code == 0


def times(store: Path) -> list[int]:
    """Return the largest timestamps of the segments that were shipped, ascending."""
    manifests = (read_manifest(path.read_bytes()) for path in store.rglob("*.manifest"))
    return sorted(one.max_timestamp_ms or 0 for one in manifests)


def test_each_night_is_later_and_silent_and_an_earlier_moment_is_named(tier: Tier, store: Path) -> None:
    assert tier(*WIDE).code == 0
    at = times(store)
    shutil.rmtree(store)
    expiration = ("--producer-id-expiration-ms", "86400000", *LOCAL)
    first, later = (("--as-of", instant(ms), *expiration) for ms in (at[len(at) // 2], at[-1]))
    for night in (first, first, later):
        ran = tier(*night)
        assert (ran.code, ran.err) == (0, "")
    shutil.rmtree(store)
    assert tier(*later).code == 0
    ran = tier(*first)
    assert ran.code == 13
    assert f"as of {instant(at[-1])}" in ran.error["message"]


def test_nobody_is_missed_of_a_topic_without_producers(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path
) -> None:
    data = fixture_set("kafka-2.7.2-no-producers").data
    for rules in (NARROW, WIDE):
        ran = command("tier", data, "--to", store.as_uri(), *rules)
        assert (ran.code, ran.err) == (0, "")
    assert command("verify", "--store", store.as_uri(), *WIDE_FLAGS, *LOCAL).code == 0


def test_segments_that_are_shipped_beside_them_do_not_hide_what_is_wrong(
    command: Resnap, tier: Tier, data: Path, store: Path, tmp_path: Path
) -> None:
    shorter = tmp_path / "data"
    shutil.copytree(data, shorter)
    newest = sorted((shorter / "payments-1").glob("*.log"))[-3:]
    for path in (one for log in newest for one in log.parent.glob(f"{log.stem}.*")):
        path.unlink()
    assert command("tier", shorter, "--to", store.as_uri(), "--partition", "payments-1", *NARROW).code == 0
    ran = tier(*WIDE)
    assert ran.document["summary"]["shipped"] > 0
    assert ran.code == 13


def test_a_dry_run_says_what_will_be_looked_at(tier: Tier) -> None:
    assert tier(*NARROW).code == 0
    ran = tier("--as-of", "roll", *WIDE_FLAGS, "--engine", "local", "--dry-run")
    assert ran.code == 0
    assert "payments-1: 22 segments that the store holds, from offset 0 on, were made under narrower rules" in ran.err
