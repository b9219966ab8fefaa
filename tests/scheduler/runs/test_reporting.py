"""What a run reports: progress now and then, errors up to a bound, and nothing after it was cancelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.execution import MOST_ERRORS, RunContext, RunReport
from resnap.scheduler.runs.run import PartitionOutcome, Run, RunRequest, RunState
from resnap.scheduler.runs.scans import Scans
from resnap.scheduler.state.database import Database
from resnap.storage.errors import CancelledError, DataError, StoreUnavailableError
from resnap.tiering.judging.readiness import RunRepair
from resnap.tiering.selection import Scope
from tests.clocks import FixedClock
from tests.scheduler.runs.working import history_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resnap.scheduler.runs.history import History


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    database = Database(tmp_path / "service.db")
    found = history_of(database)
    request = RunRequest(kind="regenerate")
    found.add(Run(id="a", request=request, state=RunState.QUEUED, origin="api", principal="me", created_ms=0))
    yield found
    database.close()


def test_progress_is_kept_once_a_second_and_at_the_end(history: History) -> None:
    clock = FixedClock(0)
    report = RunReport("a", history, clock)
    progress = report.progress("replay")
    for _ in range(100):
        clock.advance(25)
        progress.advance(1, 10)
    report.flush()
    (kept,) = [event for event in history.events("a") if event.kind == "progress"]
    assert kept.seq == 1 + 3 + 1, "at 25, 1,025 and 2,025 ms, and the last word"
    assert kept.data["replay"]["segments"] == 100  # type: ignore[index]


def test_so_many_errors_are_kept_and_the_rest_is_counted(history: History) -> None:
    report = RunReport("a", history, FixedClock(0))
    for number in range(MOST_ERRORS + 7):
        report.error(DataError(str(number)))
    assert [error.message for error in report.errors[:2]] == ["0", "1"]
    assert [error.message for error in report.errors[MOST_ERRORS:]] == ["7 more errors"]


def test_a_run_that_is_to_end_is_stopped_whatever_it_reports(history: History) -> None:
    report = RunReport("a", history, FixedClock(0))
    progress = report.progress("replay")
    progress.advance(1, 1)
    report.cancel()
    outcome = PartitionOutcome(topic="t", partition=0, state=PartitionState.FAILED)
    for tell in (lambda: progress.advance(1, 1), lambda: progress.at_work("scanning", 1),
                 lambda: report.partition(outcome), report.check):  # fmt: skip
        with pytest.raises(CancelledError):
            tell()
    assert history.partitions("a", limit=9) == [outcome], "what is done is kept all the same"
    assert (report.done, report.failed) == (0, 1)


def test_a_destination_that_does_not_answer_is_asked_once_in_a_run(tmp_path: Path) -> None:
    """However many partitions of how many log dirs earlier runs have put there: a store may take minutes to fail."""
    database = Database(tmp_path / "service.db")
    scans, asked, sources = Scans(database, lambda: 7000), list[str](), ("/a", "/b")
    made = RunRepair(how="regenerated", destination="s3://bucket/made", offsets=frozenset({10}), run_id="r", at_ms=1)
    for source in sources:
        for partition in range(3):
            scans.repaired(source, "t", partition, made)

    def listing(prefix: str) -> None:
        asked.append(prefix)
        raise StoreUnavailableError("no answer")

    store: Any = SimpleNamespace(list=listing)
    service: Any = SimpleNamespace(
        scans=scans,
        engine=SimpleNamespace(reading=SimpleNamespace(sources=SimpleNamespace(store=lambda _: store))),
        observer=SimpleNamespace(metrics=SimpleNamespace(scan_seen=lambda *_, **__: None)),
    )
    nothing: Any = None
    context = RunContext(
        settings=nothing, clock=FixedClock(0), run=nothing, scope=Scope(sources=sources), service=service,
        configured=sources, report=nothing,
    )  # fmt: skip
    for source in sources:
        context.scanned(source, [], None)
    assert asked == ["t-0/"]
    kept = database.rows("SELECT is_there FROM mendings")
    assert [row["is_there"] for row in kept] == [1] * 6, "all is as it was"
    database.close()
