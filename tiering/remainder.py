"""What is left to ship of a partition, once it is known what the store holds of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage.errors import FormatError, VerificationError
from tiering.refusal import Reason, refuse

if TYPE_CHECKING:
    from storage.log.partition_dir import Segment
    from tiering.eligibility import Candidates
    from tiering.shipped import ShippedSegment, ShippedTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A partition's candidates without those that need no shipping, or must not be shipped."""

    candidates: Candidates
    already: int
    """How many segments the store holds."""
    failures: tuple[FormatError | VerificationError, ...]
    """What is wrong with manifests of others; those segments are left alone."""


def _conflict(segment: Segment, found: ShippedSegment | None, gap_from: int | None) -> str | None:
    """Return what keeps ``segment`` from being shipped beside ``found``, or behind what ends at ``gap_from``."""
    if found is None:
        if gap_from is not None and segment.base_offset > gap_from:
            return f"it would leave a gap: what the store holds below it ends at offset {gap_from}"
        return None
    if (found.base_offset, found.next_base_offset) != (segment.base_offset, segment.next_base_offset):
        return f"the store holds [{found.base_offset}, {found.next_base_offset}), of another replica"
    if found.log_bytes != segment.size_bytes:
        return f"the store holds {found.log_bytes} bytes of the same offsets, here are {segment.size_bytes}"
    return None


def remainder(candidates: Candidates, shipped: ShippedTopic) -> Remainder:
    """Return what is left of ``candidates``; a segment that overlaps one of another replica is refused.

    Raises:
        StoreError: the store failed.

    """
    partition = candidates.inventory.partition
    left, refusals, failures, already = [], list(candidates.refusals), [], 0
    gap_from: int | None = None
    for segment in candidates.segments:
        base, end = segment.base_offset, segment.next_base_offset or segment.base_offset
        try:
            found = shipped.find(partition.topic_partition.partition, base, end, topic_id=partition.topic_id)
        except (FormatError, VerificationError) as error:
            failures.append(error)
            continue
        conflict = _conflict(segment, found, gap_from)
        if conflict is not None:
            refusals.append(refuse(segment, Reason.LINEAGE_CONFLICT, conflict))
            gap_from = found.next_base_offset if found is not None else gap_from
            continue
        gap_from = None
        if found is None:
            left.append(segment)
        else:
            already += 1
    ordered = tuple(sorted(refusals, key=lambda refusal: refusal.base_offset))
    return Remainder(
        candidates=replace(candidates, segments=tuple(left), refusals=ordered),
        already=already,
        failures=tuple(failures),
    )
