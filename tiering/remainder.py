"""What is left to ship of a partition, once it is known what the store holds of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage.errors import FormatError, VerificationError
from tiering.refusal import Reason, refuse

if TYPE_CHECKING:
    from tiering.eligibility import Candidates
    from tiering.shipped import ShippedTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A partition's candidates without those that need no shipping, or must not be shipped."""

    candidates: Candidates
    already: int
    """How many segments the store holds."""
    failures: tuple[FormatError | VerificationError, ...]
    """What is wrong with manifests of others; those segments are left alone."""


def remainder(candidates: Candidates, shipped: ShippedTopic) -> Remainder:
    """Return what is left of ``candidates``; a segment that overlaps one of another replica is refused.

    Raises:
        StoreError: the store failed.

    """
    partition = candidates.inventory.partition
    left, refusals, failures, already = [], list(candidates.refusals), [], 0
    for segment in candidates.segments:
        base, end = segment.base_offset, segment.next_base_offset or segment.base_offset
        try:
            found = shipped.find(partition.topic_partition.partition, base, end, topic_id=partition.topic_id)
        except (FormatError, VerificationError) as error:
            failures.append(error)
            continue
        if found is None:
            left.append(segment)
        elif (found.base_offset, found.next_base_offset) == (base, end):
            already += 1
        else:
            other = f"[{found.base_offset}, {found.next_base_offset})"
            refusals.append(refuse(segment, Reason.LINEAGE_CONFLICT, f"the store holds {other}, of another replica"))
    ordered = tuple(sorted(refusals, key=lambda refusal: refusal.base_offset))
    return Remainder(
        candidates=replace(candidates, segments=tuple(left), refusals=ordered),
        already=already,
        failures=tuple(failures),
    )
