"""`resnap doctor`: checks everything that a run needs; one finding per question, each with a remedy.

Nothing is changed: a broker's lock is tested and not taken, and the probe of a store deletes its own objects. Of a
store it asks whether it does what shipping needs, and how Resnap handles the rest.
"""

import importlib
import platform
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from resnap.replay.scan.split_scan import why_no_kernel
from resnap.replay.staging import scratch_directory
from resnap.scheduler.cli.failures import FAILED, OK
from resnap.scheduler.cli.flags import ENGINE, METADATA, S3, SERVER
from resnap.scheduler.clock import Clock
from resnap.scheduler.job.contract import Context, Report, Request, Result, Verb, View
from resnap.scheduler.job.wiring import rule_flags_of
from resnap.scheduler.output.answer import faults_line
from resnap.scheduler.output.records import plain
from resnap.scheduler.output.rendering import Row
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.settings import Settings
from resnap.storage.errors import ConfigurationError, ObjectNotFoundError, ResnapError
from resnap.storage.log.log_dir import LogDir
from resnap.storage.log.log_dir_lock import lock_holder
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import layout_at, open_source
from resnap.storage.stores.probe import (
    BODY_BYTES,
    Check,
    Condition,
    UploadChecks,
    condition,
    copy_problem,
    deletion,
    listing_problem,
    parts_problem,
    range_problem,
    replacement,
    store_clock_ms,
    throwaway,
    upload_checks,
    uploads_problem,
)
from resnap.storage.stores.protocol import CopyingStore, ObjectStore
from resnap.storage.stores.urls import is_store_url, local_path, open_store
from resnap.storage.version import package_version
from resnap.storage.words import exact_duration, human_bytes, human_duration, second, some
from resnap.tiering.broker_releases import releases_of

MIN_PYTHON: Final = (3, 11)
EARLIEST_NOW_MS: Final = 1_735_689_600_000
"""The beginning of 2025: Resnap is younger than that, so a clock before it is wrong."""
TOLERATED_SKEW_MS: Final = 60_000
STORE_SKEW_MS: Final = 300_000
"""S3 refuses requests whose clock is 15 minutes off; a third of that causes a warning."""
_CONDITIONS: Final = {
    Condition.KEPT: "a conditional write does not replace what is there, and of several at once one wins",
    Condition.IGNORED: "the store ignores the condition of a write",
    Condition.RACES: "of several conditional writes at once more than one wins",
    Condition.REFUSED: "the store refuses conditional writes",
}


class Health(StrEnum):
    """How an answer is to be taken."""

    OK = "ok"
    WARN = "warn"
    """Something will not work, or not as well as it could; what does, does so correctly."""
    FAIL = "fail"


class DoctorFinding(Result):
    """One answer."""

    health: Health
    check: str
    """What was checked, in a word or two."""
    detail: str
    remedy: str | None = None


def ok(check: str, detail: str) -> DoctorFinding:
    """Return the finding that all is well."""
    return DoctorFinding(health=Health.OK, check=check, detail=detail)


def warn(check: str, detail: str, remedy: str | None = None) -> DoctorFinding:
    """Return the finding that something could be better."""
    return DoctorFinding(health=Health.WARN, check=check, detail=detail, remedy=remedy)


def fail(check: str, detail: str, remedy: str | None = None) -> DoctorFinding:
    """Return the finding that something will not do."""
    return DoctorFinding(health=Health.FAIL, check=check, detail=detail, remedy=remedy)


def finding_of_error(check: str, error: ResnapError) -> DoctorFinding:
    """Return the finding that an error makes."""
    return fail(check, str(error), error.hint)


class DoctorRequest(Request):
    """Check what a run needs: Python, Java, Spark, the log dirs, the store, the clock."""

    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG_DIR|STORE",
            help="Log dirs to check, and stores to test by writing, reading and deleting a small object; the default is"
            " log.dirs.",
        ),
    ] = None
    store: Annotated[str | None, typer.Option(metavar="URL", help="A store to test, as the argument.")] = None


def run(request: DoctorRequest, context: Context, report: Report) -> None:
    """Report the findings, one at a time, as they are made."""
    settings, places = context.settings, request.places or [*map(str, context.settings.log_dirs)]
    for finding in examine(settings, process_environment(), context.clock, places=places, store_url=request.store):
        report(finding)


def examine(
    settings: Settings, environment: Mapping[str, str], clock: Clock, *, places: Sequence[str], store_url: str | None
) -> Iterator[DoctorFinding]:
    """Yield what ``run`` reports."""
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
            return finding_of_error("java", error)
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
        return warn("expiration", f"{exact_duration(settings.expiration_ms)} is assumed", settings.expiration_remedy)
    return ok("expiration", f"{exact_duration(settings.expiration_ms)} ({settings.origin(name)})")


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
        return iter((finding_of_error("store", error),))
    is_log_dir = not is_store_url(place) if layout is None else layout.is_plain_copy
    return _log_dir(place, sources, clock) if is_log_dir else _store(place, settings, clock)


def _log_dir(place: str, sources: Sources, clock: Clock) -> Iterator[DoctorFinding]:
    try:
        log_dir = open_source(place, sources)
        # No broker works in a store.
        holder = lock_holder(log_dir.path) if isinstance(log_dir.path, Path) else None
    except ResnapError as error:
        yield finding_of_error("log dir", error)
        return
    segments = sum(len(partition.segments) for partition in log_dir.partitions)
    yield ok("log dir", f"{place}: {some(len(log_dir.partitions), 'partition')},"
             f" {some(segments, 'segment')}, readable")  # fmt: skip
    for problem in log_dir.problems:
        yield finding_of_error("log dir", problem.error)
    if not isinstance(log_dir.path, Path):
        return
    if holder is not None:
        process = f" (process {holder})" if holder > 0 else ""
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
        yield finding_of_error("store", error)
        return
    path = local_path(url)
    if path is not None and path.parent.is_dir() and not path.exists():
        yield warn("store", f"{path} does not exist yet, so nothing was tested",
                   f"check the path; if it is right, `mkdir {shlex.quote(str(path))}`, and run this command "
                   "again")  # fmt: skip
        return
    yield from probe_store(store, clock)


def probe_store(store: ObjectStore, clock: Clock) -> Iterator[DoctorFinding]:
    """Yield what the store keeps of its promises; an error ends the probe, which deletes its objects all the same."""
    try:
        yield from _body(store)
        yield _judged("store ranges", range_problem(store),
                      "parts of an object can be read, of the version asked for",
                      warn, "ship to it, but do not read segments from it (a SOURCE must know ranges);"
                      " where its checksums are wrong, --s3-response-checksum-validation when_required"
                      " helps")  # fmt: skip
        yield _judged("store parts", parts_problem(store),
                      "an upload in parts was read back whole",
                      fail, "segments of more than 16 MiB cannot be shipped to this store")  # fmt: skip
        yield from _checksums(upload_checks(store))
        if isinstance(store, CopyingStore):
            yield _copies(store)
        yield from _conditions(store)
        yield _judged("store list", listing_problem(store),
                      "what is written and deleted is listed correctly at once, in order, over several pages",
                      fail, "choose a store whose listings are current")  # fmt: skip
        yield _judged("store uploads", uploads_problem(store),
                      "what interrupted uploads leave can be found",
                      warn, "`resnap gc` cannot remove what interrupted uploads leave: let a rule of"
                      " the store do it (MinIO does after a day)")  # fmt: skip
        yield _store_clock(store_clock_ms(store), clock)
        yield _deletion(store)
    except ResnapError as error:
        yield finding_of_error("store", error)


def _body(store: ObjectStore) -> Iterator[DoctorFinding]:
    body = secrets.token_bytes(BODY_BYTES)
    with throwaway(store) as key:
        store.put(key, body)
        yield ok("store write", f"{store.url} took {human_bytes(BODY_BYTES)}")
        if store.get(key) == body:
            yield ok("store read", "what was written was read back")
        else:
            yield fail("store read", "the store returned other bytes than were written",
                       "do not ship to this store; where it is behind a proxy, try without")  # fmt: skip


def _judged(
    check: str, problem: str | None, fine: str, wrong: Callable[[str, str, str], DoctorFinding], remedy: str
) -> DoctorFinding:
    """Return the finding that all is ``fine``, or the one that ``wrong`` makes of a problem."""
    return ok(check, fine) if problem is None else wrong(check, problem, remedy)


def _checksums(checks: UploadChecks) -> Iterator[DoctorFinding]:
    for name, check in (("whole", checks.whole), ("in parts", checks.in_parts)):
        what = f"a body with a wrong checksum, sent {name}, was {check}"
        if check is Check.UNTRIED:
            what = f"a body sent {name}: {check}"
        yield ok("store checksum", what) if check in {Check.REFUSED, Check.UNTRIED} else warn("store checksum", what)
    if checks.count:
        yield ok("verification", "by the store's own check of our checksums, since it refuses wrong ones and keeps"
                 " nothing of them; --verify-upload read-back reads every object back all the same")  # fmt: skip
    else:
        yield ok("verification", "every object is read back whole, since the store's own check is not reliable")


def _copies(store: CopyingStore) -> DoctorFinding:
    problem, remedy = copy_problem(store), "a segment that is in this store is read, and sent to it once more"
    if problem is None:
        problem = copy_problem(store, of_others=True)
        remedy = f"only what was written with a CRC-32C is copied by the store itself; else {remedy}"
    if problem is None:
        return ok("store copy", "a segment that is in this store is copied by the store itself, as the version read")
    return warn("store copy", problem, f"nothing to do: {remedy}")


def _conditions(store: ObjectStore) -> Iterator[DoctorFinding]:
    kept = Condition.KEPT
    found = condition(store)
    yield _judged("store condition", None if found is kept else _CONDITIONS[found], _CONDITIONS[kept],
                  warn, "nothing is lost by it, but two tiering jobs on one partition at once may both do all the work,"
                  " and `resnap gc` needs --no-other-writers")  # fmt: skip
    found, what = replacement(store), "conditions on the version that is replaced (If-Match) are"
    yield _judged("store replace", None if found is kept else f"{what} {found}",
                  "a write that is to replace one version (If-Match) replaces no other one",
                  warn, "only `resnap repair` uses them, and needs --no-other-writers without them")  # fmt: skip
    found, what = deletion(store), "conditions on the version that is deleted (If-Match) are"
    yield _judged("store delete condition", None if found is kept else f"{what} {found}",
                  "a deletion of one version (If-Match), as `resnap gc` makes it, deletes no other one",
                  warn, "only `resnap gc` uses them; without them it compares size and time of an object, and then"
                  " deletes it, so that nothing else may replace what is garbage in that moment")  # fmt: skip


def _store_clock(store_ms: int, clock: Clock) -> DoctorFinding:
    skew_ms = store_ms - clock.now_ms()
    if abs(skew_ms) > STORE_SKEW_MS:
        return warn("store clock", f"the store's clock says {second(store_ms)}, which is"
                    f" {human_duration(abs(skew_ms) / 1000)} {'ahead of' if skew_ms > 0 else 'behind'} this machine's",
                    "set the clocks; S3 refuses requests that are 15 minutes off")  # fmt: skip
    return ok("store clock", "the clocks agree")


def _deletion(store: ObjectStore) -> DoctorFinding:
    with throwaway(store) as key:
        store.put(key, b"")
        store.delete(key)
        try:
            store.head(key)
        except ObjectNotFoundError:
            return ok("store delete", "nothing of the probe is left")
    return warn("store delete", f"{key} is still there after its deletion", "delete it by hand")


class DoctorView(View[DoctorFinding]):
    """A row per finding; for people, lines as they come, since some take a while."""

    kind = "finding"

    def __init__(self, places: Sequence[str], flags: Iterable[str]) -> None:
        log_dir = next((place for place in places if not is_store_url(place)), "LOG_DIR")
        self._check = shlex.join(["resnap", "check", log_dir, *flags])
        self._totals = dict.fromkeys(map(str, Health), 0)

    def lines(self, result: DoctorFinding) -> Iterator[str]:
        """Yield a finding, and what to do about it."""
        yield f"{result.health:<4}  {result.check:<15}  {result.detail}"
        if result.remedy:
            yield f"{'':<23}-> {result.remedy}"

    def row(self, result: DoctorFinding) -> Row:
        """Return a finding as plain values, and count it."""
        self._totals[result.health] += 1
        return {name: plain(getattr(result, name)) for name in ("health", "check", "detail", "remedy")}

    def closing(self) -> Iterator[str]:
        """Yield what to do next."""
        if self._totals[Health.FAIL]:
            yield "Next: repair what failed, as the lines below it say, then the same command again."
        else:
            yield f"Next: `{self._check}` says which topics can be tiered."

    @property
    def exit_code(self) -> int:
        """1 if something will not do."""
        return FAILED if self._totals[Health.FAIL] else OK


VERB = Verb(
    takes=(SERVER, METADATA, ("producer_id_expiration_ms", "kafka_version"), ENGINE, S3),
    request=DoctorRequest,
    run=run,
    view=lambda request, context: DoctorView(request.places or (), rule_flags_of(context.settings)),
)
