"""The documents build as a site, with every link and every name of the Python API in it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    python = tmp_path / "tools" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *extras["docs"]], check=True, timeout=900)
    ran = subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "-f", ".ci/mkdocs.yml", "--site-dir", tmp_path / "site"],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    api = (tmp_path / "site" / "python" / "index.html").read_text(encoding="utf-8")
    assert "resnap.replay.leader.producer_state_manager.ProducerStateManager" in api
