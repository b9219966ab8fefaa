"""The replay on Spark: one job over all partitions of a run.

Tasks of the first stage scan splits; what leaves them is one row per (split, producer), and one more per split for the
facts of its segment. The shuffle brings the rows of a run of a partition together, in order; the second stage combines
them with ``rebuild.RunCombine`` and writes the snapshots where the sink's URL says. The driver sees counts and digests,
never a batch, a summary or a snapshot. Nothing is grouped by producer: that would cost Spark a call per group.

Both stages run the same functions as ``rebuild.rebuild_locally``, which is the oracle.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from replay.partial_state import SUMMARY_DTYPE
from replay.rebuild import RunCombine, RunResult, join_rounds, make_idle, next_round, partition_result
from replay.spark_progress import progress_of, report_progress
from replay.spark_reach import check_reach
from replay.spark_settings import is_local_master
from replay.spark_worker import freeze_worker
from replay.splits import Split, SplitSummary, plan_splits, scan_split
from replay.staging import open_sink
from storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from replay.header_scan import Array
    from replay.plan import PartitionPlan, Run
    from replay.rebuild import PartitionResult, SnapshotSink
    from storage.remote.s3_settings import S3Settings

TASKS_PER_SLOT: Final = 3
"""Enough to even out splits of different sizes; each task costs Spark some 10 ms."""
FACTS: Final = -1
"""Producer id of the row that carries a split's facts: sorts before all producers."""

FAILED: Final = -1
"""Index of the run in the row that carries an error of ours: the sink failed."""

_KEYS: Final = (("run", pa.int32()), ("split", pa.int32()), ("piece", pa.int32()))
_COLUMNS: Final = tuple((name, pa.int64()) for name in SUMMARY_DTYPE.names or ())
ROW_SCHEMA: Final = pa.schema([*_KEYS, *_COLUMNS, ("facts", pa.binary())])
"""Columns travel by position, so this is the only place that orders them."""
RESULT_SCHEMA: Final = pa.schema([("run", pa.int32()), ("result", pa.binary())])

_SPARK_TYPES: Final = {pa.int32(): IntegerType(), pa.int64(): LongType(), pa.binary(): BinaryType()}


@dataclass(frozen=True, slots=True)
class _Task:
    """Splits scanned by one task: (index of the run, position of the split in it, the split, silence in ms)."""

    splits: tuple[tuple[int, int, Split, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRebuild:
    """Replays plans on a Spark session, and writes to the sink at ``sink_url``."""

    session: SparkSession
    sink_url: str
    s3: S3Settings | None = None
    progress: Callable[[int, int], None] | None = field(default=None)
    """Called with (segments, bytes covered) done since the last call."""

    def run(self, plans: Iterable[PartitionPlan]) -> Iterator[PartitionResult]:
        """Yield the result of each plan; those that must read further back go into a further round together.

        Raises:
            UsageError: the executors do not see the sources or the destination.
            ResnapError: the Spark job failed.

        """
        waiting = list(plans)
        before: list[PartitionResult | None] = [None] * len(waiting)
        if not is_local_master(self.session.sparkContext.master):
            check_reach(self.session.sparkContext, waiting, self.sink_url)
        while waiting:
            further: list[tuple[PartitionPlan, PartitionResult]] = []
            for plan, earlier, later in zip(waiting, before, self._round(waiting), strict=True):
                result = join_rounds(earlier, later)
                longer = next_round(plan, result)
                if longer is None:
                    yield result
                else:
                    further.append((longer, result))
            waiting, before = [plan for plan, _ in further], [result for _, result in further]

    def _round(self, plans: Sequence[PartitionPlan]) -> list[PartitionResult]:
        runs = [(plan, run) for plan in plans for run in plan.runs]
        results = iter(self._combine(runs) if runs else [])
        sink = open_sink(self.sink_url, self.s3)
        return [partition_result(plan, [next(results) for _ in plan.runs], make_idle(plan, sink)) for plan in plans]

    def _combine(self, runs: Sequence[tuple[PartitionPlan, Run]]) -> list[RunResult]:
        context = self.session.sparkContext
        tasks = _tasks(runs, slots=context.defaultParallelism)
        done = context.accumulator(0)
        rows = _scanned(self.session, tasks, done)
        combined = _combined(rows, runs, min(len(runs), context.defaultParallelism), self.sink_url, self.s3)
        try:
            with report_progress(done, self.progress):
                found = combined.collect()
        except PySparkException as error:
            raise ResnapError(f"the Spark job failed: {error}", hint="see what the executors logged") from error
        by_run = {row["run"]: pickle.loads(row["result"]) for row in found}  # noqa: S301 - written by our own tasks
        if FAILED in by_run:
            raise by_run[FAILED]
        return [by_run[index] for index in range(len(runs))]


def _tasks(runs: Sequence[tuple[PartitionPlan, Run]], *, slots: int) -> list[_Task]:
    """Pack the splits of all runs into tasks of about the same number of bytes, keeping neighbours together."""
    splits = [
        (index, position, split, plan.rules.written_under.certain_silence_ms)
        for index, (plan, run) in enumerate(runs)
        for position, split in enumerate(plan_splits(plan, run))
    ]
    share = sum(split.size_bytes for _, _, split, _ in splits) / (slots * TASKS_PER_SLOT) + 1
    tasks: list[list[tuple[int, int, Split, int]]] = [[]]
    filled = 0
    for entry in splits:
        if filled >= share:
            tasks.append([])
            filled = 0
        tasks[-1].append(entry)
        filled += entry[2].size_bytes
    return [_Task(tuple(task)) for task in tasks if task]


def _scanned(session: SparkSession, tasks: Sequence[_Task], done: Accumulator[int]) -> DataFrame:
    pickled = [pickle.dumps(task) for task in tasks]

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        for batch in batches:
            for index in batch.column(0).to_pylist():
                task: _Task = pickle.loads(pickled[index])  # noqa: S301 - our own
                for run, position, split, silence_ms in task.splits:
                    yield from _rows(run, position, scan_split(split, silence_ms))
                    done.add(progress_of(split.size_bytes, ends_segment=split.ends_segment))

    return session.range(0, len(tasks), 1, len(tasks)).mapInArrow(scan, _spark_schema(ROW_SCHEMA))


def _combined(
    rows: DataFrame, runs: Sequence[tuple[PartitionPlan, Run]], partitions: int, sink_url: str, s3: S3Settings | None
) -> DataFrame:
    pickled = [pickle.dumps(run) for run in runs]

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        try:
            sink = open_sink(sink_url, s3)
            for index, result in _run_results(batches, pickled, sink):
                yield _result_row(index, result)
        except ResnapError as error:
            # A full disk is told as what it is, and not as a failed job with a stack trace of the JVM's.
            yield _result_row(FAILED, error)

    ordered = rows.repartition(partitions, "run").sortWithinPartitions("run", "split", "piece", "producer_id")
    return ordered.mapInArrow(combine, _spark_schema(RESULT_SCHEMA))


def _result_row(index: int, result: RunResult | ResnapError) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"run": [index], "result": [pickle.dumps(result)]}, schema=RESULT_SCHEMA)


def _run_results(
    batches: Iterator[pa.RecordBatch], pickled_runs: Sequence[bytes], sink: SnapshotSink
) -> Iterator[tuple[int, RunResult]]:
    """Combine ordered rows, holding those of one split at a time."""
    current: tuple[int, RunCombine] | None = None
    for run, split in _splits(batches):
        if current is not None and current[0] != run:
            yield current[0], current[1].finish()
            current = None
        if current is None:
            plan, stretch = pickle.loads(pickled_runs[run])  # noqa: S301 - our own
            current = run, RunCombine(plan, stretch, sink)
        current[1].add(split)
    if current is not None:
        yield current[0], current[1].finish()


def _rows(run: int, position: int, summary: SplitSummary) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split: its facts first, then one per producer."""
    facts = pickle.dumps(SplitSummary(
        segment_index=summary.segment_index, part=summary.part, facts=summary.facts, ends_segment=summary.ends_segment,
        error=summary.error, pieces=tuple(piece._replace(rows=piece.rows[:0]) for piece in summary.pieces),
    ))  # fmt: skip
    alone = np.zeros(1, dtype=SUMMARY_DTYPE)
    alone["producer_id"] = FACTS
    yield _record_batch(run, position, 0, alone, facts)
    for number, piece in enumerate(summary.pieces):
        if len(piece.rows):
            yield _record_batch(run, position, number, piece.rows, None)


def _record_batch(run: int, position: int, piece: int, rows: Array, facts: bytes | None) -> pa.RecordBatch:
    keys = [pa.array(np.full(len(rows), key, dtype=np.int32)) for key in (run, position, piece)]
    columns = [pa.array(rows[name].astype(np.int64)) for name in SUMMARY_DTYPE.names or ()]
    last = pa.array([facts] * len(rows), type=pa.binary())
    return pa.RecordBatch.from_arrays([*keys, *columns, last], schema=ROW_SCHEMA)


def _splits(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, SplitSummary]]:
    """Put the summaries of splits together again from ordered rows."""
    run, waiting = FACTS, _Waiting()
    for batch in batches:
        for part in _by_split(batch):
            facts = part.column("facts")[0].as_py()
            if facts is not None:
                if waiting.head is not None:
                    yield run, waiting.summary()
                run, waiting = part.column("run")[0].as_py(), _Waiting(head=pickle.loads(facts))  # noqa: S301 - our own
                part = part.slice(1)  # noqa: PLW2901
            waiting.rows.append(part)
    if waiting.head is not None:
        yield run, waiting.summary()


def _by_split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide ordered rows before every row of facts, which begins a split."""
    starts = np.flatnonzero(batch.column("producer_id").to_numpy() == FACTS)
    edges = np.unique(np.concatenate(([0], starts, [batch.num_rows])))
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield batch.slice(start, end - start)


@dataclass(slots=True)
class _Waiting:
    """A split whose rows are still coming."""

    head: SplitSummary | None = None
    rows: list[pa.RecordBatch] = field(default_factory=list)

    def summary(self) -> SplitSummary:
        if self.head is None:
            raise AssertionError("rows of producers came before the facts of their split")
        table = pa.Table.from_batches(self.rows, schema=ROW_SCHEMA)
        piece_of = table.column("piece").to_numpy()
        summaries = np.zeros(table.num_rows, dtype=SUMMARY_DTYPE)
        for name in SUMMARY_DTYPE.names or ():
            summaries[name] = table.column(name).to_numpy()
        return SplitSummary(
            segment_index=self.head.segment_index,
            part=self.head.part,
            facts=self.head.facts,
            pieces=tuple(
                piece._replace(rows=summaries[piece_of == number]) for number, piece in enumerate(self.head.pieces)
            ),
            ends_segment=self.head.ends_segment,
            error=self.head.error,
        )


def _spark_schema(schema: pa.Schema) -> StructType:
    return StructType([StructField(name, _SPARK_TYPES[schema.field(name).type]) for name in schema.names])
