"""The first service of the operations text, and the examples of the API: their commands, typed in their order."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from tests.kafka.brokers import free_port
from tests.scheduler.conftest import FORGETFUL, PROJECT

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S: Final = 300
"""For what takes a few seconds on a machine that does nothing else."""
PORT: Final = "8936"


def blocks(file: str, title: str, language: str) -> list[str]:
    """Return the blocks of one section that are in a language, as written behind their fence."""
    text = (PROJECT / file).read_text(encoding="utf-8")
    section = next(part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(f"{title}\n"))
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


class Newcomer:
    """Types commands in a directory that has of the project what they name, at a port of the test's own."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        (root / "tests").mkdir()
        (root / "tests" / "fixtures").symlink_to(PROJECT / "tests" / "fixtures")
        (root / "bin").mkdir()
        for name, words in (("resnap", "-m resnap"), ("python3", "")):
            tool = root / "bin" / name
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            tool.chmod(0o755)
        self.environment = {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "HOME": str(root),
            "PYTHONPATH": str(PROJECT),
            "no_proxy": "*",
        } | FORGETFUL

    def types(self, block: str) -> str:
        """Return what a block of commands prints; each of them must succeed."""
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.replace(PORT, str(self.port))],
            cwd=self.root, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def starts(self, block: str) -> subprocess.Popen[str]:
        """Start what a block of one command runs, and wait until it has looked for the first time."""
        environment = {name: value for name, value in self.environment.items() if name not in FORGETFUL}
        with (self.root / "serve.log").open("w") as log:
            process = subprocess.Popen(block.split(), cwd=self.root, env=environment, stderr=log, text=True)
        ends_s = time.monotonic() + PATIENCE_S
        while not self._has_scanned():
            assert process.poll() is None, (self.root / "serve.log").read_text()
            assert time.monotonic() < ends_s, (self.root / "serve.log").read_text()
            time.sleep(0.1)
        return process

    def page(self) -> str:
        """Return the page that lists each partition, with what stops it."""
        return httpx.get(f"http://127.0.0.1:{self.port}/?topic=*", timeout=60).text

    def _has_scanned(self) -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/v1/partitions", timeout=60)
        except httpx.TransportError:
            return False
        return bool(answer.json()["partitions"])


def answers(printed: str) -> list[dict[str, object]]:
    """Return the JSON documents in what was printed, one after the other."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while (at := printed.find("{", at)) >= 0:
        document, at = decoder.raw_decode(printed, at)
        found.append(document)
    return found


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
def test_who_starts_a_first_service_sees_the_page_turn_green_and_asks_what_the_api_is_shown_to_answer(
    tmp_path: Path,
) -> None:
    setting_up, serving, looking, replaying, installing = blocks("docs/operations.md", "A first service", "sh")
    blocked, prepared, ready = blocks("docs/operations.md", "A first service", "")
    newcomer = Newcomer(tmp_path)
    newcomer.types(setting_up)
    service = newcomer.starts(serving)
    try:
        check_shown(blocked, newcomer.types(looking))
        stops = newcomer.page().count("NullPointerException")
        assert stops > 0
        check_shown(prepared, newcomer.types(replaying))
        check_shown(ready, newcomer.types(installing))
        assert newcomer.page().count("NullPointerException") < stops
        check_examples(newcomer)
    finally:
        service.terminate()
        assert service.wait(PATIENCE_S) == 0


def check_shown(text: str, printed: str) -> None:
    """Check that all that stands between dots in the text was printed, in that order, however spaced; times differ."""
    squeezed, at = "".join(printed.split()), 0
    for piece in re.split(r"\.\.\.|\d{13}|\d{4}-\d\d-\d\dT[\d:.]+Z", "".join(text.split())):
        found = squeezed.find(piece, at)
        assert found >= 0, f"{piece!r} is not in what follows {at} of {squeezed!r}"
        at = found + len(piece)


def check_examples(newcomer: Newcomer) -> None:
    asking, planning = blocks("docs/api.md", "With curl", "sh")
    partitions, boundaries, schedule, runs, audit, ready = answers(newcomer.types(asking))
    assert {partition["topic"] for partition in partitions["partitions"]} == {"dash-ed.topic_1", "legacy"}  # type: ignore[attr-defined]
    assert boundaries["boundaries"]
    assert schedule["name"] == "look"
    assert len(runs["runs"]) >= 3  # type: ignore[arg-type]
    assert audit["entries"]
    assert ready["status"] == "ready"
    plan, first, second = answers(newcomer.types(planning))
    assert plan["id"]
    assert first["id"] == second["id"]
