"""What a run of ``resnap repair`` keeps: originals until they are old, and a record for the next if it is killed."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.errors import StoreAccessError
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.shipping.lease import LEASE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scheduler.conftest import Resnap
    from tests.scheduler.unfit_stores import Scene

pytestmark = pytest.mark.usefixtures("producers_stay")

LONG_AGO_S: Final = 1_500_000_000


def test_an_undo_puts_back_the_named_topics_alone(scene_of: Callable[[str], Scene]) -> None:
    scene = scene_of("flat")
    scene.damage()
    wrong = scene.contents()
    run = scene.repair().document["summary"]["run"]
    repaired = scene.contents()
    other = scene.command("repair", scene.url, "--undo", run, "--topic", "no-such-topic")
    assert (other.code, f"the run {run} has replaced nothing of a topic" in other.err) == (2, True), other.err
    assert scene.contents() == repaired
    assert scene.command("repair", scene.url, "--undo", run, "--topic", "pay*").code == 0
    assert scene.contents() == wrong


def test_garbage_collection_takes_the_originals_when_they_are_old_and_says_what_cannot_be_undone(
    scene_of: Callable[[str], Scene], command: Resnap
) -> None:
    scene = scene_of("flat")
    scene.damage()
    summary = scene.repair().document["summary"]
    run, root = summary["run"], scene.files.store
    young = command("gc", scene.url, "--output", "json", "--delete")
    assert (young.code, young.document["garbage"], young.err) == (0, [], "")
    for path in root.rglob("*.*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    assert command("gc", scene.url, "--output", "json", "--delete").err == "", "the records are young"
    before = scene.repair("--undo", run, "--dry-run")
    assert (before.code, before.document["summary"]["undone"]) == (0, summary["repaired"])
    for path in root.rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    assert f"in the run {run} could not be undone any more" in command("gc", scene.url).err
    ran = command("gc", scene.url, "--delete")
    assert (ran.code, f"in the run {run} cannot be undone any more" in ran.err) == (0, True), ran.err
    assert not any(path.is_file() for path in (root / ".resnap" / "repaired").rglob("*"))
    assert command("gc", scene.url, "--output", "json").document["summary"]["objects"] == 0
    gone = scene.repair("--undo", run)
    assert (gone.code, "keeps no originals of a run" in gone.err) == (2, True)
    assert command("repair", f"{root.as_uri()}-mistyped", "--undo", run).code == 2
    assert not root.with_name(f"{root.name}-mistyped").exists()
    assert scene.verify().code == 0


def test_garbage_collection_leaves_what_an_undo_would_name_again(
    scene_of: Callable[[str], Scene], command: Resnap
) -> None:
    scene = scene_of("flat")
    scene.damage()
    wrong = scene.contents()
    run = scene.repair().document["summary"]["run"]
    for path in scene.files.store.rglob("*.*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    taken = command("gc", scene.url, "--delete", "--output", "json")
    assert taken.document["summary"]["objects"] == 0, taken.out
    assert scene.verify().code == 0
    assert scene.repair("--undo", run).code == 0
    assert scene.contents() == wrong


def test_garbage_collection_takes_old_originals_also_where_the_store_cannot_replace_one_version_only(
    scene_of: Callable[[str], Scene], command: Resnap, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(store: LocalObjectStore, key: str, body: bytes, *, etag: str) -> None:  # noqa: ARG001
        raise StoreAccessError("501 NotImplemented: If-Match", key=key)

    scene = scene_of("flat")
    scene.damage()
    monkeypatch.setattr(LocalObjectStore, "replace", refused)
    assert scene.repair("--no-other-writers").code == 0
    for path in scene.files.store.rglob("*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    repaired = scene.contents()
    ran = command("gc", scene.url, "--delete")
    assert (ran.code, "(If-Match) are refused" in ran.err, "--no-other-writers" in ran.err) == (2, True, True), ran.err
    assert scene.contents() == repaired
    ran = command("gc", scene.url, "--delete", "--no-other-writers")
    assert ran.code == 0, ran.err
    assert not any(path.is_file() for path in (scene.files.store / ".resnap" / "repaired").rglob("*"))
    assert scene.verify().code == 0


def repair_killed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repair until the first object of a segment is replaced."""
    honest = LocalObjectStore.replace

    def killed(store: LocalObjectStore, key: str, body: bytes, *, etag: str) -> None:
        honest(store, key, body, etag=etag)
        if ".resnap" not in key:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LocalObjectStore, "replace", killed)
        assert scene.repair().code == 130


@pytest.mark.slow
def test_a_run_that_was_killed_is_finished_by_the_next(
    scene_of: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    for layout in ("local-tiered", "plugin", "flat"):
        scene = scene_of(layout)
        right = scene.parts()
        scene.damage()
        wrong = scene.contents()
        repair_killed(scene, monkeypatch)
        assert scene.contents() != wrong
        ran = scene.repair()
        assert ran.code == 0, ran.err
        assert scene.parts() == right
        assert scene.verify().code == 0
        assert scene.repair("--undo", ran.document["summary"]["run"]).code == 0
        assert scene.contents() == wrong
        shutil.rmtree(scene.files.store)


def test_what_a_killed_run_has_left_is_put_back_and_then_repaired_under_a_lease(
    scene_of: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of("flat")
    scene.damage()
    repair_killed(scene, monkeypatch)
    honest, is_held = LocalObjectStore.replace, list[bool]()

    def noted(store: LocalObjectStore, key: str, body: bytes, *, etag: str) -> None:
        if ".resnap" not in key:
            is_held.append(any(path.is_file() for path in (scene.files.store / LEASE_PREFIX).rglob("*")))
        honest(store, key, body, etag=etag)

    monkeypatch.setattr(LocalObjectStore, "replace", noted)
    assert scene.repair().code == 0
    assert len(is_held) > 2
    assert all(is_held)


def test_what_retention_deletes_after_a_killed_run_keeps_no_later_run_from_repairing(
    scene_of: Callable[[str], Scene], command: Resnap, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of("flat")
    scene.damage()
    repair_killed(scene, monkeypatch)
    (record,) = (scene.files.store / ".resnap/repaired").rglob("!record")
    assert command("retain", scene.url, "--retention-bytes", "1", "--delete").code == 0
    for _ in range(2):
        ran = scene.repair()
        assert ran.code == 0, ran.err
    assert not record.exists()


@pytest.mark.parametrize(("content", "said"), [
    (b"garbage", "deletes it with its originals"), (b'{"version": 2}', "of the release that wrote it finishes it"),
])  # fmt: skip
def test_a_record_that_no_run_can_finish_says_what_to_do_and_is_deleted_if_it_is_damaged(
    scene_of: Callable[[str], Scene], command: Resnap, content: bytes, said: str
) -> None:
    scene = scene_of("flat")
    record = scene.files.store / ".resnap/repaired/20260101T000000Z-1/00000000/!record"
    record.parent.mkdir(parents=True)
    record.write_bytes(content)
    ran = scene.repair()
    assert (ran.code, said in ran.err) == (1, True), ran.err
    assert command("gc", scene.url, "--older-than", "0s", "--delete", "--no-other-writers").code == 0
    assert (scene.repair().code, record.exists()) == ((0, False) if content == b"garbage" else (1, True))


def test_a_run_that_was_killed_before_it_replaced_anything_has_nothing_to_undo(
    scene_of: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of("flat")
    scene.damage()
    honest, records = LocalObjectStore.put, []

    def killed(store: LocalObjectStore, key: str, body: bytes, **condition: Any) -> None:
        if key.endswith("!record"):
            records.append(key)
            if len(records) > 1:
                raise KeyboardInterrupt
        honest(store, key, body, **condition)

    with monkeypatch.context() as patched:
        patched.setattr(LocalObjectStore, "put", killed)
        ran = scene.repair()
    assert ran.code == 130
    [run] = {key.split("/")[2] for key in records}
    undone = scene.repair("--undo", run)
    assert (undone.code, undone.document["summary"]["undone"]) == (0, 1), undone.err
