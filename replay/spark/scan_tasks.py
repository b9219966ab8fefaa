"""The first stage of a distributed replay: packs splits into tasks, scans them, and returns summaries.

A task returns only summaries, one row per producer of a split, and the facts of the split. It also returns a sketch of
the producers that it met, which decides how the next stage is divided, and the plan of each run, once.

Summaries are sent in *blocks* of bytes instead of a row for each producer. A block holds some thousand summary rows of
one piece of a split, as they are in memory, or the facts of a split. Blocks arrive in any order; their places give the
order. Rows are sorted by producer id, so a block is cut into ranges of ids by two searches. The input of a combining
task may exceed its memory. So bodies are written to a temporary file as they arrive, and read back one by one in the
order of their places, which stay in memory.

The *sketch* estimates the number of producers in a run, and divides their ids into ranges of about equal size. It keeps
the ids with the smallest hashes. They do not depend on how often an id occurs, or in which task, so the sketch of a
union is the sketch of the sketches, and its ids are a fair sample of all distinct ones. The denser their hashes, the
more ids there are; the estimate is accurate to a few percent.

Source: Beyer et al., "On Synopses for Distinct-Value Estimation Under Multiset Operations", 2007.
"""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from resnap.replay.kernel.summary import SUMMARY_DTYPE, empty
from resnap.replay.rebuild import begin_part, part_bytes, plan_splits
from resnap.replay.scan.splits import SCAN_TASK_BYTES, TASK_SPLITS, TASKS_PER_SLOT, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import PartitionPlan, SegmentRun
    from resnap.replay.scan.splits import Reading, Split, SplitSummary
    from resnap.storage.crc32c import Buffer

MOST_BYTES: Final = 1 << 20
LEAST_BYTES: Final = 64 << 10
_WAITING_BYTES: Final = 64 << 20
FACTS: Final = 0
ROWS: Final = 1
BELOW_ALL: Final = -1
"""Segment of the block that comes first in its run: the plan."""
IN_MEMORY_BYTES: Final = 16 << 20
"""What is smaller never meets a disk."""
IntArray = npt.NDArray[np.int64]
SAMPLE: Final = 1024
"""Ids kept: 8 KiB, and an error of some 3 %."""
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


class RunBlock(NamedTuple):
    """Bytes of a run; its holder knows which run. All before the body is its place: the order of combining."""

    segment_index: int
    kind: int
    """``FACTS`` of all parts of a segment come before the ``ROWS`` of any."""
    part: int
    piece: int
    number: int
    body: bytes


def block_bytes(partitions: int) -> int:
    """Return the size of blocks that Spark shuffles into so many partitions.

    Its Python workers buffer ten elements for each partition, up to a thousand, before they send any.
    """
    return max(LEAST_BYTES, min(MOST_BYTES, _WAITING_BYTES // min(10 * partitions, 1000)))


def plan_of(stored: Stored) -> tuple[PartitionPlan, SegmentRun]:
    """Return the plan and the run in the first block of a run."""
    plan, run = pickle.loads(stored.read())  # noqa: S301 - written by our own tasks
    return plan, run


def divide(block: RunBlock, starts: Sequence[int]) -> Iterator[tuple[int, RunBlock]]:
    """Yield (range number, block) for the ranges of producer ids that begin at 0 and at ``starts``.

    Facts belong to all of them.
    """
    if block.kind == FACTS:
        yield from ((number, block) for number in range(len(starts) + 1))
        return
    rows = rows_of(block.body)
    edges = [0, *np.searchsorted(rows["producer_id"], starts).tolist(), len(rows)]
    for number, (start, end) in enumerate(pairwise(edges)):
        if start < end:
            yield number, block._replace(body=rows[start:end].tobytes())


def rows_of(body: Buffer) -> Array:
    """Return the summary rows in the body of a block."""
    return np.frombuffer(body, dtype=SUMMARY_DTYPE)


def summaries(stored: Iterable[Stored]) -> Iterator[SplitSummary]:
    """Yield the summaries in the ordered blocks of one run; the rows of each are read when they are requested."""
    for _, of_segment in groupby(stored, key=lambda block: block.place[0]):
        heads: list[SplitSummary] = []
        rows: dict[tuple[int, int], list[Callable[[], bytes]]] = {}
        for block in of_segment:
            _, kind, part, piece, _ = block.place
            if kind == FACTS:
                heads.append(pickle.loads(block.read()))  # noqa: S301 - written by our own tasks
            else:
                rows.setdefault((part, piece), []).append(block.read)
        yield from (replace(head, pieces=_pieces(head, rows)) for head in heads)


def _pieces(head: SplitSummary, rows: dict[tuple[int, int], list[Callable[[], bytes]]]) -> Iterator[Piece]:
    for number, piece in enumerate(head.pieces):
        body = bytearray().join(read() for read in rows.get((head.part, number), ()))
        yield piece._replace(rows=rows_of(body))


class Stored(NamedTuple):
    """A body in a spool."""

    place: tuple[int, ...]
    read: Callable[[], bytes]
    """Gives its body, as often as it is called."""


class Spool(AbstractContextManager["Spool"]):
    """Stores bodies with their places; returns them by ascending place."""

    def __init__(self, *, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._file = SpooledTemporaryFile(in_memory_bytes)  # noqa: SIM115 - closed with the spool
        self._placed: list[tuple[tuple[int, ...], int, int]] = []
        self._end = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, place: tuple[int, ...], body: bytes) -> None:
        """Store ``body`` at ``place``, which must be unique."""
        self._file.seek(self._end)
        self._file.write(body)
        self._placed.append((place, self._end, len(body)))
        self._end += len(body)

    def ordered(self) -> Iterator[Stored]:
        """Yield all bodies by ascending place; nothing may be added after that."""
        self._placed.sort()
        for place, start, length in self._placed:
            yield Stored(place, partial(self._body, start, length))

    def _body(self, start: int, length: int) -> bytes:
        self._file.seek(start)
        return self._file.read(length)


def sketch(producer_ids: IntArray) -> IntArray:
    """Return the distinct ``producer_ids`` with the smallest hashes, by ascending hash."""
    ids = np.unique(producer_ids)
    hashes = _mix(ids)
    order = np.argsort(hashes)[:SAMPLE] if len(ids) <= 2 * SAMPLE else _smallest(hashes)
    found: IntArray = ids[order]
    return found


def join(left: IntArray, right: IntArray) -> IntArray:
    """Return the sketch of the union of two sketched sets."""
    return sketch(np.concatenate((left, right)))


def estimate_ids(sample: IntArray) -> int:
    """Return the approximate number of distinct ids; exact if the sample holds them all."""
    if len(sample) < SAMPLE:
        return len(sample)
    largest = int(_mix(sample[-1:])[0]) + 1
    return (SAMPLE - 1) * (1 << 64) // largest


def range_starts(sample: IntArray, ranges: int) -> tuple[int, ...]:
    """Return the starts of all ranges but the first, which divide all ids into about equal numbers."""
    by_id = np.sort(sample)
    starts = by_id[len(by_id) * np.arange(1, ranges) // ranges]
    return tuple(sorted({*starts.tolist()} - {*by_id[:1].tolist()}))


def _smallest(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    among = np.argpartition(hashes, SAMPLE)[:SAMPLE]
    return among[np.argsort(hashes[among])]


def _mix(ids: IntArray) -> npt.NDArray[np.uint64]:
    """Hash ids one to one, so that neighbours are spread (the last steps of SplitMix64)."""
    mixed = ids.astype(np.uint64)
    with np.errstate(over="ignore"):
        for shift, multiplier in zip(_SHIFTS, (*_MULTIPLIERS, np.uint64(1)), strict=True):
            mixed = (mixed ^ (mixed >> shift)) * multiplier
    return mixed


PlannedRuns: TypeAlias = "Sequence[tuple[PartitionPlan, SegmentRun]]"
"""The runs of a job, each with its plan; elsewhere a run is its index among them."""
ScanTask: TypeAlias = tuple[list[tuple[int, "PartitionPlan", "SegmentRun"]], list[tuple[int, "Split", int]]]
"""The runs whose first split is in a task, as (index of the run in the job, plan, run), and all of its splits, as
(index of the run, split, certain silence in milliseconds)."""


def pack(runs: PlannedRuns, reading: Reading, *, slots: int) -> list[ScanTask]:
    """Pack the splits of all runs into tasks of about equal size in bytes, keeping neighbours together.

    It makes ``TASKS_PER_SLOT`` tasks per slot, or more if these would exceed ``SCAN_TASK_BYTES`` or ``TASK_SPLITS``.
    """
    size_bytes = sum(segment.size_bytes for plan, run in runs for segment in plan.segments[run.start : run.end])
    cut_bytes = part_bytes(reading, size_bytes, slots=slots)
    share = min(size_bytes / (slots * TASKS_PER_SLOT) + 1, SCAN_TASK_BYTES)
    tasks: list[ScanTask] = [([], [])]
    filled, begun = 0, 0
    for index, (plan, run) in enumerate(runs):
        for split in plan_splits(plan, run, cut_bytes):
            if filled >= share or len(tasks[-1][1]) == TASK_SPLITS:
                tasks.append(([], []))
                filled = 0
            # A run without a split goes with the next one.
            tasks[-1][0].extend((number, *runs[number]) for number in range(begun, index + 1))
            begun = index + 1
            tasks[-1][1].append((index, split, plan.rules.written_under.certain_silence_ms))
            filled += split.size_bytes
    return [task for task in tasks if task[1]]


def scan(
    task: ScanTask,
    reading: Reading,
    size: int,
    *,
    met: Callable[[dict[int, IntArray]], None],
    done: Callable[[Split], None],
) -> Iterator[tuple[int, RunBlock]]:
    """Yield (run, block of up to ``size`` bytes) for all of ``task``.

    ``done`` is called for each split, and ``met`` with the producers of a run.
    """
    plans, splits = task
    for index, plan, run in plans:
        yield index, RunBlock(BELOW_ALL, FACTS, 0, 0, 0, pickle.dumps((plan, run)))
    step = max(1, size // SUMMARY_DTYPE.itemsize)
    for index, split, silence_ms in splits:
        scanned = begin_part(split, silence_ms, reading)
        sample, heads = np.zeros(0, dtype=np.int64), list[Piece]()
        for number, piece in enumerate(scanned.pieces()):
            sample = join(sample, sketch(piece.rows["producer_id"]))
            heads.append(piece._replace(rows=empty()))
            for block, start in enumerate(range(0, len(piece.rows), step)):
                body = piece.rows[start : start + step].tobytes()
                yield index, RunBlock(split.segment_index, ROWS, split.part, number, block, body)
        # The facts are known once all is read; they have the pieces without their rows.
        facts = pickle.dumps(scanned.summary(tuple(heads)))
        yield index, RunBlock(split.segment_index, FACTS, split.part, 0, 0, facts)
        met({index: sample})
        done(split)
