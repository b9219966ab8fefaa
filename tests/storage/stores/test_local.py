from __future__ import annotations

import io
import os
import resource
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import (
    ObjectNotFoundError,
    StoreAccessError,
    StoreError,
    StoreFullError,
)
from resnap.storage.stores import local
from resnap.storage.stores.local import LocalObjectStore, is_temporary
from tests.storage.stores.contract import ObjectStoreContract

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectStore

LEFTOVER = ".resnap-" + "0123456789abcdef" * 2 + "~"


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class TestLocalObjectStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore(tmp_path / "store with % and ä")


def test_an_object_is_a_file_of_its_name(tmp_path: Path) -> None:
    LocalObjectStore(tmp_path / "root").put("a/b.log", b"x")
    assert (tmp_path / "root/a/b.log").read_bytes() == b"x"
    assert names(tmp_path / "root/a") == ["b.log"]


def test_who_replaces_a_version_that_is_being_deleted_comes_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("a/b", b"first")
    etag, look, others = store.head("a/b").etag, local.check_etag, list[Future[None]]()

    def look_and_let_another_replace_it(*arguments: str, **versions: str) -> None:
        look(*arguments, **versions)
        if not others:
            others.append(pool.submit(store.replace, "a/b", b"second", etag=etag))
            wait(others, timeout=0.3)

    monkeypatch.setattr(local, "check_etag", look_and_let_another_replace_it)
    with ThreadPoolExecutor(1) as pool:
        store.delete("a/b", etag=etag)
    assert isinstance(others[0].exception(), ObjectNotFoundError)
    assert list(store.list()) == []


def test_files_that_others_put_there_are_objects(tmp_path: Path) -> None:
    (tmp_path / "topic-0").mkdir()
    (tmp_path / "topic-0/with space+%.log").write_bytes(b"x")
    store = LocalObjectStore(tmp_path)
    assert [entry.key for entry in store.list()] == ["topic-0/with space+%.log"]
    assert store.get("topic-0/with space+%.log") == b"x"


def test_what_an_unfinished_write_left_is_known_by_its_name_and_is_not_an_object(tmp_path: Path) -> None:
    (tmp_path / LEFTOVER).write_bytes(b"half")
    store = LocalObjectStore(tmp_path)
    assert is_temporary(LEFTOVER)
    assert not is_temporary(LEFTOVER.removesuffix("~"))
    assert list(store.list()) == []
    with pytest.raises(ObjectNotFoundError):
        store.get(LEFTOVER)


def test_while_a_body_is_written_its_file_is_temporary_and_the_key_is_free(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    seen: list[bool] = []

    class PartitionDetails(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            seen.extend(is_temporary(name) for name in names(tmp_path))
            assert list(store.list()) == []
            return super().read(size)

    store.put_stream("key", lambda: PartitionDetails(bytes(3 << 20)), size_bytes=3 << 20)
    assert seen
    assert all(seen)
    assert names(tmp_path) == ["key"]


@pytest.mark.parametrize(
    ("kind", "most", "hint"),
    [(resource.RLIMIT_NOFILE, 3, "limit of open files"), (resource.RLIMIT_FSIZE, 8, "limit of the size of a file")],
)
def test_a_limit_of_the_process_is_not_a_fault_of_the_disk(kind: int, most: int, hint: str, tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        with pytest.raises(StoreError) as met:
            store.put("key", b"more than is allowed")
    finally:
        resource.setrlimit(kind, before)
    assert hint in str(met.value.hint)


def test_pipes_and_folders_are_not_objects(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    store = LocalObjectStore(tmp_path)
    assert list(store.list()) == []
    for key in ("pipe", "folder"):
        with pytest.raises(ObjectNotFoundError):
            store.get(key)


def test_a_reader_keeps_the_version_it_opened(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("key", b"a" * (3 << 20))
    with store.open("key") as chunks:
        front = next(chunks)
        store.put("key", b"b" * (3 << 20))
        assert set(front + b"".join(chunks)) == {ord("a")}


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_name_is_not_both_an_object_and_a_folder(tmp_path: Path, if_absent: bool) -> None:
    store = LocalObjectStore(tmp_path)
    store.put("object", b"x")
    store.put("folder/object", b"x")
    for key in ("object/below", "folder"):
        with pytest.raises(StoreError, match=r"directory|exists") as raised:
            store.put(key, b"y", if_absent=if_absent)
        assert type(raised.value) is StoreError
        assert "another prefix" in (raised.value.hint or "")
    assert [entry.key for entry in store.list()] == ["folder/object", "object"]


def test_the_directory_above_the_root_must_be_there(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "not mounted/root")
    for attempt in (
        lambda: store.put("key", b"x"),
        lambda: store.get("key"),
        lambda: store.head("key"),
        lambda: list(store.list()),
    ):
        with pytest.raises(StoreAccessError, match="no such") as raised:
            attempt()
        assert f"mkdir -p '{tmp_path}/not mounted'" in (raised.value.hint or "")
    assert names(tmp_path) == []


def test_a_file_in_the_place_of_the_root_is_said(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    store = LocalObjectStore(tmp_path / "root")
    with pytest.raises(StoreError, match="not a directory"):
        list(store.list())
    with pytest.raises(StoreError, match="not a directory"):
        store.put("key", b"x")


def test_a_full_disk_is_said_and_leaves_the_old_object_and_no_rest(tiny_disk: Path) -> None:
    store = LocalObjectStore(tiny_disk)
    store.put("key", b"before")
    body = bytes(2 << 20)
    for attempt in (
        lambda: store.put("key", body),
        lambda: store.put("new", body, if_absent=True),
        lambda: store.put_stream("key", lambda: io.BytesIO(body), size_bytes=len(body)),
    ):
        with pytest.raises(StoreFullError, match="no space left") as raised:
            attempt()
        assert not raised.value.transient
    assert store.get("key") == b"before"
    assert names(tiny_disk) == ["key"]


def test_a_read_only_disk_is_said(read_only_disk: Path) -> None:
    store = LocalObjectStore(read_only_disk)
    with pytest.raises(StoreAccessError, match="read-only file system"):
        store.put("key", b"x")
    assert list(store.list()) == []


@pytest.mark.usefixtures("as_unprivileged_user")
def test_a_forbidden_directory_is_said(open_folder: Path) -> None:
    store = LocalObjectStore(open_folder / "root")
    store.put("a/key", b"x")
    (open_folder / "root/a").chmod(0o000)
    for attempt in (
        lambda: store.put("a/other", b"x"),
        lambda: store.get("a/key"),
        lambda: store.head("a/key"),
        lambda: store.delete("a/key"),
        lambda: list(store.list()),
    ):
        with pytest.raises(StoreAccessError, match="permission denied") as raised:
            attempt()
        assert raised.value.exit_code == 12
    (open_folder / "root/a").chmod(0o700)
    assert store.get("a/key") == b"x"


@pytest.mark.usefixtures("as_unprivileged_user")
def test_a_directory_that_may_only_be_read_can_still_be_read(open_folder: Path) -> None:
    store = LocalObjectStore(open_folder)
    store.put("key", b"x")
    open_folder.chmod(0o555)
    with pytest.raises(StoreAccessError, match="permission denied"):
        store.put("key", b"y")
    assert store.get("key") == b"x"
    assert [entry.key for entry in store.list()] == ["key"]


def test_what_lies_behind_a_link_is_neither_read_nor_written_nor_deleted(tmp_path: Path) -> None:
    LocalObjectStore(tmp_path / "elsewhere").put("folder/key", b"x")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "link").symlink_to(tmp_path / "elsewhere" / "folder")
    (tmp_path / "root").symlink_to(tmp_path / "store")
    store = LocalObjectStore(tmp_path / "root")
    for use in (
        lambda: store.get("link/key"),
        lambda: store.head("link/key"),
        lambda: store.put("link/key", b"y"),
        lambda: store.put("link", b"y"),
        lambda: store.delete("link/key"),
        lambda: store.delete("link"),
        lambda: list(store.list()),
        lambda: list(store.list("link/")),
    ):
        with pytest.raises(StoreError, match="link: a symbolic link"):
            use()
    assert (tmp_path / "elsewhere" / "folder" / "key").read_bytes() == b"x"
    assert list(store.list("other")) == []


def test_a_folder_that_was_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "store")
    store.put("a/b/first", b"1")
    shutil.rmtree(tmp_path / "store" / "a")
    store.put("a/b/second", b"2")
    assert store.get("a/b/second") == b"2"
