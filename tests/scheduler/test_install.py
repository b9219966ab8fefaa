"""``resnap install``: snapshots beside the segments of a stopped broker, and nothing else changed."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.scheduler.files import EMPTY_SNAPSHOT, bases, file_at, lost_boundaries
from tests.scheduler.installed import (
    INSTALLED,
    SET,
    check_install,
    look,
    manifest_of,
    outcomes,
    regenerate,
    staged_in,
)
from tests.scheduler.shipped import entries
from tests.storage.log.test_log_dir_lock import another_holding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Resnap

JSON = ("--output", "json")


def folders(log_dir: Path) -> set[str]:
    return {path.name for path in log_dir.iterdir() if path.is_dir() and path.name != "compacted-0"}


def test_every_lost_snapshot_is_installed_beside_its_segment(
    command: Resnap, broker_log: Path, staged: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    lost = {f"{name}/{offset:020d}.snapshot" for name in folders(broker_log)
            for offset in lost_boundaries(broker_log / name)}  # fmt: skip
    before = look(broker_log)
    ran = command("install", staged, broker_log, *JSON)
    assert ran.code == 0
    assert check_install(broker_log, before, staged) == lost
    assert ran.document["summary"]["installed"] == len(lost) == INSTALLED
    for place in lost:
        theirs = fixture_set(SET).expected / place
        assert entries((broker_log / place).read_bytes()) == entries(theirs.read_bytes())
    assert lost_boundaries(broker_log / "payments-0") == []


def test_owner_and_mode_are_those_of_the_segment(command: Resnap, broker_log: Path, staged: Path) -> None:
    for number, log in enumerate(sorted((broker_log / "payments-0").glob("*.log"))):
        log.chmod(0o600 + number % 8)
        if os.geteuid() == 0:
            os.chown(log, 1000 + number, 2000 + number)
    assert command("install", staged, broker_log).code == 0
    offsets = bases(broker_log / "payments-0")
    for path in (staged / "payments-0").glob("*.snapshot"):
        segment = file_at(broker_log / "payments-0", offsets[offsets.index(int(path.stem)) - 1], "log").stat()
        made = (broker_log / "payments-0" / path.name).stat()
        assert (made.st_mode, made.st_uid, made.st_gid) == (segment.st_mode, segment.st_uid, segment.st_gid)


def test_a_second_run_does_nothing(command: Resnap, broker_log: Path, staged: Path) -> None:
    assert command("install", staged, broker_log).code == 0
    after, undo = look(broker_log), look(staged.with_name("staged.undo"))
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, ran.document["undoManifest"]) == (0, None)
    assert ran.document["summary"] == {
        "installed": 0, "replaced": 0, "setAside": 0, "alreadyThere": INSTALLED, "left": 0, "refused": 0,
    }  # fmt: skip
    assert (look(broker_log), look(staged.with_name("staged.undo"))) == (after, undo)
    assert "Nothing to install: 31 snapshots are there already." in command("install", staged, broker_log).out


def test_a_dry_run_writes_nothing_and_names_the_blockers(command: Resnap, broker_log: Path, staged: Path) -> None:
    before = look(broker_log.parent)
    ran = command("install", staged, broker_log, "--dry-run")
    assert ran.code == 0
    assert ran.out.endswith(
        "would be: 31 snapshots installed, 0 replaced; 0 were there already. Nothing was written.\n"
        "Next: the same command without --dry-run.\n"
    )
    assert look(broker_log.parent) == before
    with another_holding(broker_log / ".lock"):
        ran = command("install", staged, broker_log, "--dry-run", *JSON)
        assert (ran.code, ran.document["summary"]["installed"]) == (0, INSTALLED)
        assert "holds its lock" in ran.err
    (broker_log / ".kafka_cleanshutdown").unlink()
    ran = command("install", staged, broker_log, "--dry-run")
    assert (ran.code, "was not shut down cleanly" in ran.err) == (0, True)


def test_what_keeps_the_broker_from_starting_is_said(command: Resnap, broker_log: Path, staged: Path) -> None:
    found, copy = broker_log / "lost+found", broker_log / "payments-0" / "copy.log"
    found.mkdir()
    copy.touch()
    for flags in (("--dry-run",), ()):
        ran = command("install", staged, broker_log, *flags)
        assert ran.code == 0
        for path in (found, copy):
            assert f"move {path} to a place outside the log dir" in ran.err


def test_a_dry_run_ends_with_the_code_of_the_run(command: Resnap, broker_log: Path, staged: Path) -> None:
    (broker_log / "payments-0" / f"{0:020d}.log.swap").touch()
    tried = command("install", staged, broker_log, "--dry-run", *JSON)
    ran = command("install", staged, broker_log, *JSON)
    assert (tried.code, ran.code) == (3, 3)
    assert tried.document["summary"]["refused"] == ran.document["summary"]["refused"] > 0
    assert (broker_log / "payments-0" / f"{0:020d}.log.swap").exists()
    assert command("install", staged, broker_log, "--dry-run", *JSON).code == 1, "nothing is left that could be done"


def test_one_partitions_directory_will_do_and_topics_can_be_chosen(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    before = look(broker_log)
    ran = command("install", staged, broker_log / "payments-0", *JSON)
    assert ran.code == 0
    assert "payments-1 is staged, but not in the log dir" in ran.err
    made = check_install(broker_log, before, staged)
    assert {place.partition("/")[0] for place in made} == {"payments-0"}
    ran = command("install", staged, broker_log, "--topic", "pay*", *JSON)
    assert [(row["partition"], row["installed"]) for row in ran.document["partitions"]] == [(0, 0), (1, 4)]


def test_the_broker_is_to_start_only_when_all_of_its_log_dirs_are_done(
    command: Resnap, broker_log: Path, staged: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in broker_log.iterdir():
        if path.is_file():
            shutil.copy2(path, other)
    (broker_log / "payments-1").rename(other / "payments-1")
    for log_dir in (broker_log, other):
        ran = command("install", staged, log_dir, "--topic", "payments")
        assert ran.code == 0
        assert "other log dirs, if any are left (1 staged partition is not here); then start it" in ran.out
    assert "Next: start the broker" in command("install", staged, broker_log, "--topic", "dash*").out


def test_what_is_staged_in_a_store_is_installed_from_there(
    command: Resnap, broker_log: Path, staged: Path, tmp_path: Path
) -> None:
    before = look(broker_log)
    ran = command("install", staged.as_uri(), broker_log)
    assert ran.code == 0
    assert len(check_install(broker_log, before, staged)) == INSTALLED
    assert (tmp_path / "staged.undo").is_dir()


@pytest.mark.s3
def test_what_is_staged_in_a_bucket_is_installed_from_there(
    command: Resnap, broker_log: Path, staged: Path, bucket: Bucket, tmp_path: Path
) -> None:
    url, before = f"{bucket.url}/snapshots", look(broker_log)
    arguments = ("regenerate", broker_log, "--into", url, "--as-of", "roll", "--engine", "local", *bucket.flags)
    assert command(*arguments, **bucket.variables).code == 0
    ran = command("install", url, broker_log, *bucket.flags, **bucket.variables)
    assert (ran.code, "give --undo-dir" in ran.err) == (2, True)
    ran = command("install", url, broker_log, "--undo-dir", tmp_path / "undo", *bucket.flags, **bucket.variables)
    assert ran.code == 0
    assert len(check_install(broker_log, before, staged)) == INSTALLED


@pytest.mark.parametrize("damage", ["corrupt", "zero-byte"])
def test_a_useless_file_is_replaced_only_on_request_and_comes_back(
    command: Resnap, broker_log: Path, staged: Path, damage: str
) -> None:
    offset = lost_boundaries(broker_log / "payments-0")[1]
    path = file_at(broker_log / "payments-0", offset, "snapshot")
    path.write_bytes(b"" if damage == "zero-byte" else EMPTY_SNAPSHOT + b"more")
    path.chmod(0o604)
    os.utime(path, ns=(1, 2))
    before = look(broker_log)
    ran = command("install", staged, broker_log, *JSON)
    assert ran.code == 3
    assert outcomes(ran.document, "payments-0")[offset] == "not-asked"
    assert look(broker_log)[f"payments-0/{path.name}"] == before[f"payments-0/{path.name}"]
    ran = command("install", staged, broker_log, "--replace", "corrupt", *JSON)
    assert outcomes(ran.document, "payments-0")[offset] == "replaced"
    assert path.read_bytes() == (staged / "payments-0" / path.name).read_bytes()
    for manifest in sorted(staged.with_name("staged.undo").iterdir(), reverse=True):
        assert command("install", "--undo", manifest).code == 0
    assert look(broker_log) == before


def false_empties(broker_log: Path, staged: Path) -> Path:
    """Put empty snapshots where a broker that finds none does, and stage right ones for all boundaries."""
    partition = broker_log / "payments-0"
    for path in partition.glob("*.snapshot"):
        path.write_bytes(EMPTY_SNAPSHOT)
    shutil.rmtree(staged)
    regenerate(broker_log, staged, "--topic", "payments", "--boundaries", "all")
    return partition


def test_false_empty_files_are_replaced_only_on_request_and_with_them_that_at_the_log_end(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = false_empties(broker_log, staged)
    offsets, log_end = bases(partition), max(bases(partition, "snapshot"))
    assert log_end > offsets[-1]
    before = look(broker_log)
    ran = command("install", staged, partition, *JSON)
    assert ran.code == 3
    assert outcomes(ran.document, "payments-0")[offsets[-1]] == "not-asked"
    assert command("install", "--undo", manifest_of(ran)).code == 0
    assert look(broker_log) == before
    ran = command("install", staged, partition, "--replace", "false-empty", *JSON)
    assert ran.code == 0
    found = outcomes(ran.document, "payments-0")
    assert (found[offsets[-1]], found[log_end]) == ("replaced", "set-aside")
    assert log_end not in bases(partition, "snapshot")
    assert {place for place in staged_in(staged) if place.startswith("payments-0/")} == {
        f"payments-0/{offset:020d}.snapshot" for offset in offsets[1:]
    }
    again = command("install", staged, partition, "--replace", "false-empty", *JSON)
    assert again.document["undoManifest"] is None
    assert command("install", "--undo", manifest_of(ran)).code == 0
    assert look(broker_log) == before


def test_a_log_end_left_over_by_a_killed_run_is_set_aside_by_the_next(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    partition = false_empties(broker_log, staged)
    last, log_end = bases(partition)[-1], max(bases(partition, "snapshot"))
    shutil.copy(staged / f"payments-0/{last:020d}.snapshot", partition)
    ran = command("install", staged, partition, "--replace", "false-empty", *JSON)
    found = outcomes(ran.document, "payments-0")
    assert (found[last], found[log_end]) == ("already-there", "set-aside")


def test_a_partition_that_cannot_be_read_is_reported_and_the_others_are_done(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    (broker_log / "payments-0" / "partition.metadata").write_text("nonsense")
    ran = command("install", staged, broker_log, *JSON)
    assert (ran.code, ran.error["type"]) == (3, "FormatError")
    assert ran.document["summary"]["installed"] == INSTALLED - len(bases(staged / "payments-0", "snapshot"))


def test_the_output_has_three_forms(command: Resnap, broker_log: Path, staged: Path) -> None:
    table = command("install", staged, broker_log, "-n").out.splitlines()
    assert table[0].split() == ["PARTITION", "INSTALLED", "REPLACED", "ALREADY", "LEFT", "REFUSED", "WHY"]
    rows = [
        json.loads(line)
        for line in command("install", staged, broker_log, "-n", "--output", "ndjson").out.split("\n")[:-1]
    ]
    assert [row["type"] for row in rows] == ["partition"] * 4 + ["summary"]
    assert (rows[-1]["dryRun"], rows[-1]["installed"]) == (True, INSTALLED)
    manifest = manifest_of(command("install", staged, broker_log, *JSON))
    rows = [
        json.loads(line) for line in command("install", "--undo", manifest, "--output", "ndjson").out.split("\n")[:-1]
    ]
    assert [row["type"] for row in rows] == ["file"] * INSTALLED + ["summary"]
    assert {row["action"] for row in rows[:-1]} == {"removed"}
