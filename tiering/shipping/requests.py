"""The requests that shipping needs of a store, and what they cost at Amazon S3's prices.

They are those of a store that keeps checks and conditions, as Amazon S3 does over HTTPS, and of topics with an id.
Segments that are on their way at once share a listing; each is counted.
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


def requests_of(left: Iterable[Sequence[Segment]], uploading: Uploading) -> Requests:
    """Return what shipping the segments that are left of each partition needs, once that is known."""
    needs = uploading.layout.needs
    whole_bytes = WHOLE_BYTES if needs.is_log_known else PART_BYTES
    partitions = [segments for segments in left if segments]
    number = sum(map(len, partitions))
    objects, in_parts = needs.objects * number, 0
    for segment in (segment for segments in partitions for segment in segments):
        objects += needs.has_transaction_index and bool(segment.txnindex_bytes)
        in_parts += requests_for(segment.size_bytes, whole_bytes) - 1
    read_back = objects if uploading.verification == "read-back" else 0
    return Requests(
        puts=objects + in_parts + number + len(partitions),
        lists=needs.lists * number + needs.partition_lists * len(partitions),
        gets=read_back + number + 2 * len(partitions),
    )
