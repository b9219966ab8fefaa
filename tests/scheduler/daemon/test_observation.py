"""What is told of runs to the metrics: of dry runs, too."""

from __future__ import annotations

import pytest

from scheduler.clock import FixedClock
from scheduler.daemon.observation import Observation
from scheduler.observing.metrics import Metrics, Watched
from scheduler.runs.run import Run, RunEnd, RunKind, RunRequest, RunState


@pytest.mark.parametrize("kind", list(RunKind))
def test_a_dry_run_is_counted_like_any_other(kind: RunKind) -> None:
    observation = Observation(Metrics(Watched(), version="0", revision=""), FixedClock(1_700_000_000_000))
    request = RunRequest(kind=kind, settings={"dry_run": True})
    run = Run(id="1", request=request, state=RunState.RUNNING, origin="api", principal="ci", created_ms=0)
    totals = {"dryRun": True, "bytesRead": 12}
    observation.run_ended(run, RunEnd(state=RunState.SUCCEEDED, totals=totals, errors=()), 1.0)
    metrics = observation.metrics.render()[0].decode()
    assert f'resnap_runs_total{{kind="{kind}",state="succeeded"}} 1.0' in metrics
    assert observation.stores == "unknown"
