"""The releases of Kafka that tests run: jars that Maven brings once, and Java programs that run against them.

``KAFKA_JARS`` names the folder where jars are looked for and kept, else it is ``~/.cache/resnap-tests/kafka``. What is
not there yet comes by ``pom.xml``, a minute for all; a JDK and Maven must be on the ``PATH``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

PATIENCE_S: Final = 240
"""How long anything may take that a loaded machine makes slow; nothing is expected to take a tenth of it."""
VERSIONS: Final = ("2.7.2", "3.9.1", "4.1.1", "4.4.0")
HERE: Final = Path(__file__).parent
_MAVEN_PATIENCE_S: Final = 1200
_MOVED_IN_4_3: Final = (
    (".common.record.", ".common.record.internal."),
    (".common.utils.ByteBufferInputStream", ".common.utils.internals.ByteBufferInputStream"),
)
_LOG4J: Final = f"-Dlog4j.configuration=file:{HERE / 'log4j.properties'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of Kafka: its brokers, tools and client library."""

    version: str
    jars: Path
    """A folder with the release and all that it needs."""
    classes: Path
    """Where programs of the tests are compiled to."""
    options: tuple[str, ...] = ()
    """Further options of each JVM."""

    @property
    def line(self) -> tuple[int, int]:
        """The line of releases that it is of, such as (3, 9)."""
        major, minor, *_ = self.version.split(".")
        return int(major), int(minor)

    def command(self, main_class: str, *arguments: object, classes: Path | None = None) -> list[str]:
        """Return the command line that runs a class of this release, or one of ``classes`` against it."""
        # The jars come first: an archive of classes is mapped where what it was made of is how the class path begins.
        class_path = f"{self.jars}/*:{classes}" if classes else f"{self.jars}/*"
        # A test starts many short programs: what a JVM does to be fast later, and for many cores, is not worth it.
        swift = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx512m")
        return ["java", *swift, *self.options, _LOG4J, "-cp", class_path, main_class, *map(str, arguments)]

    def tool(self, main_class: str, *arguments: object) -> str:
        """Run one of Kafka's own tools, such as ``kafka.tools.DumpLogSegments``; return what it prints."""
        return _output_of(self.command(main_class, *arguments))

    def script(self, main_class: str, *arguments: object) -> str:
        """Run a tool that is packed apart (``org.apache.kafka.tools``, of 3.9.1); return what it prints."""
        tools = brought("tools", "kafka-tools-[0-9]*.jar")
        command = self.command(main_class, *arguments)
        at = command.index("-cp") + 1
        command[at] = f"{tools}/*:{command[at]}"
        return _output_of(command)

    def run(self, source: Path, *arguments: object) -> str:
        """Compile the Java file ``source``, run it with ``arguments`` to its end, and return what it prints."""
        return _output_of(self.program(source, *arguments))

    def program(self, source: Path, *arguments: object) -> list[str]:
        """Compile the Java file ``source``; return the command line that runs it."""
        classes = self.classes / self.version / source.stem
        if not classes.exists():
            made = classes.with_suffix(".tmp")
            made.mkdir(parents=True, exist_ok=True)
            here = self.adapted(source, made / source.name)
            _output_of(["javac", "-nowarn", "-d", str(made), "-cp", f"{self.jars}/*", str(here)])
            made.rename(classes)
        return self.command(source.stem, *arguments, classes=classes)

    def adapted(self, source: Path, into: Path) -> Path:
        """Write a Java file to ``into``, with the imports of what 4.3 has moved as this release has it."""
        text = source.read_text()
        for old, new in _MOVED_IN_4_3 if self.line >= (4, 3) else ():
            text = text.replace(old, new)
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(text)
        return into


def find_release(version: str, classes: Path) -> Release:
    """Return a release, its jars brought by Maven unless they are there; skip the test where that cannot be."""
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"NOT TESTED: real brokers need a JDK and Maven, and there is no {', '.join(missing)}")
    jars = brought(version, f"kafka_2.13-{version}.jar")
    return Release(version=version, jars=jars, classes=classes)


def brought(profile: str, jar: str) -> Path:
    """Return the folder with ``jar`` and all that its profile of ``pom.xml`` brings, unless it is there already."""
    kept = Path(os.environ.get("KAFKA_JARS", Path.home() / ".cache" / "resnap-tests" / "kafka"))
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Maven's own repository is not made for two at once
        found = sorted(kept.rglob(jar))
        return found[0].parent if found else _bring(profile, kept / profile)


def _bring(profile: str, into: Path) -> Path:
    """Copy the jars of a profile into a new folder, which appears only once it is whole."""
    with tempfile.TemporaryDirectory(prefix=".", dir=into.parent) as making:
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={making}/jars")
        _output_of(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "-P", profile, *goal], _MAVEN_PATIENCE_S)
        (Path(making) / "jars").rename(into)
    return into


def _output_of(command: list[str], patience_s: int = PATIENCE_S) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience_s)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout
