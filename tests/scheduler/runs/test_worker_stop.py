"""A worker that is stopped keeps no caller waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from resnap.scheduler.clock import Clock
from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.run import Ids, RunRequest, RunState
from resnap.scheduler.runs.worker import Worker
from resnap.scheduler.state.database import Database

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.scheduler.runs.execution import RunReport
    from resnap.scheduler.runs.run import Run, RunEnd


class Slow:
    """Carries a run out until it is cancelled."""

    def __init__(self) -> None:
        self.is_at_work = threading.Event()

    def carry_out(self, _run: Run, report: RunReport) -> dict[str, object]:
        self.is_at_work.set()
        while True:
            report.check()


class Deaf:
    def run_began(self, run: Run) -> None: ...

    def run_ended(self, run: Run, end: RunEnd, seconds: float) -> None: ...

    def bug(self, error: BaseException) -> None:
        raise error


def test_a_caller_that_waits_for_a_run_that_never_began_gets_its_end(tmp_path: Path) -> None:
    clock, database, execution = Clock(), Database(tmp_path / "service.db"), Slow()
    history = History(database, clock.now_ms)
    worker = Worker(history, execution, Ids(clock.now_ms, lambda _: 1), clock, Deaf(), queue_size=3)  # type: ignore[arg-type]
    worker.start()
    request = RunRequest(kind="regenerate")
    began, waits = (worker.submit(request, origin="api", principal="me") for _ in range(2))
    heard: list[RunState] = []
    waiting = threading.Thread(target=lambda: heard.append(worker.wait(waits.id)), daemon=True)
    waiting.start()
    assert execution.is_at_work.wait(60)
    assert worker.stop(60)
    waiting.join(60)
    assert heard == [RunState.FAILED]
    ended = history.get(began.id)
    assert ended is not None
    assert ended.state is RunState.FAILED
    assert ended.errors[0].code == "ServiceStopped"
    database.close()
