"""``resnap gc``: lists by default, deletes on request, and says what it will not do."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from resnap.storage.stores.local import LocalObjectStore
from tests.scheduler.files import tree
from tests.scheduler.shipped import TOMBSTONE, check_store, files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

UPGRADED = "kafka-2.7.2-then-3.9.1"
LONG_AGO_S = 1_500_000_000


@pytest.fixture
def store(shipped: Path, tmp_path: Path) -> Path:
    """A store in which the manifest of one segment is missing, and all is old."""
    into = shutil.copytree(shipped, tmp_path / "store")
    min(into.rglob("*.manifest")).unlink()
    for path in into.rglob("*.*"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return into


def test_objects_that_no_manifest_names_are_listed_and_deleted_only_on_request(command: Resnap, store: Path) -> None:
    before = files_of(store)
    ran = command("gc", store.as_uri(), "--output", "json")
    assert ran.code == 0
    assert ran.document["summary"] | {"bytes": 0} == {
        "objects": 6, "bytes": 0, "uploads": 0, "deleted": False, "younger": 0,
    }  # fmt: skip
    assert files_of(store) == before
    listed = {row["key"] for row in ran.document["garbage"]}
    told = command("gc", store.as_uri())
    _, to_paste = told.out.split("Nothing was deleted.\nNext: to delete them: resnap ")
    done = command(*shlex.split(to_paste))
    assert done.code == 0
    assert "Deleted 6 objects" in done.out
    assert before.keys() - files_of(store).keys() == listed
    assert check_store(files_of(store))
    assert "\nNext: `resnap verify " in done.out
    assert "0 objects" in command("gc", store.as_uri(), "--delete").out
    assert command("gc", store.as_uri()).out.endswith("Nothing was deleted.\nNext: nothing is left to do.\n")


def test_the_command_that_deletes_what_is_listed_repeats_a_promise(command: Resnap, store: Path) -> None:
    _, to_paste = command("gc", store.as_uri(), "--older-than", "1s", "--no-other-writers").out.split(": resnap ")
    done = command(*shlex.split(to_paste))
    assert (done.code, "Deleted 6 objects" in done.out) == (0, True)


def test_the_next_command_is_not_one_that_is_refused_where_what_is_listed_is_young(
    command: Resnap, store: Path
) -> None:
    told = command("gc", store.as_uri(), "--older-than", "0s").out
    _, to_paste = told.split("Next: to delete those that are an hour old: resnap ")
    done = command(*shlex.split(to_paste))
    assert (done.code, "Deleted 6 objects" in done.out) == (0, True)


def test_an_upload_that_was_never_completed_is_called_so_also_where_it_is_deleted(command: Resnap, store: Path) -> None:
    left = store / f".resnap-{32 * '0'}~"
    left.write_bytes(b"half")
    os.utime(left, (LONG_AGO_S, LONG_AGO_S))
    for arguments in ((), ("--delete",)):
        ran = command("gc", store.as_uri(), "--output", "json", *arguments)
        [row] = [row for row in ran.document["garbage"] if ".resnap-" in row["key"]]
        assert row["key"].endswith(" (unfinished)")
        assert (ran.code, ran.document["summary"]["uploads"]) == (0, 1)
    assert not left.exists()


@pytest.mark.parametrize("promise", [(), ("--no-other-writers",)])
@pytest.mark.parametrize("keeps_conditions", [True, False])
def test_an_object_is_deleted_in_the_version_that_was_listed_if_the_store_was_seen_to_keep_to_it(
    command: Resnap,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    promise: tuple[str, ...],
    *,
    keeps_conditions: bool,
) -> None:
    staged = f".staging/{UUID(int=1)}/payments-0/{1:020d}.snapshot"
    (store / staged).parent.mkdir(parents=True)
    (store / staged).write_bytes(b"x")
    os.utime(store / staged, (LONG_AGO_S, LONG_AGO_S))
    listed = {row["key"] for row in command("gc", store.as_uri(), "--output", "json").document["garbage"]}
    replaced, delete, asked = {staged, max(listed)}, LocalObjectStore.delete, {}

    def replace_and_delete(self: LocalObjectStore, key: str, *, etag: str | None = None) -> None:
        if key in listed:
            asked[key] = etag is not None
        if key in replaced and (store / key).exists():
            before = (store / key).stat()
            (store / "other").write_bytes(bytes(before.st_size))
            os.utime(store / "other", ns=(before.st_mtime_ns, before.st_mtime_ns))
            (store / "other").rename(store / key)
        delete(self, key, etag=etag if keeps_conditions else None)

    monkeypatch.setattr(LocalObjectStore, "delete", replace_and_delete)
    ran = command("gc", store.as_uri(), "--delete", *promise)
    assert (ran.code, asked) == (0, dict.fromkeys(listed, keeps_conditions))
    stays = replaced if keeps_conditions else set()
    assert f"Deleted {len(listed - stays)} objects" in ran.out
    assert listed & files_of(store).keys() == stays


def test_an_age_that_is_too_short_or_invalid_is_a_usage_error(command: Resnap, store: Path) -> None:
    before = tree(store)
    young = command("gc", store.as_uri(), "--older-than", "5m", "--delete")
    assert young.code == 2
    assert "less than an hour" in young.err
    assert command("gc", store.as_uri(), "--older-than", "soon").code == 2
    assert tree(store) == before


def test_a_manifest_that_cannot_be_read_is_an_error(command: Resnap, store: Path) -> None:
    path = min(store.rglob("*.manifest"))
    path.write_bytes(b"not a manifest")
    before = files_of(store)
    ran = command("gc", store.as_uri(), "--delete")
    assert ran.code == 3
    assert path.name in ran.err
    assert {key: body for key, body in files_of(store).items() if key in before} == before


def test_a_place_that_holds_nothing_is_not_taken_for_a_clean_store(command: Resnap, store: Path) -> None:
    ran = command("gc", store.as_uri() + "-mistyped")
    assert ran.code == 0
    assert "holds no object at all" in ran.err
    assert "holds no object" not in command("gc", store.as_uri()).err
    assert command("gc", store.as_uri() + "-mistyped", "--delete").code == 0
    assert [path.name for path in store.parent.glob("*-mistyped")] == []


def test_what_was_deleted_is_shipped_again_under_other_keys_and_its_tombstone_goes_where_no_other_run_writes(
    command: Resnap, store: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    listed = {row["key"] for row in command("gc", store.as_uri(), "--delete", "--output", "json").document["garbage"]}
    tombstones = [key for key, body in files_of(store).items() if body == TOMBSTONE]
    assert {key.rpartition(".")[0] for key in tombstones} == {key.rpartition(".")[0] for key in listed}
    flags = ("--topic", "payments", "--as-of", "roll", "--engine", "local")
    again = command("tier", fixture_set(UPGRADED).data, "--to", store.as_uri(), *flags)
    assert (again.code, "1 segment shipped" in again.out) == (0, True), again.out
    assert check_store(files_of(store))
    assert not listed & files_of(store).keys()
    for key in tombstones:
        os.utime(store / key, (LONG_AGO_S, LONG_AGO_S))
    assert command("gc", store.as_uri(), "--delete").code == 0
    assert tombstones == [key for key, body in files_of(store).items() if body == TOMBSTONE], "they must stay"
    assert command("gc", store.as_uri(), "--delete", "--no-other-writers").code == 0
    assert [key for key, body in files_of(store).items() if body == TOMBSTONE] == []
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0


@pytest.mark.parametrize(
    "command_line",
    ["gc {} --delete", "retain {} --retention 1ms --delete", "verify {} --engine local"],
    ids=lambda one: one.split()[0],
)
def test_links_in_a_store_are_reported_and_nothing_is_read_or_deleted_through_them(
    command: Resnap, store: Path, command_line: str
) -> None:
    cluster = next(path for path in store.iterdir() if not path.name.startswith("."))
    (store / "latest").symlink_to(cluster.name)
    before = files_of(store)
    ran = command(*command_line.format(store.as_uri()).split())
    assert ran.code == 12
    assert "latest: a symbolic link, which a store does not follow" in ran.err
    assert files_of(store) == before


def test_a_segment_whose_objects_are_gone_is_shipped_again(
    command: Resnap, store: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    flags = ("--topic", "payments", "--as-of", "roll", "--engine", "local")
    tier = ("tier", fixture_set(UPGRADED).data, "--to", store.as_uri(), *flags)
    assert command(*tier).code == 0
    min(store.rglob("*.log")).unlink()
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 13
    again = command(*tier)
    assert (again.code, "1 segment shipped" in again.out) == (0, True), again.out
    assert check_store(files_of(store))
    assert command("verify", "--store", store.as_uri(), "--engine", "local").code == 0
