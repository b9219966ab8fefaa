"""What ``tier --layout local-tiered`` writes is what a broker wrote itself, and Resnap still finds its way in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from resnap.storage.words import some
from tests.scheduler.shipped import entries, files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

JSON = ("--output", "json")


@pytest.fixture
def tiered(fixture_set: Callable[[str], FixtureSet]) -> FixtureSet:
    return fixture_set("kafka-3.9.1-tiered")


@pytest.fixture
def tier(command: Resnap, tmp_path: Path) -> Callable[[Path], Ran]:
    store = (tmp_path / "store").as_uri()
    how = ("--layout", "local-tiered", "--as-of", "roll", "--engine", "local", "--topic", "payments", *JSON)
    return lambda data: command("tier", data, "--to", store, *how)


def objects(root: Path) -> dict[tuple[str, str, str], bytes]:
    """Return what a folder of ``LocalTieredStorage`` holds, by partition, base offset and extension."""
    files = (path for path in (root / "kafka-tiered-storage").rglob("*") if path.is_file())
    return {(path.parent.name, path.name[:20], path.suffix): path.read_bytes() for path in files}


def test_the_objects_are_those_that_a_broker_wrote(
    tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    ran = tier(tiered.data)
    assert ran.code == 0, ran.err
    ours, theirs = objects(tmp_path / "store"), objects(tiered.root / "remote")
    assert ours.keys() == theirs.keys()
    for place, body in theirs.items():
        if place[2] == ".snapshot":  # brokers write entries in the order of a hash table
            assert entries(ours[place]) == entries(body), place
        else:
            assert ours[place] == body, place


def test_what_was_shipped_is_found_again_verified_and_restored(
    command: Resnap, tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    assert tier(tiered.data).code == 0
    again = tier(tiered.data).document
    assert again["summary"] == {"shipped": 0, "bytes": 0, "already": 8, "refused": 2}
    store = (tmp_path / "store").as_uri()
    verified = command("verify", "--store", store, "--engine", "local", *JSON)
    assert (verified.code, verified.document["summary"]["snapshotsReplayed"]) == (0, 8), verified.err
    assert command("scan", store, *JSON).document["summary"]["boundaries"] == 8
    (tmp_path / "restored").mkdir()
    assert command("restore", store, "--into", tmp_path / "restored").code == 0
    for name in ("payments-0", "payments-1"):
        for log in (tmp_path / "restored" / name).glob("*.log"):
            assert log.read_bytes() == (tiered.data / name / log.name).read_bytes()


def test_neither_gc_nor_retain_touches_what_brokers_may_have_cached(
    command: Resnap, tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    assert tier(tiered.data).code == 0
    store, before = (tmp_path / "store").as_uri(), files_of(tmp_path / "store")
    for flags in ((), ("--delete",)):
        ran = command("retain", store, "--retention-bytes", "1", *flags)
        assert (ran.code, ran.out) == (2, "")
        assert "is in the layout local-tiered: brokers delete what they know of" in ran.err
    assert command("gc", store, "--older-than", "0s", "--delete", "--no-other-writers").code == 0
    assert files_of(tmp_path / "store") == before


def test_a_topic_whose_id_is_unknown_is_refused_by_name(
    tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiered.data, data, ignore=shutil.ignore_patterns("__*", "*.metadata", "meta.*"))
    ran = tier(data)
    reasons = {refused["reason"] for row in ran.document["partitions"] for refused in row["refused"]}
    assert reasons == {"active-segment", "topic-id-unknown"}
    assert not (tmp_path / "store" / "kafka-tiered-storage").exists()


def test_what_brokers_tiered_is_read_as_a_log_without_a_manifest(
    command: Resnap, tiered: FixtureSet, tmp_path: Path
) -> None:
    folder = tiered.remote / "kafka-tiered-storage"
    for place in (tiered.remote, folder):
        scanned = command("scan", place.as_uri(), *JSON)
        assert (scanned.code, scanned.document["summary"]["boundaries"]) == (0, 8), scanned.err
    (partition,) = folder.glob("payments-1-*")
    scanned = command("scan", partition.as_uri(), *JSON)
    assert [row["partition"] for row in scanned.document["partitions"]] == [1], scanned.err
    rules = ("--as-of", "roll", "--engine", "local")
    verified = command("verify", tiered.remote.as_uri(), *rules, *JSON)
    summary = verified.document["summary"]
    assert (verified.code, summary["snapshotsReplayed"], summary["snapshotsDifferent"]) == (0, 8, 0), verified.err
    copy = tmp_path / "copy"
    shutil.copytree(tiered.remote, copy)
    lost = min(copy.rglob("payments-0-*/*.snapshot"))
    lost.write_bytes(b"")
    planned = command("plan", copy.as_uri(), *JSON)
    assert planned.document["summary"]["snapshots"] == 1, planned.err
    ran = command("regenerate", copy.as_uri(), "--into", tmp_path / "snapshots", *rules, *JSON)
    assert ran.code == 0, ran.err
    (made,) = (tmp_path / "snapshots").rglob("*.snapshot")
    (was,) = tiered.remote.rglob(f"payments-0-*/{lost.name}")
    assert entries(made.read_bytes()) == entries(was.read_bytes())


def test_what_brokers_tiered_is_verified_by_itself_and_restored_byte_by_byte(
    command: Resnap, tiered: FixtureSet, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiered.remote, copy)
    verified = command("verify", "--store", copy.as_uri(), "--engine", "local", *JSON)
    summary = verified.document["summary"]
    assert (verified.code, summary["segments"], summary["snapshotsReplayed"]) == (0, 8, 8), verified.err
    (tmp_path / "restored").mkdir()
    ran = command("restore", copy.as_uri(), "--into", tmp_path / "restored", "--engine", "local")
    assert ran.code == 0, ran.err
    for name in ("payments-0", "payments-1"):
        for kind in ("log", "index", "timeindex", "txnindex", "snapshot"):
            for path in (tmp_path / "restored" / name).glob(f"*.{kind}"):
                assert path.read_bytes() == (tiered.data / name / path.name).read_bytes(), path
    broken = max(copy.rglob("payments-0-*/*.timeindex"))
    broken.write_bytes(broken.read_bytes()[:-1] + b"!")
    verified = command("verify", "--store", copy.as_uri(), "--engine", "local", *JSON)
    assert (verified.code, verified.document["summary"]["different"]) == (13, 1), verified.err
    (tmp_path / "other").mkdir()
    ran = command("restore", copy.as_uri(), "--into", tmp_path / "other", "--engine", "local", *JSON)
    assert (ran.code, [row["partition"] for row in ran.document["partitions"]]) == (3, [1]), ran.err
    assert f"{broken.with_suffix('.log').name}: " in ran.error["message"]


@pytest.mark.parametrize(
    ("layout", "lost"), [("tiered", "*.index"), ("tiered", "*.log"), ("aiven-plain", "*.rsm-manifest")]
)
def test_a_segment_at_an_end_of_a_log_that_lacks_an_object_is_named(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, layout: str, lost: str
) -> None:
    copy = shutil.copytree(fixture_set(f"kafka-3.9.1-{layout}").remote, tmp_path / "copy")
    verify = ("verify", "--store", copy.as_uri(), "--engine", "local")
    whole = next(copy.glob("tiered"), copy)  # where a plugin's key.prefix leads
    restore = ("restore", whole.as_uri(), "--into", tmp_path / "restored", "--dry-run")
    for one in (verify, restore):
        assert "skipped" not in command(*one).err
    of_partition = sorted(path for path in copy.rglob(lost) if "payments-1-" in str(path) or "/1/" in str(path))
    for number, gone in enumerate((of_partition[0], of_partition[-1]), 1):
        gone.unlink()
        for one in (verify, restore):
            said = command(*one).err
            assert f"{some(number, 'segment')} skipped, since an object is missing: a copy" in said
            assert f"payments-1 from offset {int(gone.name[:20])} (" in said
            assert f"/{gone.name})" in said


@pytest.mark.parametrize("text", [b"", b"0\n0\n"], ids=["no bytes", "no entries"])
def test_a_segment_whose_leader_epochs_are_lost_is_damaged(
    command: Resnap, tiered: FixtureSet, tmp_path: Path, text: bytes
) -> None:
    copy = shutil.copytree(tiered.remote, tmp_path / "copy")
    lost = min(copy.rglob("payments-0-*/*.leader_epoch_checkpoint"))
    lost.write_bytes(text)
    verified = command("verify", "--store", copy.as_uri(), "--engine", "local", *JSON)
    assert (verified.code, verified.document["summary"]["different"]) == (13, 1), verified.err
    assert f"{lost.name}: no leader epoch of the segment" in verified.err


def test_lines_of_one_partition_in_two_layouts_say_whose_segments_they_are_of(
    command: Resnap, tiered: FixtureSet, tmp_path: Path
) -> None:
    store = shutil.copytree(tiered.remote, tmp_path / "store")
    flags = ("--as-of", "roll", "--engine", "local", "--topic", "payments", "--quiet")
    assert command("tier", tiered.data, "--to", store.as_uri(), *flags).code == 0
    chains = command("verify", "--store", store.as_uri(), *flags, *JSON).document["summary"]["chains"]
    assert [one["layout"] for one in chains if one["partition"] == 0] == ["flat", "local-tiered"]
    said = command("verify", "--store", store.as_uri(), *flags).out.splitlines()
    of_one = [line.partition(": offsets")[0] for line in said if line.startswith("payments-0")]
    assert of_one == ["payments-0, layout flat", "payments-0, layout local-tiered"]


def test_each_file_that_brokers_tiered_opens_by_itself(command: Resnap, tiered: FixtureSet) -> None:
    folder = tiered.remote / "kafka-tiered-storage"
    kinds = {path.suffix: command("inspect", path, *JSON).document["kind"] for path in sorted(folder.rglob("*.*"))}
    assert kinds == {
        ".log": "log", ".index": "index", ".timeindex": "timeindex", ".txnindex": "txnindex", ".snapshot": "snapshot",
        ".leader_epoch_checkpoint": "leader-epoch-checkpoint",
    }  # fmt: skip


def brokers_objects(store: Path, partition: int, base_offset: int) -> list[Path]:
    """Return the objects of one segment where brokers look for them."""
    found = store.rglob(f"kafka-tiered-storage/payments-{partition}-*/{base_offset:020d}-*")
    return [path for path in found if path.is_file()]


def offsets(store: Path, partition: int) -> list[int]:
    """Return the base offsets of the segments of a partition."""
    logs = store.rglob(f"kafka-tiered-storage/payments-{partition}-*/*.log")
    return sorted(int(path.name.partition("-")[0]) for path in logs)


def test_what_a_brokers_own_retention_has_taken_is_not_damage(
    command: Resnap, tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    assert tier(tiered.data).code == 0
    store = tmp_path / "store"
    begins = offsets(store, 0)
    for base in begins[:2]:
        for path in brokers_objects(store, 0, base):
            path.unlink()
    verified = command("verify", "--store", store.as_uri(), "--engine", "local", *JSON)
    assert verified.code == 0, verified.err
    assert (verified.document["summary"]["gone"], verified.document["summary"]["different"]) == (2, 0)
    assert "retention" in verified.err
    again = tier(tiered.data)
    assert again.code == 0, again.err
    assert again.document["summary"] == {"shipped": 0, "bytes": 0, "already": 8, "refused": 2}
    (tmp_path / "new").mkdir()
    ran = command("restore", store.as_uri(), "--into", tmp_path / "new", *JSON)
    assert ran.code == 0, ran.err
    assert {row["partition"]: row["startOffset"] for row in ran.document["partitions"]} == {0: begins[2], 1: 0}
    for path in brokers_objects(store, 0, begins[3]):
        path.unlink()  # in the middle: no retention does that
    assert command("verify", "--store", store.as_uri(), "--engine", "local", *JSON).code == 13
    assert tier(tiered.data).code == 3


def test_a_partition_of_which_nothing_is_left_is_damaged(
    command: Resnap, tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    assert tier(tiered.data).code == 0
    store = tmp_path / "store"
    for base in offsets(store, 0):
        for path in brokers_objects(store, 0, base):
            path.unlink()
    assert command("verify", "--store", store.as_uri(), "--engine", "local", *JSON).code == 13


def test_what_a_broker_tiered_behind_ours_is_named_when_the_rest_is_restored(
    command: Resnap, tier: Callable[[Path], Ran], tiered: FixtureSet, tmp_path: Path
) -> None:
    assert tier(tiered.data).code == 0
    store = tmp_path / "store"
    last = offsets(store, 0)[-1]
    (manifest,) = [path for path in store.rglob(f"0/{last:020d}-*.manifest") if path.is_file()]
    manifest.unlink()  # now it is as if a broker had tiered it
    (tmp_path / "new").mkdir()
    ran = command("restore", store.as_uri(), "--into", tmp_path / "new", *JSON)
    assert (ran.code, ran.document["summary"]["restored"]) == (3, 2)
    assert "payments-0: segments that a broker tiered itself" in ran.err
    assert f": 1, the first at offset {last}; no manifest names them" in ran.err
