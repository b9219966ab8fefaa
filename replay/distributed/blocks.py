"""Blocks: how summaries are sent between tasks, as large blocks of bytes instead of a row for each producer.

A block holds some thousand summary rows of one piece of a split, as they lie in memory, or the facts of a split. Blocks
arrive in any order; their places give the order. Rows are sorted by producer id, so a block is cut into ranges of ids
by two searches.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.kernel.summary import SUMMARY_DTYPE, empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.distributed.spool import Stored
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import PartitionPlan, Run
    from resnap.replay.scan.splits import Piece, Split, SplitSummary
    from resnap.storage.crc32c import Buffer

MOST_BYTES: Final = 1 << 20
LEAST_BYTES: Final = 64 << 10
_WAITING_BYTES: Final = 64 << 20
FACTS: Final = 0
ROWS: Final = 1
BELOW_ALL: Final = -1
"""Segment of the block that comes first in its run: the plan."""


class Place(NamedTuple):
    """The position of a block in its run; the order of places is the order of combining."""

    segment_index: int
    kind: int
    """``FACTS`` of all parts of a segment come before the ``ROWS`` of any."""
    part: int
    piece: int = 0
    number: int = 0


class Block(NamedTuple):
    """Bytes of a run; its holder knows which run."""

    place: Place
    body: bytes


def block_bytes(partitions: int) -> int:
    """Return the size of blocks that Spark shuffles into so many partitions.

    Its Python workers buffer ten elements for each partition, up to a thousand, before they send any.
    """
    return max(LEAST_BYTES, min(MOST_BYTES, _WAITING_BYTES // min(10 * partitions, 1000)))


def plan_block(plan: PartitionPlan, run: Run) -> Block:
    """Return the block with which a task combines the summaries of ``run``, one of those of ``plan``."""
    return Block(Place(BELOW_ALL, FACTS, 0), pickle.dumps((plan, run)))


def plan_of(stored: Stored) -> tuple[PartitionPlan, Run]:
    """Return the plan and the run that ``plan_block`` encoded."""
    plan, run = pickle.loads(stored.read())  # noqa: S301 - written by our own tasks
    return plan, run


def row_blocks(split: Split, pieces: Iterable[Piece], heads: list[Piece], size: int) -> Iterator[Block]:
    """Yield the rows of ``pieces`` of ``split``, in blocks of up to ``size`` bytes; add the rest to ``heads``."""
    for number, piece in enumerate(pieces):
        heads.append(piece._replace(rows=empty()))
        yield from _row_blocks(Place(split.segment_index, ROWS, split.part, number), piece.rows, size)


def facts_block(summary: SplitSummary) -> Block:
    """Return all of ``summary`` without rows, which its pieces must not have."""
    return Block(Place(summary.segment_index, FACTS, summary.part), pickle.dumps(summary))


def _row_blocks(place: Place, rows: Array, size: int) -> Iterator[Block]:
    step = max(1, size // SUMMARY_DTYPE.itemsize)
    for number, start in enumerate(range(0, len(rows), step)):
        yield Block(place._replace(number=number), rows[start : start + step].tobytes())


def parted(block: Block, starts: Sequence[int]) -> Iterator[tuple[int, Block]]:
    """Yield (range number, block) for the ranges of producer ids that begin at 0 and at ``starts``.

    Facts belong to all of them.
    """
    if block.place.kind == FACTS:
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
            place = Place(*block.place)
            if place.kind == FACTS:
                heads.append(pickle.loads(block.read()))  # noqa: S301 - written by our own tasks
            else:
                rows.setdefault((place.part, place.piece), []).append(block.read)
        yield from (replace(head, pieces=_pieces(head, rows)) for head in heads)


def _pieces(head: SplitSummary, rows: dict[tuple[int, int], list[Callable[[], bytes]]]) -> Iterator[Piece]:
    for number, piece in enumerate(head.pieces):
        body = bytearray().join(read() for read in rows.get((head.part, number), ()))
        yield piece._replace(rows=rows_of(body))
