"""Executes runs, with the same jobs as the shell commands.

The engine, with Spark if it was started, belongs to the service and is shared by all runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resnap.scheduler.job.sources import Scope
from resnap.scheduler.job.wiring import scope_of
from resnap.scheduler.jobs import census, regenerate, replicas, scan, tier, verify
from resnap.scheduler.runs.configuration import scanned_sources
from resnap.scheduler.runs.run import BY_API, RunKind
from resnap.scheduler.runs.service_context import RunObserver, ServiceContext
from resnap.storage.errors import UsageError
from resnap.tiering.planning import read_saved_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.runs.configuration import Configuration
    from resnap.scheduler.runs.reporting import RunReport
    from resnap.scheduler.runs.run import Row, Run, RunRequest
    from resnap.scheduler.runs.service_context import Shared
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.planning import SavedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Executes runs, one by one.

    Attributes:
        saved_plan: returns the text of a stored plan by its id, or None if there is none.

    """

    configuration: Configuration
    saved_plan: Callable[[str], str | None]
    shared: Shared

    def carry_out(self, run: Run, report: RunReport) -> Row:
        """Execute ``run``, and return its totals.

        Raises:
            ResnapError: it failed, or was not completed; ``CancelledError`` if it was cancelled.

        """
        settings = self.configuration.of(run.request)
        for warning in settings.metadata_warnings:
            self.shared.observer.warn(warning)
        saved = self._saved(run)
        scope = scope_for(settings, run.request, saved)
        configured = scanned_sources(settings)
        observer = RunObserver(run=run, scope=scope, shared=self.shared, configured=configured)
        context = ServiceContext(settings=settings, observer=observer, report=report, shared=self.shared)
        match run.kind:
            case RunKind.SCAN:
                scanned = scan.Request(scope=scope, separately=True)
                totals = context.keep(scan.run(scanned, context), scan.ScanView(scope))
                if run.origin != BY_API:
                    self.shared.scans.forget_others(configured)
                return totals
            case RunKind.CENSUS:
                count = census.Request(scope=scope)
                return context.keep(census.run(count, context), census.CensusView(count, context))
            case RunKind.REGENERATE:
                rebuild = regenerate.Request(scope=scope, into=_destination(run), saved=saved)
                return context.keep(regenerate.run(rebuild, context), regenerate.view_of(rebuild, context))
            case RunKind.TIER:
                ship = tier.Request(scope=scope, to=_destination(run), saved=saved)
                return context.keep(tier.run(ship, context), tier.view_of(ship, context))
            case RunKind.VERIFY:
                store = verify.StoreRequest(scope=replace(scope, sources=(_destination(run),)))
                return context.keep(verify.run_store(store, context), verify.StoreView())
            case RunKind.REPLICAS:
                compare = replicas.Request(scope=scope)
                return context.keep(replicas.run(compare, context), replicas.ReplicasView())

    def _saved(self, run: Run) -> SavedPlan | None:
        if run.request.plan is None:
            return None
        text = self.saved_plan(run.request.plan)
        if text is None:
            raise UsageError(f"there is no plan {run.request.plan}", hint="make it again: POST /v1/plans")
        return read_saved_plan(text)


def _destination(run: Run) -> str:
    """Return where the run writes to, or what it reads back; raises UsageError where the request names nothing."""
    if run.request.destination is None:
        raise UsageError(f"a run of kind {run.kind} needs a destination", hint="give `destination`, a URL")
    return run.request.destination


def scope_for(settings: Settings, request: RunRequest, saved: SavedPlan | None = None) -> Scope:
    """Return what a request points at, or else a saved plan, or else ``log.dirs``; replicas are of no source.

    Raises:
        UsageError: none of them names anything.

    """
    if request.kind is RunKind.REPLICAS:
        return Scope(sources=(), topics=settings.topics, partitions=request.partitions)
    scope = scope_of(settings, request.sources or None, saved)
    return replace(scope, partitions=request.partitions or scope.partitions)
