"""Every RUN of the Dockerfile, in order, in a clean environment: what the image would hold runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.dockerfile import Dockerfile, Stage

ROOT: Final = Path(__file__).parent.parent.parent
PLACES: Final = ("/src", "/wheels", "/opt/resnap", "/var/lib/resnap")
"""Of the image; each is below a temporary directory here."""


class Image:
    """A root file system in a directory, as far as the instructions name it; Python is a new virtual environment."""

    def __init__(self, top: Path) -> None:
        self._top = top
        python = top / "python"
        subprocess.run([sys.executable, "-m", "venv", str(python)], check=True)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_"))}
        self.environment = {**kept, "HOME": str(top / "home"), "TMPDIR": str(top / "tmp"), "LANG": "C.UTF-8"}
        self.environment["PATH"] = f"{python}/bin:/usr/bin:/bin"
        for name in ("home", "tmp"):
            (top / name).mkdir()
        self._directory = top

    def here(self, text: str) -> str:
        for place in PLACES:
            text = re.sub(rf"(?<![\w/.]){re.escape(place)}(?![\w-])", str(self._top / "root") + place, text)
        return text

    def build(self, stage: Stage) -> None:
        self._directory = self._top
        for word, rest in stage.instructions:
            if word == "WORKDIR" and rest in PLACES:
                self._directory = Path(self.here(rest))
                self._directory.mkdir(parents=True, exist_ok=True)
            elif word == "COPY" and not rest.startswith("--from"):
                self._copy(*rest.split())
            elif word == "RUN":
                self.run(rest)

    def run(self, command: str, **environment: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-ec", self.here(command)],
            cwd=self._directory,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def _copy(self, *words: str) -> None:
        *sources, target = words
        into = self._directory / target
        for name in sources:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, into / name if into.is_dir() else into)


@pytest.mark.heavy
def test_each_step_of_the_image_can_be_taken_and_what_it_leaves_runs(tmp_path: Path) -> None:
    build, last = Dockerfile.read(ROOT / "Dockerfile").stages()
    image = Image(tmp_path)
    image.build(build)
    shutil.rmtree(tmp_path / "root" / "wheels")
    shutil.rmtree(tmp_path / "root" / "src")
    image.build(last)
    environment = {
        name: image.here(value) for name, _, value in (one.partition("=") for one in last.one("ENV").split())
    }
    environment["PATH"] = f"{image.here('/opt/resnap/bin')}:/usr/bin:/bin"
    environment["HOME"] = str(tmp_path / "home")
    assert "resnap" in image.run("resnap version", **environment)
    assert "--listen" in image.run("resnap serve --help", **environment)
    assert image.run("resnap demo", **environment)
    python = image.run("python -c 'import sys; print(sys.prefix)'", **environment).strip()
    assert python == image.here("/opt/resnap")
    state = (tmp_path / "root/var/lib/resnap").stat()
    assert (state.st_mode & 0o7777, state.st_uid, state.st_gid) == (0o770, 1000, 0)
