"""Carries out what a run asks for, by the use cases that the shell command calls.

Each kind of run has a class (``Work``) and a module of its own. It reports its partitions as they are done, and returns
what it came to; what it raises ends the run. The engine, with Spark once it runs, belongs to the service, for all runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resnap.scheduler.jobs import scan
from resnap.scheduler.runs.regenerating import Regeneration
from resnap.scheduler.runs.run import RunKind
from resnap.scheduler.runs.service_context import RunObserver, ServiceContext
from resnap.scheduler.runs.tiering import Tiering
from resnap.scheduler.runs.verifying import Verification
from resnap.scheduler.wiring import scope_of, service_of
from resnap.storage.errors import UsageError
from resnap.tiering.planning import read_saved_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resnap.scheduler.runs.configuration import Configuration
    from resnap.scheduler.runs.reporting import RunReport
    from resnap.scheduler.runs.run import Row, Run, RunRequest
    from resnap.scheduler.runs.work import Surroundings, Work
    from resnap.scheduler.settings.settings import Settings
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.tiering.planning import SavedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Carries runs out, one by one.

    Attributes:
        saved_plan: gives the text of a kept plan by its id, or None if there is none.

    """

    configuration: Configuration
    saved_plan: Callable[[str], str | None]
    around: Surroundings

    def carry_out(self, run: Run, report: RunReport) -> Row:
        """Do what ``run`` asks for, and return what it came to.

        Raises:
            ResnapError: it could not be done, or not to its end; ``CancelledError`` where it was told to end.

        """
        work: Mapping[RunKind, type[Work]] = {
            RunKind.REGENERATE: Regeneration,
            RunKind.TIER: Tiering,
            RunKind.VERIFY: Verification,
        }
        settings = self.configuration.of(run.request)
        for warning in settings.metadata_warnings:
            self.around.observer.warn(warning)
        saved = self._saved(run)
        scope = scope_for(settings, run.request, saved)
        observer = RunObserver(run=run, scope=scope, around=self.around)
        context = ServiceContext(settings=settings, observer=observer, report=report, around=self.around)
        if run.kind is RunKind.SCAN:
            return context.keep(scan.run(scan.Request(scope=scope, separately=True), context), scan.ScanView())
        service = service_of(settings, self.around.clock, saved.rules if saved else None, engine=self.around.engine)
        return work[run.kind](
            run=run,
            report=report,
            settings=settings,
            service=service,
            scope=scope,
            saved=saved,
            around=self.around,
        ).do()

    def _saved(self, run: Run) -> SavedPlan | None:
        if run.request.plan is None:
            return None
        text = self.saved_plan(run.request.plan)
        if text is None:
            raise UsageError(f"there is no plan {run.request.plan}", hint="make it again: POST /v1/plans")
        return read_saved_plan(text)


def scope_for(settings: Settings, request: RunRequest, saved: SavedPlan | None = None) -> Scope:
    """Return what a request points at, or else a saved plan, or else ``log.dirs``.

    Raises:
        UsageError: none of them names anything.

    """
    scope = scope_of(settings, (saved.sources if saved else request.sources) or None)
    return replace(scope, partitions=request.partitions or scope.partitions)
