"""Compares the transaction indexes of a stored log with its batches, from the first segment on.

The transactions open at a segment's base offset are those that the segments below have left open, so everything is
known if the log begins at offset 0. Otherwise transactions may reach in from below: then everything is known where the
replay has rebuilt the complete state at the segment's base offset, and elsewhere only what the log itself shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError, StoreAccessError
from resnap.storage.log.indexes import write_transaction_index
from resnap.tiering.shipping.aborted_transactions import OpenTransactions
from resnap.tiering.shipping.segment_indexes import index_there
from resnap.tiering.shipping.segment_pass import transactions_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions


class ReadSegment(NamedTuple):
    """A stored segment, with the transactions of its batches and of its index."""

    segment: Segment
    found: SegmentTransactions | None
    """None where the segment cannot be read."""
    there: tuple[AbortedTxn, ...] | None
    """What the index names, which there need not be; None where it is damaged."""


class JudgedIndex(NamedTuple):
    """The judgement of one segment's transaction index."""

    segment: Segment
    there: tuple[AbortedTxn, ...] | None
    problems: tuple[str, ...]
    """Sentences without a subject; none where nothing contradicts it."""
    right: tuple[AbortedTxn, ...] | None
    """What it must name; None if its segment cannot be read."""
    is_all_known: bool
    """Whether that is all; else what began below the log stays as the index has it."""

    @property
    def body(self) -> bytes | None:
        """The replacement; None if the index stays."""
        if self.right is None or not self.problems:
            return None
        return write_transaction_index(list(self.right))

    @property
    def lacking(self) -> int:
        """Number of aborted transactions that it lacks or records wrongly."""
        return len(set(self.right or ()).difference(self.there or ()))

    @property
    def known(self) -> tuple[AbortedTxn, ...] | None:
        """The aborted transactions of the segment, as far as known; None if nothing is known."""
        if not self.problems:
            return self.there
        return self.right if self.is_all_known else None


def read_segment(segment: Segment, sources: Sources) -> ReadSegment:
    """Return the transactions in the headers of all batches of ``segment``, and its index.

    Raises:
        StoreError: the store failed.

    """
    try:
        found = transactions_of(segment, sources)
    except (FormatError, LogDirError, ObjectNotFoundError, StoreAccessError):
        found = None  # the replay says what is wrong with it
    return ReadSegment(segment, found, index_there(segment, sources) if segment.txnindex_bytes else ())


def judge_indexes(read: Sequence[ReadSegment], known_open: Mapping[int, Mapping[int, int]]) -> Iterator[JudgedIndex]:
    """Yield the judgement of the indexes of the segments ``read``, of one log and in order.

    ``known_open`` has the open transactions, producers and first offsets, by offset, where all are known.
    """
    before = OpenTransactions({}, known_from=read[0].segment.base_offset) if read else OpenTransactions({}, 0)
    for segment in read:
        base_offset, end = segment.segment.base_offset, segment.segment.next_base_offset or segment.segment.base_offset
        if before.known_from and base_offset in known_open:
            before = OpenTransactions(known_open[base_offset], known_from=0)
        if segment.found is None:
            yield JudgedIndex(segment.segment, segment.there, (), None, is_all_known=False)
            before = OpenTransactions({}, known_from=end)
            continue
        if segment.there is None:
            problems: tuple[str, ...] = ("is damaged",)
        else:
            problems = segment.found.judge(segment.there, before).problems
        is_known = not before.known_from or not any(marker.is_abort for marker in segment.found.markers)
        right = segment.found.entries(before) if is_known else segment.found.corrected(segment.there or (), before)
        yield JudgedIndex(segment.segment, segment.there, problems, tuple(right), is_all_known=is_known)
        before = segment.found.after(before)
