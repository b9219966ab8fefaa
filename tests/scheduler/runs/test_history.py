"""What is kept of runs: states, orphans, what is forgotten, and events without a gap."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.history import ORPHANED, History
from resnap.scheduler.runs.run import FINAL, PartitionOutcome, Run, RunEnd, RunEvent, RunKind, RunRequest, RunState
from resnap.scheduler.state.database import Database, StateError
from resnap.storage.errors import DataError
from tests.scheduler.runs.working import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def history(tmp_path: Path, warned: list[str]) -> Iterator[History]:
    database = Database(tmp_path / "service.db")
    yield History(database, lambda: 5000, warn=warned.append)
    database.close()


def add(history: History, run_id: str, kind: RunKind = "tier", origin: str = "api") -> None:
    request = RunRequest(kind=kind, sources=("/a",), settings={"topics": ["x"]})
    history.add(Run(id=run_id, request=request, state=RunState.QUEUED, origin=origin, principal="me", created_ms=1000))


def end(history: History, run_id: str, state: RunState = RunState.SUCCEEDED) -> None:
    history.ended(run_id, RunEnd(state=state, totals={"segments": 1}, errors=()))


def states(history: History) -> dict[str, RunState]:
    return {run.id: run.state for run in history.page(limit=100)}


def test_a_run_is_read_back_as_it_was_asked_for(history: History) -> None:
    add(history, "a")
    found = history.get("a")
    assert found is not None
    assert found.request == RunRequest(kind="tier", sources=("/a",), settings={"topics": ["x"]})
    assert (found.started_ms, found.finished_ms, found.errors) == (None, None, ())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("request", "{"),
        ("request", "[]"),
        ("request", '{"kind": "brandnew"}'),
        ("state", "brandnew"),
        ("totals", "?"),
        ("error", "[{}]"),
    ],
)
def test_a_run_that_cannot_be_read_is_named_and_hides_no_other(
    history: History, column: str, value: str, warned: list[str]
) -> None:
    for name in ("a", "b", "c", "d"):
        add(history, name)
    with history.database.write() as connection:
        connection.execute(f"UPDATE runs SET {column} = ? WHERE id IN ('b', 'c')", (value,))  # noqa: S608
    for _ in range(2):
        assert [run.id for run in history.page(limit=-1)] == ["d", "a"]
        assert [run.id for run in history.page(limit=2)] == ["d", "a"]
        assert [run.id for run in history.page(limit=1)] == ["d"]
        assert [run.id for run in history.page(limit=1, before="d")] == ["a"]
    assert [run.id for run in history.open_runs()] == ["a", "d"]
    assert history.fail_orphans() == []
    assert history.unreadable.keys() == {"b", "c"}
    assert [("run c" in text, "the release of Resnap that wrote it" in text) for text in warned[:1]] == [(True, True)]
    assert len(warned) == 2
    with pytest.raises(DataError, match="the run b cannot be read"):
        history.get("b")


def test_text_that_is_damaged_stops_no_list(history: History) -> None:
    for name in ("a", "b"):
        add(history, name)
    with history.database.write() as connection:
        connection.execute("UPDATE runs SET state = CAST(x'ff' AS TEXT) WHERE id = 'a'")
    assert [run.id for run in history.page(limit=-1)] == ["b"]
    assert history.unreadable.keys() == {"a"}


def test_a_state_is_only_left_for_one_that_can_follow(history: History) -> None:
    add(history, "a")
    assert not history.cancelling("a"), "it is not at work yet"
    assert history.began("a")
    assert not history.began("a")
    assert not history.cancelled_before_it_began("a")
    assert history.cancelling("a")
    assert not history.cancelling("a")
    end(history, "a", RunState.CANCELLED)
    end(history, "a", RunState.SUCCEEDED)
    assert states(history) == {"a": RunState.CANCELLED}
    assert [event.data["state"] for event in history.events("a")] == ["queued", "running", "cancelling", "cancelled"]


def test_what_a_service_left_at_work_is_over_and_what_waited_still_waits(history: History) -> None:
    for name in ("queued", "running", "cancelling", "over"):
        add(history, name)
    for name in ("running", "cancelling", "over"):
        history.began(name)
    history.cancelling("cancelling")
    end(history, "over")
    assert {run.id for run in history.fail_orphans()} == {"running", "cancelling"}
    assert [run.id for run in history.open_runs()] == ["queued"]
    assert states(history) == {
        "queued": RunState.QUEUED,
        "running": RunState.FAILED,
        "cancelling": RunState.CANCELLED,
        "over": RunState.SUCCEEDED,
    }
    found = history.get("running")
    assert found is not None
    assert (found.errors, found.finished_ms) == ((ORPHANED,), 5000)
    assert history.fail_orphans() == []


def test_only_what_ended_long_ago_is_forgotten_with_all_that_belongs_to_it(history: History) -> None:
    for name in ("open", "over"):
        add(history, name)
        history.began(name)
        history.partition_done(name, PartitionOutcome(topic="t", partition=0, state=PartitionState.DONE))
    end(history, "over")
    assert history.prune(5000) == 0
    assert history.prune(5001) == 1
    assert states(history) == {"open": RunState.RUNNING}
    assert (history.events("over"), history.partitions("over", limit=9)) == ([], [])
    assert len(history.partitions("open", limit=9)) == 1


def test_lists_are_cut_and_filtered(history: History) -> None:
    for number in range(6):
        add(history, f"r{number}", "scan" if number % 2 else "tier", "schedule:x" if number < 2 else "api")
    first = [run.id for run in history.page(limit=4)]
    add(history, "r9")
    rest = [run.id for run in history.page(limit=4, before=first[-1])]
    assert [*first, *rest] == ["r5", "r4", "r3", "r2", "r1", "r0"], "also while others are added"
    assert [run.id for run in history.page(kinds=("scan",), origin="schedule:x", limit=9)] == ["r1"]
    assert history.page(states=FINAL, limit=9) == []


def test_of_progress_the_last_word_is_kept_under_the_next_number(history: History) -> None:
    add(history, "a")
    for segments in (1, 2):
        history.progressed("a", {"replay": {"segments": segments}})
    kept = [(event.seq, event.kind) for event in history.events("a")]
    assert kept == [(1, "state"), (3, "progress")]
    found = history.get("a")
    assert found is not None
    assert found.progress == {"replay": {"segments": 2}}


def test_events_of_many_threads_are_sent_in_the_order_of_their_numbers(history: History) -> None:
    add(history, "a")
    heard: list[int] = []

    def report(first: int) -> None:
        for number in range(first, first + 20):
            history.partition_done("a", PartitionOutcome(topic="t", partition=number, state=PartitionState.DONE))

    history.listeners.append(lambda event: heard.append(event.seq))
    threads = [threading.Thread(target=report, args=(first,)) for first in range(0, 80, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == list(range(2, 82))
    assert [event.seq for event in history.events("a")] == list(range(1, 82))


def test_events_that_are_not_kept_are_not_sent(history: History) -> None:
    add(history, "a")
    heard: list[RunEvent] = []

    def keep_nothing() -> None:
        with history.database.write():
            history.began("a")
            assert heard == [], "nothing is kept yet"
            raise StateError("no room")

    history.listeners.append(heard.append)
    with pytest.raises(StateError):
        keep_nothing()
    assert states(history) == {"a": RunState.QUEUED}
    history.began("a")
    assert [event.data["state"] for event in heard] == ["running"]


def test_readers_of_all_threads_see_whole_steps_while_one_writes(history: History) -> None:
    add(history, "a")
    is_over, torn = threading.Event(), list[object]()

    def read() -> None:
        while not is_over.is_set():
            events = [event.seq for event in history.events("a", limit=1000)]
            if events != list(range(1, len(events) + 1)):
                torn.append(events)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(50):
        history.partition_done("a", PartitionOutcome(topic="t", partition=number, state=PartitionState.DONE))
    is_over.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert torn == []


def test_threads_that_come_and_go_leave_no_connection_behind(history: History) -> None:
    add(history, "a")
    counts = set()
    for _ in range(20):
        reader = threading.Thread(target=history.get, args=("a",))
        reader.start()
        reader.join(PATIENCE_S)
        links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        counts.add(links.count(str(history.database.path)))
    assert len(counts) == 1
