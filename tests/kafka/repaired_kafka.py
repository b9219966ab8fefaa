"""A release of Kafka whose followers keep the producer snapshot that they fetch: one method changed, from its sources.

Maven brings the sources of the release (classifier ``sources``); the class is compiled against the release's own jars,
and put into a copy of the jar that has it.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from tests.kafka.releases import Release

_CLASS: Final = "org/apache/kafka/storage/internals/log/ProducerStateManager.java"
_FAULTY: Final = """        truncateFullyAndStartAt(0L);
        snapshots = loadSnapshots();
"""
_REPAIRED: Final = """        clearProducerIds();
        ongoingTxns.clear();
        unreplicatedTxns.clear();
        lastSnapOffset = 0L;
        lastMapOffset = 0L;
        updateOldestTxnTimestamp();
        snapshots = loadSnapshots();
"""
"""What ``truncateFullyAndReloadSnapshots`` is to do: clear the state in memory, and delete no file."""


def repaired(release: Release, into: Path) -> Release:
    """Return ``release`` with the method repaired; its jars are links, but for one, in the folder ``into``."""
    jars, sources, classes = into / "jars", into / "sources", into / "classes"
    for folder in (jars, sources, classes):
        folder.mkdir(parents=True)
    for jar in release.jars.glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    text = _source(release.version, sources)
    assert text.count(_FAULTY) == 1, f"{release.version} has other code: is it repaired?"
    path = sources / "ProducerStateManager.java"
    path.write_text(text.replace(_FAULTY, _REPAIRED))
    _run("javac", "-nowarn", "-d", classes, "-cp", f"{release.jars}/*", path)
    storage = jars / f"kafka-storage-{release.version}.jar"
    storage.unlink()
    shutil.copy(release.jars / storage.name, storage)
    _run("jar", "uf", storage, "-C", classes, ".")
    return replace(release, jars=jars, classes=into / "programs", options=())


def _source(version: str, into: Path) -> str:
    artifact = f"org.apache.kafka:kafka-storage:{version}:jar:sources"
    _run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={into}")
    with zipfile.ZipFile(into / f"kafka-storage-{version}-sources.jar") as archive:
        return archive.read(_CLASS).decode()


def _run(*command: str | os.PathLike[str]) -> None:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
