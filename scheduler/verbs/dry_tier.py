"""Shows what a run of ``tier`` would ship, at most, and the requests that it needs, at Amazon S3's prices.

The requests are those of a store that keeps checks and conditions, as Amazon S3 does over HTTPS, and of topics with an
id. Segments that are on their way at once share a listing; each is counted.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.scheduler.job.contract import Reported
from resnap.scheduler.job.reports import MOST_ROWS
from resnap.scheduler.verbs.planned import AND_DO_IT, DryRunView
from resnap.storage.stores.s3_upload import PART_BYTES, WHOLE_BYTES, requests_for
from resnap.storage.words import agreeing, human_bytes, human_count, some
from resnap.tiering.tier import LeftToShip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.partition_dir import Segment
    from resnap.tiering.planner import TierOrder
    from resnap.tiering.selection import Scope
    from resnap.tiering.shipping.segment_copy import Uploading

PUT_USD: Final = 5e-6
"""The price of a PUT in S3 Standard; also of a LIST, and of each request of an upload in parts."""
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


def next_of(scope: Scope, to: str, *, shipped: int, is_explained: bool = False) -> Iterator[str]:
    """Say what to do next where nothing is left to ship; a store in memory is gone by then."""
    if not shipped and is_explained:
        yield "Next: do what each -> line says, then run the same command again."
    elif not shipped:
        yield f"Next: `resnap check {scope.typed}` says what stops each topic."
    elif not to.startswith("memory:"):
        yield f"Next: `resnap verify {shlex.quote(to)}`; `install` or `announce` frees local disk."


def unsettled_lines(orders: Iterable[TierOrder]) -> Iterator[str]:
    """Say which segments wait until a manifest is repaired."""
    number = sum(len(order.left.unsettled) for order in orders)
    if number:
        them = agreeing(number, "it", "them")
        yield (
            f"{some(number, 'segment')} left alone: the store has a manifest of {them} that cannot be used."
            f" Keep {them} on this disk until what the errors name is repaired."
        )


class DryTierView(DryRunView):
    """What would be shipped, at most."""

    def __init__(self, scope: Scope, to: str, uploading: Uploading) -> None:
        super().__init__()
        self._scope, self._to, self._uploading = scope, to, uploading
        self._requests: Requests | None = None
        """None for a store that takes none."""
        self._orders: Sequence[TierOrder] = ()
        self._sizes: list[int] = []
        self._topics: dict[str, list[int]] = {}
        """Sizes of the segments that are left to ship, by topic."""

    def row(self, result: Any) -> Row | None:  # noqa: ANN401 - also those of tier
        """Return the row of a planned partition, and count what is left to ship."""
        if isinstance(result, Reported) and isinstance(result.what, LeftToShip):
            self._orders = result.what.orders
            for order in self._orders:
                sizes = [segment.size_bytes for segment in order.left.candidates.segments]
                self._topics.setdefault(order.topic_partition.topic, []).extend(sizes)
                self._sizes += sizes
            if self._sizes and self._to.lower().startswith("s3:"):
                left = (order.left.candidates.segments for order in self._orders)
                self._requests = requests_of(left, self._uploading)
        return super().row(result)

    def table_head(self) -> Row:
        """Return the number and size of segments to ship of each topic, the largest first."""
        left = [(topic, sizes) for topic, sizes in self._topics.items() if sizes]
        most = sorted(left, key=lambda topic_sizes: (-sum(topic_sizes[1]), topic_sizes[0]))
        head = {topic: f"{some(len(sizes), 'segment')}, {human_bytes(sum(sizes))}" for topic, sizes in most[:MOST_ROWS]}
        if len(most) > MOST_ROWS:
            rest = [size for _, sizes in most[MOST_ROWS:] for size in sizes]
            head[some(len(most) - MOST_ROWS, "more topic")] = f"{some(len(rest), 'segment')}, {human_bytes(sum(rest))}"
        return head

    def totals(self) -> Row:
        """Return what would be read, and what would be shipped at most."""
        totals = {**super().totals(), "segmentsToShip": len(self._sizes), "bytesToShip": sum(self._sizes)}
        if self._requests is not None:
            puts, lists, gets = self._requests
            totals |= {"putRequests": puts, "listRequests": lists, "getRequests": gets, "headRequests": 0}
            totals |= {"requestsUsd": round(self._requests.usd, 4)}
        return totals

    def closing(self) -> Iterator[str]:
        """Yield what would be shipped."""
        yield from unsettled_lines(self._orders)
        if self._topics and not self._sizes:
            if not any(order.left.failures for order in self._orders):
                yield f"Nothing to ship: no segment is eligible that is not in {self._to} already."
                yield from next_of(self._scope, self._to, shipped=sum(order.left.already for order in self._orders))
            return
        if nothing := sum(not sizes for sizes in self._topics.values()):
            yield f"Not shown: {some(nothing, 'topic')} of which nothing is left to ship."
        what = f"up to {some(len(self._sizes), 'segment')} ({human_bytes(sum(self._sizes))})"
        yield f"would write {what} into {self._to}. Nothing was written."
        if self._requests is not None:
            usd, (puts, lists, gets) = self._requests.usd, self._requests
            cost = f"{usd:,.2f}" if round(usd, 2) else "less than 0.01"
            yield (
                f"That is about {human_count(puts + lists)} PUT and LIST and {human_count(gets)} GET requests:"
                f" {cost} USD at Amazon S3's prices, {usd / len(self._sizes) * 1e6:,.0f} USD per million segments."
            )
        yield AND_DO_IT
