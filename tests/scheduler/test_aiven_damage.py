"""One damaged piece of an encrypted store: it is named, and everything else goes on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.crc32c import crc32c
from tests.scheduler import aiven_files
from tests.scheduler.files import EMPTY_SNAPSHOT, flip
from tests.scheduler.shipped import entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

    Sets = Callable[[str], FixtureSet]

pytestmark = pytest.mark.usefixtures("producers_stay")

ENCRYPTED: Final = "kafka-3.9.1-aiven-encrypted"
PLAIN: Final = "kafka-3.9.1-aiven-plain"
HEADER_BYTES: Final = 10
"""Of a snapshot; an entry has 46, the last 8 of them the first offset of an open transaction."""
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


def put_an_open_transaction(manifest: Path) -> None:
    """Let the first entry of a plain snapshot have a transaction open, under a checksum that is right."""
    snapshot = bytearray(aiven_files.index(manifest, "producerSnapshot"))
    snapshot[HEADER_BYTES + 38 : HEADER_BYTES + 46] = (5).to_bytes(8, "big")
    snapshot[2:6] = crc32c(bytes(snapshot[6:])).to_bytes(4, "big")
    aiven_files.put_index(manifest, "producerSnapshot", bytes(snapshot))


def empty(manifest: Path) -> None:
    aiven_files.put_index(manifest, "producerSnapshot", EMPTY_SNAPSHOT)


@pytest.mark.parametrize(
    ("name", "damage"), [(ENCRYPTED, damage_snapshot), (PLAIN, put_an_open_transaction), (PLAIN, empty)]
)
def test_a_snapshot_that_is_wrong_is_named_and_restored_as_the_segments_give_it(
    name: str, damage: Callable[[Path], None], command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture, into = fixture_set(name), tmp_path / "new"
    private = fixture.root / "keys" / "private.pem"
    key = ("--encryption-private-key", f"key1={private}") if private.exists() else ()
    store = shutil.copytree(fixture.remote / "tiered", tmp_path / "store")
    manifest = aiven_files.manifests(store)[1]
    damage(manifest)
    into.mkdir()
    ran = command("restore", store.as_uri(), "--into", into, *key, *HOW)
    assert (ran.code, ran.document["summary"]["restored"]) == (3, 2), ran.err
    assert f"{manifest.stem}#.snapshot" in ran.err
    assert ran.err.count("rebuilt from the stored segments") == 1
    snapshots = list(into.rglob("*.snapshot"))
    assert len(snapshots) == len(list(store.rglob("*.rsm-manifest")))
    for path in snapshots:
        broker_s = fixture.expected / path.parent.name / path.name
        assert entries(path.read_bytes()) == entries(broker_s.read_bytes())


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
