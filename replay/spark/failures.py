"""Turns failures of Spark into one-line errors: why it did not start, that it died, why a job failed."""

from __future__ import annotations

import logging
import socket
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PySparkRuntimeError

from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext

    from resnap.replay.spark.jvm import JavaRuntime
    from resnap.replay.spark.jvm_output import JvmOutput

_LAST_GASP_S: Final = 30
_CONNECT_TIMEOUT_S: Final = 10
_ENDED_HINT: Final = "see the logs of the master and the workers: executors that cannot start are the usual reason"


@contextmanager
def explain_start_failure(java: JavaRuntime, output: JvmOutput) -> Iterator[None]:
    """Raise an error with the reason if Spark does not start in this context.

    Raises:
        ResnapError: Spark did not start.

    """
    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        said = _first_cause_line(error, output)
        if output.ended_by is not None:
            raise _ended_error(output.ended_by) from error
        raise ResnapError(
            f"Spark did not start on Java {java.version}, {java.origin}: {said}",
            hint="this message comes from Java or Spark: check the master, the driver memory and the Spark properties",
        ) from error


def jvm_of(context: SparkContext) -> subprocess.Popen[bytes]:
    """Return the JVM process of ``context``."""
    jvm: subprocess.Popen[bytes] = context._gateway.proc  # noqa: SLF001 - pyspark keeps it to itself
    return jvm


@contextmanager
def explain_jvm_death(context: SparkContext) -> Iterator[None]:
    """Raise an error if the JVM died in this context: pyspark only reports that there is no answer.

    Raises:
        ResnapError: it died while the context lasted.

    """
    jvm = jvm_of(context)
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
            hint="status -9 often means that the system has run out of memory: lower the driver memory or run fewer "
            "tasks",
        ) from error


@contextmanager
def explain_job_failure(context: SparkContext) -> Iterator[None]:
    """Raise an error with the reason if a job fails in this context, while the JVM can still be asked.

    Raises:
        ResnapError: the job failed; if the cluster has ended the whole application, the message says only that.

    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if has_ended(context):
            raise _ended_error(_reason_of_the_end(context)) from error
        raise ResnapError(f"the Spark job failed: {error}", hint="see what the executors logged") from error


def _reason_of_the_end(context: SparkContext) -> str | None:
    """Return why the cluster ended the application; the JVM has written it, but its output may not be read yet."""
    output: JvmOutput = context._gateway.output  # noqa: SLF001 - as above
    with suppress(Py4JError, OSError):
        output.catch_up(context._jvm.java.lang.System.err.print)  # noqa: SLF001 - as above
    return output.ended_by


def _ended_error(reason: str | None) -> ResnapError:
    return ResnapError(f"the Spark cluster ended the application: {reason or 'it gave no reason'}", hint=_ENDED_HINT)


def has_ended(context: SparkContext) -> bool:
    """Whether ``context`` can run nothing any more: its JVM died, or its cluster ended the application."""
    if jvm_of(context).poll() is not None or context._jsc is None:  # noqa: SLF001 - as above
        return True
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 - as above
    except (Py4JError, OSError):
        return True


def _first_cause_line(error: Exception, output: JvmOutput) -> str:
    """Return the first line of the cause, from the JVM, which must still run if there was one."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        said = str(cause.getMessage() or cause.toString())
    elif isinstance(error, (PySparkRuntimeError, Py4JError, OSError)):
        # The JVM has gone; pyspark knows no more than that.
        said = output.last_words(_LAST_GASP_S) or str(error)
    else:
        said = str(error)
    if "stopped SparkContext" in said:
        # It started and stopped itself at once; the reason is only in its log.
        said = output.last_words()
    return said.strip().partition("\n")[0] or type(error).__name__


@contextmanager
def without_tracebacks_of_py4j() -> Iterator[None]:
    """Suppress py4j's log of each call that an interrupt or a dying JVM breaks; the error itself is enough.

    py4j logs them to loggers of its own, and to the root logger besides, which gets a handler by that if it had none.
    The root logger stays without them: py4j's thread that tells the JVM of objects that are gone may log after the end.
    """
    logging.getLogger().addFilter(_is_not_of_py4j)
    own = logging.getLogger("py4j")
    silent, propagated = logging.NullHandler(), own.propagate
    own.addHandler(silent)
    own.propagate = False
    try:
        yield
    finally:
        own.propagate = propagated
        own.removeHandler(silent)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record is another library's: one function, as a logger has each filter but once."""
    return Path(record.pathname).parent.name != "py4j"


def check_reachable(master: str) -> None:
    """Check for a listener: Spark would retry for a minute, and then say only that it has stopped.

    Raises:
        ResnapError: nothing listens at any of the addresses.

    """
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
