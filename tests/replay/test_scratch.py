from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resnap.replay.spark.settings import PROJECT_ROOT
from resnap.replay.staging import scratch_directory
from resnap.storage.errors import LogDirError

HOLDS_ONE = """
import sys, time
from resnap.replay.staging import scratch_directory
with scratch_directory("spark") as directory:
    (directory / "blocks").mkdir()
    print(directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let ``tmp_path`` be the system's temporary directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def holder(temporary: Path) -> subprocess.Popen[str]:
    """Start a process that has a scratch directory, and return when it has."""
    environment = {"PYTHONPATH": str(PROJECT_ROOT), "TMPDIR": str(temporary)}
    return subprocess.Popen([sys.executable, "-c", HOLDS_ONE], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_scratch_directory_is_private_and_gone_in_the_end(temporary: Path) -> None:
    with scratch_directory("spark") as directory:
        assert directory.parent == temporary
        assert directory.name.startswith("resnap-spark-")
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "file").touch()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_run_and_not_before(temporary: Path) -> None:
    with holder(temporary) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with scratch_directory("spark"):
            assert (theirs / "blocks").is_dir()
        process.kill()
        process.wait()
        assert theirs.is_dir()
        with scratch_directory("spark") as ours:
            assert list(temporary.iterdir()) == [ours]


def test_directories_of_other_purposes_and_other_names_are_left_alone(temporary: Path) -> None:
    for name in ("resnap-demo-kept", "resnap-staging-1", "spark-1"):
        (temporary / name).mkdir()
    (temporary / "resnap-spark-link").symlink_to(temporary / "resnap-demo-kept")
    (temporary / "resnap-spark-file").touch()
    with scratch_directory("spark"):
        pass
    assert sorted(path.name for path in temporary.iterdir()) == [
        "resnap-demo-kept", "resnap-spark-file", "resnap-spark-link", "resnap-staging-1", "spark-1",
    ]  # fmt: skip


def test_what_is_written_while_it_is_removed_is_removed_too(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = shutil.rmtree
    late = iter([True])

    def removed_too_early(directory: Path, **named: bool) -> None:
        removed(directory, **named)
        if next(late, False):
            directory.mkdir()
            (directory / "late").touch()

    monkeypatch.setattr(shutil, "rmtree", removed_too_early)
    with scratch_directory("spark"):
        pass
    assert list(temporary.iterdir()) == []


def test_a_directory_that_cannot_be_locked_is_not_left_behind(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(LogDirError, match="No locks available"), scratch_directory("spark"):
        pass
    assert list(temporary.iterdir()) == []


def test_two_at_once_do_not_take_each_others() -> None:
    with scratch_directory("spark") as one, scratch_directory("spark") as other:
        assert one != other
        assert one.is_dir()
        assert other.is_dir()
