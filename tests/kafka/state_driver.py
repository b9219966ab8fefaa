"""Kafka's own ``ProducerStateManager`` in a process beside us: commands in, verdicts and states out, line by line."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.kafka.releases import HERE, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kafka.releases import Release

DRIVER: Final = HERE / "StateDriver.java"


class StateDriver:
    """The process; one command is one line, and so is its answer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, *words: object) -> str:
        """Send a command and return ``verdict|state``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the driver has ended"
        return answer.rstrip("\n")


@contextmanager
def state_driver(release: Release, directory: Path) -> Iterator[StateDriver]:
    """Run the driver against ``release``; its snapshots, and what it says besides, go into ``directory``."""
    files = directory / "files"
    files.mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        (directory / "told").open("w") as told,
        subprocess.Popen(release.program(DRIVER, files), stderr=told, text=True, **pipes) as process,
    ):
        try:
            yield StateDriver(process)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(PATIENCE_S)
