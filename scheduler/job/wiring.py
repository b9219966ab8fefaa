"""The composition root: builds what jobs work with from settings; the only place that chooses implementations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.replay.producer_state import Expiry
from resnap.replay.scan.reading import Reading
from resnap.replay.spark.settings import processors
from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN, FLAG_ORIGIN, declared_in
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.key_files import public_key
from resnap.scheduler.settings.loading import state_directory
from resnap.scheduler.settings.replay import BrokerSettings, ClusterSettings, ReplaySettings
from resnap.scheduler.settings.running_cluster import connect
from resnap.scheduler.settings.settings import DECLARED, given_flags
from resnap.scheduler.settings.store import StoreSettings
from resnap.storage.errors import ConfigurationError, StalePlanError, UsageError
from resnap.storage.layouts.segment_form import SegmentForm
from resnap.storage.log.log_dir import log_dir_around
from resnap.storage.sources.files import Sources
from resnap.storage.sources.registry import layout_named
from resnap.storage.stores.urls import is_store_url, without_slash
from resnap.storage.words import instant
from resnap.tiering.controller.metadata.cluster import find_metadata_log
from resnap.tiering.engine import Engine
from resnap.tiering.planner import Planner
from resnap.tiering.run_cache.cache_files import CacheFiles
from resnap.tiering.run_cache.run_cache import RunCache
from resnap.tiering.selection import Scope
from resnap.tiering.shipping.stored_rules import Asked
from resnap.tiering.tier import Uploading
from resnap.tiering.verifying.verification_journal import VerificationJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.layouts.protocol import Layout
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.judging.planning import SavedPlan

_CLOCKS_APART_MS: Final = 60_000
_RULES: Final = (
    "config",
    "high_watermark",
    *(
        one.name
        for group in (BrokerSettings, ClusterSettings, ReplaySettings)
        for one in declared_in(group)
        if one.name != "verify_crc"
    ),
)
"""Settings that decide what is read of a log, and what snapshots are made of it."""
_OF_AIVEN: Final = ("key_prefix", "chunk_size", "chunk_compression", "encryption_public_key")
_STORES: Final = tuple(one.name for one in declared_in(StoreSettings))


def engine_of(settings: Settings, *, ahead: bool = False) -> Engine:
    """Return the engine for the settings; the caller must close it.

    A long-running process makes one for all its runs (see ``Engine``). ``ahead`` is whether a replay follows as soon as
    there is a plan, so that Spark may start before.
    """
    return Engine(
        kind=settings.engine,
        spark=settings.spark(),
        environment=process_environment(),
        s3=settings.s3(),
        reading=reading_of(settings),
        ahead=ahead,
    )


def planner_of(
    context: Context, rules: ReplayRules | None = None, *, replays: bool = True, cached: bool = False
) -> Planner:
    """Return the planner of one run; its T is fixed here.

    Args:
        context: of the run.
        rules: those of a saved plan, if there is one.
        replays: whether every plan is replayed, so that Spark may start during planning.
        cached: whether to use results of earlier runs.

    Raises:
        UsageError: the state directory is not on this machine, or is inside a broker's log dir.
        StalePlanError: the saved plan is for a moment that has yet to come.

    """
    if rules is not None:
        _refuse_later(rules, context.clock)
    planner = Planner(
        rules=rules or rules_of(context.settings, context.clock),
        engine=context.engine(ahead=replays),
        asked=_asked(context.settings),
        on_state=LargeStates(context.settings, context.warn).look,
    )
    return replace(planner, run_cache=_run_cache(planner, context)) if cached else planner


def _refuse_later(rules: ReplayRules, clock: Clock) -> None:
    """Refuse a saved plan whose T is later than now, by more than what clocks of two machines may differ."""
    if rules.as_of.now_ms > clock.now_ms() + _CLOCKS_APART_MS:
        raise StalePlanError(
            f"the plan is for {instant(rules.as_of.now_ms)}, which is in the future: producers would be taken for"
            " expired that are alive",
            hint="look at the clocks of the machine that planned and of this one, and plan again",
        )


def uploading_of(settings: Settings, complain: Callable[[str], None]) -> Uploading:
    """Return the upload settings; findings about the store are passed to ``complain``."""
    return Uploading(
        parallel=settings.parallel,
        is_parallel_asked=settings.origin("parallel") != DEFAULT_ORIGIN,
        bytes_per_s=settings.bwlimit,
        verification=settings.verify_upload,
        layout=_layout_to_write(settings),
        complain=complain,
    )


def _layout_to_write(settings: Settings) -> Layout:
    """Return the layout that segments are shipped in; what is set for another one means nothing.

    Where the log dirs are joined with a remote part, a key prefix may be of that alone.

    Raises:
        UsageError: a flag of it is given, and another layout.
        ConfigurationError: the public key cannot be read, or is none.

    """
    if settings.layout == "aiven":
        form = SegmentForm(
            key_prefix=settings.key_prefix,
            chunk_size=settings.chunk_size,
            compression=settings.chunk_compression,
            encryption_key=public_key(settings.encryption_public_key),
        )
        return layout_named(settings.layout, form)
    names = _OF_AIVEN if settings.remote is None else _OF_AIVEN[1:]
    given = [DECLARED[name].flag for name in names if settings.origin(name).startswith(FLAG_ORIGIN)]
    if given:
        raise UsageError(f"{', '.join(given)}: of the layout aiven alone", hint="give --layout aiven with it")
    return layout_named(settings.layout)


def _asked(settings: Settings) -> Asked:
    """Return which of the rules a flag, or the request of a run, sets."""
    return Asked(
        expiry=settings.origin("producer_id_expiration_ms").startswith(FLAG_ORIGIN),
        as_of=settings.origin("as_of").startswith(FLAG_ORIGIN),
        is_expiry_assumed=settings.producer_id_expiration_ms is None,
    )


def _run_cache(planner: Planner, context: Context) -> RunCache | None:
    """Return the run cache for this run; a dry run writes nothing to it."""
    settings = context.settings
    directory = _state_directory(settings, context.warn)
    if directory is None:
        return None
    states = not planner.engine.is_remote
    if not states and settings.verbose:
        context.warn("executors do not see the state directory: segments are read from the window's start on")
    return RunCache(
        files=CacheFiles(directory, context.warn, read_only=settings.dry_run),
        rules=planner.rules,
        sources=planner.engine.reading.sources,
        s3=planner.engine.s3,
        now_ms=context.clock.now_ms,
        fresh=settings.fresh or planner.rules.full,
        states=states,
    )


def journal_of(settings: Settings, clock: Clock, url: str, complain: Callable[[str], None]) -> VerificationJournal:
    """Return the journal of the verification of the store at ``url``, with an interrupted run's entries.

    Raises:
        UsageError: the state directory is not a directory of this machine, or is inside a broker's log dir.

    """
    directory = _state_directory(settings, complain)
    return VerificationJournal.open(directory, url, now_ms=clock.now_ms(), fresh=settings.fresh, complain=complain)


def _state_directory(settings: Settings, complain: Callable[[str], None]) -> Path | None:
    """Return the state directory; the default one is not used inside a broker's log dir."""
    directory = state_directory(settings, process_environment())
    log_dir = None if directory is None else log_dir_around(directory)
    if log_dir is None:
        return directory
    trouble = f"{directory} is inside the log dir {log_dir}"
    hint = "a broker does not start with an unknown directory in its log dir: give --state-dir, a place outside"
    if settings.state_dir is not None:
        raise UsageError(trouble, hint=hint)
    complain(f"the results of this run are not kept for later runs: {trouble}; {hint}")
    return None


def reading_of(settings: Settings) -> Reading:
    """Return the options for reading segments."""
    return Reading(
        sources=Sources(
            s3=settings.s3(),
            ranges_in_flight=settings.ranges_in_flight,
            range_bytes=settings.range_size,
            keys=settings.keys(),
        ),
        header_read_bytes=settings.header_read_size,
        split_bytes=settings.split_size,
        producers_per_task=settings.producers_per_task,
        threads=settings.threads or processors(),
    )


def rules_of(settings: Settings, clock: Clock) -> ReplayRules:
    """Return the replay rules of the settings; T is fixed here, once.

    Raises:
        UsageError: T is in the future.

    """
    interval_ms = settings.producer_id_expiration_check_interval_ms
    fixed_ms = settings.as_of_ms
    if fixed_ms is not None and fixed_ms > clock.now_ms():
        raise UsageError(
            f"--as-of {instant(fixed_ms)} is in the future: producers that are alive would count as expired",
            hint="give a time in the past; without --as-of it is now",
        )
    history_ms = settings.history_expiration_ms
    return ReplayRules(
        as_of=AsOf(now_ms=clock.now_ms() if fixed_ms is None else fixed_ms, roll=settings.as_of == "roll"),
        expiry=Expiry(settings.expiration_ms, interval_ms),
        history=None if history_ms is None else Expiry(history_ms, interval_ms),
        transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
        max_reach_back_ms=settings.max_reach_back_ms,
        full=settings.full,
        verify_crc=settings.verify_crc,
    )


def metadata_log_of(settings: Settings, place: str | None) -> Path:
    """Return the directory of the cluster's metadata log: ``place``, or from the settings or ``log.dirs``.

    Raises:
        UsageError: nothing says.

    """
    if place is not None:
        return Path(place)
    found = settings.metadata_log or find_metadata_log(settings.log_dirs)
    if found is None:
        hint = "give --metadata-log DIR: __cluster_metadata-0 of a controller or broker, or the log dir that holds it"
        raise UsageError("there is no metadata log to read", hint=hint)
    return found


def cluster_of(settings: Settings) -> AbstractContextManager[Cluster]:
    """Yield a connection to the running cluster: that of the command, or else one that ends with the context.

    Raises:
        ConfigurationError: no cluster is configured, or its connection settings are invalid.
        ClusterError: it does not answer.

    """
    if settings.bootstrap_server is None:
        raise ConfigurationError("no cluster is named", hint="give --bootstrap-server HOST:PORT")
    return connect(settings.bootstrap_server, settings.command_config, settings.shared_cluster)


def remote_of(settings: Settings) -> str | None:
    """Return the URL of the remote storage that is read with log dirs, including the folders of the key prefix."""
    if settings.remote is None:
        return None
    url = settings.remote if is_store_url(settings.remote) else Path(settings.remote).absolute().as_uri()
    folder = settings.key_prefix.rpartition("/")[0]
    return without_slash(f"{without_slash(url)}/{folder}")


def scope_of(
    settings: Settings, sources: Sequence[str] | None, saved: SavedPlan | None = None, *, reads: str = "log dirs"
) -> Scope:
    """Return the scope from a saved plan, the SOURCE arguments, or else ``log.dirs``, and the settings.

    What ``reads`` the running cluster, or what its arguments name, has no sources.

    Raises:
        UsageError: none of them names a source.

    """
    if reads == "cluster":
        connect, remote = partial(cluster_of, settings), remote_of(settings)
        return Scope(
            sources=(),
            topics=settings.topics,
            exclude_topics=settings.exclude_topics,
            partitions=settings.partitions,
            remote=remote,
            connect=connect,
        )
    if reads == "other":
        return Scope(sources=(), topics=settings.topics, exclude_topics=settings.exclude_topics)
    places = saved.sources if saved is not None else tuple(sources or map(str, settings.log_dirs))
    if not places:
        hint = "give a log dir or a partition's directory, or --server-properties FILE with log.dirs in it"
        raise UsageError("no LOG_DIR to work on", hint=hint)
    return Scope(
        sources=places,
        topics=settings.topics,
        exclude_topics=settings.exclude_topics,
        partitions=settings.partitions,
        connect=None if settings.bootstrap_server is None else partial(cluster_of, settings),
        high_watermark=settings.high_watermark,
        metadata_log=settings.metadata_log,
        read_ahead=settings.metadata,
        remote=remote_of(settings) if saved is None else saved.remote,
        rule_flags=tuple(given_flags(settings, _RULES)),
        store_flags=tuple(given_flags(settings, _STORES)),
    )
