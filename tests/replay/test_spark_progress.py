from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from resnap.replay.spark.context import spark_context
from resnap.replay.spark.progress import progress_of, running_tasks, watched_jobs
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.watching import Progress
from resnap.storage.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark import SparkContext

    from resnap.replay.watching import Phase

PATIENCE_S = 300


class Heard(Progress):
    """What a progress got; ``until`` has a file made once it got each of its words."""

    def __init__(self) -> None:
        self.said: list[tuple[Phase, int]] = []
        self.done = [0, 0]
        self.until: dict[tuple[Phase, int], Path] = {}

    def expect(self, segments: int, size_bytes: int) -> None:
        raise AssertionError(segments, size_bytes)

    def at_work(self, phase: Phase, tasks: int) -> None:
        self.said.append((phase, tasks))
        if file := self.until.get((phase, tasks)):
            file.touch()

    def advance(self, segments: int, size_bytes: int) -> None:
        self.done[0] += segments
        self.done[1] += size_bytes


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    with spark_context(SparkSettings(master="local[2]"), dict(os.environ)) as running:
        yield running


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.spark
def test_a_progress_gets_the_phase_and_the_running_tasks_and_all_that_is_done(
    context: SparkContext, tmp_path: Path
) -> None:
    heard, done, phase = Heard(), context.accumulator(0), tmp_path / "phase"
    heard.until = {(one, tasks): tmp_path / one for one, tasks in (("compiling", 2), ("scanning", 2), ("combining", 1))}

    def work(number: int) -> None:
        ends_s = time.monotonic() + PATIENCE_S
        while not phase.with_name(phase.read_text()).exists():
            assert time.monotonic() < ends_s, "the progress does not hear of it"
            time.sleep(0.05)
        done.add(progress_of(100 + number, ends_segment=number % 2 == 0))

    with watched_jobs(context, done, heard) as watch:
        watch.compiles = True
        phase.write_text("compiling")
        context.parallelize(range(2), 2).foreach(work)
        phase.write_text("scanning")
        context.parallelize(range(4), 4).foreach(work)
        watch.phase = "combining"
        phase.write_text("combining")
        context.parallelize(range(1), 1).foreach(work)
    assert heard.done == [4, 707]


@pytest.mark.slow
@pytest.mark.spark
def test_jobs_are_cancelled_when_no_caller_waits_for_them_any_more(context: SparkContext) -> None:
    group = "abandoned"
    left = threading.Event()

    def work() -> None:
        context.setJobGroup(group, group, interruptOnCancel=True)
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize(range(2), 2).foreach(lambda _: time.sleep(PATIENCE_S * 10))
        left.set()

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: running_tasks(context, group) == 2)
    context.setJobGroup(group, group, interruptOnCancel=True)
    with pytest.raises(KeyboardInterrupt), watched_jobs(context, context.accumulator(0), Progress()):
        raise KeyboardInterrupt
    assert left.wait(PATIENCE_S)
    worker.join()
    wait_until(lambda: running_tasks(context, group) == 0)
    context.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.slow
@pytest.mark.spark
def test_the_caller_s_own_group_is_kept(context: SparkContext) -> None:
    context.setJobGroup("mine", "mine")
    with watched_jobs(context, context.accumulator(0), Progress()) as watch:
        context.parallelize(range(1), 1).count()
    assert watch.group == "mine"
    context._jsc.sc().listenerBus().waitUntilEmpty(PATIENCE_S * 1000)  # jobs are noted by a thread of Spark's own
    assert len(context.statusTracker().getJobIdsForGroup("mine")) == 1
    context.setLocalProperty("spark.jobGroup.id", None)
    with watched_jobs(context, context.accumulator(0), Progress()) as watch:
        assert watch.group.startswith("resnap-")
    assert context.getLocalProperty("spark.jobGroup.id") is None


class Impatient(Heard):
    """Ends the work at the first word of it."""

    def at_work(self, phase: Phase, tasks: int) -> None:
        raise CancelledError(f"{phase}: {tasks}")


@pytest.mark.slow
@pytest.mark.spark
def test_a_progress_that_raises_ends_the_jobs_with_its_own_error(context: SparkContext) -> None:
    with (
        pytest.raises(CancelledError, match="scanning"),
        watched_jobs(context, context.accumulator(0), Impatient()) as watch,
    ):
        context.parallelize(range(2), 2).foreach(lambda _: time.sleep(PATIENCE_S * 10))
    wait_until(lambda: running_tasks(context, watch.group) == 0)


@pytest.mark.slow
@pytest.mark.spark
def test_a_progress_that_raises_is_reported_though_the_jobs_were_done(context: SparkContext) -> None:
    with (
        pytest.raises(CancelledError),
        watched_jobs(context, context.accumulator(0), Impatient()) as watch,
    ):
        wait_until(lambda: watch.stopped_by is not None)
