"""The later stages of a distributed replay: combine runs, whole or in ranges of producer ids, and join the ranges.

If one task can hold a run's producers, it combines the run and writes the snapshots, as the local engine does. For a
larger run each task combines a range of producers, and returns the result and the entries of each boundary; another
task receives all ranges of a boundary, and writes the snapshot from them, one block of entries at a time.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.evidence import BoundaryEvidence
from resnap.replay.rebuild import by_segment, whole
from resnap.replay.results import IdRange, Outcome, join_boundaries, of_range, within
from resnap.replay.run_combine import RunCombine
from resnap.replay.spark.scan_tasks import Spool, Stored, plan_of, summaries
from resnap.storage.errors import ResnapError
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import PartitionPlan, Run
    from resnap.replay.results import BoundaryResult, PartitionResult, PartSink
    from resnap.replay.scan.reading import Reading
    from resnap.replay.scan.splits import SplitSummary
    from resnap.replay.spark.scan_tasks import Block
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.files import Sources

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Combining:
    """Combines what tasks are given."""

    tasks: Sequence[CombineTask]
    sink: PartSink
    reading: Reading
    size: int
    """Most bytes of entries in one block."""

    def combine(self, blocks: Iterable[tuple[int, Block]]) -> Iterator[Made]:
        """Combine (task number, block) pairs, which come in any order, task by task."""
        try:
            with Spool() as spool:
                for task, block in blocks:
                    spool.add((task, *block.place), block.body)
                for number, stored in groupby(spool.ordered(), key=lambda block: block.place[0]):
                    of_task = (block._replace(place=block.place[1:]) for block in stored)
                    yield from self._combine_task(self.tasks[number], of_task)
        except ResnapError as error:
            # A full disk is reported as such, and not as a failed job with a JVM stack trace.
            yield Made(FAILED, RUN, RESULT, 0, 0, pickle.dumps(error))

    def _combine_task(self, task: CombineTask, stored: Iterator[Stored]) -> Iterator[Made]:
        plan, run = plan_of(next(stored))
        if task.ids is not None:
            yield from self._combine_range(task, RangeCombine.of(plan, run, task.ids, self.reading.sources), stored)
            return
        combine = RunCombine(plan, run, self.sink, sources=self.reading.sources)
        for parts in by_segment(summaries(stored)):
            combine.add(whole(parts, plan, self.reading))
        result = combine.finish()
        yield _pickled_result(task, RUN, replace(result, boundaries=tuple(map(_bare, result.boundaries))))

    def _combine_range(self, task: CombineTask, ranged: RangeCombine, stored: Iterator[Stored]) -> Iterator[Made]:
        for parts in by_segment(summaries(stored)):
            ranged.add(whole(parts, ranged.combine.plan, self.reading))
            yield from ranged.entries(task, self.size)
        result = ranged.combine.finish()
        yield from ranged.entries(task, self.size)
        for found in result.boundaries:
            yield _pickled_result(task, ranged.number_of[found.offset], _bare(found))
        yield _pickled_result(task, RUN, replace(result, boundaries=()))


def _pickled_result(task: CombineTask, boundary: int, found: PartitionResult | BoundaryResult) -> Made:
    return Made(task.run, boundary, RESULT, task.range, 0, pickle.dumps(found))


def _bare(found: BoundaryResult) -> BoundaryResult:
    """Return ``found`` without the evidence at its boundary, which the driver already has."""
    return replace(found, boundary=replace(found.boundary, evidence=BoundaryEvidence()))


@dataclass(slots=True)
class RangeCombine:
    """Combines one range of a run, and collects its entries for the process that joins the ranges."""

    ids: IdRange
    number_of: dict[int, int]
    """Numbers of the run's boundaries, by offset."""
    combine: RunCombine = field(init=False)
    _kept: list[tuple[int, Array]] = field(default_factory=list)

    @staticmethod
    def of(plan: PartitionPlan, run: Run, ids: IdRange, sources: Sources) -> RangeCombine:
        """Begin the range ``ids`` of ``run``."""
        numbers = {boundary.offset: number for number, boundary in enumerate(run.boundaries)}
        ranged = RangeCombine(ids, numbers)
        ranged.combine = RunCombine(*within(plan, run, ids), ranged, ids, sources)
        return ranged

    def add(self, summary: SplitSummary) -> None:
        """Add the next summary, restricted to this range."""
        self.combine.add(of_range(summary, self.ids))

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> None:  # noqa: ARG002
        """Store the entries of this range at the boundary ``offset``."""
        self._kept.append((offset, entries))

    def entries(self, task: CombineTask, size: int) -> Iterator[Made]:
        """Yield the stored entries, in blocks of up to ``size`` bytes."""
        step = max(1, size // ENTRY_DTYPE.itemsize)
        for offset, entries in self._kept:
            for number, start in enumerate(range(0, len(entries), step)):
                body = entries[start : start + step].tobytes()
                yield Made(task.run, self.number_of[offset], ENTRIES, task.range, number, body)
        self._kept.clear()


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
    if joined.outcome is not Outcome.REBUILT:
        return joined
    parts = (np.frombuffer(block.read(), dtype=ENTRY_DTYPE) for block in stored if block.place[2] == ENTRIES)
    digest = sink.write_parts(topic_partition, joined.offset, parts, joined.entries)
    return replace(joined, digest=digest)
