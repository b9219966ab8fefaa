"""Plans whose windows begin where batches, and not time indexes alone, bear out that they may."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from resnap.replay.largest_timestamp import largest_timestamp_by_batches
from resnap.replay.plan import segment_at, window_begin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.window import SegmentSpan
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources


def proven(
    planned: PartitionPlan,
    plan: Callable[[tuple[SegmentSpan, ...]], PartitionPlan],
    segments: Sequence[Segment],
    sources: Sources,
) -> PartitionPlan:
    """Return ``planned``, or what ``plan`` makes of ``segments`` whose largest timestamps are others.

    Only those are looked up that decide. A segment that belongs into the window after all lets the one below it decide,
    and so on.

    Raises:
        StoreError: the store they lie in failed.

    """
    known: set[int] = set()
    while doubtful := deciding(planned) - known:
        known |= doubtful
        spans = list(planned.segments)
        for index in doubtful:
            largest_ms = largest_timestamp_by_batches(segments[index], sources)
            spans[index] = replace(spans[index], largest_timestamp_ms=largest_ms)
        if tuple(spans) != planned.segments:
            planned = plan(tuple(spans))
    return planned


def deciding(plan: PartitionPlan) -> set[int]:
    """Return the indexes of the closed segments whose largest timestamps decide what ``plan`` reads, and each T.

    They are the ones right below what is read and what is made in full, and the newest, by which open transactions go.
    Where timestamps ascend, what lies further down is older than these. Under `roll` each boundary has a T by the
    segments below it.
    """
    if plan.rules.as_of.roll:
        return _deciding_rolls(plan)
    if plan.rules.full or not plan.segments:
        return set()
    below = {window_begin(plan.segments, plan.rules), *(run.start for run in plan.runs[-1:]), len(plan.segments) - 1}
    if plan.high_watermark is not None:
        below.add(segment_at(plan.segments, plan.high_watermark))
    return {index - 1 for index in below if index}


def _deciding_rolls(plan: PartitionPlan) -> set[int]:
    newest, found = 0, {boundary.segment_index for boundary in plan.boundaries}
    for index in range(max(found, default=-1) + 1):
        if (plan.segments[index].largest_timestamp_ms or -1) >= (plan.segments[newest].largest_timestamp_ms or -1):
            newest = index
        if index in found:
            found.add(newest)
    return found
