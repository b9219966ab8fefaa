"""The same on Spark: nothing of what the local engine says may differ."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from resnap.replay.anchor import begin_at_anchor
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import BoundaryOutcome
from resnap.replay.scan.splits import Reading
from resnap.replay.spark import job, task_pool
from resnap.replay.spark.job import SparkRebuild, next_wave
from resnap.replay.spark.session import spark_session
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.spark.task_pool import TaskPool
from resnap.replay.staging import DISCARD, DirectorySink
from resnap.replay.watching import Progress
from resnap.storage.errors import FormatError, LogDirError, ResnapError
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from resnap.storage.sources.files import Sources
from tests.builders import a_partition
from tests.cases import mostly_slow
from tests.replay.memory_sink import MemorySink
from tests.replay.replaying import HOUR_MS, Done, planned
from tests.replay.test_anchor import carried_out, cut_off, wanting
from tests.replay.test_cut_logs import CUT, bases, cut
from tests.replay.truth import LATER_MS, NEVER, TRUTHS
from tests.strategies import START_MS, DataEvent, MarkerEvent, PlainEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.replay.watching import Phase
    from resnap.storage.readers import RangeReader
    from tests.fixture_sets import FixtureSet
    from tests.strategies import Event

    Sets = Callable[[str], FixtureSet]

NOW_MS = START_MS + 60 * HOUR_MS
PATIENCE_S = 600


def transactions(hour: int, *, pids: range) -> list[Event]:
    """Give a transaction of each producer in an hour; every third one is aborted, every fourth stays open."""
    at = START_MS + hour * HOUR_MS
    begun: list[Event] = [
        DataEvent(producer_id=pid, base_sequence=hour, timestamp=at + pid, transactional=True) for pid in pids
    ]
    ended: list[Event] = [
        MarkerEvent(producer_id=pid, timestamp=at + 60_000 + pid, commit=bool(pid % 3)) for pid in pids if pid % 4
    ]
    return [*begun, PlainEvent(timestamp=at + 1_000, append_time=True), *ended]


IN_PIECES = Reading(producers_per_task=5, split_bytes=500, least_part_bytes=500)
"""Segments cut into parts, and runs combined in eight ranges."""


def log_dir(root: Path) -> dict[str, Path]:
    """Write partitions of every kind: sound, damaged, illegal, one that vanishes, one whose window is too short."""
    sound = [transactions(hour, pids=range(1, 40)) for hour in range(0, 60, 6)]
    made = {
        "sound": a_partition(root, sound, name="sound-0", index_interval_bytes=200),
        "other": a_partition(root, sound[5:], name="other-1", first_offset=700, index_interval_bytes=100),
        "damaged": a_partition(root, sound, name="damaged-0", index_interval_bytes=100),
        "vanished": a_partition(root, sound, name="vanished-0", index_interval_bytes=100),
        "single": a_partition(root, sound[:1], name="single-0"),
        "illegal": a_partition(
            root,
            [*sound[:4], [DataEvent(producer_id=4, base_sequence=9, timestamp=NOW_MS)], [PlainEvent()]],
            name="illegal-0",
        ),
    }
    damaged = sorted(made["damaged"].glob("*.log"))[4]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    hanging = ProducerEntry(99, 0, 3, 5, 0, START_MS, 1, 2)
    (made["other"] / segment_name(10_000, "snapshot")).write_bytes(snapshot_bytes([hanging]))
    return made


def plans_of(partitions: dict[str, Path], **options: object) -> list[PartitionPlan]:
    """Plan them all; then one segment goes away."""
    plans = [planned(path, now_ms=NOW_MS, to_end=True, compared=True, **options) for path in partitions.values()]
    sorted(partitions["vanished"].glob("*.log"))[6].unlink()
    return plans


def comparable(results: list[PartitionResult]) -> list[tuple[object, ...]]:
    """Give results by partition; errors are compared by what they say."""
    return sorted(
        (
            str(result.topic_partition),
            repr(replace(result, error=None, bytes_read=0)),  # parts of a segment are read in other blocks
            type(result.error),
            str(result.error),
            result.error and result.error.hint,
        )
        for result in results
    )


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with spark_session(SparkSettings(master="local[2]"), dict(os.environ)) as running:
        yield running


@pytest.mark.spark
@pytest.mark.parametrize(
    "reading", [pytest.param(Reading(), marks=pytest.mark.slow), IN_PIECES], ids=["plainly", "in pieces"]
)
@pytest.mark.parametrize(
    "options",
    mostly_slow(
        [{}, {"roll": True}, {"full": True}, {"high_watermark": 400}, {"max_reach_back_ms": 0}], {"full": True}
    ),
    ids=["now", "roll", "full", "high watermark", "limited"],
)
def test_spark_says_and_writes_what_the_local_engine_does(
    options: dict[str, object], reading: Reading, session: SparkSession, tmp_path: Path
) -> None:
    partitions = log_dir(tmp_path / "log")
    here, there = tmp_path / "local", tmp_path / "spark"
    plans = plans_of(partitions, **options)
    local = list(rebuild_locally(plans, DirectorySink(here)))
    distributed = list(SparkRebuild(context=session.sparkContext, sink_url=there.as_uri(), reading=reading).run(plans))
    assert comparable(distributed) == comparable(local)
    assert files(there) == files(here)
    if "full" in options:
        errors = {result.topic_partition.topic: type(result.error) for result in distributed}
        assert errors["damaged"] is FormatError
        assert issubclass(errors["vanished"], LogDirError)
        outcomes = {made.outcome for result in distributed for made in result.boundaries}
        assert outcomes == set(BoundaryOutcome) - {BoundaryOutcome.UNEXPLAINED}


@pytest.mark.slow
@pytest.mark.spark
def test_a_window_that_must_be_longer_goes_into_a_further_round_of_its_own(
    session: SparkSession, tmp_path: Path
) -> None:
    segments: list[list[Event]] = [[PlainEvent(timestamp=START_MS + hour * HOUR_MS)] for hour in range(61)]
    for hour in (0, 48, 49):
        batch = DataEvent(
            producer_id=1, base_sequence=hour + 1, timestamp=START_MS + hour * HOUR_MS, transactional=True
        )
        segments[hour].append(batch)
    partitions = [a_partition(tmp_path / "log", segments, name=name) for name in ("one-0", "two-0", "bad-0")]
    plans = [planned(partitions[0], now_ms=NOW_MS, wanted=[62]), *(planned(p, now_ms=NOW_MS) for p in partitions[1:])]
    below = sorted(partitions[2].glob("*.log"))[plans[2].runs[-1].start - 1]
    below.write_bytes(b"\1" * below.stat().st_size)
    here, there = tmp_path / "local", tmp_path / "spark"
    local = list(rebuild_locally(plans, DirectorySink(here)))
    distributed = list(SparkRebuild(context=session.sparkContext, sink_url=there.as_uri()).run(plans))
    assert comparable(distributed) == comparable(local)
    assert files(there) == files(here)
    one, two, bad = (
        next(result for result in distributed if result.topic_partition == plan.topic_partition) for plan in plans
    )
    for result, plan in zip((one, two), plans, strict=False):
        assert result.segments_read > plan.runs[-1].end - plan.runs[-1].start
    assert {made.outcome for made in bad.boundaries} == {BoundaryOutcome.REBUILT, BoundaryOutcome.DAMAGED}


def hear_all(session: SparkSession) -> None:
    """Wait until Spark's status shows all that has happened; a thread of its own updates it."""
    session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(PATIENCE_S * 1000)


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_takes_as_many_spark_jobs_for_one_partition_as_for_many(session: SparkSession, tmp_path: Path) -> None:
    plans = plans_of(log_dir(tmp_path / "log"), full=True)
    engine = SparkRebuild(context=session.sparkContext, sink_url=(tmp_path / "out").as_uri())
    counts = []
    for group, some in (("one", plans[:1]), ("many", plans)):
        session.sparkContext.setJobGroup(group, group)
        list(engine.run(some))
        hear_all(session)
        counts.append(len(session.sparkContext.statusTracker().getJobIdsForGroup(group)))
    assert counts[0] == counts[1]


@pytest.mark.spark
def test_waves_give_what_one_wave_gives_and_the_first_comes_before_the_last_is_replayed(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plans_of(log_dir(tmp_path / "log"))
    here, there = tmp_path / "local", tmp_path / "spark"
    local = list(rebuild_locally(plans, DirectorySink(here)))
    monkeypatch.setattr(job, "TASK_SPLITS", 0)  # a wave for each partition
    begun: list[int] = []
    monkeypatch.setattr(job, "next_wave", lambda waiting, slots: begun.append(0) or next_wave(waiting, slots))
    results = SparkRebuild(context=session.sparkContext, sink_url=there.as_uri()).run(plans)
    distributed = [next(results)]
    assert len(begun) == 2
    distributed += results
    assert len(begun) == len(plans)
    assert comparable(distributed) == comparable(local)
    assert files(there) == files(here)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckSources(Sources):
    """Does not come back from opening a segment of ``other-1``."""

    @contextmanager
    def open(self, locator: str, *, end: int | None = None) -> Iterator[RangeReader]:
        if "other-1" in locator:
            time.sleep(PATIENCE_S)
        with Sources.open(self, locator, end=end) as reader:
            yield reader


@pytest.mark.spark
def test_a_wave_without_a_waiting_caller_is_cancelled(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = log_dir(tmp_path / "log")
    plans = [planned(partitions[name], now_ms=NOW_MS, full=True) for name in ("sound", "other")]
    monkeypatch.setattr(job, "TASK_SPLITS", 0)
    status, begun = session.sparkContext.statusTracker(), time.monotonic()
    stuck = Reading(sources=StuckSources())
    results = SparkRebuild(context=session.sparkContext, sink_url=tmp_path.as_uri(), reading=stuck).run(plans)
    assert next(results).topic_partition.topic == "sound"
    while not status.getActiveJobsIds():
        time.sleep(0.01)
    results.close()
    hear_all(session)
    assert status.getActiveJobsIds() == []
    assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.slow
@pytest.mark.spark
def test_progress_adds_up_to_all_segments_and_bytes(session: SparkSession, tmp_path: Path) -> None:
    plans = [planned(log_dir(tmp_path / "log")["sound"], now_ms=NOW_MS, full=True)]
    done = Done()
    list(SparkRebuild(context=session.sparkContext, sink_url=(tmp_path / "out").as_uri(), progress=done).run(plans))
    assert done.sums == [9, plans[0].bytes_in_segments]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlySources(Sources):
    """Kills the first worker process that reads on where a segment was opened before."""

    mark: str

    @contextmanager
    def open(self, locator: str, *, end: int | None = None) -> Iterator[RangeReader]:
        with Sources.open(self, locator, end=end) as reader:
            reader.read(0, 61)
            try:
                Path(self.mark).touch(exist_ok=False)
            except FileExistsError:
                yield reader
            else:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.spark
def test_a_worker_killed_in_the_middle_of_a_scan_costs_time_and_nothing_else(
    session: SparkSession, tmp_path: Path
) -> None:
    plans = plans_of(log_dir(tmp_path / "log"), full=True)
    here, there, mark = tmp_path / "local", tmp_path / "spark", tmp_path / "killed"
    local = list(rebuild_locally(plans, DirectorySink(here)))
    deadly = Reading(sources=DeadlySources(mark=str(mark)))
    engine = SparkRebuild(context=session.sparkContext, sink_url=there.as_uri(), reading=deadly)
    assert comparable(list(engine.run(plans))) == comparable(local)
    assert files(there) == files(here)
    assert mark.exists()


@pytest.mark.slow
@pytest.mark.spark
def test_a_destination_that_cannot_be_written_fails_the_run_with_its_name(
    session: SparkSession, tmp_path: Path
) -> None:
    plans = [planned(log_dir(tmp_path / "log")["sound"], now_ms=NOW_MS, full=True)]
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(ResnapError, match=str(in_the_way)):
        list(SparkRebuild(context=session.sparkContext, sink_url=in_the_way.as_uri()).run(plans))


@pytest.mark.slow
@pytest.mark.spark
def test_an_error_of_work_on_executors_reaches_who_waits_for_the_item_and_no_other(session: SparkSession) -> None:
    def work(item: int) -> int:
        if item == 2:
            raise LogDirError(f"{item}: cannot be read", hint="look at it")
        return 10 * item

    pool: TaskPool[int, int] = TaskPool(session.sparkContext, work, "some work")
    with closing(pool), ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(pool.result, item, 1) for item in range(4)]
        wait(futures)
        assert [future.result() for future in (futures[0], futures[1], futures[3])] == [0, 10, 30]
        with pytest.raises(LogDirError, match="2: cannot be read") as raised:
            futures[2].result()
    assert raised.value.hint == "look at it"


@pytest.mark.slow
@pytest.mark.spark
def test_items_that_are_too_large_for_one_message_go_in_several_and_each_result_where_it_is_waited_for(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pool, "MESSAGE_BYTES", 2048)

    def work(item: bytes) -> tuple[int, int]:
        context = TaskContext.get()
        assert context is not None
        return context.taskAttemptId(), item[0]

    pool: TaskPool[bytes, tuple[int, int]] = TaskPool(session.sparkContext, work, "some work")
    items = [bytes([number]) * 900 for number in range(40)] + [bytes([40]) * 5000]
    with closing(pool), ThreadPoolExecutor(len(items)) as threads:
        found = list(threads.map(lambda item: pool.result(item, 1), items))
    assert [number for _, number in found] == list(range(41))
    assert max(Counter(task for task, _ in found).values()) <= 2


@pytest.mark.slow
@pytest.mark.spark
def test_without_a_plan_there_is_no_job(session: SparkSession, tmp_path: Path) -> None:
    assert list(SparkRebuild(context=session.sparkContext, sink_url=tmp_path.as_uri()).run([])) == []


@pytest.mark.slow
@pytest.mark.spark
def test_spark_writes_of_real_logs_what_the_local_engine_writes(
    session: SparkSession, fixture_set: Sets, tmp_path: Path
) -> None:
    for truth in TRUTHS:
        here, there = tmp_path / truth.name / "local", tmp_path / truth.name / "spark"
        local = list(rebuild_locally(truth.plans(fixture_set(truth.name)), DirectorySink(here)))
        engine = SparkRebuild(context=session.sparkContext, sink_url=there.as_uri())
        assert list(engine.run(truth.plans(fixture_set(truth.name)))) == local
        assert files(there) == files(here)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_rebuilds_cut_logs_as_the_local_engine_does(
    session: SparkSession, fixture_set: Sets, tmp_path: Path
) -> None:
    for name in sorted({name for name, _ in CUT}):
        plans = []
        for partition in (of_set for in_set, of_set in CUT if in_set == name):
            offsets = bases(fixture_set(name), partition)[2:]
            shown = {offsets[at % len(offsets)] for at in (1, -1)}
            log = cut(fixture_set(name), partition, 2, shown, tmp_path / name / partition)
            plans.append(planned(log.directory, now_ms=LATER_MS, expiry=NEVER, to_end=True, compared=True))
        here, there = tmp_path / name / "local", tmp_path / name / "spark"
        local = [replace(one, bytes_read=0) for one in rebuild_locally(plans, DirectorySink(here))]
        for reading in (Reading(), Reading(producers_per_task=3)):
            engine = SparkRebuild(context=session.sparkContext, sink_url=there.as_uri(), reading=reading)
            assert [replace(one, bytes_read=0) for one in engine.run(plans)] == local
            assert files(there) == files(here)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_keeps_and_takes_the_states_that_the_local_engine_does(
    session: SparkSession, fixture_set: Sets, tmp_path: Path
) -> None:
    truth = next(truth for truth in TRUTHS if truth.name == "kafka-2.7.2-nine-days")
    plans = truth.plans(fixture_set(truth.name))
    halves = [replace(cut_off(plan, plan.boundaries[3].offset), keep_in=str(tmp_path)) for plan in plans]
    rests = [wanting(plan, [boundary.offset for boundary in plan.boundaries[4:]]) for plan in plans]
    local = [carried_out(half)[0] for half in halves]
    for number, reading in enumerate((Reading(), Reading(producers_per_task=2))):
        sink = (tmp_path / str(number)).as_uri()
        engine = SparkRebuild(context=session.sparkContext, sink_url=sink, reading=reading)
        kept = list(engine.run(halves))
        assert [[one.offset for one in result.anchors] for result in kept] == [
            [one.offset for one in result.anchors] for result in local
        ]
        begun = [begin_at_anchor(rest, result.anchors) for rest, result in zip(rests, kept, strict=True)]
        assert all(plan.runs[-1].anchor is not None for plan in begun)
        for plan, result in zip(begun, engine.run(begun), strict=True):
            expected, _ = carried_out(replace(plan, runs=(*plan.runs[:-1], plan.runs[-1].unanchored)))
            assert [one.digest for one in result.boundaries] == [one.digest for one in expected.boundaries]
            assert result.anchor == plan.runs[-1].anchor.offset


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


@pytest.mark.parametrize("is_local", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.spark])])
def test_a_second_round_is_expected_before_it_is_done(
    is_local: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The window of the plan begins within open transactions, so that it takes a second round."""
    hours = [transactions(hour, pids=range(1, 40)) for hour in range(0, 60, 6)]
    plan = planned(a_partition(tmp_path, hours, name="sound-0"), now_ms=NOW_MS - 10 * HOUR_MS)
    sums = Sums(plan)
    if is_local:
        list(rebuild_locally([plan], MemorySink()))  # makes the machine code
        list(rebuild_locally([plan], MemorySink(), progress=sums))
    else:
        context = request.getfixturevalue("session").sparkContext
        list(SparkRebuild(context=context, sink_url=DISCARD, progress=sums).run([plan]))
    assert sums.done == sums.expected
    assert sums.expected[1] > plan.bytes_in_segments > 0
    assert sums.phases <= ({"scanning"} if is_local else {"compiling", "scanning", "combining"})
