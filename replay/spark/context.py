"""Starts a Spark context quietly in its own JVM, and leaves nothing behind when it ends.

pyspark takes its Java and its Python from the process environment, lets the JVM write to the streams of the process,
and keeps the JVM until the process ends. Here the environment is an argument, set only while the context starts; the
JVM's output passes through ``JvmOutput``; and the JVM ends with the context, so that the next one may have another
heap. A replay needs no more than this; a session for SQL (``spark_session``) takes a second or two longer to start.

``ship_packages`` ships Resnap's own packages to executors on which Resnap is not installed.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import warnings
import zipfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.java_gateway import launch_gateway

from resnap.replay.spark.failures import (
    check_reachable,
    explain_jvm_death,
    explain_start_failure,
    without_tracebacks_of_py4j,
)
from resnap.replay.spark.jvm import JavaRuntime, find_archive, find_java
from resnap.replay.spark.jvm_output import JvmOutput
from resnap.replay.spark.settings import (
    APP_NAME,
    LOOPBACK,
    PROJECT_ROOT,
    SparkSettings,
    has_user_name,
    is_local_master,
    properties_text,
    spark_properties,
)
from resnap.replay.staging import scratch_directory
from resnap.storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from py4j.clientserver import ClientServer

logger = logging.getLogger(__name__)
SPARK_HOME: Final = Path(pyspark.__file__).parent
_JVM_EXIT_TIMEOUT_S: Final = 30
_ARCHIVE_TIMEOUT_S: Final = 300
"""How long a JVM may take to end that leaves an archive of its classes: it needs seconds of a whole core."""
_PROPERTIES: Final = "spark.properties"
_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
PACKAGES: Final = ("replay", "scheduler", "storage", "tiering")
"""What an executor must be able to import, as parts of ``resnap``."""


@contextmanager
def spark_context(
    settings: SparkSettings,
    environment: Mapping[str, str],
    *,
    launched: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Iterator[SparkContext]:
    """Start Spark, yield its context, and end its JVM afterwards.

    Args:
        settings: what to start.
        environment: the variables for the JVM and, on a local master, its Python workers. They are in ``os.environ``
            while the context starts, because pyspark reads them only there.
        launched: called with the JVM's process as soon as there is one; killing it ends a start that takes too long.

    Raises:
        UsageError: this process runs Spark already; pyspark knows one JVM per process.
        ConfigurationError: there is no usable Java.
        ResnapError: Spark did not start; the message names the Java and Spark's own message.

    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no public way to ask
        raise UsageError("this process runs Spark already", hint="stop the other session, or use a separate process")
    check_reachable(settings.master)
    with scratch_directory("spark") as scratch, JvmOutput() as output, ExitStack() as running:
        java = find_java(environment, scratch=scratch)
        is_ours = settings.is_local and not settings.conf
        archive = find_archive(java, SPARK_HOME / "jars", environment, scratch=scratch) if is_ours else None
        properties = spark_properties(settings, scratch, archive.options if archive else ())
        running.enter_context(without_tracebacks_of_py4j())
        variables = {
            **spark_variables(settings, environment, java),
            **_launcher_variable(properties, environment, scratch),
        }
        with explain_start_failure(java, output), _in_environment(variables):
            conf = SparkConf().setAll(list(properties.items()))
            with _delay_interrupts():
                gateway = _launch(output)
                gateway.output = output
                running.callback(_end_jvm, gateway)
                (scratch / _PROPERTIES).unlink()
            if launched is not None:
                launched(gateway.proc)
            with _restore_interrupt_handler():
                context = SparkContext(conf=conf, gateway=gateway)
            files = SparkFiles.getRootDirectory()
            running.callback(_end_context, context, files)
            # A dying JVM breaks the connection; the error itself says enough.
            context._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001
            warming = _warm_workers(context)
            # In an orderly end it would fail aloud.
            running.callback(warming.join)
            if is_ours:
                running.callback(_kill_jvm, context, gateway)
            ship_packages(context)
        output.release()
        with explain_jvm_death(context):
            yield context
        if archive is not None and archive.is_new:
            # A JVM that is killed leaves no archive.
            warming.join()
            _end_context(context, files)
            _end_jvm(gateway, within_s=_ARCHIVE_TIMEOUT_S)
            archive.keep(ended_in_order=gateway.proc.returncode == 0)


def spark_variables(
    settings: SparkSettings, environment: Mapping[str, str], java: JavaRuntime
) -> dict[str, str | None]:
    """Return ``environment`` with corrected variables for Java, Spark and Python; ``None`` means unset."""
    variables: dict[str, str | None] = {
        **environment,
        "JAVA_HOME": str(java.home),
        # Another Spark of this machine would not fit the installed pyspark.
        "SPARK_HOME": str(SPARK_HOME),
        # A JVM that was not started here and the remote mode both leave our settings without effect.
        "PYSPARK_GATEWAY_PORT": None,
        "SPARK_CONNECT_MODE_ENABLED": None,
    }
    if not has_user_name():
        # Hadoop's log-in fails without one; Spark and Hadoop each ask for their own.
        variables.setdefault("SPARK_USER", APP_NAME)
        variables.setdefault("HADOOP_USER_NAME", APP_NAME)
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
def _delay_interrupts() -> Iterator[None]:
    """Delay an interrupt until the JVM is known: pyspark loses track of a starting one, which would never end.

    A second interrupt is not delayed.
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
        _pass_on(waiting[0])


def _pass_on(number: int) -> None:
    """Call the handler of a delayed signal, without sending it again, which would count it twice."""
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, None)
    else:
        signal.raise_signal(number)


def _launcher_variable(properties: Mapping[str, str], environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return the variable that gives Spark's launcher ``properties`` in a private file, not as arguments.

    Properties may be secrets, and every user of the machine sees the arguments of every process.
    """
    file = scratch / _PROPERTIES
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(properties_text(properties))
    own = environment.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
    return {_SUBMIT_ARGUMENTS: f"--properties-file {shlex.quote(str(file))} --load-spark-defaults {own}"}


def _launch(output: JvmOutput) -> ClientServer:
    try:
        return launch_gateway(popen_kwargs={"stdout": output.descriptor, "stderr": output.descriptor})
    finally:
        output.handed_over()


def _warm_workers(context: SparkContext) -> threading.Thread:
    """Start a local master's workers while the session starts; the outcome does not matter."""

    def run_tasks() -> None:
        with suppress(Exception):
            if tasks:
                context.parallelize(range(tasks), tasks).foreach(_do_nothing)

    tasks = context.defaultParallelism if is_local_master(context.master) else 0
    warming = threading.Thread(target=run_tasks, name="resnap-workers", daemon=True)
    warming.start()
    return warming


def _do_nothing(_: object) -> None:
    """Do nothing, in a new worker."""


def _end_context(context: SparkContext, files: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            context.stop()
    except (Py4JError, OSError):
        logger.debug("Spark ended before it was stopped", exc_info=True)
        # pyspark forgets the JVM at the first attempt, and ends its own half at the second.
        context.stop()
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(files)]


def _kill_jvm(context: SparkContext, gateway: ClientServer) -> None:
    """Kill a local JVM: all its files are in the scratch directory, and its workers end with it.

    A clean end would take a second, because pyspark's listener for accumulators polls slowly.
    """
    if gateway.proc.poll() is not None:
        return
    listener, context._accumulatorServer = context._accumulatorServer, None  # noqa: SLF001 - stop() would wait for it

    def shut_down() -> None:
        with suppress(FileNotFoundError):  # its socket is in the scratch directory, which may be gone by then
            listener.shutdown()

    threading.Thread(target=shut_down, name="resnap-accumulators", daemon=True).start()
    gateway.proc.kill()


def _end_jvm(gateway: ClientServer, *, within_s: float = _JVM_EXIT_TIMEOUT_S) -> None:
    """End the JVM by closing its standard input, as the end of this process would."""
    try:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(within_s)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    finally:
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


@contextmanager
def _restore_interrupt_handler() -> Iterator[None]:
    """Restore the handler of SIGINT that pyspark replaces, in the main thread only: pyspark's calls the JVM first."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def ship_packages(context: SparkContext) -> None:
    """Let executors import Resnap; does nothing on a local master, whose workers share this installation.

    Executors need a Python of the same minor version with Resnap's dependencies, not Resnap itself. The archive lives
    in Spark's own directory until the session stops, because executors that join later fetch it too.
    """
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
        inside = [file for package in PACKAGES for file in (root / "resnap" / package).rglob("*")]
        for file in sorted([root / "resnap" / "__init__.py", *inside]):
            if file.is_file() and "__pycache__" not in file.parts:
                # A ZipInfo made from a name alone carries no time and no mode.
                archive.writestr(zipfile.ZipInfo(file.relative_to(root).as_posix()), file.read_bytes())
    return buffer.getvalue()
