"""What happens in the service, as it is told to the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.runs.run import Run, RunEnd

_LOG = logging.getLogger("resnap")


class Observation:
    """Hears of runs and schedules, from any thread."""

    def run_began(self, run: Run) -> None:
        """Hear that a run is at work."""
        _LOG.info("run began: %s %s", run.id, run.kind)

    def run_ended(self, run: Run, end: RunEnd, seconds: float) -> None:
        """Hear how a run ended."""
        _LOG.info("run ended: %s %s after %.1f s", run.id, end.state, seconds)

    def bug(self, error: BaseException) -> None:
        """Hear of an error that nobody meant to raise."""
        _LOG.error("a bug in resnap", exc_info=error)

    def warn(self, text: str) -> None:
        """Hear of what may lead to trouble."""
        _LOG.warning("%s", text)

    def scheduler_event(self, event: str, schedule: str, detail: str = "") -> None:
        """Hear of a schedule that could not do as it should."""
        _LOG.warning("schedule %s: %s %s", schedule, event, detail)

    def orphaned(self, runs: Sequence[Run]) -> None:
        """Hear of runs that the last service left unfinished."""
        for run in runs:
            _LOG.warning("run %s was left unfinished by the last service", run.id)
