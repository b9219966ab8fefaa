"""Kafka's own ``ProducerStateManager`` in a process beside us: commands in, verdicts and states out, line by line.

``KAFKA_JARS`` names a folder below which the ``kafka-storage`` jars of the releases lie, each with all that it needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVER: Final = Path(__file__).parent / "StateDriver.java"


def find_storage_jars(release: str) -> Path:
    """Return the folder with the jars of a release such as ``3.9``, or skip the test."""
    root = os.environ.get("KAFKA_JARS")
    found = sorted(Path(root).rglob(f"kafka-storage-{release}.[0-9].jar")) if root else []
    if not found or shutil.which("java") is None:
        pytest.skip(f"NOT TESTED: Kafka's own classes need KAFKA_JARS with Kafka {release}, and a JDK")
    return found[-1].parent


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
def state_driver(release: str, directory: Path) -> Iterator[StateDriver]:
    """Run the driver over the jars of ``release``; its snapshots go into ``directory``."""
    jars = find_storage_jars(release)
    (directory / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
    files = directory / "files"
    files.mkdir()
    log4j = f"-Dlog4j.configuration=file:{directory}/log4j.properties"
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", log4j, "-Dslf4j.internal.verbosity=ERROR",
               "-cp", f"{jars}/*", str(DRIVER), str(files)]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield StateDriver(process)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(30)
