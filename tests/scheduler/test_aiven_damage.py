"""One damaged piece of an encrypted store: it is named, and everything else goes on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

from tests.scheduler import aiven_files
from tests.scheduler.files import flip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

    Sets = Callable[[str], FixtureSet]

ENCRYPTED: Final = "kafka-3.9.1-aiven-encrypted"
HOW: Final = ("--engine", "local", "--as-of", "roll", "--output", "json", "-q")


def damage_snapshot(manifest: Path) -> None:
    place = aiven_files.read(manifest)["segmentIndexes"]["producerSnapshot"]
    flip(manifest.with_suffix(".indexes"), place["position"] + 20)


def damage_data_key(manifest: Path) -> None:
    said = aiven_files.read(manifest)
    key = said["encryption"]["dataKey"]
    middle = len(key) // 2
    said["encryption"]["dataKey"] = key[:middle] + ("B" if key[middle] == "A" else "A") + key[middle + 1 :]
    aiven_files.write(manifest, said)


@pytest.mark.parametrize("case", [(damage_snapshot, 8, 7), (damage_data_key, 5, 3)])
def test_one_damaged_piece_is_named_and_the_rest_goes_on(
    case: tuple[Callable[[Path], None], int, int], command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    (damage, rebuilt, shipped), fixture = case, fixture_set(ENCRYPTED)
    key = ("--encryption-private-key", f"key1={fixture.root / 'keys' / 'private.pem'}")
    store = shutil.copytree(fixture.remote / "tiered", tmp_path / "store")
    manifest = aiven_files.manifests(store)[1]
    damage(manifest)
    url = store.as_uri()
    ran = command("verify", "--store", url, *key, *HOW)
    wrong = [row["manifest"] for row in ran.document["segments"] if row["result"] == "different"]
    assert (ran.code, [manifest.name in name for name in wrong]) == (13, [True]), ran.err
    assert ran.document["summary"]["snapshotsReplayed"] == 7
    assert command("scan", url, *key, "--output", "json", "-q").code == 0
    made = ("--boundaries", "all", "--into", tmp_path / "made", "--state-dir", tmp_path / "state")
    for _ in range(2):
        ran = command("regenerate", url, *made, *key, *HOW)
        outcomes = [row["outcome"] for row in ran.document["boundaries"]]
        assert outcomes.count("rebuilt") + outcomes.count("unchanged") == rebuilt, ran.err
    ran = command("tier", url, "--to", (tmp_path / "to").as_uri(), *key, *HOW)
    assert sum(len(row["shipped"]) for row in ran.document["partitions"]) == shipped, ran.err


def test_a_key_that_opens_nothing_is_a_setting_and_the_segment_is_named(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(ENCRYPTED)
    key = ("--encryption-private-key", f"key1={fixture.root / 'keys' / 'private.pem'}")
    store = shutil.copytree(fixture.remote / "tiered", tmp_path / "store")
    for manifest in store.rglob("*.rsm-manifest"):
        damage_data_key(manifest)
    ran = command("verify", "--store", store.as_uri(), *key, *HOW)
    assert (ran.code, ran.error["type"], "rsm-manifest: the private key" in ran.err) == (10, "ConfigurationError", True)
