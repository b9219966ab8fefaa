"""A Spark standalone cluster on loopback, from the installed package: for tests that need real executors."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from resnap.replay.spark.jvm import find_archive, find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OPTIONS = "SPARK_DAEMON_JAVA_OPTS"
_QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
"""For one that lives for seconds: what the second compiler would make is never used."""
_PACKAGE = "org.apache.spark.deploy"
_CACHE = Path.home() / ".cache"


_START = """
import os
from resnap.replay.spark.context import spark_context
from resnap.replay.spark.settings import SparkSettings

with spark_context(SparkSettings(master="local[1]"), os.environ) as context:
    context.parallelize(range(3)).count()
"""


@cache
def mapped_classes() -> str:
    """Give the options of a JVM that maps Spark's classes, from the archive that the second local session makes.

    A start then takes half of the processor time.
    """
    scratch = Path(tempfile.mkdtemp(prefix="class-path-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    jars = Path(pyspark.__file__).parent / "jars"
    java = find_java({}, scratch=scratch)
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "resnap-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in range(2):
            archive = find_archive(java, jars, {"XDG_CACHE_HOME": str(_CACHE)}, scratch=scratch)
            if archive is not None and not archive.is_new:
                return " ".join(archive.options)
            if archive is not None:
                archive.keep(ended_in_order=False)  # the session makes one of its own
            environment = bare_environment(scratch / f"start-{number}")
            subprocess.run([sys.executable, "-c", _START], check=True, env=environment, timeout=300)
    return ""


def quick_jvms() -> dict[str, str]:
    """Give Spark properties of an application that lives for seconds: its JVMs need a third of the processor time."""
    return {f"spark.{role}.extraJavaOptions": f"{_QUICK_JVM} {mapped_classes()}" for role in ("driver", "executor")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker daemon, with a home and working directory of its own."""

    pid: int
    directory: Path

    def executors(self) -> list[int]:
        """Give the processes of its executors."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            # Processes end while they are listed. A thread's list of children may leave some out: it is not asked.
            with suppress(OSError):
                command, status = (process / "cmdline").read_bytes(), (process / "stat").read_text()
                parent = int(status.rpartition(")")[2].split()[1])
                if parent == self.pid and b"CoarseGrainedExecutorBackend" in command:
                    found.append(int(process.name))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A master and its workers."""

    url: str
    workers: tuple[Worker, ...]


def bare_environment(home: Path) -> dict[str, str]:
    """Give what Spark's scripts need and no Java: a ``PATH`` of five programs, and directories under ``home``.

    The archive of Spark's classes is that of the machine: with it a start takes 4 s of processor time, without it 6 s.
    """
    programs = home / "programs"
    programs.mkdir(parents=True)
    for name in ("bash", "dirname", "ps", "sh", "env"):
        (programs / name).symlink_to(shutil.which(name) or "missing")
    (home / "tmp").mkdir()
    return {"PATH": str(programs), "HOME": str(home), "TMPDIR": str(home / "tmp"), "XDG_CACHE_HOME": str(_CACHE)}


def python_without_the_project(directory: Path) -> Path:
    """Write a Python that has the dependencies alone.

    An editable installation puts the project on the path by a .pth file; without the site module none is read.
    """
    python = directory / "python"
    packages = sysconfig.get_path("purelib")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


def wait_for(text: str, log: Path) -> None:
    """Return when ``text`` is in ``log``."""
    deadline = time.monotonic() + 300
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@contextmanager
def a_daemon(
    directory: Path, environment: Mapping[str, str], *command: str, by_script: bool = True
) -> Iterator[tuple[Path, int]]:
    """Run a daemon of Spark's in a home and working directory of its own; gives its log and its process.

    Without Spark's script it lacks the variables that the script sets.
    """
    directory.mkdir(parents=True)
    log = directory / "log"
    home = Path(pyspark.__file__).parent
    by_hand = (f"{environment['JAVA_HOME']}/bin/java", "-cp", f"{home}/jars/*", *environment[_OPTIONS].split())
    launcher = (str(home / "bin" / "spark-class"),) if by_script else by_hand
    with log.open("wb") as output:
        process = subprocess.Popen([*launcher, *command], cwd=directory,
                                   env={**environment, "HOME": str(directory), "SPARK_HOME": str(home)},
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # fmt: skip
    try:
        yield log, process.pid
    except BaseException as error:
        error.add_note(f"{command[0]} said: {log.read_text(errors='replace')[-4_000:]}")
        raise
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def a_cluster(
    directory: Path,
    *,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    by_script: bool = True,
) -> Iterator[Cluster]:
    """Run a standalone master and workers of one core each, with ``environment`` and Spark ``properties`` of theirs."""
    java = find_java({}, scratch=directory)
    own = {"spark.master.rest.enabled": "false", "spark.ui.enabled": "false", **(properties or {})}
    options = (_QUICK_JVM, mapped_classes(), *(f"-D{name}={value}" for name, value in own.items()))
    variables = {**os.environ, "JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": "",
                 _OPTIONS: " ".join(options), **(environment or {})}  # fmt: skip
    master = (f"{_PACKAGE}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as daemons:
        log, _ = daemons.enter_context(a_daemon(directory / "master", variables, *master))
        wait_for("New state: ALIVE", log)
        url = re.search(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", log.read_text())[1]
        started = []
        for number in range(workers):
            work = directory / f"worker{number}"
            command = (f"{_PACKAGE}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                       "--webui-port", "0", "--work-dir", str(work), url)  # fmt: skip
            worker_log, pid = daemons.enter_context(a_daemon(work, variables, *command, by_script=by_script))
            started.append(Worker(pid=pid, directory=work))
            wait_for("Successfully registered with master", worker_log)
        yield Cluster(url=url, workers=tuple(started))
