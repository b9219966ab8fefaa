"""The commands of the runbook, as its text has them, and a hand that types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tests.kafka.releases import PATIENCE_S
from tests.scheduler.conftest import FORGETFUL, PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

RUNBOOK: Final = PROJECT / "docs" / "runbook.md"
FOLLOWED: Final = {
    "2. Look": 1,
    "3. Make the snapshots, while the broker runs": 1,
    "4. Put them in, broker by broker": 3,
    "5. Switch tiering on": 2,
    "Announce what Resnap has shipped, and have nothing copied by brokers": 3,
    "Brokers have lost what they know of remote storage": 2,
    "The same where brokers tier with Aiven's plugin": 2,
    "Several log dirs, and snapshots that are empty though they should not be": 3,
    "After a crash": 1,
    "A new cluster from a bucket": 3,
}
"""The sections with commands, and how many blocks of them; the stories follow each."""


def blocks() -> dict[str, list[list[str]]]:
    """Return the shell commands of each section, block by block, by the section's title."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^#+ ", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        shell = re.findall(r"^```sh\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
        if shell:
            found[part.splitlines()[0]] = [block.splitlines() for block in shell]
    return found


class Operator:
    """Types what the runbook says, in a directory and with paths of the test's own."""

    def __init__(self, root: Path, paths: Mapping[str, object], actions: Mapping[str, Callable[[str], object]]) -> None:
        """Put ``paths`` for those of the text; a line that begins with a key of ``actions`` is given to its value."""
        self._root, self._paths, self._actions = root, paths, actions
        self._text = blocks()
        tools = root / "bin"
        tools.mkdir()
        for name, line in (("resnap", f'"{sys.executable}" -m resnap "$@"'), ("sudo", 'shift 2; exec "$@"')):
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        self._environment = {
            **FORGETFUL,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(root),
            "PYTHONPATH": str(PROJECT),
            "RESNAP_ENGINE": "local",
        }

    def follow(self, section: str, block: int = 0) -> None:
        """Type each line of a block; every one must end with 0."""
        for line in self._text[section][block]:
            action = self._actions.get(line.split()[0])
            if action is None:
                self._type(line)
            else:
                action(line)

    def _type(self, line: str) -> None:
        for path, own in self._paths.items():
            line = line.replace(path, str(own))
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self._root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
