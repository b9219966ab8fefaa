"""What metrics count of runs, and of dry runs."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from resnap.scheduler.runs.observation import Observation
from resnap.scheduler.runs.run import ReportedError, Run, RunEnd, RunKind, RunRequest, RunState
from resnap.scheduler.telemetry.metrics import Metrics, Watched
from resnap.storage.errors import StoreError
from tests.clocks import FixedClock


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


def test_a_scan_of_what_a_caller_names_says_nothing_of_the_whole_service() -> None:
    observation = Observation(Metrics(Watched(), version="0", revision=""), FixedClock(1_700_000_000_000))

    def ended(state: RunState, origin: str = "api", **asked: Any) -> float:
        request = RunRequest(kind="scan", **asked)
        run = Run(id="1", request=request, state=RunState.RUNNING, origin=origin, principal="ci", created_ms=0)
        observation.run_ended(run, RunEnd(state=state, totals={}, errors=()), 1.0)
        return observation.metrics.registry.get_sample_value("resnap_last_scan_success") or 0

    named: tuple[dict[str, Any], ...] = (
        {"sources": ("/data",)}, {"partitions": ("payments-0",)}, {"settings": {"topics": ["payments"]}},
    )  # fmt: skip
    assert ended(RunState.PARTIALLY_FAILED, "schedule:look", sources=("/data",)) == 0
    assert [ended(RunState.SUCCEEDED, **one) for one in named] == [0, 0, 0]
    assert ended(RunState.SUCCEEDED) == 1
    assert [ended(RunState.FAILED, **one) for one in named] == [1, 1, 1]
    assert ended(RunState.FAILED) == 0


def test_a_good_run_into_one_store_hides_no_other_that_is_down() -> None:
    observation = Observation(Metrics(Watched(), version="0", revision=""), FixedClock(1_700_000_000_000))

    def ended(origin: str, *errors: ReportedError) -> str:
        request = RunRequest(kind="tier", destination="s3://bucket")
        run = Run(id="1", request=request, state=RunState.RUNNING, origin=origin, principal="ci", created_ms=0)
        state = RunState.FAILED if errors else RunState.SUCCEEDED
        observation.run_ended(run, RunEnd(state=state, totals={}, errors=errors), 1.0)
        return observation.stores

    down = ReportedError(code="StoreUnavailableError", message="down", hint=None, exit_code=StoreError.exit_code)
    assert ended("schedule:east") == "ok"
    assert ended("schedule:west", down) == "StoreUnavailableError"
    assert [ended("schedule:east"), ended("api")] == ["StoreUnavailableError"] * 2
    assert ended("schedule:west") == "ok"
    assert ended("schedule:west", down) == "StoreUnavailableError"
    observation.schedules_are({"east"})
    assert observation.stores == "ok"


def test_the_line_of_an_error_of_a_run_has_the_error_as_its_event() -> None:
    observation = Observation(Metrics(Watched(), version="0", revision=""), FixedClock(1_700_000_000_000))
    full = ReportedError(code="StoreFullError", message="the bucket is full", hint="make room", exit_code=12)
    request = RunRequest(kind=RunKind.TIER, destination="s3://bucket")
    run = Run(id="1", request=request, state=RunState.RUNNING, origin="api", principal="ci", created_ms=0)
    with capture_logs() as lines:
        observation.run_ended(run, RunEnd(state=RunState.FAILED, totals={}, errors=(full,)), 1.0)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("run ended", "info"),
        ("the bucket is full", "error"),
    ]
