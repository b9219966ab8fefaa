"""``resnap verify``: every difference is found, named, and ends with 13."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.cli import run
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from tests.scheduler.files import EMPTY_SNAPSHOT, bases, file_at, flip, tree
from tests.scheduler.installed import SET, copied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.usefixtures("producers_stay")

LOCAL = ("--engine", "local")
ROLL = ("--as-of", "roll", *LOCAL)


@pytest.fixture
def snapshot(broker_log: Path) -> Path:
    """A snapshot of the broker's, with entries, at the base of a segment."""
    partition = broker_log / "payments-0"
    offset = next(offset for offset in bases(partition, "snapshot") if offset in bases(partition))
    return file_at(partition, offset, "snapshot")


@pytest.fixture(scope="module")
def shipped(
    producers_stay: None,  # noqa: ARG001
    fixture_set: Callable[[str], FixtureSet],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A store with all that is eligible of a partition."""
    root = tmp_path_factory.mktemp("shipped") / "store"
    os.environ["RESNAP_STATE_DIR"] = "none"
    assert run(("tier", str(fixture_set(SET).data / "payments-0"), "--to", root.as_uri(), *ROLL)) == 0
    return root


@pytest.fixture
def store(shipped: Path, tmp_path: Path) -> Path:
    """Give a copy of it, to be changed."""
    return copied(shipped, tmp_path / "store")


def test_a_brokers_own_snapshots_are_proven(command: Resnap, broker_log: Path) -> None:
    before = tree(broker_log)
    ran = command("verify", broker_log, *ROLL, "--output", "json")
    assert ran.code == 0
    offsets = {(row["topic"], row["partition"], row["offset"]) for row in ran.document["boundaries"]}
    partitions = [path for path in broker_log.iterdir() if path.is_dir() and path.name != "compacted-0"]
    assert offsets == {
        (path.name[:-2], int(path.name[-1]), offset)
        for path in partitions
        for offset in set(bases(path, "snapshot")) & set(bases(path)[1:])
    }
    assert {row["verdict"] for row in ran.document["boundaries"]} == {"proven"}
    assert tree(broker_log) == before


def test_people_read_a_line_per_partition_and_one_for_each_snapshot_that_is_wrong(
    command: Resnap, broker_log: Path, snapshot: Path
) -> None:
    shown = command("verify", broker_log, *ROLL).out.splitlines()
    partitions = [path.name for path in broker_log.iterdir() if path.is_dir() and path.name != "compacted-0"]
    assert [line.split()[0] for line in shown[1:-2]] == sorted(partitions)
    assert shown[-1].startswith("Next: `resnap check ")
    snapshot.write_bytes(EMPTY_SNAPSHOT)
    wrong = command("verify", broker_log, *ROLL).out.splitlines()
    assert len(wrong) == len(shown) + 1
    at = next(number for number, line in enumerate(wrong) if line.startswith("payments-0 "))
    assert "1 false-empty" in wrong[at]
    assert wrong[at + 1].split()[:2] == ["at", str(int(snapshot.stem))]
    assert "false-empty" in wrong[at + 1]


def _drop_one(data: bytes) -> bytes:
    return snapshot_bytes(list(read_snapshot(data).values())[1:])


def _other_sequence(data: bytes) -> bytes:
    first, *others = read_snapshot(data).values()
    return snapshot_bytes([first._replace(last_sequence=first.last_sequence + 1), *others])


def _other_transaction(data: bytes) -> bytes:
    first, *others = read_snapshot(data).values()
    return snapshot_bytes([first._replace(current_txn_first_offset=first.last_offset), *others])


@pytest.mark.parametrize(
    ("change", "verdict", "field"),
    [
        (lambda _: EMPTY_SNAPSHOT, "false-empty", "missing"),
        (_drop_one, "false-partial", "missing"),
        (_other_sequence, "different", "different"),
        (_other_transaction, "different", "different"),
    ],
)
def test_a_wrong_snapshot_ends_with_13_and_is_named(
    command: Resnap, snapshot: Path, change: Callable[[bytes], bytes], verdict: str, field: str
) -> None:
    snapshot.write_bytes(change(snapshot.read_bytes()))
    ran = command("verify", snapshot.parent, *ROLL, "--output", "json")
    assert ran.code == 13
    [wrong] = [row for row in ran.document["boundaries"] if row["verdict"] != "proven"]
    assert (wrong["offset"], wrong["verdict"]) == (int(snapshot.stem), verdict)
    assert wrong[field]
    assert ran.error["type"] == "VerificationError"
    assert "not what a replay gives: 1 snapshot" in ran.error["message"]
    assert ran.error["hint"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: b"", "zero-byte"),
        (lambda data: data + b"\0", "corrupt"),
        (lambda data: data[:-1], "corrupt"),
        (lambda data: data[:20] + b"\xff" + data[21:], "corrupt"),
    ],
)
def test_a_snapshot_that_no_broker_could_load_ends_with_13(
    command: Resnap, snapshot: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    snapshot.write_bytes(change(snapshot.read_bytes()))
    ran = command("verify", snapshot.parent, *ROLL)
    assert ran.code == 13
    assert f"error: {snapshot}: {said}" in ran.err


def test_regenerated_snapshots_are_proven_beside_the_log(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("regenerate", broker_log, "--into", out, *ROLL).code == 0
    ran = command("verify", broker_log, "--snapshots", out, *LOCAL, "--output", "json")
    assert ran.code == 0
    assert len(ran.document["boundaries"]) == len(list(out.rglob("*.snapshot")))
    assert {row["verdict"] for row in ran.document["boundaries"]} == {"proven"}
    assert "warning" not in ran.err


@pytest.mark.parametrize("change", [lambda _: EMPTY_SNAPSHOT, _drop_one, _other_sequence])
def test_a_wrong_regenerated_snapshot_ends_with_13(
    command: Resnap, broker_log: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    out = tmp_path / "out"
    assert command("regenerate", broker_log, "--topic", "payments", "--into", out, *ROLL).code == 0
    path = max((out / "payments-1").glob("*.snapshot"))
    path.write_bytes(change(path.read_bytes()))
    ran = command("verify", broker_log, "--snapshots", out, *ROLL, "--output", "json")
    assert ran.code == 13
    wrong = [(row["partition"], row["offset"]) for row in ran.document["boundaries"] if row["verdict"] != "proven"]
    assert wrong == [(1, int(path.stem))]


def test_a_regenerated_snapshot_that_no_broker_could_load_ends_with_13(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert command("regenerate", broker_log, "--topic", "payments", "--into", out, *ROLL).code == 0
    path = max((out / "payments-1").glob("*.snapshot"))
    flip(path, 3)
    ran = command("verify", broker_log, "--snapshots", out, *ROLL)
    assert ran.code == 13
    assert f"{path}: producer snapshot checksum" in ran.err


def test_regenerated_snapshots_that_are_not_there_are_missed(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("regenerate", broker_log, "--topic", "payments", "--into", out, *ROLL).code == 0
    min((out / "payments-1").glob("*.snapshot")).unlink()
    ran = command("verify", broker_log, "--topic", "payments", "--snapshots", out, *ROLL)
    assert ran.code == 0
    assert "warning: 1 boundary without the snapshot in " in ran.err
    assert f"`resnap regenerate {broker_log} --topic payments --as-of roll --into {out}`, which makes" in ran.out
    assert "resnap install" not in ran.out
    shutil.rmtree(out)
    assert command("verify", broker_log, "--snapshots", out, *ROLL).code == 2
    out.mkdir()
    nothing = command("verify", broker_log, "--snapshots", out, *ROLL)
    assert (nothing.code, nothing.out) == (2, "")
    assert f"{out} has no snapshot" in nothing.err


def test_a_store_is_read_back_whole(command: Resnap, store: Path) -> None:
    ran = command("verify", "--store", store.as_uri(), "--engine", "local", "--output", "json")
    assert ran.code == 0
    summary = ran.document["summary"]
    objects = [path for path in store.rglob("*") if path.is_file() and path.suffix != ".manifest"]
    assert summary["segments"] == len(list(store.rglob("*.manifest"))) == len(ran.document["segments"])
    assert summary["bytes"] == sum(path.stat().st_size for path in objects)
    assert summary["different"] == 0


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (suffix, damage)
        for suffix in ("log", "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint", "manifest")
        for damage in ("flip", "cut", "append", "delete")
        if (suffix, damage) != ("manifest", "delete")
    ],
)
def test_each_change_to_each_object_is_found(command: Resnap, store: Path, suffix: str, damage: str) -> None:
    path = next(path for path in sorted(store.rglob(f"*.{suffix}")) if path.stat().st_size)
    data = path.read_bytes()
    match damage:
        case "flip":
            flip(path, len(data) // 2)
        case "cut":
            path.write_bytes(data[:-1])
        case "append":
            path.write_bytes(data + b"\0")
        case "delete":
            path.unlink()
    ran = command("verify", "--store", store.as_uri(), "--engine", "local", "--output", "json")
    assert ran.code == 13
    [different] = [row for row in ran.document["segments"] if row["result"] == "different"]
    assert path.stem in different["manifest"]
    assert path.name in ran.err
    assert ran.error["hint"]


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex"])
def test_a_store_as_argument_is_read_back_as_with_the_flag(command: Resnap, store: Path, suffix: str) -> None:
    path = next(path for path in sorted(store.rglob(f"*.{suffix}")) if path.stat().st_size)
    flip(path, path.stat().st_size // 2)
    how = ("--engine", "local", "--output", "json")
    ran = command("verify", store.as_uri(), *how)
    assert (ran.code, path.name in ran.err) == (13, True)
    assert ran.document == command("verify", "--store", store.as_uri(), *how).document
    assert (
        command("verify", store.as_uri(), *how, "--since", "2100-01-01T00:00:00Z").document["summary"]["segments"] == 0
    )


def test_a_topic_that_a_store_does_not_hold_is_named(command: Resnap, store: Path) -> None:
    for asked in (("verify",), ("retain", "--retention", "1d")):
        ran = command(*asked, store.as_uri(), "--topic", "nosuch")
        assert (ran.code, "matches --topic nosuch" in ran.err) == (2, True), ran.err


def test_what_is_of_logs_alone_is_refused_beside_a_store(command: Resnap, store: Path, broker_log: Path) -> None:
    for more in ((broker_log,), ("--partition", "payments-0"), ("--remote", store.as_uri())):
        ran = command("verify", store.as_uri(), *more)
        assert (ran.code, ran.out, store.as_uri() in ran.err) == (2, "", True), more


def test_a_manifest_under_the_key_of_another_segment_is_found(command: Resnap, store: Path) -> None:
    path = min(store.rglob("*.manifest"))
    name = path.name[:21] + "00000000-0000-5000-8000-000000000000.manifest"
    shutil.copy(path, path.with_name(name))
    ran = command("verify", "--store", store.as_uri(), "--engine", "local")
    assert ran.code == 13
    assert "00000000-0000-5000-8000-000000000000.manifest: holds the manifest of the segment" in ran.err


def test_objects_without_a_manifest_are_not_judged(command: Resnap, store: Path) -> None:
    count = len(list(store.rglob("*.manifest")))
    path = min(store.rglob("*.manifest"))
    path.unlink()
    ran = command("verify", "--store", store.as_uri(), "--engine", "local", "--output", "json")
    assert ran.code == 0
    assert ran.document["summary"]["segments"] == count - 1


def test_a_place_where_nothing_was_shipped_is_not_a_success(command: Resnap, tmp_path: Path) -> None:
    ran = command("verify", "--store", f"file://{tmp_path}/nothing")
    assert ran.code == 2
    assert "holds no shipped segment" in ran.err


def test_either_a_source_or_a_store(command: Resnap, broker_log: Path, tmp_path: Path) -> None:
    for arguments in ((), (broker_log, "--store", tmp_path.as_uri()), ("--snapshots", tmp_path)):
        ran = command("verify", *arguments)
        assert (ran.code, ran.out) == (2, "")


def test_both_forms_of_json_say_the_same(command: Resnap, store: Path) -> None:
    document = command("verify", "--store", store.as_uri(), "--engine", "local", "--output", "json").document
    lines = command("verify", "--store", store.as_uri(), "--engine", "local", "--output", "ndjson").out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[:-1] == [{"type": "segment", **row} for row in document["segments"]]
    assert rows[-1] == {"type": "summary", **document["summary"]}
    assert command("verify", "--store", store.as_uri(), "--engine", "local", "--quiet").err == ""


def test_a_log_without_snapshots_has_nothing_to_compare_and_a_next_step(command: Resnap, broker_log: Path) -> None:
    for snapshot in broker_log.rglob("*.snapshot"):
        snapshot.unlink()
    ran = command("verify", broker_log, *LOCAL)
    assert ran.code == 0
    assert f"No snapshot is there to compare. Next: `resnap scan {broker_log}` shows what is missing." in ran.out


def test_an_empty_remote_is_not_the_current_directory(command: Resnap, broker_log: Path) -> None:
    ran = command("verify", broker_log, "--remote", "")
    assert (ran.code, ran.out, "remote (flag --remote)" in ran.err) == (2, "", True)


def test_nothing_is_to_be_verified_in_a_store_that_ended_with_the_command(command: Resnap, broker_log: Path) -> None:
    ran = command("tier", broker_log, "--topic", "orders", "--to", "memory://there", *LOCAL)
    assert (ran.code, "segments shipped" in ran.out, "resnap verify" in ran.out) == (0, True, False)


def test_snapshots_beside_their_segments_are_no_staged_ones_to_be_made_again_or_installed(
    command: Resnap, broker_log: Path
) -> None:
    for place in (broker_log, broker_log.as_uri()):
        ran = command("verify", broker_log, "--snapshots", place, *LOCAL)
        assert ran.code == 0, ran.err
        assert f"Next: `resnap check {broker_log}`" in ran.out
