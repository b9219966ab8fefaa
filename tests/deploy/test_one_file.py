"""The one file for broker hosts: made by its script, and run by a Python that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

ROOT = Path(__file__).parent.parent.parent
BARE = (os.path.realpath(sys.executable), "-I", "-S")
"""Of this machine's Python, what comes with it and nothing that was installed."""

pytestmark = pytest.mark.slow


def test_a_broker_host_needs_one_file(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "docs" / "deploy" / "one-file" / "build.py", "--into", tmp_path],
        capture_output=True, text=True, check=False, timeout=1_500,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    [file] = tmp_path.glob("resnap-*.pyz")
    said = re.search(r"([0-9]+) MiB instead of", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert said is not None
    assert abs(file.stat().st_size / 1024 / 1024 - int(said[1])) < int(said[1]) / 10
    data = shutil.copytree(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    home, staged = tmp_path / "home", tmp_path / "staged"
    home.mkdir()

    def run(*arguments: object, code: int = 0) -> str:
        ran = subprocess.run(
            [*BARE, str(file), *map(str, arguments)],
            env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert ran.returncode == code, ran.stderr
        return ran.stdout + ran.stderr

    assert "34 of 44 closed segments" in run("scan", data)
    assert "1 of 5 topics can be turned on now: orders." in run("check", data, code=4)
    assert "34 snapshots rebuilt" in run("regenerate", data, "--into", staged, "--as-of", "roll")
    assert "34 snapshots installed" in run("install", staged, data)
    assert "0 of 44 closed segments" in run("scan", data, "--exit-code")
    whole = ("--boundaries", "all", "--as-of", "roll")  # at any other time nothing may have to be read
    by_spark = ("regenerate", data, "--into", tmp_path / "more", *whole, "--engine", "spark")
    for arguments in (("serve", data), by_spark):
        assert "this needs all of resnap" in run(*arguments, code=1)
    assert "--engine local needs no Java" in run("doctor", data)
    assert len(list((home / ".cache" / "resnap" / "one-file").iterdir())) == 1, "unpacked once"
    file.unlink()  # of pytest's last three sessions the directories stay
    shutil.rmtree(home)
