"""``Services``: everything that the API, the pages, the schedules and the command line share, built once."""

from __future__ import annotations

import secrets
import threading
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access.admission import AdmissionControl
from resnap.scheduler.access.control import AccessControl, Hosts, check_listening
from resnap.scheduler.access.tokens import tokens_in
from resnap.scheduler.disk_reads import DiskReads
from resnap.scheduler.fleet.status import FleetWatch
from resnap.scheduler.job.contract import verb_of
from resnap.scheduler.job.replaying import engine_of
from resnap.scheduler.runs.configuration import check_still_within_places, of_scanned_sources, within_places
from resnap.scheduler.runs.execution import UNKNOWN_CLUSTER, Execution, public_error
from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.observation import Observation
from resnap.scheduler.runs.partition_details import PartitionDetails
from resnap.scheduler.runs.plans import Plans
from resnap.scheduler.runs.run import BY_API, FINAL, Ids, RunEnd, RunRequest, RunState
from resnap.scheduler.runs.scans import Scans
from resnap.scheduler.runs.worker import Worker
from resnap.scheduler.service.schedules import Schedules, origin_of, trigger_of
from resnap.scheduler.settings.loading import state_directory_of
from resnap.scheduler.settings.settings import taken_over
from resnap.scheduler.state.database import DATABASE_FILE, Database
from resnap.scheduler.telemetry.metrics import Metrics, Watched
from resnap.scheduler.verbs.verify import UNFIT
from resnap.storage.errors import ConfigurationError, ResnapError, UsageError
from resnap.storage.log.log_dir import META_PROPERTIES
from resnap.storage.log.properties import read_properties
from resnap.storage.stores.urls import is_store_url, open_store
from resnap.storage.version import resnap_revision, resnap_version
from resnap.storage.whole_file import read_whole
from resnap.tiering.quota.active_producers import Cleaner, Remembering
from resnap.tiering.quota.layers import life_cycle
from resnap.tiering.quota.quota_manager import series
from resnap.tiering.quota.token_bucket import QuotaConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.runs.configuration import Configuration
    from resnap.scheduler.runs.run import Run
    from resnap.scheduler.settings.settings import Settings

_MEMORY = "memory:"


def check_places(settings: Settings, state_directory: Path) -> None:
    """Check that nothing is stored where it does harm, or is lost.

    Raises:
        ConfigurationError: the state directory is inside a log dir, or a schedule names an impossible place.

    """
    inner = Path(realpath(state_directory))
    for log_dir in settings.log_dirs:
        if inner.is_relative_to(realpath(log_dir)):
            raise ConfigurationError(
                f"--state-dir {state_directory} lies in the log dir {log_dir}: a broker does not start beside it",
                hint="give a directory outside log.dirs",
            )
    for spec in settings.schedules:
        if (spec.to or "").startswith(_MEMORY):
            raise ConfigurationError(
                f"schedule {spec.name}: to {spec.to!r} is lost when the run ends",
                hint="give a directory, file:///DIRECTORY or s3://BUCKET/PREFIX",
            )
        for place in filter(is_store_url, spec.sources):
            _check_url(spec.name, place, settings)
        if spec.to is not None and (spec.run != "regenerate" or is_store_url(spec.to)):
            _check_url(spec.name, spec.to, settings)


def _check_url(name: str, place: str, settings: Settings) -> None:
    try:
        open_store(place, settings.s3())
    except UsageError as error:
        raise ConfigurationError(f"schedule {name}: {error}", hint=error.hint) from error


def warnings(settings: Settings, *, has_tokens: bool) -> Iterator[str]:
    """Yield what makes the service useless."""
    if settings.auth == "token" and not has_tokens:
        yield "no client can sign in: there is no token yet; `resnap token create NAME --role admin` makes one"
    if not settings.log_dirs and not settings.schedules:
        yield "there is nothing to scan: set log.dirs, and a [[schedules]] table that runs `scan`"
    elif not settings.schedules:
        yield "nothing is scanned automatically: a [[schedules]] table that runs `scan` fills the pages"


PROBE_S: Final = 1.0
_LAST_RUNS: Final = 20
"""How many runs of a schedule are searched for one that finished."""


class Services:
    """Everything that a request, a page or a schedule needs; ``start`` it, and ``stop`` it at the end.

    Raises:
        ResnapError: the configuration cannot be used, another service has this state directory, or its file cannot be
            opened.

    """

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        self.configuration, self.clock = configuration, clock
        settings = self.settings = usable_settings(configuration)
        """The settings in force; replaced as a whole when the configuration is read again."""
        directory = state_directory_of(settings)
        configuration.put_in_force(settings)
        metrics = Metrics(watched_names(settings), version=resnap_version(), revision=resnap_revision())
        self.observation = observation = Observation(metrics, clock)
        self.database = database = Database(directory / DATABASE_FILE, is_service=True)
        self.reads = DiskReads()
        """Reads of log dirs and stores, for those who wait for an answer."""
        self.probing = DiskReads(2, turn_s=PROBE_S / 2)
        """Reads of log dirs for probes, which wait ``PROBE_S`` at the most."""
        self.scans = Scans(database, clock.now_ms)
        self.history = History(database, clock.now_ms, warn=observation.warn)
        ids = Ids(clock.now_ms, secrets.randbits, newest=self.history.newest_id())
        self.engine = engine_of(settings)
        self.plans = Plans(
            database=database, configuration=configuration, engine=self.engine, ids=ids, clock=clock, reads=self.reads
        )
        window_ms = settings.producer_id_quota_window_size_seconds * 1000
        self.admission = AdmissionControl(
            directory,
            settings.metadata_log,
            clock,
            observation.warn,
            config=QuotaConfig(samples=settings.producer_id_quota_window_num, window_ms=window_ms),
            remembering=Remembering(
                cycle=life_cycle(settings.producer_id_quota_profile, window_ms),
                false_positive_rate=settings.producer_id_quota_false_positive_rate,
            ),
        )
        metrics.quota(partial(series, self.admission.manager))
        execution = Execution(
            configuration=configuration,
            plans=self.plans,
            engine=self.engine,
            clock=clock,
            scans=self.scans,
            observer=observation,
            admission=self.admission,
        )
        self.worker = Worker(self.history, execution, ids, clock, observation, queue_size=settings.queue_size)
        self.schedules = Schedules(self.worker, self.history, database, clock, observation)
        self.partition_details = PartitionDetails(engine=self.engine, scans=self.scans, reads=self.reads)
        hosts = Hosts(address_of(settings.listen)[0], settings.allow_hosts)
        self.access = AccessControl(database, clock, secrets.token_bytes, auth=settings.auth, hosts=hosts)
        if settings.tokens_file is not None:
            self.access.tokens.adopt(settings.tokens_file)
        self.fleet = FleetWatch(settings=lambda: self.settings, clock=clock, warn=observation.warn)
        """The status of the cluster, where the configuration names the services of its brokers."""
        self.cleaner: Cleaner | None = None
        """Removes expired producer ids of the quota; None before the start."""
        self.is_ending = False
        """Whether the service was asked to stop; open event streams end then."""
        self.submitting = threading.Lock()
        """Held while a request becomes a run, so that one idempotency key never gives two."""

    def start(self) -> None:
        """Report runs left unfinished, queue those left waiting, delete old ones, and start to work."""
        self.observation.orphaned(self.history.fail_orphans())
        for run in self.history.open_runs():
            self._take_up(run)
        self.observation.load_last_runs(self.history)
        self.forget_old()
        tokens = self.access.tokens.all()
        for one in tokens:
            if one.state(self.clock.now_ms()) == "unknown-role":
                self.observation.warn(f"the token {one.name!r} has the role {one.role!r}, which this release does not"
                                      " know: it is not valid, until a later one runs")  # fmt: skip
        for text in warnings(self.settings, has_tokens=bool(tokens)):
            self.observation.warn(text)
        self.cleaner = Cleaner(
            self.admission.manager.clean_up, self.settings.producer_id_quota_cache_cleanup_scheduler_interval_ms
        )
        self.worker.start()
        self.schedules.start(self.settings.schedules)

    def _take_up(self, run: Run) -> None:
        """Queue a run that waited when the previous service ended, if it is still allowed."""
        try:
            if run.origin == BY_API:
                check_still_within_places(self.settings, run.request)
        except ResnapError as error:
            end = RunEnd(state=RunState.FAILED, totals={}, errors=(public_error(error),))
            self.history.ended(run.id, end)
            self.observation.run_ended(run, end, 0.0)
        else:
            self.observation.note("a run that waited when the last service ended is resumed", run=run.id)
            self.worker.take_up(run)

    def reload(self) -> tuple[str, ...]:
        """Read the configuration again, and return the settings that need a restart.

        Raises:
            ResnapError: it is invalid; the old one is kept.

        """
        settings = self.configuration.load()
        _check(settings, self.database.path.parent)
        if settings.tokens_file is not None:
            self.access.tokens.adopt(settings.tokens_file)
        self.schedules.load(settings.schedules)
        self.observation.metrics.watch(watched_names(settings))
        self.observation.schedules_are({spec.name for spec in settings.schedules})
        self.admission.watch(settings.metadata_log)
        self.worker.queue_size = settings.queue_size
        self.configuration.put_in_force(settings)
        self.settings, waiting = taken_over(self.settings, settings)
        return waiting

    def within_places(self, asked: RunRequest) -> RunRequest:
        """Return ``asked`` with the places to use for those it names; links are followed, on whatever disk.

        Raises:
            PlaceForbiddenError, UsageError: it names one that requests may not name.
            LogDirError: the disk does not answer.

        """
        return self.reads.run(partial(within_places, self.settings, asked))

    def of_scanned_sources(self, asked: RunRequest) -> RunRequest:
        """Return ``asked``, a scan, with partitions of configured sources by their names; raises as within_places."""
        return self.reads.run(partial(of_scanned_sources, self.settings, asked))

    def catch_up(self) -> None:
        """Do what could not be done while the service's file could not be written.

        Raises:
            StateError: it takes nothing yet.

        """
        self.worker.keep_ends()
        self.schedules.make_up()

    def measure(self) -> None:
        """Set the metrics that are measured when they are read."""
        metrics = self.observation.metrics
        metrics.queue_runs.of("waiting").set(self.worker.waiting)
        metrics.queue_runs.of("running").set(self.worker.running)
        for verdict, count in self.scans.counts().items():
            metrics.partitions.of(verdict.value).set(count)
        for verdict, topics in self.scans.topics_by_verdict().items():
            metrics.topics.of(verdict.value).set(len(topics))
        for name, size_bytes in self.scans.sizes().items():
            metrics.sizes[name].set(size_bytes)
        metrics.segments_missing(self.scans.missing_by_source())
        metrics.segments_waiting(self.scans.waiting_by_source())
        metrics.remote_partitions_unfit.set(sum(unfit for _, unfit in self.unfit_stores()))

    def unfit_stores(self) -> list[tuple[Run, int]]:
        """Return the last verification of each schedule that found unfit snapshots, and in how many partitions.

        An unfinished one says nothing about what it has not read.
        """
        found = []
        for spec in self.settings.schedules:
            if spec.run == "verify":
                runs = self.history.page(origin=origin_of(spec.name), states=FINAL, limit=_LAST_RUNS)
                last = next((run for run in runs if UNFIT in run.totals), None)
                found += [(last, last.totals[UNFIT])] if last and last.totals[UNFIT] else []
        return found

    def forget_old(self) -> None:
        """Delete runs, plans and days older than ``history_retention``."""
        older_than_ms = self.clock.now_ms() - int(self.settings.history_retention.total_seconds() * 1000)
        self.history.prune(older_than_ms)
        self.plans.prune(older_than_ms)
        self.scans.prune_days(older_than_ms)

    def stop(self) -> bool:
        """Accept no more work and let running work end; False if that took longer than ``stop_grace``."""
        self.schedules.stop()
        self.fleet.stop()
        if self.cleaner is not None:
            self.cleaner.close()
        in_time = self.worker.stop(self.settings.stop_grace.total_seconds())
        self.engine.close(in_order=in_time)
        if in_time:
            self.database.close()
        return in_time


def usable_settings(configuration: Configuration) -> Settings:
    """Return the settings as the files have them now, if a service can be started with them.

    Raises:
        ResnapError: it cannot.

    """
    settings = configuration.load()
    _check(settings, state_directory_of(settings))
    return settings


def _check(settings: Settings, directory: Path) -> None:
    """Check that a service may use ``settings``.

    Raises:
        ConfigurationError: it may not.

    """
    check_listening(address_of(settings.listen)[0], settings.auth)
    check_places(settings, directory)
    within_places(settings, RunRequest(kind="scan"))
    engine_of(settings)
    if settings.tokens_file is not None:
        tokens_in(settings.tokens_file)
    for spec in settings.schedules:
        trigger_of(spec)
        if verb_of(spec.run).reads == "cluster" and settings.bootstrap_server is None:
            raise ConfigurationError(
                f"schedule {spec.name}: {spec.run} asks the running cluster, and none is named",
                hint='set bootstrap-server = "HOST:PORT", or leave the schedule out',
            )


def watched_names(settings: Settings) -> Watched:
    """Return the names that metrics are counted for, from the configuration."""
    sources = {*map(str, settings.log_dirs), *(place for spec in settings.schedules for place in spec.sources)}
    return Watched(
        sources=tuple(sorted((cluster_of(source), source) for source in sources)),
        schedules=tuple(spec.name for spec in settings.schedules),
        queue_limit=settings.queue_size,
    )


def cluster_of(source: str) -> str:
    """Return the id of the cluster that owns the log dir ``source``, as far as this machine knows."""
    try:
        return read_properties(read_whole(Path(source, META_PROPERTIES))).get("cluster.id", UNKNOWN_CLUSTER)
    except (OSError, ResnapError, ValueError):
        return UNKNOWN_CLUSTER


def address_of(listen: str) -> tuple[str, int]:
    """Return host and port of ``--listen``.

    Raises:
        ConfigurationError: it names none.

    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise ConfigurationError(f"--listen {listen!r}: expected HOST:PORT", hint="such as 127.0.0.1:8936")
    return host.strip("[]"), int(port)
