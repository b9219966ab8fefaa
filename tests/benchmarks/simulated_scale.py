"""What very many partitions cost the driver: inventories that were made up, planned, cut into waves and into tasks.

Nothing is read: what is measured is what the driver holds, and its processor time. Each row is a process of its own.
"""

from __future__ import annotations

import pickle
import resource
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.plan import plan_partition
from resnap.replay.producer_state import Expiry
from resnap.replay.scan.splits import SCAN_TASK_BYTES, TASK_SPLITS, Reading
from resnap.replay.spark.scan_tasks import pack
from resnap.replay.window import AsOf, ReplayRules, SegmentSpan
from resnap.storage.log.names import TopicPartition, segment_name
from resnap.storage.log.partition_dir import PartitionDir, Segment
from resnap.storage.packed import pack_all
from resnap.tiering.judging.eligibility import before_replay
from resnap.tiering.judging.inventory import take_partition_inventory
from tests.benchmarks.resnap_jobs import spark
from tests.benchmarks.tables import Table, amount, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.plan import PartitionPlan
    from resnap.tiering.judging.eligibility import Candidates
    from tests.benchmarks.options import Options

NAME = "scale"
PARTITIONS: Final = (1_000, 20_000, 100_000)
SEGMENTS: Final = 50
"""Of each partition."""
SLOTS: Final = 400
"""Of 100 executors with four cores each."""
COPIES: Final = (1_000, 4_000, 16_000)
COPY_S: Final = 0.002
SEGMENT_BYTES: Final = 1 << 30
HOUR_MS: Final = 3_600_000
NOW_MS: Final = 1_800_000_000_000
RULES: Final = ReplayRules(as_of=AsOf(now_ms=NOW_MS), expiry=Expiry(7 * 24 * HOUR_MS, 600_000), full=True)
"""The worst: every segment is read, and every boundary made."""


class Measured(NamedTuple):
    """What one process has found."""

    listed_bytes: int
    """Resident, more than before."""
    planned_bytes: int
    plan_s: float
    """Of the processor, as the other one."""
    tasks_s: float
    waves: int
    tasks: int
    largest_bytes: int
    """Of the segments of a task."""
    largest_splits: int
    largest_pickled: int
    peak_bytes: int


def run(options: Options) -> Iterator[Table]:
    """Measure more and more partitions."""
    table = Table(
        f"Partitions of {SEGMENTS} segments of {amount(SEGMENT_BYTES)}, {SLOTS} slots, everything read",
        ["partitions", "segments", "listed", "with plans", "peak", "planning, 1,000 segments",
         "tasks, 1,000 segments", "processor time of both", "waves", "tasks", "largest task"],
        remarks=[f"A task is to have at most {amount(SCAN_TASK_BYTES)} or one segment, and {TASK_SPLITS} splits."],
    )  # fmt: skip
    for partitions in (100, 1_000) if options.quick else PARTITIONS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found = process.submit(measure, partitions).result()
        thousands = partitions * SEGMENTS / 1000
        table.add(
            f"{partitions:,}", f"{partitions * SEGMENTS:,}", amount(found.listed_bytes), amount(found.planned_bytes),
            amount(found.peak_bytes), seconds(found.plan_s / thousands), seconds(found.tasks_s / thousands),
            seconds(found.plan_s + found.tasks_s), f"{found.waves:,}", f"{found.tasks:,}",
            f"{amount(found.largest_bytes)}, {found.largest_splits} splits, {amount(found.largest_pickled)} sent",
        )  # fmt: skip
    yield table
    if options.spark:
        yield _copied(options)


def _copied(options: Options) -> Table:
    """Have executors do copies that sleep, and measure this process, which is the driver, without its JVM."""
    from resnap.replay.spark.task_pool import COPY_TASK_BYTES, TASK_ITEMS, TaskPool  # noqa: PLC0415 - imports pyspark

    table = Table(
        "Copies that sleep, of two executors of one core",
        ["segments", "driver's processor time, 1,000 segments", "resident, more than before", "largest task"],
        remarks=[f"A task is to have at most {TASK_ITEMS} segments, and {amount(COPY_TASK_BYTES)} or one segment."],
    )
    segments = _partition(0).segments
    with spark(2) as session:
        for count in (100, 200) if options.quick else COPIES:
            before, began_s = _resident_bytes(), time.process_time()
            pool: TaskPool[Segment, int] = TaskPool(session.sparkContext, _sleep, "sleep")
            with closing(pool), ThreadPoolExecutor(pool.items_at_once) as threads:
                asked = (segments[number % SEGMENTS] for number in range(count))
                tasks = Counter(threads.map(lambda one, pool=pool: pool.result(one, 1 << 20), asked))  # type: ignore[misc]
            spent_s, held = time.process_time() - began_s, max(0, _resident_bytes() - before)
            table.add(f"{count:,}", seconds(spent_s * 1000 / count), amount(held), f"{max(tasks.values())} segments")
    return table


def _sleep(_: Segment) -> int:
    """Copy nothing, and return the number of the task."""
    from pyspark import TaskContext  # noqa: PLC0415 - for those who use it

    time.sleep(COPY_S)
    context = TaskContext.get()
    return -1 if context is None else context.taskAttemptId()


def measure(partitions: int) -> Measured:
    """List, plan, and cut into waves and tasks."""
    before = _resident_bytes()
    listed = [_candidates(number) for number in range(partitions)]
    listed_bytes = _resident_bytes() - before
    began_s = time.process_time()
    plans = [_plan(one) for one in listed]
    plan_s, planned_bytes = time.process_time() - began_s, _resident_bytes() - before
    began_s = time.process_time()
    waves, tasks, largest_bytes, largest_splits, largest_pickled = 0, 0, 0, 0, 0
    waiting = deque(plans)
    del plans
    from resnap.replay.spark.job import next_wave  # noqa: PLC0415 - imports pyspark

    while waiting:
        runs = [(plan, run) for plan in next_wave(waiting, SLOTS) for run in plan.runs]
        waves += 1
        for task in pack(runs, Reading(), slots=SLOTS):
            tasks += 1
            largest_bytes = max(largest_bytes, sum(split.size_bytes for _, split, _ in task[1]))
            largest_splits = max(largest_splits, len(task[1]))
            largest_pickled = max(largest_pickled, len(pickle.dumps(task)))
    return Measured(
        listed_bytes=listed_bytes,
        planned_bytes=planned_bytes,
        plan_s=plan_s,
        tasks_s=time.process_time() - began_s,
        waves=waves,
        tasks=tasks,
        largest_bytes=largest_bytes,
        largest_splits=largest_splits,
        largest_pickled=largest_pickled,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _candidates(number: int) -> Candidates:
    """Return what `tier` holds of a partition: its listing, what it says of each boundary, and what may be shipped."""
    return before_replay(take_partition_inventory(_partition(number), is_shipped=True))


def _partition(number: int) -> PartitionDir:
    """Make up a listing, as ``load_partition_dir`` gives it: a segment an hour, none with a snapshot."""
    topic_partition = TopicPartition(f"topic-{number // 20}", number % 20)
    directory = f"/var/lib/kafka/data/{topic_partition}"
    bases = range(0, (SEGMENTS + 1) * 1_000_003, 1_000_003)
    segments = (
        Segment(
            base_offset=bases[index],
            next_base_offset=bases[index + 1],
            path=f"{directory}/{segment_name(bases[index], 'log')}",
            size_bytes=SEGMENT_BYTES - index,
            mtime_ns=(NOW_MS - (SEGMENTS - index) * HOUR_MS) * 1_000_000,
            inode=number * 1000 + index,
            index_bytes=1_048_576 + 8 * index,
            timeindex_bytes=1_572_864 + 12 * index,
            txnindex_bytes=None,
        )
        for index in range(SEGMENTS)
    )
    return PartitionDir(
        path=Path(directory), topic_partition=topic_partition, segments=pack_all(segments, "base_offset"), snapshots=(),
        unfinished=(), deleted=0, leader_epochs=f"{directory}/leader-epoch-checkpoint", topic_id=None,
        high_watermark=bases[-1], log_start_offset=0, recovery_point=bases[-1], cleaner_offset=None,
    )  # fmt: skip


def _plan(candidates: Candidates) -> PartitionPlan:
    partition = candidates.inventory.partition
    spans = (
        SegmentSpan(
            locator=segment.path, base_offset=segment.base_offset, next_base_offset=segment.next_base_offset,
            size_bytes=segment.size_bytes, mtime_ms=segment.mtime_ns // 1_000_000,
            largest_timestamp_ms=segment.mtime_ns // 1_000_000,
        )
        for segment in partition.segments
    )  # fmt: skip
    return plan_partition(
        partition.topic_partition,
        pack_all(spans, "base_offset"),
        partition.boundaries,
        RULES,
        high_watermark=partition.high_watermark,
    )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()
