"""A service that is killed before any statement of a run's life: migrating, taking, working, ending, forgetting."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.run import PartitionOutcome, Run, RunEnd, RunRequest, RunState
from resnap.scheduler.state import database
from resnap.scheduler.state.database import DATABASE_FILE, Database
from tests.scheduler.runs.working import history_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resnap.scheduler.runs.history import History

pytestmark = pytest.mark.slow

PATIENCE_S: Final = 300
NOTHING, QUEUED, RUNNING = None, RunState.QUEUED, RunState.RUNNING
CANCELLING, CANCELLED = RunState.CANCELLING, RunState.CANCELLED
AFTER: Final = (NOTHING, NOTHING, QUEUED, RUNNING, RUNNING, RUNNING, CANCELLING, CANCELLED, NOTHING)
"""The run's state after so many steps of its life."""
LEFT: Final = {NOTHING: NOTHING, QUEUED: QUEUED, RUNNING: RunState.FAILED, CANCELLING: CANCELLED, CANCELLED: CANCELLED}
"""What the next service makes of a state."""


def life(path: Path) -> Iterator[object]:
    """Yield after each step of a service's life with one run in it."""
    opened = Database(path, is_service=True)
    yield opened
    history = history_of(opened, now_ms=lambda: 5000)
    request = RunRequest(kind="regenerate")
    history.add(Run(id="a", request=request, state=QUEUED, origin="api", principal="me", created_ms=1))
    yield history
    yield history.began("a")
    yield history.partition_done("a", PartitionOutcome(topic="t", partition=0, state=PartitionState.DONE))
    yield history.progressed("a", {"replay": {"segments": 1}})
    yield history.cancelling("a")
    yield history.ended("a", RunEnd(state=CANCELLED, totals={}, errors=()))
    yield history.prune(9000)


def lived(path: Path, at: int, tell: Callable[[], object]) -> None:
    """Live, and die before the statement ``at``."""
    connect, count = sqlite3.connect, 0

    def stepping(_statement: str) -> None:
        nonlocal count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def traced(*arguments: object, **named: object) -> sqlite3.Connection:
        made = connect(*arguments, **named)  # type: ignore[call-overload]
        made.set_trace_callback(stepping)
        return made  # type: ignore[no-any-return]

    database.sqlite3.connect = traced  # type: ignore[attr-defined]
    for _ in life(path):
        tell()


def killed_before(path: Path, at: int) -> tuple[int, bool]:
    """Return how many steps were through when the statement ``at`` came, and whether it came at all."""
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE_S)  # should the fork have caught a lock of another thread
        try:
            lived(path, at, lambda: os.write(told, b"."))
        finally:
            os._exit(0)
    os.close(told)
    _, status = os.waitpid(child, 0)
    steps = len(os.read(heard, 100))
    os.close(heard)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return steps, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def check_whole(history: History, state: RunState | None) -> None:
    """Check that what is kept of the run says the same everywhere."""
    events = history.events("a")
    assert (state is None) == (not events)
    with history.database.read() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert not connection.execute("PRAGMA foreign_key_check").fetchall()
    if state is not None:
        assert [event.data["state"] for event in events if event.kind == "state"][-1] == state
        assert len(history.partitions("a", limit=9)) == sum(event.kind == "partition" for event in events)


def state_of(history: History) -> RunState | None:
    found = history.get("a")
    return None if found is None else found.state


def test_killed_before_any_statement_it_leaves_whole_steps_and_the_next_service_goes_on(tmp_path: Path) -> None:
    at, is_killed, seen = 0, True, set[RunState | None]()
    while is_killed:
        path = tmp_path / str(at) / DATABASE_FILE
        steps, is_killed = killed_before(path, at)
        with closing(Database(path, is_service=True)) as opened:
            history = history_of(opened)
            state = state_of(history)
            assert state in AFTER[steps : steps + 2], "what was through is kept, and of the next step all or nothing"
            check_whole(history, state)
            history.fail_orphans()
            assert state_of(history) == LEFT[state]
            check_whole(history, LEFT[state])
        seen.add(state)
        at += 1
    assert seen == {NOTHING, QUEUED, RUNNING, CANCELLING, CANCELLED}
    assert steps == len(AFTER) - 1
