"""Lanes, cancelling, the bound of the queue, bugs in runs, and an end in time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.run import PartitionOutcome, RunState
from resnap.scheduler.runs.worker import STOPPED, QueueFullError
from resnap.storage.errors import DataError, StoreUnavailableError
from resnap.storage.stores.s3_client import Retrying
from tests.scheduler.files import BALLAST, fill
from tests.scheduler.runs.working import PATIENCE_S, Bench, bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resnap.scheduler.runs.execution import RunReport
    from resnap.scheduler.runs.run import Row


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, queue_size=2) as found:
        yield found


def test_runs_of_a_lane_go_in_the_order_in_which_they_were_asked_for(at_work: Bench) -> None:
    gate = at_work.hold("first")
    first = at_work.ask("first")
    assert gate.begun.wait(PATIENCE_S)
    rest = [at_work.ask("second"), at_work.ask("third")]
    assert [at_work.state(run) for run in (first, *rest)] == ["running", "queued", "queued"]
    assert (at_work.worker.running, at_work.worker.waiting) == (1, 2)
    gate.go_on.set()
    assert [at_work.worker.wait(run.id) for run in (first, *rest)] == [RunState.SUCCEEDED] * 3
    assert at_work.work.order == ["first", "second", "third"]


def test_a_scan_does_not_wait_for_a_replay(at_work: Bench) -> None:
    gate = at_work.hold("replay")
    replay = at_work.ask("replay")
    assert gate.begun.wait(PATIENCE_S)
    assert at_work.worker.wait(at_work.ask("look", "scan").id) is RunState.SUCCEEDED
    assert at_work.state(replay) == "running"
    gate.go_on.set()
    at_work.worker.wait(replay.id)


def test_a_run_that_was_cancelled_while_it_waited_does_not_begin(at_work: Bench) -> None:
    gate = at_work.hold("first")
    first, second = at_work.ask("first"), at_work.ask("second")
    assert gate.begun.wait(PATIENCE_S)
    assert at_work.worker.cancel(second.id)
    assert at_work.state(second) == "cancelled"
    assert not at_work.worker.cancel(second.id)
    gate.go_on.set()
    at_work.worker.wait(first.id)
    at_work.worker.wait(at_work.ask("third").id)
    assert at_work.work.order == ["first", "third"]


def test_a_run_at_work_ends_at_its_next_word_when_it_is_cancelled(at_work: Bench) -> None:
    gate = at_work.hold("first")
    run = at_work.ask("first")
    assert gate.begun.wait(PATIENCE_S)
    assert at_work.worker.cancel(run.id)
    assert at_work.worker.wait(run.id) is RunState.CANCELLED
    told = [event.data["state"] for event in at_work.history.events(run.id)]
    assert told == ["queued", "running", "cancelling", "cancelled"]
    assert not at_work.worker.cancel(run.id), "it is over"


def test_a_run_that_waits_for_its_store_ends_when_it_is_cancelled(at_work: Bench) -> None:
    asked = threading.Event()

    def no_answer() -> None:
        asked.set()
        raise StoreUnavailableError("no answer", retry_after_s=PATIENCE_S)

    at_work.work.by_name["first"] = lambda _: {"got": Retrying().call(no_answer)}
    run = at_work.ask("first")
    assert asked.wait(PATIENCE_S)
    assert at_work.worker.cancel(run.id)
    began_s = time.monotonic()
    assert at_work.worker.wait(run.id) is RunState.CANCELLED
    assert time.monotonic() - began_s < PATIENCE_S / 2, "it need not wait for the next attempt"
    assert at_work.worker.wait(at_work.ask("second").id) is RunState.SUCCEEDED


def test_so_many_may_wait_and_no_more(at_work: Bench) -> None:
    gate = at_work.hold("first")
    first = at_work.ask("first")
    assert gate.begun.wait(PATIENCE_S)
    waiting = [at_work.ask("second"), at_work.ask("third")]
    with pytest.raises(QueueFullError, match="2 runs wait"):
        at_work.ask("fourth")
    assert at_work.worker.cancel(waiting[0].id), "which makes room"
    waiting.append(at_work.ask("fifth"))
    gate.go_on.set()
    assert {at_work.worker.wait(run.id) for run in (first, *waiting[1:])} == {RunState.SUCCEEDED}


def test_a_bug_ends_the_run_and_not_the_lane(at_work: Bench) -> None:
    def broken(_: RunReport) -> Row:
        raise ZeroDivisionError("with a secret of the traceback")

    at_work.work.by_name["broken"] = broken
    run = at_work.ask("broken")
    assert at_work.worker.wait(run.id) is RunState.FAILED
    assert at_work.worker.wait(at_work.ask("next").id) is RunState.SUCCEEDED
    kept = at_work.history.get(run.id)
    assert kept is not None
    assert [(error.code, error.message) for error in kept.errors] == [
        ("InternalError", "a bug in resnap: ZeroDivisionError")
    ]
    assert [type(bug) for bug in at_work.heard.bugs] == [ZeroDivisionError]


def test_what_ended_by_an_error_after_some_partitions_has_partly_failed(at_work: Bench) -> None:
    def halfway(report: RunReport) -> Row:
        report.partition(PartitionOutcome(topic="t", partition=0, state=PartitionState.DONE))
        raise DataError("no more", hint="another replica")

    at_work.work.by_name["halfway"] = halfway
    run = at_work.ask("halfway")
    assert at_work.worker.wait(run.id) is RunState.PARTIALLY_FAILED
    kept = at_work.history.get(run.id)
    assert kept is not None
    assert (kept.totals, kept.errors[0].hint) == (
        {"partitionsDone": 1, "partitionsFailed": 0, "otherFailures": 1},
        "another replica",
    )


def test_a_service_that_stops_ends_what_is_at_work_and_leaves_what_waits(tmp_path: Path) -> None:
    with bench(tmp_path) as at_work:
        gate = at_work.hold("first")
        first, second = at_work.ask("first"), at_work.ask("second")
        assert gate.begun.wait(PATIENCE_S)
        assert at_work.worker.stop(PATIENCE_S)
        assert [at_work.state(run) for run in (first, second)] == ["failed", "queued"]
        kept = at_work.history.get(first.id)
        assert kept is not None
        assert kept.errors == (STOPPED,)
        with pytest.raises(QueueFullError, match="is stopping"):
            at_work.ask("third")
        assert at_work.work.order == ["first"]


def test_no_caller_waits_for_a_run_that_will_not_be_carried_out_or_not_end_in_time(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def deaf(_: RunReport) -> Row:
        begun.set()
        return {"went on": go_on.wait(PATIENCE_S)}

    with bench(tmp_path) as at_work:
        at_work.work.by_name["deaf"] = deaf
        runs = [at_work.ask("deaf"), at_work.ask("second")]
        assert begun.wait(PATIENCE_S)
        with ThreadPoolExecutor() as pool:
            waiters = [pool.submit(at_work.worker.wait, run.id) for run in runs]
            assert not at_work.worker.stop(0), "not in time"
            for waiter in waiters:
                waiter.result(PATIENCE_S)
        assert [at_work.state(run) for run in runs] == ["running", "queued"]
        go_on.set()
        assert at_work.worker.stop(PATIENCE_S)
        assert [at_work.state(run) for run in runs] == ["succeeded", "queued"]


def test_what_no_disk_takes_is_kept_once_there_is_room(tiny_disk: Path) -> None:
    with bench(tiny_disk) as at_work:
        gate = at_work.hold("first")
        run = at_work.ask("first")
        assert gate.begun.wait(PATIENCE_S)
        fill(tiny_disk)
        gate.go_on.set()
        at_work.worker.wait(run.id)
        assert at_work.state(run) == "running", "as the file has it"
        assert at_work.heard.warnings
        (tiny_disk / BALLAST).unlink()
        at_work.worker.keep_ends()
        assert at_work.state(run) == "succeeded"
        assert at_work.worker.wait(at_work.ask("next").id) is RunState.SUCCEEDED
        assert not at_work.heard.bugs
