"""The stages of a distributed replay, one after the other in this process: what Spark does with them is shuffling."""

from __future__ import annotations

import pickle
import random
from collections import deque
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.anchor import make_idle
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import partition_result
from resnap.replay.scan.splits import SCAN_TASK_BYTES, Reading
from resnap.replay.spark.job import _assemble, _divide, combine, merge, next_wave
from resnap.replay.spark.scan_tasks import BELOW_ALL, ROWS, block_bytes, divide, join, pack, rows_of, scan
from resnap.replay.staging import DirectorySink
from resnap.storage.errors import ResnapError
from tests.builders import a_partition
from tests.cases import mostly_slow
from tests.examples import examples
from tests.replay.memory_sink import MemorySink
from tests.replay.plain_rows import plain_rows
from tests.replay.replaying import planned
from tests.replay.simulation import Simulation, moves, write
from tests.replay.test_spark_job import NOW_MS, comparable, files, log_dir, plans_of, transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.replay.kernel.summary import IntArray
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult, PartSink
    from tests.replay.simulation import Move


def staged(
    plans: Sequence[PartitionPlan], sink: PartSink, *, ranges: int, reading: Reading, size: int = 500
) -> list[PartitionResult]:
    """Replay ``plans`` as Spark would, the run of the most producers in so many ranges of them."""
    runs = [(plan, run) for plan in plans for run in plan.runs]
    met: dict[int, IntArray] = {}

    def note(seen: dict[int, IntArray]) -> None:
        for run, sample in seen.items():
            met[run] = join(met[run], sample) if run in met else sample

    scans = [pickle.loads(pickle.dumps(task)) for task in pack(runs, reading, slots=2)]  # noqa: S301 - our own
    scanned = [*chain.from_iterable(scan(task, reading, size, met=note, done=lambda _: None) for task in scans)]
    most = max(map(len, met.values()), default=0)
    tasks, first, starts = _divide(met, len(runs), max(1, -(-most // ranges)))
    divided = [
        (first[run] + number, part) for run, block in scanned for number, part in divide(block, starts.get(run, ()))
    ]
    random.Random(7).shuffle(divided)
    made = [*combine(divided, tasks, sink, reading, size)]
    if starts:
        random.Random(8).shuffle(made)
        made = [*merge(made, {run: runs[run][0].topic_partition for run in starts}, sink)]
    results = iter(_assemble(made, runs))
    return [partition_result(plan, [next(results) for _ in plan.runs], make_idle(plan, sink)) for plan in plans]


READINGS = {"whole": Reading(), "in parts": Reading(split_bytes=400, least_part_bytes=400)}


@pytest.mark.parametrize("ranges", mostly_slow([1, 3, 40], 3))
@pytest.mark.parametrize("how", READINGS)
@pytest.mark.parametrize(
    "options",
    [{}, {"roll": True}, {"full": True}, {"full": True, "high_watermark": 300}, {"max_reach_back_ms": 0}],
    ids=["now", "roll", "full", "high watermark", "limited"],
)
def test_stages_say_and_write_what_the_local_engine_does(
    options: dict[str, object], how: str, ranges: int, tmp_path: Path
) -> None:
    plans = plans_of(log_dir(tmp_path / "log"), **options)
    plans = [replace(plan, runs=tuple(replace(run, last_chance=True) for run in plan.runs)) for plan in plans]
    here, there = tmp_path / "local", tmp_path / "staged"
    local = list(rebuild_locally(plans, DirectorySink(here)))
    found = staged(plans, DirectorySink(there), ranges=ranges, reading=READINGS[how])
    assert comparable(found) == comparable(local)
    assert files(there) == files(here)


@examples(15)
@given(drawn=moves, ranges=st.integers(1, 7), roll=st.booleans())
def test_ranges_of_any_history_are_together_what_the_run_is(drawn: Sequence[Move], ranges: int, roll: bool) -> None:
    with TemporaryDirectory() as directory:
        written = write(Simulation().play(drawn).finish(), Path(directory))
        plan = planned(
            Path(directory) / "payments-0", now_ms=NOW_MS - 60 * 3_600_000, roll=roll, to_end=True, compared=True,
            full=True,
        )  # fmt: skip
        assert written.end_offset
        expected, found = MemorySink(), MemorySink()
        (local,) = rebuild_locally([plan], expected)
        assert comparable(staged([plan], found, ranges=ranges, reading=Reading())) == comparable([local])
        assert found.snapshots.keys() == expected.snapshots.keys()
        assert all((found.snapshots[key] == expected.snapshots[key]).all() for key in expected.snapshots)


def test_nothing_leaves_a_scanning_task_but_one_row_for_each_split_and_producer(tmp_path: Path) -> None:
    hours = [[*transactions(hour, pids=range(40)), *transactions(hour + 1, pids=range(9))] for hour in range(0, 8, 2)]
    directory = a_partition(tmp_path, hours)
    plan = planned(directory, now_ms=NOW_MS, full=True)
    rows: list[tuple[int, int]] = []
    splits: list[int] = []
    for task in pack([(plan, plan.runs[0])], Reading(), slots=2):
        for _, block in scan(task, Reading(), 1_000, met=lambda _: None, done=lambda _: None):
            if block.kind == ROWS:
                rows += [(block.segment_index, pid) for pid in rows_of(block.body)["producer_id"].tolist()]
            elif block.segment_index == BELOW_ALL:
                assert pickle.loads(block.body)[1] == plan.runs[0]  # noqa: S301 - our own
            else:
                summary = pickle.loads(block.body)  # noqa: S301 - our own
                assert not any(len(piece.rows) for piece in summary.pieces)
                splits.append(block.segment_index)
    read = plan.segments[plan.runs[0].start : plan.runs[0].end]
    batches = [(row["segment"], row["producerId"]) for row in plain_rows(Path(one.locator) for one in read)]
    numbers = {segment.base_offset: number for number, segment in enumerate(plan.segments)}
    expected = {(numbers[base], pid) for base, pid in batches if pid is not None}
    assert sorted(rows) == sorted(expected)
    assert len(expected) < len(batches) / 2
    assert sorted(splits) == sorted({number for number, _ in expected})


@pytest.mark.parametrize(("size_bytes", "tasks"), [(1 << 30, 5_000), (1, 40)])
def test_tasks_are_bounded_however_few_slots_there_are_at_first(tmp_path: Path, size_bytes: int, tasks: int) -> None:
    plan = planned(a_partition(tmp_path, [transactions(0, pids=range(2)), []]), now_ms=NOW_MS, full=True)
    segments = (replace(plan.segments[0], size_bytes=size_bytes),) * 20_000
    many = replace(plan, segments=segments, runs=(replace(plan.runs[0], start=0, end=len(segments)),))
    packed = pack([(many, many.runs[0])], Reading(), slots=2)
    assert len(packed) == tasks
    assert sum(len(splits) for _, splits in packed) == len(segments)
    assert max(sum(split.size_bytes for _, split, _ in splits) for _, splits in packed) <= SCAN_TASK_BYTES
    waiting = deque([many] * 5)
    assert next_wave(waiting, slots=2) == [many]


def test_ranges_divide_the_work(tmp_path: Path) -> None:
    plan = planned(
        a_partition(tmp_path, [transactions(hour, pids=range(40)) for hour in range(4)]), now_ms=NOW_MS, full=True
    )
    tasks = pack([(plan, plan.runs[0])], Reading(), slots=1)
    rows = [
        (number, rows_of(part.body)["producer_id"].tolist())
        for task in tasks
        for _, block in scan(task, Reading(), 1_000, met=lambda _: None, done=lambda _: None)
        for number, part in divide(block, (10, 30))
        if part.kind == ROWS
    ]
    held = {number: {pid for at, pids in rows if at == number for pid in pids} for number in range(3)}
    assert held == {0: {*range(10)}, 1: {*range(10, 30)}, 2: {*range(30, 40)}}
    assert max(len(pids) for _, pids in rows) <= 1_000 // 128


def test_a_destination_that_fails_is_reported_from_either_stage(tmp_path: Path) -> None:
    plan = planned(
        a_partition(tmp_path, [transactions(hour, pids=range(40)) for hour in range(4)]), now_ms=NOW_MS, full=True
    )
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    for ranges in (1, 3):
        with pytest.raises(ResnapError, match=str(in_the_way)):
            staged([plan], DirectorySink(in_the_way), ranges=ranges, reading=Reading())


def test_tasks_cover_every_split_once_and_in_order(tmp_path: Path) -> None:
    plan = planned(log_dir(tmp_path)["sound"], now_ms=NOW_MS, full=True)
    for slots in (1, 2, 50):
        tasks = pack([(plan, plan.runs[0])] * 2, Reading(), slots=slots)
        covered = [(run, split.segment_index) for _, splits in tasks for run, split, _ in splits]
        assert covered == [(run, index) for run in range(2) for index in range(9)]
        assert [run for plans, _ in tasks for run, _, _ in plans] == [0, 1]
        assert 1 <= len(tasks) <= 18


def test_large_segments_spread_over_tasks_and_small_ones_share_them(tmp_path: Path) -> None:
    plan = planned(log_dir(tmp_path)["sound"], now_ms=NOW_MS, full=True)
    small = pack([(plan, plan.runs[0])], Reading(), slots=1)
    large = pack([(plan, plan.runs[0])], Reading(least_part_bytes=300), slots=16)
    assert max(len(splits) for _, splits in small) >= 3
    assert len(large) >= 16
    assert max(split.part for _, splits in large for _, split, _ in splits) >= 2


def test_blocks_are_small_enough_to_wait_for_many_partitions() -> None:
    for partitions in (1, 6, 50, 100, 10_000):
        assert block_bytes(partitions) * min(10 * partitions, 1_000) <= 64 << 20
