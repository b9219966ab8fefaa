"""A worker over a real history, with work that a test holds in its hands."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.scheduler.clock import Clock
from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.run import Ids, RunKind, RunRequest
from resnap.scheduler.runs.worker import Worker
from resnap.scheduler.state.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.scheduler.runs.execution import RunReport
    from resnap.scheduler.runs.run import Row, Run, RunEnd

PATIENCE_S: Final = 60
"""For what takes milliseconds where nothing else goes on."""


@dataclass(slots=True)
class Gate:
    """Work that says when it has begun, and waits until it may continue or is cancelled."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def do(self, report: RunReport) -> Row:
        self.begun.set()
        while not self.go_on.wait(0.01):
            report.check()
        return {"done": 1}


@dataclass(slots=True)
class Work:
    """What runs do: by the first of their partitions' names, or nothing."""

    by_name: dict[str, Callable[[RunReport], Row]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def carry_out(self, run: Run, report: RunReport) -> Row:
        name = (run.request.partitions or ("",))[0]
        self.order.append(name)
        return self.by_name.get(name, lambda _: {})(report)


@dataclass(slots=True)
class Heard:
    """What an observer got."""

    began: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    bugs: list[BaseException] = field(default_factory=list)

    def run_began(self, run: Run) -> None:
        self.began.append(run.id)

    def run_ended(self, run: Run, end: RunEnd, seconds: float) -> None:
        assert seconds >= 0
        self.ended.append(f"{run.request.partitions[0]} {end.state}")

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def bug(self, error: BaseException) -> None:
        self.bugs.append(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A worker and all around it."""

    worker: Worker
    history: History
    work: Work
    heard: Heard

    def ask(self, name: str, kind: RunKind = "regenerate") -> Run:
        return self.worker.submit(RunRequest(kind=kind, partitions=(name,)), origin="api", principal="me")

    def hold(self, name: str) -> Gate:
        gate = Gate()
        self.work.by_name[name] = gate.do
        return gate

    def state(self, run: Run) -> str:
        found = self.history.get(run.id)
        assert found is not None
        return found.state


def history_of(database: Database, now_ms: Callable[[], int] | None = None) -> History:
    return History(database, now_ms or Clock().now_ms)


@contextmanager
def bench(directory: Path, *, queue_size: int = 10) -> Iterator[Bench]:
    """Give a worker at work."""
    database, clock = Database(directory / "service.db"), Clock()
    history, work, heard = History(database, clock.now_ms), Work(), Heard()
    ids = Ids(clock.now_ms, random.Random(1).getrandbits)
    worker = Worker(history, work, ids, clock, heard, queue_size=queue_size)
    worker.start()
    try:
        yield Bench(worker=worker, history=history, work=work, heard=heard)
    finally:
        assert worker.stop(PATIENCE_S)
        database.close()
