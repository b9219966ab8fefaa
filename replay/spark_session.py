"""A Spark session that starts by itself, says nothing unless something is wrong, and leaves nothing behind.

pyspark takes its Java and its Python from the process environment, lets the JVM write wherever the process writes, and
keeps the JVM until the process ends. Here the environment is an argument, put in place only while the session starts;
what the JVM says passes through ``JvmOutput``; and the JVM ends with the session, so that a service does not hold a
gigabyte between runs, and the next session may have another heap.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
import zipfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from replay.jvm import JavaRuntime, find_java
from replay.jvm_output import JvmOutput
from replay.spark_settings import (
    LOOPBACK,
    PROJECT_ROOT,
    SparkSettings,
    has_user_name,
    is_local_master,
    spark_properties,
)
from storage.errors import ResnapError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from py4j.clientserver import ClientServer

logger = logging.getLogger(__name__)

PACKAGES: Final = ("replay", "scheduler", "storage", "tiering")
"""What an executor must be able to import."""

_JVM_EXIT_TIMEOUT_S: Final = 30
_LAST_GASP_S: Final = 2
_CONNECT_TIMEOUT_S: Final = 10


@contextmanager
def spark_session(settings: SparkSettings, environment: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark, give its session, and end its JVM afterwards.

    Args:
        settings: what to start.
        environment: the variables that the JVM and, on a local master, its Python workers shall see. They stand in
            ``os.environ`` while the session starts, because pyspark looks nowhere else.

    Raises:
        UsageError: this process runs Spark already; pyspark knows one JVM per process.
        ConfigurationError: there is no usable Java.
        ResnapError: Spark did not start; the message says on which Java, and what it said.

    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no public way to ask
        raise UsageError("this process runs Spark already", hint="stop the other session, or use a process of its own")
    _check_reachable(settings.master)
    with (
        TemporaryDirectory(prefix="resnap-spark-", ignore_cleanup_errors=True) as directory,
        JvmOutput() as output,
        ExitStack() as running,
    ):
        scratch = Path(directory)
        java = find_java(environment, scratch=scratch)
        properties = spark_properties(settings, scratch)
        running.callback(_restore_interrupt, signal.getsignal(signal.SIGINT))
        running.enter_context(_without_tracebacks_of_py4j())
        with _failure_told(java, output), _in_environment(spark_variables(settings, environment, java)):
            conf = SparkConf().setAll(list(properties.items()))
            with _interrupts_wait():
                gateway = _launch(conf, output)
                running.callback(_end_jvm, gateway)
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
            running.callback(_end_session, session, SparkFiles.getRootDirectory())
            ship_packages(session)
        output.release()
        with _death_told(gateway.proc):
            yield session


def spark_variables(
    settings: SparkSettings, environment: Mapping[str, str], java: JavaRuntime
) -> dict[str, str | None]:
    """Return ``environment`` with Java, Spark and Python put right; ``None`` means that a variable must not be set."""
    variables: dict[str, str | None] = {
        **environment,
        "JAVA_HOME": str(java.home),
        # Another Spark of this machine would not fit the installed pyspark.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        # Somebody else's JVM and the remote mode both leave our settings without effect.
        "PYSPARK_GATEWAY_PORT": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    if not has_user_name():
        # Hadoop's log-in fails without one; Spark and Hadoop each ask for their own.
        variables.setdefault("SPARK_USER", settings.app_name)
        variables.setdefault("HADOOP_USER_NAME", settings.app_name)
    if settings.is_local:
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOOPBACK}
    elif "spark.pyspark.python" in settings.conf:
        variables["PYSPARK_PYTHON"] = settings.conf["spark.pyspark.python"]
    return variables


@contextmanager
def _in_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _without_tracebacks_of_py4j() -> Iterator[None]:
    """Keep quiet about each call that an interrupt or a dying JVM breaks; the error itself says enough.

    py4j logs them to a logger of its own, and to the root logger besides.
    """
    root = logging.getLogger()
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let an interrupt wait until the JVM is known: pyspark forgets one that is starting, and it would never end.

    A second one goes through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if waiting:
            raise KeyboardInterrupt
        waiting.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        signal.raise_signal(waiting[0])


def _launch(conf: SparkConf, output: JvmOutput) -> ClientServer:
    try:
        return launch_gateway(conf, {"stdout": output.descriptor, "stderr": output.descriptor})
    finally:
        output.handed_over()


def _end_session(session: SparkSession, files: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            session.stop()
    except (Py4JError, OSError):
        logger.debug("Spark was gone before it was stopped", exc_info=True)
        # pyspark forgets the JVM at the first attempt, and ends its own half at the second.
        session.sparkContext.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(files)]


def _end_jvm(gateway: ClientServer) -> None:
    """End the JVM by closing its standard input, as the end of this process would."""
    try:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_JVM_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    finally:
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _restore_interrupt(handler: Callable[[int, FrameType | None], object] | int | None) -> None:
    """Put back the handler of SIGINT that pyspark has replaced, which it does in the main thread only."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _failure_told(java: JavaRuntime, output: JvmOutput) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        raise ResnapError(
            f"Spark did not start on Java {java.version}, {java.origin}: {_what_it_said(error, output)}",
            hint="these are the words of Java or Spark: check the master, the driver memory and the Spark properties",
        ) from error


@contextmanager
def _death_told(jvm: subprocess.Popen[bytes]) -> Iterator[None]:
    """Tell a JVM that has died from an error that it reports: pyspark knows only that nobody answers."""
    try:
        yield
    except Py4JJavaError:
        # An answer: it lives.
        raise
    except (Py4JError, ConnectionError) as error:
        try:
            status = jvm.wait(_LAST_GASP_S)
        except subprocess.TimeoutExpired:
            raise error from None
        raise ResnapError(
            f"Spark's JVM ended while it was at work, with status {status}",
            hint="a status of -9 is often the system's memory running out: lower the driver memory or run fewer tasks",
        ) from error


def _what_it_said(error: Exception, output: JvmOutput) -> str:
    """Return the first line of the cause; asks the JVM, which must still be there if it ever was."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        said = str(cause.getMessage() or cause.toString())
    elif isinstance(error, (PySparkRuntimeError, Py4JError, OSError)):
        # The JVM has gone; pyspark knows no more than that.
        said = output.last_words() or str(error)
    else:
        said = str(error)
    if "stopped SparkContext" in said:
        # It started and stopped itself at once; why, it has only logged.
        said = output.last_words()
    return said.strip().partition("\n")[0] or type(error).__name__


def _check_reachable(master: str) -> None:
    """Look for a listener: Spark would knock for a minute, and then say only that it has stopped."""
    refusals = []
    for address in master.removeprefix("spark://").split(",") if master.startswith("spark://") else ():
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            return
        try:
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            refusals.append(f"{address}: {error.strerror or error}")
        else:
            return
    if refusals:
        raise ResnapError(f"no Spark master answers ({'; '.join(refusals)})",
                          hint="check the address, and that the master runs")  # fmt: skip


def ship_packages(session: SparkSession) -> None:
    """Let executors import Resnap; does nothing on a local master, whose workers see what this process sees.

    Executors need a Python of the same minor version with Resnap's dependencies, not Resnap itself. The archive lives
    in Spark's own directory until the session stops, because executors that join later fetch it too.
    """
    context = session.sparkContext
    if is_local_master(context.master):
        return
    archive = Path(SparkFiles.getRootDirectory()) / "shipped" / "resnap.zip"
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(packages_archive(PROJECT_ROOT))
    context.addPyFile(str(archive))
    # The driver has its packages already and must not take half of them from the copy.
    sys.path[:] = [entry for entry in sys.path if Path(entry).name != archive.name]


def packages_archive(root: Path) -> bytes:
    """Return a zip of Resnap's packages under ``root``, with the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(file for package in PACKAGES for file in (root / package).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                # A ZipInfo made from a name alone carries no time and no mode.
                archive.writestr(zipfile.ZipInfo(file.relative_to(root).as_posix()), file.read_bytes())
    return buffer.getvalue()
