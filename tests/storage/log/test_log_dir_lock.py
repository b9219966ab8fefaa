from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import LogDirError, LogDirInUseError
from resnap.storage.log import log_dir_lock
from resnap.storage.log.log_dir_lock import hold_lock, lock_holder, process_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import fcntl, sys
with open(sys.argv[1], "r+") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""
TRY = """
import fcntl, sys
with open(sys.argv[1], "r+") as lock:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(1)
"""


@contextmanager
def another_holding(path: Path) -> Iterator[int]:
    """Hold the lock as a broker does, until the context ends."""
    path.touch()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid


def can_be_taken(path: Path) -> bool:
    """Whether a process of its own, a broker that starts, gets the lock."""
    return subprocess.run([sys.executable, "-c", TRY, str(path)], check=False).returncode == 0


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def facts(directory: Path) -> tuple[list[str], int]:
    return names(directory), directory.stat().st_mtime_ns


def test_the_holder_of_the_lock_is_reported_with_what_to_do(tmp_path: Path) -> None:
    holding, refused = another_holding(tmp_path / ".lock"), pytest.raises(LogDirInUseError)
    with holding as process_id, refused as caught, hold_lock(tmp_path):
        pass
    assert f"process {process_id} (" in str(caught.value)
    assert "stop the broker" in str(caught.value.hint)
    assert caught.value.exit_code == 14


def test_no_other_process_gets_the_lock_before_the_context_ends(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    with hold_lock(tmp_path):
        assert not can_be_taken(tmp_path / ".lock")
    assert can_be_taken(tmp_path / ".lock")
    assert (tmp_path / ".lock").exists()


def test_a_lock_file_that_was_not_there_goes_again_and_leaves_no_trace(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(1, 2))
    with hold_lock(tmp_path):
        assert not can_be_taken(tmp_path / ".lock")
        assert names(tmp_path) == [".lock"]
    assert facts(tmp_path) == ([], 2)


def test_an_error_inside_frees_the_lock_as_well(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(1, 2))
    with pytest.raises(ZeroDivisionError), hold_lock(tmp_path):
        raise ZeroDivisionError
    assert facts(tmp_path) == ([], 2)
    (tmp_path / ".lock").touch()
    with pytest.raises(ZeroDivisionError), hold_lock(tmp_path):
        raise ZeroDivisionError
    assert can_be_taken(tmp_path / ".lock")


def test_a_refusal_leaves_the_lock_file_of_others(tmp_path: Path) -> None:
    with another_holding(tmp_path / ".lock"):
        before = facts(tmp_path)
        with pytest.raises(LogDirInUseError), hold_lock(tmp_path):
            pass
        assert facts(tmp_path) == before
        assert lock_holder(tmp_path) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root has what others cannot get at")
@pytest.mark.parametrize(("owner", "mode"), [(1234, 0o755), (0, 0o775), (0, 0o777)])
def test_root_works_only_where_no_other_user_may_write(owner: int, mode: int, tmp_path: Path) -> None:
    os.chown(tmp_path, owner, 2345)
    tmp_path.chmod(mode)
    with pytest.raises(LogDirError, match="root does not work") as caught, hold_lock(tmp_path):
        pass
    assert ("setpriv --reuid 1234" in str(caught.value.hint)) == bool(owner)
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root has what others cannot get at")
@pytest.mark.parametrize(("owner", "mode"), [(1234, 0o755), (0, 0o775)])
def test_root_refuses_where_another_user_may_write_into_a_partition(owner: int, mode: int, tmp_path: Path) -> None:
    partition = tmp_path / "payments-0"
    partition.mkdir()
    with hold_lock(tmp_path):
        pass
    os.chown(partition, owner, 2345)
    partition.chmod(mode)
    with pytest.raises(LogDirError, match=f"{partition} .* root does not work") as caught, hold_lock(tmp_path):
        pass
    assert ("setpriv --reuid 1234" in str(caught.value.hint)) == bool(owner)
    assert names(tmp_path) == ["payments-0"]


def test_a_link_in_the_place_of_the_lock_file_is_not_followed(tmp_path: Path) -> None:
    foreign, log_dir = tmp_path / "foreign", tmp_path / "data"
    foreign.write_bytes(b"secret")
    foreign.chmod(0o600)
    log_dir.mkdir()
    for name in (".lock", ".lock.tmp"):
        (log_dir / name).symlink_to(foreign)
    with pytest.raises(LogDirError, match="cannot be opened for writing"), hold_lock(log_dir):
        pass
    with pytest.raises(LogDirError, match="cannot read"):
        lock_holder(log_dir)
    (log_dir / ".lock").unlink()
    with hold_lock(log_dir):
        assert not (log_dir / ".lock").is_symlink()
    assert (foreign.read_bytes(), foreign.stat().st_mode & 0o777) == (b"secret", 0o600)


def test_a_pipe_in_the_place_of_the_lock_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(LogDirError, match="not a regular file"), hold_lock(tmp_path):
        pass
    with pytest.raises(LogDirError, match="not a regular file"):
        lock_holder(tmp_path)


@pytest.mark.usefixtures("as_unprivileged_user")
def test_a_log_dir_that_may_not_be_written_to_is_reported(open_folder: Path) -> None:
    log_dir = open_folder / "data"
    log_dir.mkdir(mode=0o500)
    with pytest.raises(LogDirError, match="cannot be opened for writing") as caught, hold_lock(log_dir):
        pass
    assert "run as the user that the broker runs as" in str(caught.value.hint)
    assert names(log_dir) == []


def test_a_read_only_disk_is_reported(read_only_disk: Path) -> None:
    with pytest.raises(LogDirError, match="cannot be opened for writing"), hold_lock(read_only_disk):
        pass


def test_a_process_of_another_container_has_no_number_here() -> None:
    assert process_name(0) == "a process of another container or machine"
    assert process_name(2**22 + 1) == f"process {2**22 + 1}"


def test_a_lock_of_ones_own_is_not_taken_twice_and_outlasts_the_attempt(tmp_path: Path) -> None:
    with hold_lock(tmp_path):
        with pytest.raises(LogDirInUseError, match=f"this process, {os.getpid()}"), hold_lock(tmp_path):
            pass
        assert not can_be_taken(tmp_path / ".lock")
    with hold_lock(tmp_path):
        assert not can_be_taken(tmp_path / ".lock")


def test_asking_who_holds_a_lock_of_ones_own_does_not_give_it_up(tmp_path: Path) -> None:
    with hold_lock(tmp_path):
        assert lock_holder(tmp_path) is None
        assert not can_be_taken(tmp_path / ".lock")


def test_reading_the_lock_does_not_release_one_that_another_thread_takes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").touch()
    looks, taken = threading.Event(), threading.Event()

    def slowly(_: int) -> None:
        looks.set()
        taken.wait(0.3)

    monkeypatch.setattr(log_dir_lock, "_holder", slowly)
    look = threading.Thread(target=lock_holder, args=(tmp_path,))
    look.start()
    looks.wait()
    with hold_lock(tmp_path):
        taken.set()
        look.join()
        assert not can_be_taken(tmp_path / ".lock")
    assert can_be_taken(tmp_path / ".lock")
