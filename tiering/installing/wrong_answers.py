"""What a replica without its producer state did wrong as leader, from its log and its indexes.

It did not know the producers and open transactions from below: so it serves records of such a transaction that was
aborted later, appends duplicate batches, and accepts batches of fenced producer instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.explain import batches_of
from resnap.tiering.shipping.aborted_transactions import OpenTransactions
from resnap.tiering.shipping.segment_indexes import index_there
from resnap.tiering.shipping.segment_pass import transactions_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from resnap.replay.explain import Batch
    from resnap.replay.window import SegmentSpan
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.sources.files import Sources

_SEQUENCES: Final = 1 << 31
"""Sequence numbers wrap around to 0."""


class WronglyAppended(NamedTuple):
    """A batch or marker that a leader with complete state would not have appended."""

    producer_id: int
    batch: Batch
    before: Batch
    """The last one of its producer before it."""

    @property
    def is_fenced(self) -> bool:
        """Whether a later instance had fenced it; else its sequence numbers are duplicates."""
        return self.batch.producer_epoch < self.before.producer_epoch


def aborted_and_served(partition: PartitionDir, sources: Sources) -> Iterator[AbortedTxn]:
    """Yield the aborted transactions that a transaction index lacks or records wrongly: their records are served.

    It reads every segment of the log, remote ones too. Transactions that began below the log are not reported.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: one cannot be read.

    """
    before = OpenTransactions({}, known_from=partition.segments[0].base_offset)
    for segment in partition.segments:
        found = transactions_of(segment, sources)
        index = index_there(segment, sources)
        there = {(one.producer_id, one.last_offset): one.first_offset for one in index or ()}
        for one in found.entries(before) if index is not None else ():  # of a damaged one nothing is served
            first = there.get((one.producer_id, one.last_offset))
            if first is None or first > one.first_offset:
                yield one
        before = found.after(before)


def wrongly_appended(
    segments: Iterable[SegmentSpan], producers: Collection[int], begin: int, sources: Sources
) -> Iterator[WronglyAppended]:
    """Yield batches of ``producers`` from the offset ``begin`` on that contradict the log below it.

    A producer that starts again at sequence 0, long after the broker had forgotten it, looks the same.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: one cannot be read.

    """
    last: dict[int, Batch] = {}
    for segment in segments:
        for producer_id, batch in batches_of(segment, producers, sources):
            before = last.get(producer_id)
            if before is not None and batch.base_offset >= begin:
                found = WronglyAppended(producer_id, batch, before)
                if found.is_fenced or _is_repeated(batch, before):
                    yield found
                    continue
            if not batch.is_marker or before is None or batch.producer_epoch > before.producer_epoch:
                last[producer_id] = batch


def _is_repeated(batch: Batch, before: Batch) -> bool:
    """Whether ``batch`` has sequence numbers of ``before``, or lower ones."""
    if batch.is_marker or before.is_marker or batch.producer_epoch != before.producer_epoch:
        return False
    return (before.last_sequence - batch.base_sequence) % _SEQUENCES < _SEQUENCES // 2
