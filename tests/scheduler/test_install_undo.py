"""``resnap install --undo``: every file and folder as it was, or nothing is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.scheduler.files import bases, file_at, flip, lost_boundaries
from tests.scheduler.installed import (
    INSTALLED,
    look,
    manifest_of,
)
from tests.storage.log.test_log_dir_lock import another_holding

if TYPE_CHECKING:
    from tests.scheduler.conftest import Resnap

JSON = ("--output", "json")
LOCAL = ("--topic", "payments", "--engine", "local")


def test_undoing_restores_everything_and_can_be_repeated(command: Resnap, broker_log: Path, staged: Path) -> None:
    before = look(broker_log)
    manifest = manifest_of(command("install", staged, broker_log, *JSON))
    assert look(broker_log) != before
    tried = command("install", "--undo", manifest, "--dry-run", *JSON)
    assert tried.document["summary"] == {"dryRun": True, "removed": INSTALLED, "restored": 0}
    undone = command("install", "--undo", manifest, *JSON)
    assert (undone.code, undone.document["summary"]["removed"]) == (0, INSTALLED)
    assert look(broker_log) == before
    again = command("install", "--undo", Path(manifest).parent)
    assert (again.code, again.out) == (0, "Nothing to undo.\n")
    assert look(broker_log) == before
    assert command("install", staged, broker_log, *JSON).document["summary"]["installed"] == INSTALLED


def test_after_an_undo_the_older_installations_are_named_from_the_newest_on(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    before = look(broker_log)
    installs = (command("install", staged, broker_log, "--topic", topic, *JSON) for topic in ("pay*", "leg*", "dash*"))
    manifests, followed = [manifest_of(ran) for ran in installs], list[str]()
    ran = command("install", "--undo", manifests[2])
    while "Next: `resnap install --undo " in ran.out:
        advised = ran.out.partition("Next: `resnap install --undo ")[2].partition("`")[0]
        followed.append(advised)
        ran = command("install", "--undo", advised)
        assert ran.code == 0, ran.err
    assert followed == [manifests[1], manifests[0]]
    assert look(broker_log) == before


@pytest.mark.parametrize("has_target", [True, False])
def test_a_link_in_the_place_of_a_snapshot_is_refused_and_stays(
    command: Resnap, broker_log: Path, tmp_path: Path, *, has_target: bool
) -> None:
    partition = broker_log / "payments-0"
    link = file_at(partition, lost_boundaries(partition)[0], "snapshot")
    if has_target:
        (tmp_path / "empty").touch()
    link.symlink_to(tmp_path / "empty")
    assert command("regenerate", broker_log, "--into", tmp_path / "made", *LOCAL).code == 0
    before = look(broker_log)
    ran = command("install", tmp_path / "made", broker_log, "--replace", "corrupt")
    assert (ran.code, f"{link} is a symbolic link" in ran.err) == (1, True)
    assert (look(broker_log), link.is_symlink()) == (before, True)


def test_a_place_for_undoing_can_be_chosen_but_not_inside_a_log_dir(
    command: Resnap, broker_log: Path, staged: Path, tmp_path: Path
) -> None:
    before = look(broker_log)
    (tmp_path / "link").symlink_to(broker_log)
    for place in (broker_log / "undo", broker_log / "payments-0" / "x", tmp_path / "link" / "undo"):
        ran = command("install", staged, broker_log, "--undo-dir", place)
        assert (ran.code, ran.out) == (2, "")
        assert "inside the log dir" in ran.err
    assert look(broker_log) == before
    ran = command("install", staged, broker_log, "--undo-dir", tmp_path / "a" / "b", *JSON)
    assert Path(manifest_of(ran)).is_relative_to(tmp_path / "a" / "b")
    assert not staged.with_name("staged.undo").exists()


def test_two_installations_in_a_second_have_places_of_their_own(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    before = look(broker_log)
    for topic in ("payments", "legacy", "dash*"):
        assert command("install", staged, broker_log, "--topic", topic).code == 0
    manifests = sorted(staged.with_name("staged.undo").iterdir())
    assert len(manifests) == 3
    for path in manifests:
        assert command("install", "--undo", path).code == 0
    assert look(broker_log) == before


def test_a_broker_that_has_run_since_is_not_undone(command: Resnap, broker_log: Path, staged: Path) -> None:
    manifest = manifest_of(command("install", staged, broker_log, *JSON))
    mark = broker_log / ".kafka_cleanshutdown"
    mark.touch()
    after = look(broker_log)
    for flags in ((), ("--dry-run",)):
        ran = command("install", "--undo", manifest, *flags, *JSON)
        assert (ran.code, ran.error["type"]) == (15, "StalePlanError")
        assert "a broker has run on" in ran.error["message"]
    assert look(broker_log) == after
    mark.unlink()
    assert command("install", "--undo", manifest).code == 15
    with another_holding(broker_log / ".lock"):
        assert command("install", "--undo", manifest).code == 14


def test_a_file_that_was_changed_since_stops_the_undoing_before_it_begins(
    command: Resnap, broker_log: Path, staged: Path
) -> None:
    manifest = manifest_of(command("install", staged, broker_log, *JSON))
    path = file_at(broker_log / "payments-1", bases(staged / "payments-1", "snapshot")[2], "snapshot")
    flip(path, 15)
    after = look(broker_log)
    ran = command("install", "--undo", manifest, *JSON)
    assert (ran.code, path.name in ran.error["message"]) == (15, True)
    assert look(broker_log) == after


def test_without_what_was_kept_aside_nothing_is_undone(command: Resnap, broker_log: Path, staged: Path) -> None:
    offset = lost_boundaries(broker_log / "payments-0")[0]
    file_at(broker_log / "payments-0", offset, "snapshot").write_bytes(b"rubbish")
    manifest = Path(manifest_of(command("install", staged, broker_log, "--replace", "corrupt", *JSON)))
    kept = manifest.parent / "aside" / "payments-0" / f"{offset:020d}.snapshot"
    assert kept.read_bytes() == b"rubbish"
    kept.write_bytes(b"rubbisH")
    after = look(broker_log)
    assert command("install", "--undo", manifest).code == 13
    kept.unlink()
    assert command("install", "--undo", manifest).code == 13
    assert look(broker_log) == after


def test_a_damaged_manifest_is_refused_whatever_it_names(command: Resnap, broker_log: Path, staged: Path) -> None:
    manifest = Path(manifest_of(command("install", staged, broker_log, *JSON)))
    whole, after = manifest.read_text(), look(broker_log)
    content = json.loads(whole)
    evil = []
    for place in (
        "../victim.snapshot",
        "payments-0/00000000000000000000.log",
        "payments-0/../x.snapshot",
        "/etc/passwd",
    ):
        content["changes"][0]["place"] = place
        evil.append(json.dumps(content))
    for text in (whole[: len(whole) // 2], "[]", "", whole.replace('"version": 1', '"version": 2'), *evil):
        manifest.write_text(text)
        ran = command("install", "--undo", manifest, *JSON)
        assert (ran.code, ran.error["type"]) == (1, "FormatError")
    assert look(broker_log) == after


def test_a_plan_and_an_undoing_exclude_each_other(command: Resnap, tmp_path: Path) -> None:
    assert command("install", "--undo", tmp_path / "manifest.json", "--plan", tmp_path / "plan.json").code == 2
