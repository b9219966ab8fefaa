"""Whether what a store holds under the name of a topic is of the topic here, where no topic id tells.

Brokers before 2.8 knew no topic ids: a topic that was deleted and made anew has the name, the offsets and the leader
epochs of the old one. Its batches are others. Replicas copy batches byte by byte, and logs that have the same batch at
an offset are the same up to there: so one batch that both must have settles it, where ids do not.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from storage.errors import LogDirError
from storage.log.record_batch import HEADER, LOG_OVERHEAD
from storage.remote.ranged_reader import ranged_reader
from storage.source import GONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage.log.partition_dir import PartitionDir, Segment
    from storage.readers import RangeReader
    from storage.source import Sources
    from tiering.shipping.shipped import ShippedSegment, ShippedTopic

_OFFSET_BYTES: Final = 8
_RANGE_BYTES: Final = 1 << 20
"""Of a stored log that is hopped through, which is rare: enough for many headers."""


def strangers(
    partition: PartitionDir, stored: Iterable[ShippedSegment], shipped: ShippedTopic, sources: Sources
) -> dict[str, str]:
    """Return what of ``stored`` is of another topic of the same name: why, by manifest.

    What no batch can be compared of counts as of this topic: its offsets are not here.

    Raises:
        LogDirError: nothing can be compared since segments here cannot be read.
        StoreError: the store failed.

    """
    found: dict[str, str] = {}
    by_topic = sorted(stored, key=lambda one: shipped.topic_id_of(one) or "")
    for topic_id, group in groupby(by_topic, key=shipped.topic_id_of):
        if topic_id is not None and partition.topic_id is not None:
            continue
        segments = sorted(group, key=attrgetter("base_offset"))
        witness = _difference(partition.segments, segments, shipped, sources)
        if witness is not None:
            found |= dict.fromkeys((one.manifest_key for one in segments), witness)
    return found


def _difference(
    here: Sequence[Segment], stored: Sequence[ShippedSegment], shipped: ShippedTopic, sources: Sources
) -> str | None:
    """Return how the first batch that can be compared differs; None if it does not, or there is none."""
    unread: LogDirError | None = None
    for segment, one in _pairs(here, stored):
        try:
            offset = max(segment.base_offset, one.base_offset)
            with sources.open(segment.path) as reader:
                ours = _batch_at(reader, offset)
            size = HEADER.size if offset == one.base_offset else _RANGE_BYTES
            with ranged_reader(shipped.store, one.log_key, range_bytes=size, ranges_in_flight=1) as reader:
                theirs = _batch_at(reader, offset)
            if ours and theirs:
                there = f"[{one.base_offset}, {one.next_base_offset}) of the store"
                return (
                    None if ours == theirs else f"{there} is of another topic of this name: other batches at {offset}"
                )
        except GONE:
            continue  # whoever needs either of them will say so
        except LogDirError as error:
            unread = unread or error
    if unread is not None:
        raise unread
    return None


def _pairs(here: Sequence[Segment], stored: Sequence[ShippedSegment]) -> Iterator[tuple[Segment, ShippedSegment]]:
    """Yield segments that share offsets: first those that begin together, of which nothing but a header is read."""
    bases = [segment.base_offset for segment in here]
    overlapping = []
    for one in reversed(stored):
        index = bisect_right(bases, one.next_base_offset - 1) - 1
        if index < 0 or (here[index].next_base_offset or one.next_base_offset) <= one.base_offset:
            continue
        at = bisect_right(bases, one.base_offset) - 1
        if at >= 0 and bases[at] == one.base_offset:
            yield here[at], one
        else:
            overlapping.append((here[max(at, 0)], one))
    yield from overlapping


def _batch_at(reader: RangeReader, offset: int) -> bytes:
    """Return the header of the first batch at ``offset`` or above; nothing where the file ends before."""
    position = 0
    while len(header := reader.read(position, HEADER.size)) >= LOG_OVERHEAD:
        if int.from_bytes(header[:_OFFSET_BYTES], "big", signed=True) >= offset:
            return header
        length = int.from_bytes(header[_OFFSET_BYTES:LOG_OVERHEAD], "big", signed=True)
        position += LOG_OVERHEAD + max(length, 0)
    return b""
