"""What Resnap says of its own segments in the layout ``aiven``: an object beside, for ``verify``, ``tier``, ``gc``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.layouts.aiven.members import origin_key, segment_key_of_origin
from tests.scheduler.files import flip, tree
from tests.scheduler.shipped import files_of
from tests.scheduler.test_aiven_tier import ENCRYPTED, PLAIN, form_of, key_of, objects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Tier = Callable[..., Ran]

LOCAL: Final = ("--engine", "local", "--output", "json", "-q")
NARROW: Final = ("--as-of", "now", "--producer-id-expiration-ms", "1000")
WIDE: Final = ("--as-of", "roll", "--producer-id-expiration-ms", "604800000")


def without_snapshots(fixture: FixtureSet, to: Path) -> Path:
    return shutil.copytree(fixture.data, to, ignore=shutil.ignore_patterns("*.snapshot"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def tier(command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path, tmp_path: Path) -> Tier:
    fixture = fixture_set(PLAIN)
    data = without_snapshots(fixture, tmp_path / "data")
    where = ("--topic", "payments", "--to", store.as_uri(), *form_of(fixture), *LOCAL)
    return lambda *arguments: command("tier", data, *where, *arguments)


def origins(store: Path) -> list[Path]:
    return sorted((store / "tiered" / ".resnap" / "origin").rglob("*.json"))


def test_verify_uses_the_rules_of_the_manifest_unless_a_flag_says_others(
    command: Resnap, tier: Tier, store: Path
) -> None:
    assert tier(*NARROW).code == 0
    assert len(origins(store)) == len(objects(store)) // 3 == 7
    partition = next((store / "tiered").glob("payments-*/1"))
    for place, count in ((store, 7), (store / "tiered", 7), (partition, 4)):
        ran = command("verify", "--store", place.as_uri(), *LOCAL)
        assert (ran.code, ran.document["summary"]["snapshotsReplayed"]) == (0, count), ran.err
        ran = command("verify", "--store", place.as_uri(), *WIDE, *LOCAL)
        assert (ran.code, ran.document["summary"]["snapshotsDifferent"]) == (13, count)
        assert "it was made under producer.id.expiration.ms 1000" in ran.err


def test_a_later_run_that_would_keep_more_names_what_is_missing(tier: Tier, store: Path) -> None:
    assert tier(*NARROW).code == 0
    before = tree(store)
    ran = tier(*WIDE)
    assert (ran.code, ran.document["summary"]["shipped"]) == (13, 0)
    assert "was made under producer.id.expiration.ms 1000" in ran.error["message"]
    assert "`resnap remote status LOG_DIR --store` shows which of these segments brokers know" in ran.error["hint"]
    assert tree(store) == before
    assert tier(*NARROW).code == 0


def test_what_is_encrypted_is_named_too_also_where_only_the_public_key_is_at_hand(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path, tmp_path: Path
) -> None:
    fixture = fixture_set(ENCRYPTED)
    data = without_snapshots(fixture, tmp_path / "data")
    where = ("--topic", "payments", "--to", store.as_uri(), *form_of(fixture), *LOCAL)
    assert command("tier", data, *where, *NARROW).code == 0
    ran = command("tier", data, *where, *WIDE)
    assert ran.code == 13
    assert "it may lack producers" in ran.error["message"]
    ran = command("tier", data, *where, *WIDE, *key_of(fixture))
    assert ran.code == 13
    assert "it lacks producers" in ran.error["message"]


def test_gc_leaves_it_while_its_segment_is_there_and_then_takes_it(command: Resnap, tier: Tier, store: Path) -> None:
    assert tier(*NARROW).code == 0
    gc = ("gc", store.as_uri(), "--older-than", "0s", "--no-other-writers", "--delete")
    before = files_of(store)
    assert command(*gc).code == 0
    assert files_of(store) == before
    first, second, *_ = origins(store)
    for origin, suffixes in ((first, ("log", "indexes", "rsm-manifest")), (second, ("rsm-manifest",))):
        place = segment_key_of_origin(str(origin.relative_to(store)))
        assert place is not None
        assert store / origin_key(place.key) == origin
        for suffix in suffixes:
            (store / place.beside(suffix)).unlink()
    assert command(*gc).code == 0
    assert not first.exists()
    assert second.exists()


def test_one_that_is_damaged_is_named_and_the_rest_is_verified(command: Resnap, tier: Tier, store: Path) -> None:
    assert tier(*NARROW).code == 0
    damaged = origins(store)[0]
    flip(damaged, damaged.read_bytes().index(b"1000"), 1)
    ran = command("verify", "--store", store.as_uri(), *LOCAL)
    assert ran.code == 13
    assert f"{damaged.relative_to(store)}: origin of a snapshot" in ran.err
    assert ran.document["summary"]["different"] == 1
    assert command("scan", (store / "tiered").as_uri(), *LOCAL[2:]).code == 0


def test_restore_uses_the_recorded_rules_too(command: Resnap, tier: Tier, store: Path, tmp_path: Path) -> None:
    assert tier(*NARROW).code == 0
    url = (store / "tiered").as_uri()
    for name in ("as-shipped", "as-asked-for"):
        (tmp_path / name).mkdir()
    ran = command("restore", url, "--into", tmp_path / "as-shipped", *LOCAL)
    assert (ran.code, ran.err) == (0, "")
    ran = command("restore", url, "--into", tmp_path / "as-asked-for", *WIDE, *LOCAL)
    assert "rebuilt from the stored segments" in ran.err
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / name).rglob("*.snapshot"))
        for name in ("as-shipped", "as-asked-for")
    ]
    assert sizes[0] < sizes[1], "producers are back"
