"""Plans windows whose start is proven by batches, not by time indexes alone."""

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
    """Return ``planned``, or a new ``plan`` of ``segments`` if batches show other largest timestamps.

    Only the deciding timestamps are verified. If a segment turns out to belong to the window, the one below it decides,
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

    They are the ones directly below what is read and what is rebuilt in full, and the newest, which decides on open
    transactions. If timestamps ascend, all lower segments are older than these. Under `roll` each boundary has a T from
    the segments below it.
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
