"""Excludes segments that cannot hold rows matching a query's filters.

Filters are combined by AND. Topic, partition and segment are the same in all rows of a segment; offsets lie between its
base offset and the next one's; timestamps are not above the largest one, if the segment's time index has it and the
batch that it names agrees. A filter of any other column or form excludes nothing. Spark evaluates every filter again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from resnap.replay.largest_timestamp import proven_largest_timestamp
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources

_PASSES: Final[dict[type[Filter], Callable[[Any, Any, Any], bool]]] = {
    EqualTo: lambda wanted, least, most: least <= wanted <= most,
    In: lambda wanted, least, most: any(one is not None and least <= one <= most for one in wanted),
    GreaterThan: lambda wanted, _, most: most > wanted,
    GreaterThanOrEqual: lambda wanted, _, most: most >= wanted,
    LessThan: lambda wanted, least, _: least < wanted,
    LessThanOrEqual: lambda wanted, least, _: least <= wanted,
}
"""Whether some value from the least to the most, both inclusive, passes a filter."""
_TIMES: Final = ("maxTimestamp", "timestamp")
"""Of batches, and of records."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """The filters of a query that can exclude whole segments."""

    filters: tuple[Filter, ...] = ()
    sources: Sources = PLAIN
    """How the segments are reached."""

    def reads_topic(self, topic_partition: TopicPartition) -> bool:
        """Whether a row of the partition may match."""
        topic, partition = topic_partition
        return self._may_pass("topic", topic, topic) and self._may_pass("partition", partition, partition)

    def reads_segment(self, segment: Segment) -> bool:
        """Whether a row of the segment may match, if one of its partition may.

        Raises:
            StoreError: the store it lies in failed.

        """
        base, last = segment.base_offset, inf if segment.next_base_offset is None else segment.next_base_offset - 1
        return (
            self._may_pass("segment", base, base)
            and self._may_pass("baseOffset", base, last)
            and self._may_pass("lastOffset", base, last)
            and self._may_pass("offset", base, last)
            and (all(self._may_pass(name, -inf, -inf) for name in _TIMES) or self._is_young_enough(segment))
        )

    def _is_young_enough(self, segment: Segment) -> bool:
        largest = proven_largest_timestamp(segment, self.sources)
        return largest is None or all(self._may_pass(name, -inf, largest) for name in _TIMES)

    def _may_pass(self, column: str, least: float | str, most: float | str) -> bool:
        on_column = (one for one in self.filters if type(one) in _PASSES and one.attribute == (column,))
        return all(_PASSES[type(one)](one.value, least, most) for one in on_column)


EVERYTHING: Final = Pruning()
