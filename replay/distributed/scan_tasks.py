"""The first stage of a distributed replay: packs splits into tasks, scans them, and returns summaries.

A task returns only summaries, one row per producer of a split, and the facts of the split. It also returns a sketch of
the producers that it met, which decides how the next stage is divided, and the plan of each run, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resnap.replay.distributed.blocks import facts_block, join, plan_block, row_blocks, sketch
from resnap.replay.parts import begin_part, empty_part, part_bytes, plan_splits
from resnap.replay.scan.splits import SCAN_TASK_BYTES, TASK_SPLITS, TASKS_PER_SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.distributed.blocks import Block, IntArray
    from resnap.replay.plan import PartitionPlan, Run
    from resnap.replay.scan.reading import Reading
    from resnap.replay.scan.splits import Piece, Split


class Scheduled(NamedTuple):
    """A split and its task."""

    run: int
    """Index of its run in the job."""
    split: Split
    certain_silence_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTask:
    """The splits of one task."""

    splits: tuple[Scheduled, ...]
    plans: tuple[tuple[int, PartitionPlan, Run], ...]
    """The runs whose first split is here: (index, plan, run)."""


def pack(runs: Sequence[tuple[PartitionPlan, Run]], reading: Reading, *, slots: int) -> list[ScanTask]:
    """Pack the splits of all runs into tasks of about equal size in bytes, keeping neighbours together.

    It makes ``TASKS_PER_SLOT`` tasks per slot, or more if these would exceed ``SCAN_TASK_BYTES`` or ``TASK_SPLITS``.
    """
    size_bytes = sum(segment.size_bytes for plan, run in runs for segment in plan.segments[run.start : run.end])
    cut_bytes = part_bytes(reading, size_bytes, slots=slots)
    share = min(size_bytes / (slots * TASKS_PER_SLOT) + 1, SCAN_TASK_BYTES)
    tasks: list[list[Scheduled]] = [[]]
    filled = 0
    for index, (plan, run) in enumerate(runs):
        for split in plan_splits(plan, run, cut_bytes):
            if filled >= share or len(tasks[-1]) == TASK_SPLITS:
                tasks.append([])
                filled = 0
            tasks[-1].append(Scheduled(index, split, plan.rules.written_under.certain_silence_ms))
            filled += split.size_bytes
    return list(_with_plans(tasks, runs))


def _with_plans(tasks: Iterable[Sequence[Scheduled]], runs: Sequence[tuple[PartitionPlan, Run]]) -> Iterator[ScanTask]:
    sent = -1
    for splits in tasks:
        if splits:
            fresh = range(sent + 1, splits[-1].run + 1)
            sent = splits[-1].run
            yield ScanTask(splits=tuple(splits), plans=tuple((index, *runs[index]) for index in fresh))


def scan(
    task: ScanTask,
    reading: Reading,
    size: int,
    *,
    met: Callable[[dict[int, IntArray]], None],
    done: Callable[[Split], None],
) -> Iterator[tuple[int, Block]]:
    """Yield (run, block of up to ``size`` bytes) for all of ``task``.

    ``done`` is called for each split, and ``met`` with the producers of a run.
    """
    for run, plan, stretch in task.plans:
        yield run, plan_block(plan, stretch)
    for run, split, silence_ms in task.splits:
        samples: list[IntArray] = [np.zeros(0, dtype=np.int64)]
        yield from ((run, block) for block in _split_blocks(split, silence_ms, reading, size, samples))
        met({run: reduce(join, samples)})
        done(split)


def _split_blocks(
    split: Split, silence_ms: int, reading: Reading, size: int, samples: list[IntArray]
) -> Iterator[Block]:
    """Yield the blocks of one split, a piece at a time, and at the end its facts."""
    scan = begin_part(split, silence_ms, reading)
    if scan is None:
        yield facts_block(empty_part(split))
        return
    heads: list[Piece] = []
    yield from row_blocks(split, _noted(scan.pieces(), samples), heads, size)
    yield facts_block(scan.summary(tuple(heads)))


def _noted(pieces: Iterable[Piece], samples: list[IntArray]) -> Iterator[Piece]:
    for piece in pieces:
        samples.append(sketch(piece.rows["producer_id"]))
        yield piece
