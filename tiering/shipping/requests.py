"""The requests that shipping needs of a store, and what they cost at Amazon S3's prices.

They are those of a store that keeps checks and conditions, as Amazon S3 does over HTTPS, and of topics with an id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.stores.s3_upload import PART_BYTES, WHOLE_BYTES, requests_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.storage.log.partition_dir import Segment
    from resnap.tiering.shipping.segment_copy import Uploading

PUT_USD: Final = 5e-6
"""Of S3 Standard; also for a LIST, and for each request of an upload in parts."""
GET_USD: Final = 0.4e-6


class Requests(NamedTuple):
    """How many requests of each kind; a HEAD is sent by the probe of a run alone."""

    puts: int
    lists: int
    gets: int

    @property
    def usd(self) -> float:
        """What they cost."""
        return (self.puts + self.lists) * PUT_USD + self.gets * GET_USD


class _Needs(NamedTuple):
    objects: int
    """Of a segment, without its manifest, and without a transaction index of its own."""
    lists: int
    """For a segment."""
    partition_lists: int
    """For a partition: what it holds, twice in each of its folders, and its lease."""
    whole_bytes: int
    """The longest log that is sent in one request."""


_FILES: Final = _Needs(objects=5, lists=1, partition_lists=7, whole_bytes=WHOLE_BYTES)
_CHUNKS: Final = _Needs(objects=3, lists=4, partition_lists=5, whole_bytes=PART_BYTES)


def requests_of(left: Iterable[Sequence[Segment]], uploading: Uploading) -> Requests:
    """Return what shipping the segments that are left of each partition needs, once that is known."""
    needs = _CHUNKS if uploading.layout.name == "aiven" else _FILES
    partitions = [segments for segments in left if segments]
    number = sum(map(len, partitions))
    objects, in_parts = needs.objects * number, 0
    for segment in (segment for segments in partitions for segment in segments):
        objects += bool(segment.txnindex_bytes) and needs is _FILES
        in_parts += requests_for(segment.size_bytes, needs.whole_bytes) - 1
    read_back = objects if uploading.verification == "read-back" else 0
    return Requests(
        puts=objects + in_parts + number + len(partitions),
        lists=needs.lists * number + needs.partition_lists * len(partitions),
        gets=read_back + number + 2 * len(partitions),
    )
