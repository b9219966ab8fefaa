"""The replay on Spark: one pass over all partitions of a run, in waves.

A wave has enough partitions to keep all slots busy for a while. While the results of one wave are shipped, the next one
is replayed, on the slots available by then; so the driver never holds the results of more than two waves, and the first
partitions are done long before the last.

In each wave a first job scans splits (``scan_tasks``). Its tasks return blocks of summary rows, one row per producer of
a split, and one block of facts per split; they stay on the executors' disks, and sketches give the driver the number of
producers of each run. A second job divides the blocks by run, or by run and range of producer ids if a run has too many
producers for one task, and combines them. If one task can hold a run's producers, it combines the run and writes the
snapshots to the sink's URL, as the local engine does. For a larger run each task combines a range of producers, and
returns the result and the entries of each boundary; a task of a third stage receives all ranges of a boundary, and
writes the snapshot from them, one block of entries at a time. The driver receives counts and digests, never a batch, a
summary or a snapshot.

All stages run the same functions as ``rebuild.rebuild_locally``, which is the test oracle. Blocks are elements of RDDs,
not rows of data frames: they are few and large, and leave Spark nothing to plan.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pyspark import AccumulatorParam, InheritableThread, StorageLevel

from resnap.replay.anchor import make_idle
from resnap.replay.evidence import BoundaryEvidence
from resnap.replay.rebuild import by_segment, whole
from resnap.replay.results import (
    BoundaryOutcome,
    IdRange,
    id_ranges,
    join_boundaries,
    join_rounds,
    join_runs,
    next_round,
    of_range,
    partition_result,
    within,
)
from resnap.replay.run_combine import RunCombine
from resnap.replay.scan.split_scan import first_scan_compiles
from resnap.replay.scan.splits import SCAN_TASK_BYTES, TASK_SPLITS, TASKS_PER_SLOT, Reading
from resnap.replay.spark.failures import explain_job_failure
from resnap.replay.spark.progress import later_tasks, progress_of, watched_jobs
from resnap.replay.spark.reach import check_reach, is_reached
from resnap.replay.spark.scan_tasks import (
    Spool,
    Stored,
    block_bytes,
    divide,
    estimate_ids,
    join,
    pack,
    plan_of,
    range_starts,
    scan,
    summaries,
)
from resnap.replay.spark.settings import is_local_master
from resnap.replay.spark.worker import begin_task
from resnap.replay.staging import open_sink
from resnap.replay.watching import Progress
from resnap.storage.errors import ResnapError
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark import RDD, Accumulator, SparkContext

    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult, PartitionResult, PartSink
    from resnap.replay.scan.splits import Split
    from resnap.replay.spark.scan_tasks import IntArray, PlannedRuns, RunBlock
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.s3_settings import S3Settings


_T = TypeVar("_T")

TASKS_PER_WAVE: Final = 2 * TASKS_PER_SLOT
"""How many full tasks of a wave come on each slot: enough to hide that its last tasks leave some slots idle."""
_STOP_TIMEOUT_S: Final = 20
RUN: Final = -1
"""Number of the boundary in what concerns the whole run."""
FAILED: Final = -1
"""Number of the run in an error of ours: the sink failed."""
RESULT: Final = 0
ENTRIES: Final = 1


class Made(NamedTuple):
    """An output of a combining task."""

    run: int
    boundary: int
    """Number of the boundary in its run, or ``RUN``."""
    kind: int
    """``RESULT``, pickled, or ``ENTRIES``."""
    range: int
    number: int
    body: bytes


class CombineTask(NamedTuple):
    """The work of one task: a run, or one range of its producers."""

    run: int
    range: int
    ids: IdRange | None


_Blocks: TypeAlias = "RDD[tuple[int, RunBlock]]"
"""Blocks by the number of the run that they are of."""
_Division: TypeAlias = tuple[tuple[CombineTask, ...], list[int], dict[int, tuple[int, ...]]]
"""How the runs of a job are divided among combining tasks: all tasks; the number of the first task of each run, after
which come its further ranges; and, for each run with several ranges, the producer ids at which all but the first begin.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRebuild:
    """Replays plans on a Spark context, and writes to the sink at ``sink_url``."""

    context: SparkContext
    sink_url: str
    s3: S3Settings | None = None
    reading: Reading = field(default_factory=Reading)
    progress: Progress = field(default_factory=Progress)
    together: Callable[[Sequence[PartitionResult]], None] | None = None
    """Called with all results of a wave, before the first of them is given."""
    reached: frozenset[str] = frozenset()
    """Roots of sources, and destinations, that executors were seen to reach a moment ago."""

    def run(self, plans: Iterable[PartitionPlan]) -> Iterator[PartitionResult]:
        """Yield the result of each plan, wave by wave; the next wave is replayed while one is consumed.

        Raises:
            UsageError: the executors do not see the sources or the destination.
            ResnapError: the Spark job failed.

        """
        waiting = deque(plans)
        if not is_local_master(self.context.master):
            locators = [plan.segments[run.start].locator for plan in waiting for run in plan.runs[:1]]
            if not is_reached(locators, self.sink_url, self.reached):
                check_reach(self.context, locators, self.sink_url, self.reading.sources)
        stop = threading.Event()
        ahead = self._begin(waiting, stop)
        try:
            while ahead is not None:
                results = ahead.result()
                ahead = self._begin(waiting, stop)
                if self.together is not None:
                    self.together(results)
                yield from results
        finally:
            stop.set()
            if ahead is not None:
                wait([ahead], _STOP_TIMEOUT_S)

    def _begin(self, waiting: deque[PartitionPlan], stop: threading.Event) -> Future[list[PartitionResult]] | None:
        """Replay the next wave of ``waiting`` in a thread of its own; None if nothing waits."""
        if not waiting:
            return None
        plans = next_wave(waiting, self.context.defaultParallelism)
        wave: Future[list[PartitionResult]] = Future()

        def replay() -> None:
            try:
                wave.set_result(list(self._wave(plans, stop)))
            except BaseException as error:  # noqa: BLE001 - raised where the wave is waited for
                wave.set_exception(error)

        InheritableThread(replay, name="resnap-wave", daemon=True).start()
        return wave

    def _wave(self, plans: Sequence[PartitionPlan], stop: threading.Event) -> Iterator[PartitionResult]:
        """Yield the result of each plan; plans that must read further back go into another round together."""
        waiting = list(plans)
        before: list[PartitionResult | None] = [None] * len(waiting)
        while waiting:
            further: list[tuple[PartitionPlan, PartitionResult]] = []
            for plan, earlier, later in zip(waiting, before, self._round(waiting, stop), strict=True):
                result = join_rounds(earlier, later)
                longer = next_round(plan, result)
                if longer is None:
                    yield result
                else:
                    further.append((longer, result))
                    self.progress.expect_plan(longer)
            waiting, before = [plan for plan, _ in further], [result for _, result in further]

    def _round(self, plans: Sequence[PartitionPlan], stop: threading.Event) -> list[PartitionResult]:
        """Replay ``plans`` once; return the result of each, in order."""
        runs = [(plan, run) for plan in plans for run in plan.runs]
        with explain_job_failure(self.context):
            results = iter(self._results(runs, stop) if runs else [])
        sink = open_sink(self.sink_url, self.s3)
        return [
            partition_result(plan, [next(results) for _ in plan.runs], make_idle(plan, sink, self.reading.sources))
            for plan in plans
        ]

    def _results(self, runs: PlannedRuns, stop: threading.Event) -> list[PartitionResult]:
        """Scan and combine ``runs``; return the result of each, in order."""
        context = self.context
        slots = context.defaultParallelism
        tasks = [pickle.dumps(task) for task in pack(runs, self.reading, slots=slots)]
        later = later_tasks(slots, len(tasks))
        done, met = context.accumulator(0), context.accumulator({}, _Sketches())
        with watched_jobs(context, done, self.progress, stop) as watch:
            watch.compiles = is_local_master(context.master) and first_scan_compiles(self.reading)
            blocks = self._scan_stage(context.parallelize(tasks, len(tasks)), block_bytes(later), done, met)
            blocks.persist(StorageLevel.DISK_ONLY)
            # Counted by the JVM, which has the blocks, and not by Python workers that would have to be given them.
            blocks._jrdd.count()  # noqa: SLF001
            watch.phase = "combining"
            division = _divide(met.value, len(runs), self.reading.producers_per_task)
            made = self._combine_stage(blocks, division, runs, later).collect()
            blocks.unpersist()
        return _assemble(made, runs)

    def _scan_stage(
        self, tasks: RDD[bytes], size: int, done: Accumulator[int], met: Accumulator[dict[int, IntArray]]
    ) -> _Blocks:
        reading = self.reading

        def count(split: Split) -> None:
            done.add(progress_of(split.size_bytes, ends_segment=split.ends_segment))

        def scan_tasks(pickled: Iterator[bytes]) -> Iterator[tuple[int, RunBlock]]:
            begin_task()
            for task in pickled:
                yield from scan(pickle.loads(task), reading, size, met=met.add, done=count)  # noqa: S301 - our own

        return tasks.mapPartitions(scan_tasks)

    def _combine_stage(self, blocks: _Blocks, division: _Division, runs: PlannedRuns, most: int) -> RDD[Made]:
        """Return the outputs of combining the blocks, by at most ``most`` tasks."""
        sink_url, s3, reading, size = self.sink_url, self.s3, self.reading, block_bytes(most)
        tasks, first_task, starts = division

        def divide_all(elements: Iterator[tuple[int, RunBlock]]) -> Iterator[tuple[int, RunBlock]]:
            begin_task()
            for run, block in elements:
                for number, part in divide(block, starts.get(run, ())):
                    yield first_task[run] + number, part

        def combine_tasks(elements: Iterator[tuple[int, RunBlock]]) -> Iterator[Made]:
            begin_task()
            yield from combine(elements, tasks, open_sink(sink_url, s3), reading, size)

        made = _by_number(blocks.mapPartitions(divide_all), min(len(tasks), most)).mapPartitions(combine_tasks)
        if not starts:
            return made
        topic_partitions = {run: runs[run][0].topic_partition for run in starts}

        def merge_ranges(elements: Iterator[tuple[int, Made]]) -> Iterator[Made]:
            begin_task()
            yield from merge((element for _, element in elements), topic_partitions, open_sink(sink_url, s3))

        by_boundary = made.map(lambda output: (max(output.run + output.boundary, 0), output))
        return _by_number(by_boundary, most).mapPartitions(merge_ranges)


def next_wave(waiting: deque[PartitionPlan], slots: int) -> list[PartitionPlan]:
    """Take from ``waiting`` enough plans for ``TASKS_PER_WAVE`` full tasks per slot of ``slots``, and at least one."""
    tasks = slots * TASKS_PER_WAVE
    left_bytes, left_segments = tasks * SCAN_TASK_BYTES, tasks * TASK_SPLITS
    wave: list[PartitionPlan] = []
    while waiting and (not wave or (left_bytes > 0 and left_segments > 0)):
        wave.append(waiting.popleft())
        left_bytes -= wave[-1].bytes_in_segments
        left_segments -= max(1, sum(run.end - run.start for run in wave[-1].runs))
    return wave


def _by_number(pairs: RDD[tuple[int, _T]], partitions: int) -> RDD[tuple[int, _T]]:
    return pairs.partitionBy(partitions, lambda number: number)


class _Sketches(AccumulatorParam):  # type: ignore[misc]
    """Joins the sketches of runs. A task that Spark repeats adds nothing new."""

    def zero(self, value: dict[int, IntArray]) -> dict[int, IntArray]:  # noqa: ARG002
        return {}

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: dict[int, IntArray], value2: dict[int, IntArray]
    ) -> dict[int, IntArray]:
        for run, sample in value2.items():
            value1[run] = join(value1[run], sample) if run in value1 else sample
        return value1


def _divide(met: Mapping[int, IntArray], runs: int, producers_per_task: int) -> _Division:
    """Divide each run into as many tasks as its number of producers needs, estimated from its sketch."""
    tasks: list[CombineTask] = []
    first_task: list[int] = []
    starts: dict[int, tuple[int, ...]] = {}
    for run in range(runs):
        first_task.append(len(tasks))
        ranges = -(-estimate_ids(met[run]) // producers_per_task)
        begin = range_starts(met[run], ranges) if ranges > 1 else ()
        if begin:
            starts[run] = begin
            tasks.extend(CombineTask(run, number, ids) for number, ids in enumerate(id_ranges(begin)))
        else:
            tasks.append(CombineTask(run, 0, None))
    return tuple(tasks), first_task, starts


def _assemble(made: Iterable[Made], runs: PlannedRuns) -> list[PartitionResult]:
    """Return the result of each run, joined from its ranges, with the boundaries as they were planned."""
    of_run: dict[int, list[tuple[int, PartitionResult]]] = {}
    boundaries: dict[int, list[BoundaryResult]] = {}
    for output in made:
        found = pickle.loads(output.body)  # noqa: S301 - written by our own tasks
        if output.run == FAILED:
            raise found
        if output.boundary == RUN:
            of_run.setdefault(output.run, []).append((output.range, found))
        else:
            boundaries.setdefault(output.run, []).append(found)
    results = []
    for index, (_, run) in enumerate(runs):
        ranges = [result for _, result in sorted(of_run[index], key=lambda one: one[0])]
        planned = {boundary.offset: boundary for boundary in run.boundaries}
        made_at = (replace(at, boundary=planned[at.offset]) for at in boundaries.get(index, ranges[0].boundaries))
        results.append(replace(ranges[0] if len(ranges) == 1 else join_runs(ranges), boundaries=tuple(made_at)))
    return results


def combine(
    blocks: Iterable[tuple[int, RunBlock]], tasks: Sequence[CombineTask], sink: PartSink, reading: Reading, size: int
) -> Iterator[Made]:
    """Combine (task number, block) pairs, which come in any order, task by task; of entries at most ``size`` bytes."""
    try:
        with Spool() as spool:
            for task, (*place, body) in blocks:
                spool.add((task, *place), body)
            for number, stored in groupby(spool.ordered(), key=lambda block: block.place[0]):
                of_task = (block._replace(place=block.place[1:]) for block in stored)
                yield from _combine_task(tasks[number], of_task, sink, reading, size)
    except ResnapError as error:
        # A full disk is reported as such, and not as a failed job with a JVM stack trace.
        yield Made(FAILED, RUN, RESULT, 0, 0, pickle.dumps(error))


def _combine_task(
    task: CombineTask, stored: Iterator[Stored], sink: PartSink, reading: Reading, size: int
) -> Iterator[Made]:
    """Combine a run, and write its snapshots; or a range of its producers, and yield the entries at each boundary."""
    plan, run = plan_of(next(stored))
    number_of = {boundary.offset: number for number, boundary in enumerate(run.boundaries)}
    held = HeldEntries()
    combined = (
        RunCombine(plan, run, sink, sources=reading.sources)
        if task.ids is None
        else RunCombine(*within(plan, run, task.ids), held, task.ids, reading.sources)
    )

    def result(boundary: int, found: PartitionResult | BoundaryResult) -> Made:
        return Made(task.run, boundary, RESULT, task.range, 0, pickle.dumps(found))

    def entries() -> Iterator[Made]:
        for offset, number, body in held.take(size):
            yield Made(task.run, number_of[offset], ENTRIES, task.range, number, body)

    for parts in by_segment(summaries(stored)):
        summary = whole(parts, combined.plan, reading)
        combined.add(summary if task.ids is None else of_range(summary, task.ids))
        yield from entries()
    found = combined.finish()
    yield from entries()
    # The driver has the evidence at the boundaries already.
    bare = [replace(one, boundary=replace(one.boundary, evidence=BoundaryEvidence())) for one in found.boundaries]
    if task.ids is None:
        yield result(RUN, replace(found, boundaries=tuple(bare)))
        return
    yield from (result(number_of[boundary.offset], boundary) for boundary in bare)
    yield result(RUN, replace(found, boundaries=()))


class HeldEntries:
    """A sink that holds the entries of one range of producers, for the task that joins the ranges."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Array]] = []

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> None:  # noqa: ARG002
        """Hold the entries at the boundary ``offset``."""
        self._held.append((offset, entries))

    def take(self, size: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset, number, entries) of what is held, in blocks of up to ``size`` bytes, and let go of it."""
        step = max(1, size // ENTRY_DTYPE.itemsize)
        for offset, entries in self._held:
            for number, start in enumerate(range(0, len(entries), step)):
                yield offset, number, entries[start : start + step].tobytes()
        self._held.clear()


def merge(made: Iterable[Made], topic_partitions: Mapping[int, TopicPartition], sink: PartSink) -> Iterator[Made]:
    """Write the boundaries whose ranges are all in ``made``; yield the other outputs."""
    try:
        with Spool() as spool:
            for output in made:
                spool.add(output[:5], output.body)
            for (run, boundary), stored in groupby(spool.ordered(), key=lambda block: block.place[:2]):
                if boundary == RUN:
                    yield from (Made(run, RUN, RESULT, block.place[3], 0, block.read()) for block in stored)
                else:
                    found = _merge_boundary(list(stored), topic_partitions[run], sink)
                    yield Made(run, boundary, RESULT, 0, 0, pickle.dumps(found))
    except ResnapError as error:
        yield Made(FAILED, RUN, RESULT, 0, 0, pickle.dumps(error))


def _merge_boundary(stored: Sequence[Stored], topic_partition: TopicPartition, sink: PartSink) -> BoundaryResult:
    ranges = [pickle.loads(blob.read()) for blob in stored if blob.place[2] == RESULT]  # noqa: S301 - of our own tasks
    joined = join_boundaries(ranges)
    if joined.outcome is not BoundaryOutcome.REBUILT:
        return joined
    parts = (np.frombuffer(block.read(), dtype=ENTRY_DTYPE) for block in stored if block.place[2] == ENTRIES)
    digest = sink.write_parts(topic_partition, joined.offset, parts, joined.entries)
    return replace(joined, digest=digest)
