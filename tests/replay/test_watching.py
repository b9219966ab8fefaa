"""That what is expected and what is done come out equal, also where a replay must read further back than planned."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from resnap.replay.rebuild import rebuild_locally
from resnap.replay.spark.context import spark_context
from resnap.replay.spark.job import SparkRebuild
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.staging import DISCARD
from resnap.replay.watching import Progress
from tests.builders import a_partition
from tests.replay.memory_sink import MemorySink
from tests.replay.replaying import HOUR_MS, planned
from tests.replay.test_spark_job import NOW_MS, transactions

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.watching import Phase


class Sums(Progress):
    """What was expected and what is done, in segments and bytes."""

    def __init__(self, plan: PartitionPlan) -> None:
        self.expected = [sum(run.end - run.start for run in plan.runs), plan.bytes_in_segments]
        self.done = [0, 0]
        self.phases = set[str]()

    def expect(self, segments: int, size_bytes: int) -> None:
        self.expected = [self.expected[0] + segments, self.expected[1] + size_bytes]

    def advance(self, segments: int, size_bytes: int) -> None:
        self.done = [self.done[0] + segments, self.done[1] + size_bytes]
        assert self.done[1] <= self.expected[1]

    def at_work(self, phase: Phase, tasks: int) -> None:
        assert tasks >= 0
        self.phases.add(phase)


@pytest.fixture
def plan(tmp_path: Path) -> PartitionPlan:
    """Plan a partition whose window begins within open transactions, so that it takes a second round."""
    hours = [transactions(hour, pids=range(1, 40)) for hour in range(0, 60, 6)]
    return planned(a_partition(tmp_path, hours, name="sound-0"), now_ms=NOW_MS - 10 * HOUR_MS)


def test_a_second_round_is_expected_before_it_is_done(plan: PartitionPlan) -> None:
    list(rebuild_locally([plan], MemorySink()))  # makes the machine code
    sums = Sums(plan)
    list(rebuild_locally([plan], MemorySink(), progress=sums))
    assert sums.done == sums.expected
    assert sums.expected[1] > plan.bytes_in_segments > 0
    assert sums.phases == {"scanning"}


@pytest.mark.slow
@pytest.mark.spark
def test_it_is_so_on_spark_too(plan: PartitionPlan) -> None:
    sums = Sums(plan)
    with spark_context(SparkSettings(master="local[2]"), dict(os.environ)) as context:
        job = SparkRebuild(context=context, sink_url=DISCARD, progress=sums)
        list(job.run([plan]))
    assert sums.done == sums.expected
    assert sums.expected[1] > plan.bytes_in_segments > 0
    assert sums.phases <= {"compiling", "scanning", "combining"}
