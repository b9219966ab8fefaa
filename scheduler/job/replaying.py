"""The composition root of what replays: builds engines, planners, caches and uploads from settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.job.wiring import public_key, reading_of, rules_of
from resnap.scheduler.settings.declaration import DEFAULT_ORIGIN, GIVEN_ORIGINS
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.loading import state_directory
from resnap.scheduler.settings.settings import DECLARED
from resnap.storage.errors import StalePlanError, UsageError
from resnap.storage.layouts import SegmentForm
from resnap.storage.log.log_dir import log_dir_around
from resnap.storage.sources.registry import layout_named
from resnap.storage.words import instant
from resnap.tiering.engine import Engine
from resnap.tiering.planner import Planner
from resnap.tiering.run_cache.run_cache import CacheFiles, RunCache
from resnap.tiering.shipping.segment_copy import Uploading
from resnap.tiering.shipping.stored_rules import ExplicitRules
from resnap.tiering.verifying.verification_journal import VerificationJournal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.replay.window import ReplayRules
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.layouts.protocol import Layout

_CLOCKS_APART_MS: Final = 60_000
_OF_AIVEN: Final = ("key_prefix", "chunk_size", "chunk_compression", "encryption_public_key")


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
    engine = context.engine(ahead=replays)
    planner = Planner(
        rules=rules or rules_of(context.settings, context.clock),
        engine=engine,
        asked=explicit_rules(context.settings),
        on_state=LargeStates(context.settings, context.warn, engine.reading.sources).look,
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


def explicit_rules(settings: Settings) -> ExplicitRules:
    """Return which of the rules a flag, or the request of a run, sets."""
    return ExplicitRules(
        expiry=settings.origin("producer_id_expiration_ms").startswith(GIVEN_ORIGINS),
        as_of=settings.origin("as_of").startswith(GIVEN_ORIGINS),
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


def journal_of(settings: Settings, clock: Clock, url: str, warn: Callable[[str], None]) -> VerificationJournal:
    """Return the journal of the verification of the store at ``url``, with an interrupted run's entries.

    Raises:
        UsageError: the state directory is not a directory of this machine, or is inside a broker's log dir.

    """
    directory = _state_directory(settings, warn)
    return VerificationJournal.open(directory, url, now_ms=clock.now_ms(), fresh=settings.fresh, warn=warn)


def _state_directory(settings: Settings, warn: Callable[[str], None]) -> Path | None:
    """Return the state directory; the default one is not used inside a broker's log dir."""
    directory = state_directory(settings, process_environment())
    log_dir = None if directory is None else log_dir_around(directory)
    if log_dir is None:
        return directory
    trouble = f"{directory} is inside the log dir {log_dir}"
    hint = "a broker does not start with an unknown directory in its log dir: give --state-dir, a place outside"
    if settings.state_dir is not None:
        raise UsageError(trouble, hint=hint)
    warn(f"the results of this run are not kept for later runs: {trouble}; {hint}")
    return None


def uploading_of(settings: Settings) -> Uploading:
    """Return the upload settings."""
    return Uploading(
        parallel=settings.parallel,
        is_parallel_asked=settings.origin("parallel") != DEFAULT_ORIGIN,
        bytes_per_s=settings.bwlimit,
        verification=settings.verify_upload,
        layout=_layout_to_write(settings),
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
    given = [DECLARED[name].flag for name in names if settings.origin(name).startswith(GIVEN_ORIGINS)]
    if given:
        raise UsageError(f"{', '.join(given)}: of the layout aiven alone", hint="give --layout aiven with it")
    return layout_named(settings.layout)
