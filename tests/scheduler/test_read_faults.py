"""Reads that fail, in any process, at any step: reported with what to do, nothing half-made, one rerun completes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.scheduler.read_faults import quietly
from tests.scheduler.scenes import LOCAL, SET
from tests.scheduler.shipped import check_store, files_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("producers_stay")]

VERBS: Final = ("scan", "regenerate", "tier", "remember", "retain", "gc", "verify", "install", "restore")
TYPED: Final = {1, 3, 12, 13}
"""Exit codes: failed, partly done, store, and where a verification could not read what it compares."""
DIFFERENT: Final = 13
HERE: Final = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the library that lets reads fail."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("NOT TESTED: no read failed, since there is no C compiler (apt-get install gcc libc6-dev)")
    made = tmp_path_factory.mktemp("library") / "read_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, HERE / "read_faults.c", "-ldl"], check=True)
    return made


def runs(library: Path, stops: int, *verbs: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.scheduler.read_faults", str(stops), *verbs]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    ran = subprocess.run(command, cwd=HERE.parent.parent, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def check(run: dict[str, Any]) -> None:
    told = run["told"].lower()
    assert not run["wrong"], run
    assert run["code"] == 0 or run["code"] in TYPED, run
    assert "this is a bug" not in told, run
    is_told = run["strerror"].lower() in told or (run["code"] == DIFFERENT and "cannot be compared" in told)
    if run["code"] == 0:
        # What is only cached may be done without, and that is reported.
        assert run["is_whole"] or (run["verb"] == "remember" and is_told), f"it says that all is well: {run}"
    else:
        assert is_told, run
        assert "hint: " in told, run
    assert (run["rerun_code"], run["is_whole_after_rerun"]) == (0, True), run


def check_all(library: Path, stops: int, *verbs: str) -> None:
    found = runs(library, stops, *verbs)
    for run in found:
        check(run)
    assert {run["verb"] for run in found} == set(verbs)
    assert any(run["code"] for run in found), "reads failed where it does not matter"


def test_reads_that_fail_anywhere_are_reported_and_one_rerun_completes(library: Path) -> None:
    check_all(library, 3, *VERBS)


@pytest.mark.parametrize("descriptors", [9, 12, 20])
def test_too_few_open_files_leave_no_gap_and_one_rerun_completes(
    descriptors: int, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    """A real limit: which file it is that cannot be opened is another in each run."""
    log_dir = fixture_set(SET).data
    command = f"ulimit -n {descriptors}; exec {sys.executable} -m resnap tier {log_dir} --to {tmp_path.as_uri()}"
    command += " --engine local --threads 2 --parallel 8 --as-of now --state-dir none"
    ran = subprocess.run(["bash", "-c", command], cwd=HERE.parent.parent, capture_output=True, text=True, check=False)
    # Where it was just enough for this run, all is shipped.
    assert ran.returncode in {0, *TYPED}, ran.stderr
    assert (ran.returncode != 0) == ("too many open files" in ran.stderr.lower())
    assert "this is a bug" not in ran.stderr
    for partition in {(one.topic, one.partition): one for one in check_store(files_of(tmp_path), strict=False)}:
        there = sorted(one for one in check_store(files_of(tmp_path), strict=False) if one[:2] == partition)
        assert all(one.next_base_offset == other.base_offset for one, other in pairwise(there))
    code, told = quietly("tier", log_dir, "--to", tmp_path.as_uri(), *LOCAL, "--state-dir", "none")
    assert code == 0, told


@pytest.mark.heavy
@pytest.mark.parametrize("verb", VERBS)
def test_each_read_that_fails_is_reported_and_one_rerun_completes(library: Path, verb: str) -> None:
    check_all(library, 400, verb)
