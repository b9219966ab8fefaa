"""Class-data sharing for Spark's JVM: the archive of its classes, and when it is made and used.

Half of the start-up time of a Spark context goes into loading ten thousand classes from three hundred jars. A JVM can
write the loaded classes into an archive when it ends, which later JVMs map (class-data sharing). That takes some
seconds and a hundred megabytes, so the first start on a machine only leaves a mark, and the second makes the archive: a
single run does not pay for it. After several failures it is not tried again until the next day: killed JVMs are no sign
that later ones fail. The JVM ignores an archive that does not fit.

Source: JEP 310 and JEP 350.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.replay.spark.jvm import cache_directories

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from resnap.replay.spark.jvm import JavaRuntime

CLASS_PATH_VARIABLES: Final = frozenset({"SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"})
"""Variables by which an operator extends the class path, which is then not fixed."""

_BASE: Final = "base.jsa"
"""Archive of the JDK's own classes, which the bundled Java does not have; our archive refers to it by its path."""
_CLASSES: Final = "spark.jsa"
_UNFINISHED: Final = ".spark.jsa"
_DUMP_TIMEOUT_S: Final = 120
_MAX_TRIES: Final = 3
"""Of a day."""
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """A class-data archive to start a JVM with.

    Attributes:
        options: for the JVM.
        directory: the directory that holds it.
        is_new: whether the JVM makes it when it ends.

    """

    options: tuple[str, ...]
    directory: Path
    is_new: bool

    def keep(self, *, ended_in_order: bool) -> None:
        """Publish a new archive for later starts, once its JVM has ended; remove the leftovers of a killed JVM."""
        with suppress(OSError):
            if ended_in_order:
                (self.directory / _UNFINISHED).replace(self.directory / _CLASSES)
            else:
                for name in (_BASE, _UNFINISHED):
                    (self.directory / name).unlink(missing_ok=True)


def find_archive(
    java: JavaRuntime, jars: Path, environment: Mapping[str, str], *, scratch: Path
) -> ClassArchive | None:
    """Return the archive for Spark's ``jars`` on this ``java``, or one to be made; None if none is to be used.

    Args:
        java: the Java that Spark starts on.
        jars: the directory of Spark's jars.
        environment: the variables for the cache directory and the class path.
        scratch: a private directory that lives as long as the JVM will.

    """
    files = sorted(jars.glob("*.jar"))
    class_path = ":".join(map(str, files))
    odd = set(' "\\\n') & set(class_path) or class_path.count(":") != len(files) - 1
    if odd or CLASS_PATH_VARIABLES & environment.keys():
        return None
    arguments = scratch / "class-path"
    arguments.write_text(f"-cp {class_path}\n", encoding="utf-8")
    for cache in cache_directories(environment):
        place = cache / f"classes-{_key(java, files)}"
        for directory in _tries(place):
            if (directory / _CLASSES).is_file():
                options = _options(arguments, f"{directory / _BASE}:{directory / _CLASSES}")
                return ClassArchive(options=options, directory=directory, is_new=False)
        if place.is_dir():
            return _new_archive(java, arguments, place)
        with suppress(OSError):
            place.mkdir(mode=0o700, parents=True)
    return None


def _tries(place: Path) -> list[Path]:
    return sorted(place.glob("try-*"))


def _new_archive(java: JavaRuntime, arguments: Path, place: Path) -> ClassArchive | None:
    directory = _new_try(place)
    if directory is None or not _dump_base(java, directory / _BASE):
        return None
    options = _options(arguments, str(directory / _BASE))
    made = f"-XX:ArchiveClassesAtExit={directory / _UNFINISHED}"
    return ClassArchive(options=(*options, made), directory=directory, is_new=True)


def _new_try(place: Path) -> Path | None:
    """Make the directory of an attempt, which stays as its mark; None after enough attempts within a day.

    Older ones are removed. Names are not reused: a JVM may still write there when it ends.
    """
    with suppress(OSError):  # the owner of the place only lets us read it, or another start is quicker
        tries = _tries(place)
        number = max((int(one.name.removeprefix("try-")) for one in tries), default=-1) + 1
        directory = place / f"try-{number}"
        directory.mkdir()
        forgotten_s = directory.stat().st_mtime - _DAY_S
        old = [one for one in tries if one.stat().st_mtime < forgotten_s]
        if len(tries) - len(old) < _MAX_TRIES:
            for one in old:
                shutil.rmtree(one, ignore_errors=True)
            return directory
        directory.rmdir()
    return None


def _options(arguments: Path, archives: str) -> tuple[str, ...]:
    """Return the JVM options; the class path is Spark's own, in a fixed order and without duplicates."""
    return f"@{arguments}", f"-XX:SharedArchiveFile={archives}", "-Xlog:cds*=off"


def _dump_base(java: JavaRuntime, path: Path) -> bool:
    command = [str(java.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={path}"]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             check=False, timeout=_DUMP_TIMEOUT_S)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ran.returncode == 0 and path.is_file()


def _key(java: JavaRuntime, jars: list[Path]) -> str:
    """Return a digest of the Java and the jars, by times and sizes, which the JVM compares, too."""
    facts = [java.version, java.origin]
    for jar in jars:
        status = jar.stat()
        facts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
