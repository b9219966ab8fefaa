"""``resnap repair``, in every layout: what is wrong becomes right, nothing else changes, and undo brings all back."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import StoreAccessError
from resnap.storage.layouts.manifest import ObjectKind, read_manifest
from resnap.storage.log.names import TopicPartition
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.shipping.lease import lease_name, lease_on
from tests import schemas
from tests.cases import mostly_slow
from tests.scheduler.aiven_files import ABORTED
from tests.scheduler.files import EMPTY_SNAPSHOT
from tests.scheduler.unfit_stores import (
    ENGINE,
    LAYOUTS,
    PARTITION,
    Brokers,
    Files,
    Scene,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Resnap

    Sets = Callable[[str], FixtureSet]

pytestmark = pytest.mark.usefixtures("producers_stay")


@pytest.mark.parametrize("layout", mostly_slow(LAYOUTS, "flat", "brokers", "plugin-encrypted"))
def test_what_is_wrong_becomes_right_and_undo_brings_every_byte_back(
    layout: str, scene_of: Callable[[str], Scene]
) -> None:
    scene = scene_of(layout)
    right = scene.parts()
    scene.damage()
    wrong = scene.contents()
    planned = scene.repair("--dry-run")
    assert (planned.code, planned.document["summary"]["dryRun"]) == (0, True), planned.err
    assert scene.contents() == wrong
    schemas.check("repair", planned.document)
    hints = {json.loads(line)["error"]["hint"] for line in scene.verify().err.splitlines()}
    assert hints == {f"`resnap repair {scene.url}` replaces it"}
    ran = scene.repair()
    schemas.check("repair", ran.document)
    summary = ran.document["summary"]
    assert (ran.code, summary["snapshots"], summary["transactionIndexes"]) == (0, 2, 1), ran.err
    assert {key: summary[key] for key in ("segments", "repaired", "snapshots")} == {
        key: planned.document["summary"][key] for key in ("segments", "repaired", "snapshots")
    }
    verdicts = [one["snapshot"] for row in ran.document["partitions"] for one in row["repaired"]]
    assert sorted(filter(None, verdicts)) == ["false-empty", "false-partial"]
    assert scene.parts() == right
    assert scene.verify().code == 0
    repaired = scene.contents()
    again = scene.repair()
    assert (again.code, again.document["summary"]["repaired"], again.document["summary"]["run"]) == (0, 0, None)
    assert scene.contents() == repaired
    undone = scene.repair("--undo", summary["run"])
    assert (undone.code, undone.document["summary"]["undone"]) == (0, summary["repaired"]), undone.err
    assert scene.contents() == wrong


@pytest.mark.parametrize(
    "layout",
    ["plugin", pytest.param("flat", marks=pytest.mark.slow), pytest.param("brokers", marks=pytest.mark.slow)],
)
def test_a_store_of_objects_is_repaired_the_same_way(
    layout: str, scene_of: Callable[[str], Scene], command: Resnap, bucket: Bucket
) -> None:
    scene = scene_of(layout)
    scene.damage()
    wrong = scene.contents()
    for key, body in wrong.items():
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body)
    ran = command("repair", bucket.url, *ENGINE, *bucket.flags, **bucket.variables)
    summary = ran.document["summary"]
    assert (ran.code, summary["snapshots"], summary["transactionIndexes"]) == (0, 2, 1), ran.err
    assert command("verify", "--store", bucket.url, *ENGINE, *bucket.flags, **bucket.variables).code == 0
    undo = ("--undo", summary["run"])
    assert command("repair", bucket.url, *ENGINE, *undo, *bucket.flags, **bucket.variables).code == 0
    assert bucket.objects() == wrong


def test_where_nothing_keeps_others_away_it_must_be_promised_that_there_are_none(
    scene_of: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of("brokers")
    scene.damage()
    wrong = scene.contents()

    def unconditional(store: LocalObjectStore, key: str, body: bytes, *, etag: str) -> None:  # noqa: ARG001
        store.put(key, body)

    monkeypatch.setattr(LocalObjectStore, "replace", unconditional)
    refused = scene.repair()
    assert (refused.code, "(If-Match) are ignored" in refused.err) == (2, True), refused.err
    assert scene.contents() == wrong
    assert scene.repair("--dry-run").code == 0
    assert scene.repair("--no-other-writers").code == 0
    assert scene.verify().code == 0


def test_what_is_locked_is_named_and_the_others_are_repaired(
    scene_of: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of("plugin")
    right = scene.parts()
    scene.damage()
    honest, name = LocalObjectStore.replace, scene.files.segments[1].name

    def locked(store: LocalObjectStore, key: str, body: bytes, *, etag: str) -> None:
        if key.endswith(name):
            raise StoreAccessError(f"{key}: AccessDenied: locked by retention", key=key)
        honest(store, key, body, etag=etag)

    with monkeypatch.context() as patched:
        patched.setattr(LocalObjectStore, "replace", locked)
        ran = scene.repair()
    summary = ran.document["summary"]
    assert (ran.code, summary["notRepaired"]) == (3, 1), ran.err
    assert "is not repaired, and is unchanged" in ran.err
    assert [n for n, (one, other) in enumerate(zip(scene.parts(), right, strict=True)) if one != other] == [1]
    assert scene.repair().code == 0
    assert scene.parts() == right


@pytest.mark.slow
def test_objects_that_are_gone_are_named_and_the_other_partitions_are_repaired(
    scene_of: Callable[[str], Scene],
) -> None:
    for layout, gone in (("plugin", "/1/*.log"), ("brokers", "payments-1-*/*.log"), ("flat", "/1/*.log")):
        scene = scene_of(layout)
        scene.damage()
        paths = sorted(path for path in scene.files.store.rglob("*.log") if path.match(f"*{gone}"))
        paths[1].unlink()
        ran = scene.repair()
        assert ran.code == 3, ran.err
        assert ran.document["summary"]["snapshots"] == 2
        assert ran.document["summary"]["notRepaired"] >= 1
        shutil.rmtree(scene.files.store)


@pytest.mark.parametrize("layout", mostly_slow(["flat", "plugin", "brokers"], "flat"))
def test_what_comes_back_as_other_bytes_is_as_it_was(
    layout: str, scene_of: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(layout)
    right = scene.parts()
    scene.damage()
    wrong = scene.contents()
    honest, flipped = LocalObjectStore.replace, []

    def flip_once(store: LocalObjectStore, key: str, body: bytes, *, etag: str) -> None:
        is_flipped = ".resnap" not in key and not flipped
        flipped.extend([key] if is_flipped else [])
        honest(store, key, body[:-1] + bytes([body[-1] ^ 1]) if is_flipped else body, etag=etag)

    with monkeypatch.context() as patched:
        patched.setattr(LocalObjectStore, "replace", flip_once)
        ran = scene.repair()
    assert (ran.code, "the bytes read back differ" in ran.err) == (13, True), ran.err
    assert {key: scene.contents()[key] for key in wrong} == wrong
    assert scene.repair().code == 0
    assert scene.parts() == right


def test_what_was_shipped_under_narrower_rules_is_repaired_as_tier_says(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    store, how = (tmp_path / "store").as_uri(), ("--as-of", "roll", *ENGINE[:2], *ENGINE[-3:])
    tier = ("tier", fixture_set("kafka-2.7.2-nine-days").data, "--to", store, "--partition", "payments-1", *how)
    wide = ("--producer-id-expiration-ms", "604800000")
    assert command(*tier, "--producer-id-expiration-ms", "1000").code == 0
    named = command(*tier, *wide)
    assert (named.code, f"`resnap repair {store} --producer-id-expiration-ms 604800000" in named.error["hint"]) == (
        13,
        True,
    )
    ran = command("repair", store, *how, *wide)
    assert (ran.code, ran.document["summary"]["snapshots"] > 15) == (0, True), ran.err
    assert command("verify", "--store", store, *how, *wide).code == 0
    assert command(*tier, *wide).code == 0
    assert command("repair", store, *how, *wide).document["summary"]["repaired"] == 0


@pytest.mark.parametrize("layout", mostly_slow(["brokers", "plugin", "flat"], "brokers"))
def test_a_segment_that_was_shipped_without_a_snapshot_gets_one(layout: str, scene_of: Callable[[str], Scene]) -> None:
    scene = scene_of(layout)
    right = scene.parts()
    if layout != "plugin":
        scene.files.segments[1].with_suffix(".snapshot").unlink()
    else:
        scene.files.write(1, ObjectKind.SNAPSHOT, b"")
    wrong = scene.contents()
    assert scene.verify().code == 13
    ran = scene.repair()
    assert (ran.code, ran.document["summary"]["repaired"]) == (0, 1), ran.err
    [row] = [one for row in ran.document["partitions"] for one in row["repaired"]]
    assert row["snapshot"] == "unusable"
    assert scene.parts() == right
    assert scene.verify().code == 0
    assert scene.repair("--undo", ran.document["summary"]["run"]).code == 0
    assert scene.contents() == wrong


@pytest.mark.parametrize("size", [0, 10, None])
def test_what_lies_where_a_manifest_names_something_else_is_replaced(
    size: int | None, scene_of: Callable[[str], Scene]
) -> None:
    scene = scene_of("flat")
    right = scene.contents()
    paths = [scene.files.segments[1].with_suffix(suffix) for suffix in (".snapshot", ".txnindex")]
    for path in paths:
        path.write_bytes(os.urandom(path.stat().st_size if size is None else size))
    wrong = scene.contents()
    ran = scene.repair()
    summary = ran.document["summary"]
    assert (ran.code, summary["snapshots"], summary["transactionIndexes"]) == (0, 1, 1), ran.err
    assert {key: body for key, body in scene.contents().items() if ".resnap/repaired" not in key} == right
    assert scene.repair().document["summary"]["repaired"] == 0
    assert scene.repair("--undo", summary["run"]).code == 0
    assert scene.contents() == wrong


def test_a_partition_that_another_run_is_at_is_named_once_and_nothing_is_advised_against_its_segments(
    scene_of: Callable[[str], Scene],
) -> None:
    scene = scene_of("flat")
    for segment in scene.files.segments:
        segment.with_suffix(".snapshot").write_bytes(EMPTY_SNAPSHOT)
    wrong = scene.contents()
    cluster_id = read_manifest(scene.files.segments[0].read_bytes()).cluster_id
    place, now_ms = lease_name(cluster_id, TopicPartition("payments", PARTITION)), int(time.time() * 1000)
    with lease_on(LocalObjectStore(scene.files.store), place, verb="another", now_ms=now_ms) as other:
        other.hold()
        ran = scene.repair()
    assert ran.code == 11, ran.err
    assert ran.err.count("another run is at work there") == 1
    assert "delete the manifest" not in ran.err
    assert scene.contents() == wrong
    assert scene.repair().code == 0


@pytest.mark.parametrize("layout", mostly_slow(["flat", "brokers", "plugin"], "plugin"))
def test_an_index_of_a_log_whose_beginning_is_gone_is_repaired_as_far_as_the_log_shows(
    layout: str, scene_of: Callable[[str], Scene]
) -> None:
    scene = scene_of(layout)
    files, start = scene.files, _end_of_first(scene.files)
    for path in list(files.segments[0].parent.glob(f"{files.segments[0].stem}.*")):
        path.unlink()
    there = list(struct.iter_unpack(ABORTED.format, files.read(0, ObjectKind.TXN_INDEX)))
    files.write(0, ObjectKind.TXN_INDEX, b"")
    files.write(0, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
    wrong = scene.contents()
    planned = scene.command("repair", scene.url, *ENGINE[:4], "--dry-run")
    assert "its beginning is not stored" in planned.err
    assert f"begins at {start}: producers whose last batch lies below are known only" in planned.out
    ran = scene.repair()
    assert (ran.code, ran.document["summary"]["transactionIndexes"]) == (0, 1), ran.err
    made = list(struct.iter_unpack(ABORTED.format, files.read(0, ObjectKind.TXN_INDEX)))
    assert [one[:4] for one in made] == [one[:4] for one in there if one[2] >= start]
    assert made
    assert all(stable < start for *_, stable in made)
    assert scene.repair().document["summary"]["repaired"] == 0
    assert scene.verify().code == 0
    assert scene.repair("--undo", ran.document["summary"]["run"]).code == 0
    assert scene.contents() == wrong


def _end_of_first(files: Files) -> int:
    return int(files.segments[1].name[:20])


@pytest.mark.parametrize("suffix", [".snapshot", ".txnindex"])
def test_what_a_repair_would_bring_back_is_named_by_a_restore_which_goes_on_with_other_partitions(
    suffix: str, scene_of: Callable[[str], Scene], tmp_path: Path
) -> None:
    scene = scene_of("flat")
    scene.files.segments[1].with_suffix(suffix).unlink()
    restore = ("restore", scene.url, "--into", tmp_path / "into", "--output", "json", "-q")
    ran = scene.command(*restore)
    assert (ran.code, f"{suffix}: missing, though a manifest names it" in ran.err) == (3, True), ran.err
    assert [(tmp_path / "into" / f"payments-{number}").exists() for number in (0, 1)] == [False, True]
    assert scene.repair().code == 0
    assert scene.command(*restore).code == 0


def test_people_see_the_partitions_that_something_is_wrong_with(scene_of: Callable[[str], Scene]) -> None:
    scene = scene_of("flat")
    scene.damage()
    printed = [scene.command("repair", scene.url, *ENGINE[:2], "--as-of", "roll").out for _ in range(2)]
    assert [("payments-0" in text, "payments-1" in text) for text in printed] == [(True, False), (False, False)]
    unknown = scene.command("repair", scene.url, "--topic", "another")
    assert (unknown.code, "matches --topic another" in unknown.err) == (2, True), unknown.err


@pytest.mark.parametrize("layout", ["flat", "brokers"])
def test_damage_that_is_not_repaired_is_named_and_ends_as_verify_does(
    layout: str, scene_of: Callable[[str], Scene]
) -> None:
    scene = scene_of(layout)
    path = scene.files.segments[1].with_suffix(".timeindex")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    ran = scene.repair()
    assert (ran.code, scene.verify().code, ran.document["summary"]["notRepaired"]) == (13, 13, 1), ran.err
    assert path.stem in ran.error["message"]
    scene.files.write(0, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
    both = scene.repair()
    assert (both.code, both.document["summary"]["snapshots"], both.document["summary"]["notRepaired"]) == (3, 1, 1)


def test_without_the_key_people_read_no_names_of_counts(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    url = f"{fixture_set('kafka-3.9.1-aiven-encrypted').remote.as_uri()}/tiered"
    ran = command("repair", url, "--no-other-writers", "--engine", "local")
    assert (ran.code, ran.out.splitlines()[0]) == (10, "Nothing was compared or replaced."), ran.out
    assert "Next: the same command again" in ran.out


def test_where_nothing_is_stored_nothing_is_printed_or_made(command: Resnap, tmp_path: Path) -> None:
    ran = command("repair", (tmp_path / "mistyped").as_uri())
    assert (ran.code, ran.out, "holds no tiered segment" in ran.err) == (2, "", True), ran.err
    assert not (tmp_path / "mistyped").exists()


def test_a_copy_under_way_and_one_that_was_given_up_get_nothing(scene_of: Callable[[str], Scene]) -> None:
    scene = scene_of("brokers")
    last, first = scene.files.segments[-1], scene.files.segments[0]
    last.with_suffix(".snapshot").unlink()
    for path in list(first.parent.glob(f"{first.stem}.*")):
        if path.suffix != ".snapshot":
            shutil.copy(path, path.with_name(path.name.replace(first.stem[21:], "A" * 22)))
    before = scene.contents()
    ran = scene.repair()
    assert (ran.code, ran.document["summary"]["repaired"]) == (0, 0), ran.err
    assert scene.contents() == before


@pytest.mark.parametrize(
    ("layout", "gone", "named"),
    [
        ("flat", ".manifest", "nothing is stored of the offsets"),
        pytest.param("flat", ".log", "cannot be compared", marks=pytest.mark.slow),
        ("brokers", ".log", "nothing is stored of the offsets"),
        pytest.param("plugin-encrypted", ".indexes", "cannot be compared", marks=pytest.mark.slow),
        ("plugin-encrypted", "damage", "its batches cannot be read"),
        pytest.param("flat", "damage", "its batches cannot be read", marks=pytest.mark.slow),
    ],
)
def test_what_lies_below_and_above_a_gap_is_repaired_and_the_gap_is_named(
    layout: str, gone: str, named: str, scene_of: Callable[[str], Scene]
) -> None:
    scene = scene_of(layout)
    files = scene.files
    files.write(0, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
    files.write(2, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
    if gone == "damage":
        log = files.segments[1].with_suffix(".log")
        log.write_bytes(bytes(log.stat().st_size))
    else:
        files.segments[1].with_suffix(gone).unlink()
    ran = scene.repair()
    [row] = [row for row in ran.document["partitions"] if row["repaired"]]
    assert (ran.code, ran.document["summary"]["snapshots"], len(row["repaired"])) == (3, 2, 2), ran.err
    assert named in ran.err
    again = scene.repair()
    assert (again.code, again.document["summary"]["repaired"]) == (13, 0), again.err
    checked = scene.verify()
    assert (checked.code, "not what a replay of the stored segments gives" in checked.err) == (13, False), checked.err


def test_what_brokers_tiered_beside_segments_of_ours_is_judged_and_repaired_with_them(
    scene_of: Callable[[str], Scene],
) -> None:
    scene = scene_of("local-tiered")
    ours, scene.files = scene.files, Brokers(scene.files.store)
    number, every = len(scene.files.segments), len([*scene.files.store.rglob("*.log")])
    ours.segments[1].unlink()  # as if brokers had tiered it, which write none
    before = scene.verify()
    summary = before.document["summary"]
    assert (before.code, summary["segments"], summary["snapshotsReplayed"]) == (0, every, every), before.err
    chains = [one for one in summary["chains"] if one["partition"] == PARTITION]
    assert [(one["segments"], one["gaps"]) for one in chains] == [(number, [])]

    ours.write(0, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
    scene.files.write(1, ObjectKind.SNAPSHOT, EMPTY_SNAPSHOT)
    wrong = scene.contents()
    found = scene.verify()
    assert (found.code, found.document["summary"]["snapshotsDifferent"]) == (13, 2)
    ran = scene.repair("--no-other-writers")
    assert (ran.code, ran.document["summary"]["snapshots"]) == (0, 2), ran.err
    assert ran.document["summary"]["segments"] == every
    assert scene.verify().code == 0
    assert scene.repair().document["summary"]["repaired"] == 0
    undone = scene.repair("--undo", ran.document["summary"]["run"])
    assert undone.code == 0, undone.err
    there = scene.contents()
    assert {key: there.get(key) for key in wrong} == wrong


def test_the_folder_of_brokers_below_manifests_of_ours_is_refused_with_the_url_that_has_both(
    scene_of: Callable[[str], Scene],
) -> None:
    scene = scene_of("local-tiered")
    scene.damage()
    before = scene.contents()
    below = f"{scene.url}/kafka-tiered-storage"
    (folder,) = (scene.files.store / "kafka-tiered-storage").glob("payments-0-*")
    for part in (below, f"{below}/", f"{below}/{folder.name}"):
        for flags in ((), ("--dry-run",)):
            ran = scene.command("repair", part, *ENGINE, "--no-other-writers", *flags)
            assert (ran.code, f"`resnap repair {scene.url} --topic payments`" in ran.error["hint"]) == (2, True), (
                ran.err
            )
    assert scene.contents() == before
    for manifest in scene.files.store.rglob("*.manifest"):
        manifest.unlink()
    ran = scene.command("repair", below, *ENGINE, "--no-other-writers")
    assert (ran.code, ran.document["summary"]["snapshots"]) == (0, 2), ran.err
