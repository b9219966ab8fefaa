"""No lock is waited for without an end: any user who may read a file may hold its lock."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from resnap.storage.disk import Disk
from resnap.storage.errors import LockedError, StoreUnavailableError
from resnap.storage.processes import lock_within
from resnap.storage.stores import local
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.quota import user_quotas
from resnap.tiering.quota.user_quotas import QuotaFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX);"
    " print('held', flush=True); sys.stdin.read()"
)


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Let another process hold the lock of ``path``, opened for reading alone; yield its id."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.stdin.close()


def test_who_holds_a_lock_for_too_long_is_named(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with held(tmp_path) as holder, pytest.raises(LockedError, match=rf"{tmp_path} .* process {holder}, started"):
            lock_within(descriptor, tmp_path, 0.1)
        lock_within(descriptor, tmp_path, 10)
    finally:
        os.close(descriptor)


def test_a_reader_of_a_store_blocks_no_conditional_write_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LONGEST_WAIT_S", 0.1)
    store = LocalObjectStore(tmp_path / "store")
    store.put("a/b", b"1")
    etag = store.head("a/b").etag
    with held(tmp_path / "store" / "a") as holder, pytest.raises(StoreUnavailableError, match=f"process {holder}"):
        store.replace("a/b", b"2", etag=etag)
    store.replace("a/b", b"2", etag=etag)


def test_a_reader_of_the_state_directory_blocks_no_quota_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_quotas, "QUIET_WAIT_S", 0.1)
    monkeypatch.setattr(user_quotas, "LONGEST_WAIT_S", 0.1)
    notes: list[str] = []
    file = QuotaFile(tmp_path, Disk(), notes.append)
    file.set_rate("alice", 1)
    with held(tmp_path / "quotas.lock") as holder, pytest.raises(LockedError, match=f"process {holder}"):
        file.set_rate("alice", 2)
    assert len(notes) == 1
    assert file.load().rates().users == {"alice": 1.0}
