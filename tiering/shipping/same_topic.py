"""Checks that stored segments without a topic id belong to this topic, not to a deleted one of the same name.

Brokers before 2.8 had no topic ids: a topic that was deleted and created again has the name, the offsets and the leader
epochs of the old one. Only its batches differ: one batch that both must have decides, if ids do not.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from resnap.storage.layouts.lineage import Piece, shared_batch, stored_piece

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from resnap.storage.layouts.segments import ShippedSegment
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.shipped import ShippedTopic


def of_other_topics(
    partition: PartitionDir, stored: Iterable[ShippedSegment], shipped: ShippedTopic, sources: Sources
) -> dict[str, str]:
    """Return the segments of ``stored`` that belong to another topic of the same name: the reason, by manifest.

    If no batch can be compared, a segment counts as this topic's: its offsets are not in the local log.

    Raises:
        LogDirError: nothing can be compared because local segments cannot be read.
        StoreError: the store failed.

    """
    found: dict[str, str] = {}
    by_topic = sorted(stored, key=lambda one: shipped.topic_id_of(one) or "")
    for topic_id, group in groupby(by_topic, key=shipped.topic_id_of):
        if topic_id is not None and partition.topic_id is not None:
            continue
        segments = sorted(group, key=attrgetter("base_offset"))
        there = [stored_piece(shipped.store, one.log_key, one.base_offset, one.next_base_offset) for one in segments]
        shared = shared_batch(_pieces(partition, sources), there)
        if shared is not None and not shared.is_same:
            span = f"[{shared.there.base_offset}, {shared.there.next_base_offset}) of the store"
            witness = f"{span} is of another topic of this name: other batches at {shared.offset}"
            found |= dict.fromkeys((segment.manifest_key for segment in segments), witness)
    return found


def _pieces(partition: PartitionDir, sources: Sources) -> list[Piece]:
    def opened(path: str, _: int) -> AbstractContextManager[RangeReader]:
        return sources.open(path)

    return [Piece(one.base_offset, one.next_base_offset, partial(opened, one.path)) for one in partition.segments]
