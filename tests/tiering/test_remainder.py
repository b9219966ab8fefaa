from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from storage.log.log_dir import load_log_dir
from storage.remote.memory import MemoryObjectStore
from tiering.eligibility import Candidates, before_replay
from tiering.inventory import take_inventory
from tiering.refusal import Reason
from tiering.remainder import remainder
from tiering.shipped import ShippedSegment, ShippedTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet


class _Holding(ShippedTopic):
    """A topic of which the store holds just these ranges."""

    def __init__(self, *ranges: tuple[int, int], log_bytes: int = 0) -> None:
        self.log_bytes = log_bytes
        super().__init__(MemoryObjectStore("remainder"), None, "payments")
        self._ranges = ranges

    def find(
        self, partition: int, base_offset: int, next_base_offset: int, *, topic_id: str | None = None
    ) -> ShippedSegment | None:
        for base, end in self._ranges:
            if base < next_base_offset and end > base_offset:
                return ShippedSegment(
                    base_offset=base,
                    next_base_offset=end,
                    manifest_key=f"{partition}/{topic_id}",
                    log_bytes=self.log_bytes,
                )
        return None


@pytest.fixture
def candidates(fixture_set: Callable[[str], FixtureSet]) -> Candidates:
    log_dir = load_log_dir(fixture_set("kafka-2.7.2").data)
    inventory = next(
        found for found in take_inventory(log_dir).partitions if str(found.partition.topic_partition) == "payments-0"
    )
    return before_replay(inventory)


def test_what_the_store_holds_in_the_same_range_needs_no_shipping(candidates: Candidates) -> None:
    first, *others = candidates.segments
    held = _Holding((first.base_offset, first.next_base_offset or 0), log_bytes=first.size_bytes)
    left = remainder(candidates, held)
    assert (left.already, left.candidates.segments, left.failures) == (1, tuple(others), ())
    assert left.candidates.refusals == candidates.refusals


def test_what_overlaps_a_segment_of_another_replica_is_refused(candidates: Candidates) -> None:
    first, second, *others = candidates.segments
    left = remainder(candidates, _Holding((first.base_offset, (first.next_base_offset or 0) + 1)))
    assert left.already == 0
    # The second one overlaps too, and ends where nothing of the store does: what follows would leave a gap.
    assert left.candidates.segments == ()
    conflicts = [refusal for refusal in left.candidates.refusals if refusal.reason is Reason.LINEAGE_CONFLICT]
    assert [refusal.base_offset for refusal in conflicts] == [s.base_offset for s in (first, second, *others)]
    assert left.candidates.blocking == conflicts[0]


def test_a_conflict_that_ends_where_a_segment_begins_leaves_no_gap(candidates: Candidates) -> None:
    first, second, *others = candidates.segments
    left = remainder(candidates, _Holding((first.base_offset, second.next_base_offset or 0)))
    assert left.candidates.segments == tuple(others)


def test_other_bytes_at_the_same_offsets_are_of_another_log(candidates: Candidates) -> None:
    first, *others = candidates.segments
    held = _Holding((first.base_offset, first.next_base_offset or 0), log_bytes=first.size_bytes + 1)
    left = remainder(candidates, held)
    assert left.already == 0
    assert left.candidates.blocking is not None
    assert "bytes of the same offsets" in left.candidates.blocking.detail
    assert left.candidates.segments == tuple(others)


def test_an_empty_store_leaves_everything(candidates: Candidates) -> None:
    left = remainder(candidates, _Holding())
    assert left.candidates == replace(candidates, refusals=left.candidates.refusals)
