"""The real command, as a process with nothing in its environment that a test did not put there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

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
