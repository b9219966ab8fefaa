"""`resnap doctor`: checks everything that a run needs; one finding per question, each with a remedy.

Nothing is changed: a broker's lock is tested and not taken, and the probe of a store deletes its own objects.
"""

import importlib
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from resnap.replay.scan.split_scan import why_no_kernel
from resnap.replay.staging import scratch_directory
from resnap.scheduler.cli.failures import FAILED, OK
from resnap.scheduler.cli.flags import ENGINE, METADATA, S3, SERVER
from resnap.scheduler.clock import Clock
from resnap.scheduler.job.contract import Context, Request, Verb, View
from resnap.scheduler.job.wiring import rule_flags_of
from resnap.scheduler.output.answer import faults_line
from resnap.scheduler.output.rendering import Row
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.verbs.store_probe import DoctorFinding, Health, fail, failed, ok, probe_store, warn
from resnap.storage.errors import ConfigurationError, ResnapError
from resnap.storage.log.log_dir import LogDir
from resnap.storage.log.log_dir_lock import lock_holder
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import layout_at, open_source
from resnap.storage.stores.urls import is_store_url, local_path, open_store
from resnap.storage.version import package_version
from resnap.storage.words import second, some, span
from resnap.tiering.broker_releases import releases_of

MIN_PYTHON: Final = (3, 11)
EARLIEST_NOW_MS: Final = 1_735_689_600_000
"""The beginning of 2025: Resnap is younger than that, so a clock before it is wrong."""
TOLERATED_SKEW_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Request):
    """Check what a run needs: Python, Java, Spark, the log dirs, the store, the clock."""

    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG_DIR|STORE",
            help="Log dirs to check, and stores to test by writing, reading and deleting a small object; the default is"
            " log.dirs.",
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="A store to test, as the argument."),
    ] = None


def run(request: Asked, context: Context) -> Iterator[DoctorFinding]:
    """Yield the findings, one at a time, as they are made."""
    settings, places = context.settings, request.places or [*map(str, context.settings.log_dirs)]
    return examine(settings, process_environment(), context.clock, places=places, store_url=request.store)


def examine(
    settings: Settings, environment: Mapping[str, str], clock: Clock, *, places: Sequence[str], store_url: str | None
) -> Iterator[DoctorFinding]:
    """Yield what ``run`` does."""
    needs_spark = settings.engine == "spark"
    yield _python()
    yield _module("numpy")
    yield _kernel()
    yield _unless_needed(_module("pyspark"), needed=needs_spark)
    yield _unless_needed(_java(environment), needed=needs_spark)
    yield _clock(clock)
    yield _expiration(settings)
    yield _kafka(settings)
    for place in places:
        yield from _place(place, settings, clock)
    if store_url is not None:
        yield from _store(store_url, settings, clock)


def _python() -> DoctorFinding:
    found = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        return fail("python", found, "install Python 3.11 or newer")
    return ok("python", found)


def _module(name: str) -> DoctorFinding:
    """Import it: a package can be there and still not load, for want of a library or of the right processor."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken package raises whatever it likes
        return fail(name, f"{type(error).__name__}: {error}", "install resnap again, into an environment of its own")
    return ok(name, package_version(name))


def _kernel() -> DoctorFinding:
    """Return whether segments are scanned by machine code; without it all works, many times slower."""
    reason = why_no_kernel()
    if reason is not None:
        return warn("numba", f"segments are read by the slow path: {reason}",
                    "install resnap again, on a platform that numba supports")  # fmt: skip
    from resnap.replay.kernel.code_cache import cache_directory  # noqa: PLC0415 - loads numba, which may not be there

    version, kept = package_version("numba"), cache_directory()
    if kept is None:
        return warn("numba", f"{version}, but each process compiles for some seconds: no place to keep machine code",
                    "let NUMBA_CACHE_DIR name a directory that can be written")  # fmt: skip
    return ok("numba", f"{version}, machine code kept in {kept}")


def _java(environment: Mapping[str, str]) -> DoctorFinding:
    try:
        from resnap.replay.spark.jvm import find_java  # noqa: PLC0415 - looks for the Java of the installation
    except ModuleNotFoundError as error:
        return fail(
            "java", f"{error.name} is not installed here", "install all of resnap; --engine local needs no Java"
        )
    with scratch_directory("doctor") as scratch:
        try:
            java = find_java(environment, scratch=scratch)
        except ConfigurationError as error:
            return failed("java", error)
    return ok("java", f"{java.version}, {java.origin}")


def _unless_needed(finding: DoctorFinding, *, needed: bool) -> DoctorFinding:
    return finding if needed or finding.health is Health.OK else replace(finding, health=Health.WARN)


def _clock(clock: Clock) -> DoctorFinding:
    now_ms = clock.now_ms()
    if now_ms < EARLIEST_NOW_MS:
        return fail("clock", f"this machine's clock shows {second(now_ms)}", "set the clock: expiry depends on it")
    return ok("clock", second(now_ms))


def _expiration(settings: Settings) -> DoctorFinding:
    name = "producer_id_expiration_ms"
    if settings.expiration_note:
        return warn("expiration", f"{span(settings.expiration_ms)} is assumed",
                    "set --producer-id-expiration-ms, or give --server-properties")  # fmt: skip
    return ok("expiration", f"{span(settings.expiration_ms)} ({settings.origin(name)})")


def _kafka(settings: Settings) -> DoctorFinding:
    releases = releases_of(settings.kafka_version, settings.metadata, None)
    if releases.not_known is None:
        return ok("kafka", faults_line(releases))
    remedy = "--metadata-log shows it, too; `resnap check --bootstrap-server HOST:PORT` asks the brokers"
    if settings.kafka_version is not None:
        remedy = "give the release of Apache Kafka that the brokers are built from"
    return warn("kafka", faults_line(releases), remedy)


def _place(place: str, settings: Settings, clock: Clock) -> Iterator[DoctorFinding]:
    """Return the findings on a log dir, or on a store: a URL at which no copy of a log dir is."""
    sources = Sources(s3=settings.s3())
    try:
        layout = layout_at(place, sources) if is_store_url(place) else None
    except ResnapError as error:
        return iter((failed("store", error),))
    is_log_dir = not is_store_url(place) if layout is None else layout.is_plain_copy
    return _log_dir(place, sources, clock) if is_log_dir else _store(place, settings, clock)


def _log_dir(place: str, sources: Sources, clock: Clock) -> Iterator[DoctorFinding]:
    try:
        log_dir = open_source(place, sources)
        # No broker works in a store.
        holder = lock_holder(log_dir.path) if isinstance(log_dir.path, Path) else None
    except ResnapError as error:
        yield failed("log dir", error)
        return
    segments = sum(len(partition.segments) for partition in log_dir.partitions)
    yield ok("log dir", f"{place}: {some(len(log_dir.partitions), 'partition')},"
             f" {some(segments, 'segment')}, readable")  # fmt: skip
    for problem in log_dir.problems:
        yield failed("log dir", problem.error)
    if not isinstance(log_dir.path, Path):
        return
    if holder is not None:
        process = f" (process {holder.process_id})" if holder.process_id > 0 else ""
        yield ok("broker", f"running on {place}{process}: every command except install can run beside it")
    else:
        yield _shutdown(place, log_dir)
    yield from _future_files(place, log_dir, clock)


def _shutdown(place: str, log_dir: LogDir) -> DoctorFinding:
    if log_dir.clean_shutdown:
        return ok("broker", f"shut down cleanly on {place}: install can run")
    return warn("broker", f"not running on {place}, and not shut down cleanly",
                "before an install, start the broker and stop it once, so that it recovers its logs")  # fmt: skip


def _future_files(place: str, log_dir: LogDir, clock: Clock) -> Iterator[DoctorFinding]:
    newest_ms = max(
        (segment.mtime_ns // 1_000_000 for partition in log_dir.partitions for segment in partition.segments), default=0
    )
    if newest_ms > clock.now_ms() + TOLERATED_SKEW_MS:
        yield warn("clock", f"a segment in {place} was written at {second(newest_ms)}, which is in the future",
                   "set the clock of this machine, or of the one that wrote it")  # fmt: skip


def _store(url: str, settings: Settings, clock: Clock) -> Iterator[DoctorFinding]:
    try:
        store = open_store(url, settings.s3())
    except ResnapError as error:
        yield failed("store", error)
        return
    path = local_path(url)
    if path is not None and path.parent.is_dir() and not path.exists():
        yield warn("store", f"{path} does not exist yet, so nothing was tested",
                   f"check the path; if it is right, `mkdir {shlex.quote(str(path))}`, and run this command "
                   "again")  # fmt: skip
        return
    yield from probe_store(store, clock)


class DoctorView(View[DoctorFinding]):
    """A row per finding; for people, lines as they come, since some take a while."""

    kind = "finding"

    def __init__(self, places: Sequence[str], flags: Iterable[str]) -> None:
        log_dir = next((place for place in places if not is_store_url(place)), "LOG_DIR")
        self._check = shlex.join(["resnap", "check", log_dir, *flags])
        self._counts = dict.fromkeys(map(str, Health), 0)

    def lines(self, result: DoctorFinding) -> Iterator[str]:
        """Yield a finding, and what to do about it."""
        yield f"{result.health:<4}  {result.check:<15}  {result.detail}"
        if result.remedy:
            yield f"{'':<23}-> {result.remedy}"

    def row(self, result: DoctorFinding) -> Row:
        """Return a finding as plain values, and count it."""
        self._counts[result.health] += 1
        return {
            "health": result.health.value,
            "check": result.check,
            "detail": result.detail,
            "remedy": result.remedy,
        }

    def totals(self) -> Row:
        """Return how many findings there are of each kind."""
        return self._counts

    def closing(self) -> Iterator[str]:
        """Yield what to do next."""
        if self._counts[Health.FAIL]:
            yield "Next: repair what failed, as the lines below it say, then the same command again."
        else:
            yield f"Next: `{self._check}` says which topics can be tiered."

    @property
    def exit_code(self) -> int:
        """1 if something will not do."""
        return FAILED if self._counts[Health.FAIL] else OK


VERB = Verb(
    takes=(SERVER, METADATA, ("producer_id_expiration_ms", "kafka_version"), ENGINE, S3),
    request=Asked,
    run=run,
    view=lambda request, context: DoctorView(request.places or (), rule_flags_of(context.settings)),
    reads="other",
)
