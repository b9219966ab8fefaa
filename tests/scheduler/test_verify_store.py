"""``resnap verify URL``: what a replay and the chain of manifests show that no checksum does, and going on."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.layouts.manifest import (
    TOMBSTONE,
    Manifest,
    ManifestFacts,
    ObjectKind,
    SnapshotHow,
    read_manifest,
    write_manifest,
)
from resnap.storage.log.producer_snapshot import LeftOut, read_snapshot, snapshot_bytes
from resnap.tiering import store_check
from resnap.tiering import verify as steps
from tests.scheduler.files import EMPTY_SNAPSHOT, flip
from tests.scheduler.installed import copied
from tests.scheduler.scenes import one_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resnap.storage.layouts.lineage import Chain
    from resnap.tiering.store_check import StoreCheck
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

LATER_S = 4_000_000_000
JSON = ("--engine", "local", "--output", "json")


@pytest.fixture
def store(shipped: Path, tmp_path: Path) -> Path:
    return copied(shipped, tmp_path / "store")


@pytest.fixture
def verify(command: Resnap, store: Path, tmp_path: Path) -> Callable[..., Ran]:
    """Verify the store, with what interrupted runs have left."""
    state = {"RESNAP_STATE_DIR": str(tmp_path / "state")}
    return lambda *arguments: command("verify", "--store", store.as_uri(), *JSON, *arguments, **state)


def manifest_paths(store: Path) -> list[Path]:
    return sorted(store.rglob("*.manifest"))


def rewritten(path: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Change what a manifest says, its own checksum included."""
    path.write_bytes(write_manifest(change(read_manifest(path.read_bytes()))))


def with_snapshot(store: Path, path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Ship another snapshot under the same manifest, with every digest as it should be."""
    return with_object(store, path, ObjectKind.SNAPSHOT, change)


def with_object(store: Path, path: Path, kind: ObjectKind, change: Callable[[bytes], bytes]) -> Path:
    """Ship another object of this kind in the same way."""
    manifest = read_manifest(path.read_bytes())
    entry = next(one for one in manifest.objects if one.kind is kind)
    body = change((store / entry.key).read_bytes())
    (store / entry.key).write_bytes(body)
    true = replace(entry, size_bytes=len(body), crc32c=crc32c(body), sha256=hashlib.sha256(body).hexdigest())
    objects = tuple(true if one is entry else one for one in manifest.objects)
    path.write_bytes(write_manifest(replace(manifest, objects=objects)))
    return store / entry.key


def differing(ran: Ran) -> tuple[int, int]:
    summary = ran.document["summary"]
    return summary["different"], summary["snapshotsDifferent"]


def _without_one(data: bytes) -> bytes:
    return snapshot_bytes(list(read_snapshot(data).values())[1:])


def _with_open_transaction(data: bytes) -> bytes:
    first, *others = read_snapshot(data).values()
    return snapshot_bytes([first._replace(current_txn_first_offset=first.last_offset), *others])


def test_every_shipped_snapshot_is_held_against_a_replay(verify: Callable[..., Ran], store: Path) -> None:
    ran = verify()
    assert (ran.code, differing(ran)) == (0, (0, 0))
    assert ran.document["summary"]["snapshotsReplayed"] == len(manifest_paths(store))


@pytest.mark.parametrize("change", [lambda _: EMPTY_SNAPSHOT, _without_one, _with_open_transaction])
def test_a_snapshot_that_is_not_what_the_segments_give_is_found_though_all_digests_are_right(
    verify: Callable[..., Ran], store: Path, change: Callable[[bytes], bytes]
) -> None:
    path = manifest_paths(store)[3]
    snapshot = with_snapshot(store, path, change)
    ran = verify()
    assert (ran.code, differing(ran)) == (13, (0, 1))
    assert f"{snapshot.relative_to(store)}: not what a replay of the stored segments gives" in ran.error["message"]


def test_what_resnap_made_was_swept_by_no_broker_however_old_it_is(verify: Callable[..., Ran], store: Path) -> None:
    path = next(
        one for one in manifest_paths(store) if read_manifest(one.read_bytes()).snapshot_origin.how == "regenerated"
    )
    snapshot = with_snapshot(store, path, _without_one)
    os.utime(snapshot, (LATER_S, LATER_S))
    assert differing(verify()) == (0, 1)


def test_producers_that_the_manifest_says_were_excluded_are_not_missed(verify: Callable[..., Ran], store: Path) -> None:
    path = manifest_paths(store)[3]
    entry = next(one for one in read_manifest(path.read_bytes()).objects if one.kind is ObjectKind.SNAPSHOT)
    first = next(iter(read_snapshot((store / entry.key).read_bytes())))
    with_snapshot(store, path, _without_one)
    assert verify().code == 13
    left_out = (LeftOut(producer_id=first, reason="unexplained-batch"),)
    rewritten(path, lambda one: replace(one, snapshot_origin=replace(one.snapshot_origin, left_out=left_out)))
    assert verify().code == 0


def test_a_log_that_cannot_be_read_is_named_once_and_all_others_are_held_against_a_replay(
    verify: Callable[..., Ran], store: Path
) -> None:
    paths = manifest_paths(store)
    broken, above = paths[2], paths[4]
    assert above.parent == broken.parent
    flip(broken.with_suffix(".log"), 8)
    with_snapshot(store, above, _without_one)
    ran = verify()
    summary = ran.document["summary"]
    assert (ran.code, summary["different"]) == (13, 1)
    assert (summary["snapshotsReplayed"], summary["snapshotsDifferent"]) == (len(paths), 2)
    found = [line for line in ran.err.splitlines() if "cannot be compared" in line]
    assert len(found) == 1
    assert f"{broken.stem}.log: cannot be compared" in found[0]
    assert f"{above.stem}.snapshot: not what a replay of the stored segments gives" in ran.err
    assert summary["partitionsUnfit"] == 1


def test_with_checksums_the_whole_log_is_read_also_where_no_replay_needs_it(
    verify: Callable[..., Ran], store: Path
) -> None:
    """A batch that was damaged before it was shipped has every digest as it should be."""
    path = manifest_paths(store)[2]
    log = with_object(store, path, ObjectKind.LOG, lambda body: body[:-1] + bytes([body[-1] ^ 1]))
    assert verify("--as-of", "now").code == 0
    ran = verify("--as-of", "now", "--verify-crc")
    [found] = [line for line in ran.err.splitlines() if "cannot be compared" in line]
    assert (ran.code, found.count(log.name)) == (13, 1)
    assert "record batch checksum" in found


def test_a_log_that_was_cut_off_is_named_once_and_all_other_snapshots_are_compared(
    verify: Callable[..., Ran], store: Path
) -> None:
    paths = manifest_paths(store)
    log = paths[2].with_suffix(".log")
    os.truncate(log, log.stat().st_size - 30)
    ran = verify()
    summary = ran.document["summary"]
    assert (ran.code, summary["different"]) == (13, 1)
    assert (summary["snapshotsReplayed"], summary["snapshotsDifferent"]) == (len(paths) - 1, 0)
    assert f"{log.name}: expected " in ran.err
    assert "cannot be compared" not in ran.err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda body: body[:-34], "lacks the transaction"),
        (lambda body: body[:-8] + bytes(8), "says last stable offset"),
        (lambda body: body[:-1], "transaction index size"),
    ],
)
def test_a_transaction_index_that_the_batches_contradict_is_found_though_all_digests_are_right(
    verify: Callable[..., Ran], store: Path, change: Callable[[bytes], bytes], named: str
) -> None:
    path = next(one for one in manifest_paths(store) if one.with_suffix(".txnindex").exists())
    index = with_object(store, path, ObjectKind.TXN_INDEX, change)
    ran = verify()
    assert (ran.code, differing(ran)) == (13, (1, 0))
    assert str(index.relative_to(store)) in ran.error["message"]
    assert named in ran.error["message"]
    assert "resnap repair" in ran.error["hint"]


def test_the_chains_are_listed(verify: Callable[..., Ran], store: Path) -> None:
    chains = verify().document["summary"]["chains"]
    assert [(one["topic"], one["partition"]) for one in chains] == [("payments", 0), ("payments", 1)]
    assert sum(one["segments"] for one in chains) == len(manifest_paths(store))
    assert all(one["gaps"] == one["overlaps"] == [] for one in chains)


def test_a_gap_ends_with_13_and_is_named(verify: Callable[..., Ran], store: Path) -> None:
    path = manifest_paths(store)[2]
    gone = read_manifest(path.read_bytes())
    path.unlink()
    ran = verify()
    assert ran.code == 13
    gaps = [gap for one in ran.document["summary"]["chains"] for gap in one["gaps"]]
    assert gaps == [[gone.base_offset, gone.next_base_offset]]
    assert f"nothing was shipped of the offsets [{gone.base_offset}, {gone.next_base_offset})" in ran.err


def _begun_one_later(store: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Copy a segment under a key with a base offset one later, in the way another replica may have cut it."""
    path = manifest_paths(store)[2]
    manifest = read_manifest(path.read_bytes())
    base = manifest.base_offset + 1
    name = path.name.replace(f"{manifest.base_offset:020d}", f"{base:020d}")

    def moved(key: str) -> str:
        return key.replace(f"{manifest.base_offset:020d}", f"{base:020d}")

    for entry in manifest.objects:
        shutil.copy(store / entry.key, store / moved(entry.key))
    objects = tuple(replace(entry, key=moved(entry.key)) for entry in manifest.objects)
    other = change(replace(manifest, base_offset=base, objects=objects))
    path.with_name(name).write_bytes(write_manifest(other))
    return other


def test_an_overlap_of_one_lineage_is_listed(verify: Callable[..., Ran], store: Path) -> None:
    other = _begun_one_later(store, lambda manifest: manifest)
    ran = verify()
    assert (ran.code, "their leader epochs are the same" in ran.err) == (0, True)
    [overlap] = [one for chain in ran.document["summary"]["chains"] for one in chain["overlaps"]]
    assert overlap == {"startOffset": other.base_offset, "endOffset": other.next_base_offset, "oneLineage": True}


def test_an_overlap_of_two_lineages_ends_with_13(verify: Callable[..., Ran], store: Path) -> None:
    def of_another_leader(manifest: Manifest) -> Manifest:
        epochs = tuple(entry._replace(epoch=entry.epoch + 7) for entry in manifest.leader_epochs)
        return replace(manifest, leader_epochs=epochs)

    _begun_one_later(store, of_another_leader)
    ran = verify()
    assert ran.code == 13
    assert "under different leader epochs" in ran.err
    found = [one for chain in ran.document["summary"]["chains"] for one in chain["overlaps"]]
    assert [one["oneLineage"] for one in found] == [False]


def test_since_reads_what_was_shipped_since_then_alone(verify: Callable[..., Ran], store: Path) -> None:
    *old, new = manifest_paths(store)
    for path in old:
        os.utime(path, (1_700_000_000, 1_700_000_000))
    flip(next(store.rglob(f"{old[0].stem}.log")), 70)
    ran = verify("--since", "7d")
    assert ran.code == 0
    summary: dict[str, Any] = ran.document["summary"]
    assert (summary["segments"], summary["notAskedFor"], summary["snapshotsReplayed"]) == (1, len(old), 1)
    assert [row["manifest"] for row in ran.document["segments"]] == [str(new.relative_to(store))]
    assert verify("--since", "2023-01-01T00:00:00Z").code == 13


@pytest.mark.parametrize("text", ["yesterday", "now", "2026-01-31", "3"])
def test_an_invalid_time_for_since_is_a_usage_error(verify: Callable[..., Ran], text: str) -> None:
    assert verify("--since", text).code == 2


def test_an_interrupted_run_is_gone_on_with(
    verify: Callable[..., Ran], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resnap.tiering.verifying import verification  # noqa: PLC0415

    read_objects, met = verification._object_problems, []

    def interrupted(*arguments: Any) -> Any:
        met.append(arguments)
        if len(met) > 60:
            raise KeyboardInterrupt
        return read_objects(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(verification, "_object_problems", interrupted)
        assert verify().code == 130
    ran = verify()
    assert ran.code == 0
    summary = ran.document["summary"]
    assert summary["resumed"] > 2
    assert summary["resumed"] + summary["segments"] == summary["snapshotsReplayed"] == len(manifest_paths(store))
    assert verify().document["summary"]["resumed"] == 0


def test_what_was_found_wrong_or_was_replaced_since_is_read_again(
    verify: Callable[..., Ran], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resnap.tiering.store_check import StoreCheck  # noqa: PLC0415

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    first, second, *_ = manifest_paths(store)
    log = next(store.rglob(f"{first.stem}.log"))
    flip(log, 70)
    with monkeypatch.context() as patched:
        patched.setattr(StoreCheck, "chains", interrupted)
        assert verify().code == 130
    os.utime(second, (1_700_000_000, 1_700_000_000))
    ran = verify()
    assert ran.code == 13
    read = {row["manifest"] for row in ran.document["segments"]}
    assert read == {str(path.relative_to(store)) for path in (first, second)}
    assert verify("--fresh").document["summary"]["resumed"] == 0


def test_a_store_that_is_verified_by_groups_is_as_one_that_is_verified_at_once(
    verify: Callable[..., Ran], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no segment of a group is held any more when the next one has been read."""
    with_snapshot(store, manifest_paths(store)[-1], _without_one)
    with_object(store, manifest_paths(store)[0], ObjectKind.TXN_INDEX, lambda _: bytes(3))
    at_once = verify()
    held: list[int] = []
    chains = steps.chains_together

    def counted(checks: Sequence[StoreCheck]) -> list[Chain]:
        held.append(sum(type(one) is ManifestFacts for one in gc.get_objects()))
        return chains(checks)

    monkeypatch.setattr(store_check, "GROUP_OBJECTS", 1)
    monkeypatch.setattr(steps, "chains_together", counted)
    by_groups = verify("--fresh")
    segments = Counter(path.parent for path in manifest_paths(store)).values()
    assert by_groups.code == at_once.code == 13
    assert by_groups.document["segments"] == at_once.document["segments"]
    assert by_groups.document["summary"] == at_once.document["summary"]
    assert len(held) == len(segments) > 1
    assert len({there - own for there, own in zip(held, segments, strict=True)}) == 1


def test_topics_that_are_not_asked_for_are_not_read(verify: Callable[..., Ran]) -> None:
    assert verify("--topic", "orders").code == 2
    assert verify("--topic", "pay*").code == 0


def test_what_is_small_is_replayed_without_a_jvm_though_spark_is_the_engine(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    asked = ("verify", "--store", store.as_uri(), "--engine", "spark", "--output", "json")
    ran = command(*asked, JAVA_HOME=str(tmp_path / "no-java"))
    assert ran.code == 0
    assert ran.document["summary"]["snapshotsReplayed"] > 0


@pytest.fixture(scope="module")
def windowed(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one partition, most of which lies beyond the window, as of the last day of nine."""
    from resnap.scheduler.cli import run  # noqa: PLC0415

    root = tmp_path_factory.mktemp("windowed") / "store"
    data, os.environ["RESNAP_STATE_DIR"] = fixture_set("kafka-2.7.2-nine-days").data, "none"
    expiration = ("--as-of", "2026-10-09T00:00:10Z", "--producer-id-expiration-ms", "172800000")
    assert run(("tier", str(data), "--partition", "payments-0", "--to", root.as_uri(), *expiration, *JSON)) == 0
    return root


@pytest.mark.slow
def test_however_many_segments_of_a_log_are_stored_all_is_well(command: Resnap, windowed: Path, tmp_path: Path) -> None:
    """A run may be ended after any segment; what lay above it showed how far back to read."""
    store = copied(windowed, tmp_path / "store")
    verify = ("verify", "--store", store.as_uri(), *JSON)
    for path in sorted(manifest_paths(store), key=lambda path: path.name, reverse=True):
        ran = command(*verify)
        assert ran.code == 0, (path.name, ran.err)
        path.unlink()


def test_beyond_the_window_a_transaction_that_was_aborted_later_is_missed(
    command: Resnap, windowed: Path, tmp_path: Path
) -> None:
    store = copied(windowed, tmp_path / "store")
    origins = {path: read_manifest(path.read_bytes()).snapshot_origin for path in manifest_paths(store)}
    beyond = [path for path, origin in origins.items() if origin.how is SnapshotHow.BEYOND_WINDOW]
    spanned = [path for path in beyond if origins[path].entries_count]
    assert 0 < len(spanned) < len(beyond)
    for path in spanned:
        with_snapshot(store, path, lambda _: EMPTY_SNAPSHOT)
    ran = command("verify", "--store", store.as_uri(), *JSON)
    assert (ran.code, differing(ran)[1]) == (13, len(spanned))


def test_what_was_damaged_before_it_was_shipped_is_found_where_checksums_of_records_are_asked_for(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = one_partition(fixture_set("kafka-2.7.2-then-3.9.1").data, tmp_path / "data")
    segment = sorted((data / "payments-1").glob("*.log"))[2]
    flip(segment, 100)  # in the records of its first batch
    tier = ("tier", data, "--as-of", "roll", *JSON, "--to")
    assert command(*tier, (tmp_path / "as-it-is").as_uri()).code == 0
    careful = command(*tier, (tmp_path / "careful").as_uri(), "--verify-crc")
    assert (careful.code, segment.name in careful.err, "checksum" in careful.err) == (3, True, True)
    verify = ("verify", "--store", (tmp_path / "as-it-is").as_uri(), *JSON)
    assert command(*verify).code == 0
    assert command(*verify, "--verify-crc").code == 13


def test_of_a_store_that_holds_nothing_only_that_is_said(command: Resnap, tmp_path: Path) -> None:
    ran = command("verify", "--store", f"{tmp_path.as_uri()}/mistyped", "--engine", "local")
    assert (ran.code, ran.out) == (2, "")
    assert "mistyped holds no shipped segment" in ran.err


def test_a_damaged_manifest_is_answered_with_the_same_step_wherever_it_is_read(
    command: Resnap, store: Path, tmp_path: Path
) -> None:
    manifest_paths(store)[0].write_bytes(b"{")
    verified = command("verify", "--store", store.as_uri(), *JSON)
    restored = command("restore", store.as_uri(), "--into", tmp_path / "log", *JSON)
    assert verified.error["hint"] == restored.error["hint"] == "delete the manifest, and tier the segment again"
    for ran in (verified, restored):
        assert "expected an Avro object container file, found other bytes (cannot read header" in ran.error["message"]


def test_people_see_the_segments_that_are_not_as_they_should_be(command: Resnap, store: Path) -> None:
    flags = ("verify", "--store", store.as_uri(), "--engine", "local", "--as-of", "roll")
    ran = command(*flags)
    assert (ran.code, ".manifest" in ran.out) == (0, False)
    assert f"{len(manifest_paths(store))} segments read back" in ran.out
    assert ran.out.endswith("Next: nothing is left to do: the store holds what its manifests and a replay say.\n")
    wrong = manifest_paths(store)[2]
    next(store.rglob(f"{wrong.stem.partition('-')[0]}*.log")).write_bytes(b"")
    ran = command(*flags)
    assert ran.code == 13
    assert [line.split()[0] for line in ran.out.splitlines() if ".manifest" in line] == ["different"]


def test_a_remote_part_does_not_concern_reading_a_store_back(verify: Callable[..., Ran], store: Path) -> None:
    ran = verify("--remote", store.as_uri())
    assert (ran.code, ran.out) == (2, "")
    assert "--remote" in ran.err
    assert "`resnap verify LOG_DIR --remote URL`" in ran.err


@pytest.mark.parametrize("layout", ["flat", "local-tiered", "aiven"])
def test_progress_ends_with_all_bytes_wherever_the_objects_lie(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path, layout: str
) -> None:
    data, url = fixture_set("kafka-2.7.2-then-3.9.1").data, (tmp_path / "store").as_uri()
    tier = ("tier", data, "--partition", "payments-1", "--to", url, "--layout", layout, "--as-of", "roll")
    assert command(*tier, *JSON).code == 0
    lines = [json.loads(line) for line in command("verify", "--store", url, *JSON).err.splitlines()]
    progress = next(line["progress"] for line in lines if line.get("progress", {}).get("task") == "verify")
    assert progress["segments"] == progress["segmentsTotal"] > 0
    assert progress["bytes"] == progress["bytesTotal"] > 0


def test_objects_that_lost_their_manifest_are_named_and_nothing_is_called_done(
    command: Resnap, verify: Callable[..., Ran], store: Path
) -> None:
    def closing() -> str:
        return command("verify", "--store", store.as_uri(), "--engine", "local").out.splitlines()[-1]

    assert "without a manifest" not in verify().err
    assert closing().startswith("Next: nothing is left to do")
    lost = max(path for path in manifest_paths(store) if "/payments/" in str(path))
    lost.unlink()
    ran = verify()
    assert (ran.code, "1 segment with objects and without a manifest" in ran.err) == (0, True), ran.err
    assert str(lost.relative_to(store)) in ran.err
    assert closing().startswith("Next: `resnap tier`")
    lost.write_bytes(TOMBSTONE)
    assert "without a manifest" not in verify().err, "what a deletion has left, or is at, is no segment"
    assert closing().startswith("Next: nothing is left to do")


def test_a_run_that_reads_nothing_back_does_not_say_that_all_is_right(command: Resnap, store: Path) -> None:
    for path in store.rglob("*.manifest"):
        os.utime(path, (1_500_000_000, 1_500_000_000))
    ran = command("verify", store.as_uri(), "--since", "1h", "--engine", "local")
    assert (ran.code, ran.out.splitlines()[-1]) == (
        0,
        "Next: the same command without --since: nothing was read back.",
    )
