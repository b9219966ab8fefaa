"""The real command, as a process or in this one, with nothing in its environment that a test did not put there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from scheduler.cli import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixture_sets import FixtureSet

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a process left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The answer as one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The last error, told in JSON."""
        told: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return told


class Resnap(Protocol):
    """Runs ``resnap`` with arguments, in a directory and environment of the test's own."""

    directory: Path

    def __call__(self, *arguments: object, **variables: str) -> Ran: ...

    def environment(self, variables: dict[str, str] | None = None) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class _Process:
    directory: Path

    def __call__(self, *arguments: object, **variables: str) -> Ran:
        ran = subprocess.run(
            [sys.executable, "-m", "scheduler", *map(str, arguments)],
            cwd=self.directory,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return Ran(code=ran.returncode, out=ran.stdout, err=ran.stderr)

    def environment(self, variables: dict[str, str] | None = None) -> dict[str, str]:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "PYTHONPATH": str(PROJECT)}
        return own | {"PYTHONWARNINGS": "error"} | (variables or {})


@pytest.fixture
def resnap(tmp_path: Path) -> Resnap:
    directory = tmp_path / "cwd"
    directory.mkdir()
    return _Process(directory)


@dataclass(frozen=True, slots=True)
class _InProcess:
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object, **variables: str) -> Ran:
        self.capsys.readouterr()
        with self.monkeypatch.context() as patched:
            patched.chdir(self.directory)
            for name in os.environ:
                if name.startswith("RESNAP_"):
                    patched.delenv(name)
            for name, value in variables.items():
                patched.setenv(name, value)
            code = run([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        return Ran(code=code, out=out, err=err)

    def environment(self, variables: dict[str, str] | None = None) -> dict[str, str]:
        return variables or {}


@pytest.fixture
def command(resnap: Resnap, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Resnap:
    """The command in this process: quicker, and what it does to files, sockets and user ids can be watched."""
    return _InProcess(resnap.directory, monkeypatch, capsys)


@pytest.fixture
def broker_log(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    """A log dir that 2.7.2 and then 3.9.1 have written, to be damaged at will."""
    return shutil.copytree(fixture_set("kafka-2.7.2-then-3.9.1").data, tmp_path / "data")


_watchers: list[list[str]] = []
"""Lists that take the paths of files being opened; an audit hook can be added, and never taken away again."""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for heard in _watchers:
            heard.append(str(arguments[0]))


@pytest.fixture(scope="session")
def _ear() -> None:
    sys.addaudithook(_hear)


@pytest.fixture
def opened(_ear: None) -> Iterator[Callable[[], list[str]]]:
    """Give the paths of all files that this process has opened since the test began."""
    heard: list[str] = []
    _watchers.append(heard)
    yield lambda: list(heard)
    _watchers.remove(heard)
