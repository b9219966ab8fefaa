"""The composition root: from settings to the service. The only place that picks implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.producer_state import Expiry
from replay.window import AsOf, ReplayRules
from scheduler.clock import instant
from scheduler.engines import Engine
from scheduler.service import Service
from scheduler.settings import process_environment
from scheduler.sources import Scope
from scheduler.version import resnap_version
from storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.clock import Clock
    from scheduler.settings import Settings


def service_of(settings: Settings, clock: Clock, rules: ReplayRules | None = None) -> Service:
    """Return the service; ``rules`` are those of a saved plan, where there is one."""
    return Service(
        rules=rules or rules_of(settings, clock),
        engine=Engine(
            kind=settings.engine, spark=settings.spark(), environment=process_environment(), s3=settings.s3()
        ),
        clock=clock,
        version=resnap_version(),
    )


def rules_of(settings: Settings, clock: Clock) -> ReplayRules:
    """Return the times that the settings ask for; T is fixed here, once.

    Raises:
        UsageError: T is in the future.

    """
    interval_ms = settings.producer_id_expiration_check_interval_ms
    fixed_ms = settings.as_of_ms
    if fixed_ms is not None and fixed_ms > clock.now_ms():
        raise UsageError(
            f"--as-of {instant(fixed_ms)} is in the future: producers would be taken for expired that are alive",
            hint="give a moment that has been, or leave it out for now",
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


def scope_of(settings: Settings, sources: Sequence[str] | None) -> Scope:
    """Return what the SOURCE arguments, or else ``log.dirs``, and the settings point at.

    Raises:
        UsageError: neither names anything.

    """
    places = tuple(sources or map(str, settings.log_dirs))
    if not places:
        hint = "give a log dir or a partition's directory, or --server-properties FILE with log.dirs in it"
        raise UsageError("no SOURCE to work on", hint=hint)
    return Scope(sources=places, topics=settings.topics, high_watermark=settings.high_watermark)
