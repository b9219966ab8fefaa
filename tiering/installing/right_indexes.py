"""Rebuilds transaction indexes of local segments that a replica wrote while it lacked producer state.

If a transaction begins below the log dir and is aborted in it, such a replica writes no entry, or one with too high a
first offset; consumers then get the aborted records. The replay's snapshot at the base offset of a segment shows which
transactions were open there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.log.indexes import write_transaction_index
from resnap.tiering.shipping.aborted_transactions import OpenTransactions, open_in
from resnap.tiering.shipping.segment_indexes import index_there
from resnap.tiering.shipping.segment_pass import transactions_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources


class RightIndex(NamedTuple):
    """A correct transaction index for a segment that has a wrong one, or none."""

    segment: Segment
    body: bytes
    """Of no bytes where nothing was aborted."""
    not_there: tuple[AbortedTxn, ...]
    """Its entries that are not there: consumers of this replica were served the records of these."""


def right_indexes(partition: PartitionDir, snapshots: Mapping[int, bytes], sources: Sources) -> Iterator[RightIndex]:
    """Yield the correct indexes for the wrong ones, of closed segments of the log dir.

    Only segments are judged with a snapshot without missing producers at their base offset, in ``snapshots`` by offset.

    Raises:
        FormatError: a segment is damaged.
        LogDirError, StoreError: a file cannot be read.

    """
    for segment in partition.segments:
        snapshot = snapshots.get(segment.base_offset)
        if segment.is_active or snapshot is None or not partition.is_local(segment.base_offset):
            continue
        before = OpenTransactions(open_in(snapshot), known_from=0)
        found, there = transactions_of(segment, sources), index_there(segment, sources)
        if there is None or found.judge(there, before).problems:
            right = found.entries(before)
            not_there = tuple(one for one in right if one not in (there or ()))
            yield RightIndex(segment, write_transaction_index(right), not_there)
