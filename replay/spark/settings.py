"""Settings for running Spark, and the Spark properties that result from them.

The properties were chosen by measurement. Two things make the many small Python tasks of a replay cheap, and only
together: workers reached by Unix domain sockets (SPARK-51688) and ``spark.worker.freeze_worker``. Nothing here imports
pyspark, so that settings can be read where Spark is not started.
"""

from __future__ import annotations

import os
import pwd
import re
import site
import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOOPBACK: Final = "127.0.0.1"
APP_NAME: Final = "resnap"
"""The name of a run in the cluster's own pages."""
PROJECT_ROOT: Final = Path(__file__).absolute().parents[3]
"""The directory that our packages are in: a checkout, or the site directory of an installation."""
DAEMON: Final = "resnap.replay.spark.daemon"
WITHOUT_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""Variables under which numpy starts no thread when it is imported, so that the daemon may fork."""

AUTHENTICATED: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
"""A process that connects to a port of Spark's must know a secret, also on this machine, where each user can connect.

On a local master Spark makes a secret for each context, and keeps it in the JVM's memory. On a cluster it is the
cluster's, which only its operator can give.
"""

TASK_ATTEMPTS: Final = 4
"""As on a cluster (``spark.task.maxFailures``)."""

_PLAIN: Final = frozenset(f"{string.ascii_letters}{string.digits}-._/@+,")
_LOCAL_MASTER: Final = re.compile(r"local(?:\[(?P<threads>\*|[1-9]\d*)(?:,\s*\d+)?])?")
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)
_MAX_SOCKET_PATH: Final = 107
"""Bytes of a Unix domain socket's name on Linux."""
_SOCKET_NAME: Final = len("/.01234567-89ab-cdef-0123-456789abcdef.sock")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How to run Spark.

    Attributes:
        master: a master URL; ``local[*]`` uses the processors that this process may use.
        driver_memory: heap of the driver's JVM in Java's units; on a local master the tasks live in it too.
        log_level: log4j's name of the least level that the JVM writes to standard error.
        conf: further Spark properties, which win over the ones set here.

    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    log_level: str = "ERROR"
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _MEMORY.fullmatch(self.driver_memory):
            raise ConfigurationError(f"Spark driver memory {self.driver_memory!r}: expected a size such as 1g or 512m")

    @property
    def is_local(self) -> bool:
        """Whether driver and tasks share one JVM on this machine."""
        return is_local_master(self.master)

    @property
    def threads(self) -> int | None:
        """Tasks that a local master runs at once; ``None`` where a cluster decides."""
        match = _LOCAL_MASTER.fullmatch(self.master)
        if match is None:
            return None
        threads = match["threads"]
        return processors() if threads == "*" else int(threads or 1)


def is_local_master(master: str) -> bool:
    """Return whether ``master`` runs tasks in the driver's own JVM."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def has_user_name() -> bool:
    """Return whether the system has a name for the user of this process; in a container with ``--user`` it may not."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def processors(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many processors this process may use: its affinity, or a container's quota where that is less."""
    available = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return available
    return available if quota == "max" else max(1, min(available, -(-int(quota) // int(period))))


def spark_properties(settings: SparkSettings, scratch: Path, java_options: Sequence[str] = ()) -> dict[str, str]:
    """Return the Spark properties of a context with its files in ``scratch``; its JVM gets ``java_options``, too."""
    properties = {
        "spark.master": settings.master,
        "spark.app.name": APP_NAME,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.defaultJavaOptions": " ".join(
            [_java_options(settings, scratch), *(f'"{_escape(option)}"' for option in java_options)]
        ),
        "spark.log.level": settings.log_level,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Without this, a task that starts soon after another event is not counted until the next event.
        "spark.ui.liveUpdate.period": "0",
        # While one wave of partitions is replayed, the one before it is shipped.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.python.unix.domain.socket.enabled": _flag(len(os.fsencode(scratch)) + _SOCKET_NAME <= _MAX_SOCKET_PATH),
    }
    if settings.threads is not None:
        properties |= _local_properties(settings.master, settings.threads)
    return properties | dict(settings.conf)


def properties_text(properties: Mapping[str, str]) -> str:
    """Return the content of a Java properties file, in ASCII, with special characters escaped."""
    return "".join(f"{_property_text(name)}={_property_text(value)}\n" for name, value in properties.items())


def _property_text(text: str) -> str:
    units = zip(*[iter(text.encode("utf-16-be"))] * 2, strict=True)
    return "".join(chr(low) if not high and chr(low) in _PLAIN else f"\\u{high:02x}{low:02x}" for high, low in units)


def _with_attempts(master: str, threads: int) -> str:
    """Return a local master that retries a task after its Python worker was killed; by default it gives up."""
    return master.replace("*", str(threads)) if "," in master else f"local[{threads},{TASK_ATTEMPTS}]"


def _local_properties(master: str, threads: int) -> dict[str, str]:
    properties = {
        "spark.master": _with_attempts(master, threads),
        "spark.sql.shuffle.partitions": str(threads),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        **AUTHENTICATED,
        # A worker is started with -m, which would look for packages in the working directory first.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.python.daemon.module": DAEMON,
        **{f"spark.executorEnv.{name}": value for name, value in WITHOUT_THREADS.items()},
    }
    if str(PROJECT_ROOT) not in {*site.getsitepackages(), site.getusersitepackages()}:
        # A source checkout. Site directories stay out of PYTHONPATH: there they would shadow the standard library.
        properties["spark.executorEnv.PYTHONPATH"] = str(PROJECT_ROOT)
    return properties


def _java_options(settings: SparkSettings, scratch: Path) -> str:
    options = [
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').absolute().as_uri()}",
        f"-Dresnap.log.level={settings.log_level}",
        # Spark's scratch files, native libraries and sockets, all of which it may leave behind.
        f'"-Djava.io.tmpdir={_escape(scratch)}"',
    ]
    if not has_user_name():
        # Java would take "?" for the home directory, and Spark would stumble over it.
        options.append(f'"-Duser.home={_escape(scratch)}"')
    if settings.is_local:
        # One short run: the optimising compiler and the parallel collector cost more than they bring.
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return " ".join(options)


def _escape(path: Path | str) -> str:
    """Return ``path`` escaped for double quotes in a Spark option string."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _flag(value: bool) -> str:
    return "true" if value else "false"
