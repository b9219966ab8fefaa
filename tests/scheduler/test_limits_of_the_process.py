"""Limits that the system sets to a process: reported with what to do, nothing half-made, and one rerun completes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from resnap.scheduler.cli.failures import Failures
from resnap.scheduler.runs.execution import public_error
from resnap.storage.errors import LimitError, fault_of_machine
from tests.scheduler.installed import copied
from tests.scheduler.read_faults import quietly
from tests.scheduler.scenes import LOCAL, SET
from tests.scheduler.shipped import check_store, eligible, files_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("producers_stay")]

FEW_THREADS: Final = """
import os, resource, sys
from resnap.scheduler.cli import run
*arguments, warm, store = sys.argv[1:]
assert not run([*arguments, warm])  # all is imported, which another user may not be able to
limit = resource.RLIMIT_NPROC
resource.setrlimit(limit, (1, 1))
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)  # the limit is not for root
sys.exit(run([*arguments, store]))
"""
NO_THREADS: Final = """
import threading
from resnap.scheduler.cli import main
def start(_):
    raise RuntimeError("can't start new thread")
threading.Thread.start = start
main()
"""


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "ulimit -n"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (MemoryError(), "ulimit -v"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
    ],
)
def test_a_limit_is_not_a_bug(error: BaseException, hint: str) -> None:
    failures = Failures(StringIO())
    failures.report(error)
    assert isinstance(failures.stream, StringIO)
    assert hint in failures.stream.getvalue()
    assert "bug" not in failures.stream.getvalue()
    assert failures.exit_code() == LimitError.exit_code


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_a_disk_that_fails_under_resnaps_own_code_is_not_a_bug(number: int) -> None:
    """As where a module is read late, of an installation on a disk that fails."""
    error = OSError(number, os.strerror(number), "/opt/resnap/numba/core/caching.py")
    failures = Failures(StringIO())
    failures.report(error)
    assert isinstance(failures.stream, StringIO)
    said = failures.stream.getvalue()
    assert "/opt/resnap/numba/core/caching.py cannot be read or written" in said
    assert ("bug" in said, os.strerror(number) in said, failures.exit_code()) == (False, True, 1)
    assert public_error(error).message in said


def test_what_is_a_bug_stays_one() -> None:
    others = (
        RuntimeError("no"),
        OSError(errno.EINVAL, "no"),
        BlockingIOError(errno.EAGAIN, "write could not complete"),
    )
    assert [fault_of_machine(error) for error in others] == [None] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become a user who has no other processes")
def test_too_few_threads_are_reported_and_one_rerun_completes(
    fixture_set: Callable[[str], FixtureSet], open_folder: Path
) -> None:
    """Of the user, by ``ulimit -u``; the limit of a container, ``pids.max``, is met in the same calls."""
    log_dir = copied(fixture_set(SET).data, open_folder / "data")
    store = open_folder / "store"
    tier = ("tier", str(log_dir), "--topic", "payments", "--state-dir", "none", "--engine", "local", "--to")
    command = [sys.executable, "-c", FEW_THREADS, *tier, (open_folder / "warm").as_uri(), store.as_uri()]
    here = Path(__file__).parents[2]
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert ran.returncode == LimitError.exit_code, ran.stderr
    assert "ulimit -u" in ran.stderr
    assert "this is a bug" not in ran.stderr
    check_store(files_of(store), strict=False)
    code, told = quietly("tier", log_dir, "--topic", "payments", *LOCAL, "--state-dir", "none", "--to", store.as_uri())
    assert code == 0, told
    assert check_store(files_of(store)) == {one for one in eligible(log_dir) if one.topic == "payments"}


@pytest.mark.parametrize("form", ["table", "json"])
def test_not_even_the_thread_that_waits_for_interrupts_can_be_started(form: str, tmp_path: Path) -> None:
    """As under ``pids.max`` 1, which a test may not set."""
    command = [sys.executable, "-c", NO_THREADS, "scan", tmp_path, "--output", form]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.returncode == LimitError.exit_code, ran.stderr
    assert "no more processes or threads can be started" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.startswith("{") == (form == "json")


@pytest.mark.parametrize("limit_mib", [300, 480, 1023])
def test_an_address_space_in_which_libraries_crash_is_refused(limit_mib: int, tmp_path: Path) -> None:
    command = ["sh", "-c", f'ulimit -v {limit_mib << 10}; exec "$0" -m resnap scan "$1"', sys.executable, tmp_path]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    told = f"error: the address space of this process is limited to {limit_mib} MiB, expected 1024 MiB or more\n"
    assert (ran.returncode, ran.stdout, ran.stderr.splitlines(keepends=True)[0]) == (1, "", told)
    assert "ulimit -v" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_too_little_address_space_for_many_threads_is_reported_and_one_rerun_completes(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    log_dir, store = fixture_set(SET).data, tmp_path / "store"
    tier = (log_dir, "--topic", "payments", *LOCAL, "--state-dir", "none", "--to", store.as_uri(), "--parallel", 8)
    command = [sys.executable, "-m", "resnap", "tier", *map(str, tier), "--threads", "8"]
    # With such stacks the start of a thread fails; without, what it first asks for may, and Thread.start waits forever.
    limited = ["sh", "-c", 'ulimit -s 65536; ulimit -v 1700000; exec "$@"', "sh", *command]
    ran = subprocess.run(limited, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.returncode == LimitError.exit_code, ran.stderr
    assert "ulimit -v" in ran.stderr
    assert "this is a bug" not in ran.stderr
    if store.exists():
        check_store(files_of(store), strict=False)
    assert quietly("tier", *tier)[0] == 0
    assert check_store(files_of(store)) == {one for one in eligible(log_dir) if one.topic == "payments"}
