"""Checks segments that earlier runs shipped under narrower rules, or from a shorter log, against the local log.

Such a manifest is only a reason to check: a partition without producers, or whose producers were all alive, lacks none.
So the boundaries in question are replayed under the rules of this run, and the producers that stored snapshots lack are
named. A run with the same rules as earlier runs has nothing to check.

A replica that lags, or that rolled at other offsets, has no boundary at the end of a stored segment: whether a producer
is missing there cannot be determined from it. That is a warning, not a fault of the stored segment.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from resnap.replay.evidence import segment_spans
from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import DISCARD
from resnap.storage.errors import ConfigurationError, VerificationError
from resnap.storage.log.names import OffsetRange
from resnap.storage.sources.files import UNREADABLE
from resnap.storage.words import first_of, instant, some
from resnap.tiering.judging.planning import load_facts, plan_replay
from resnap.tiering.shipping.stored_rules import first_offset, is_from_less, is_narrower
from resnap.tiering.stored_snapshots import (
    MOST_SHOWN,
    REPLAYED_HERE_BYTES,
    lacking,
    producers_text,
    read_for,
    rules_made_under,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult
    from resnap.replay.watching import Progress
    from resnap.replay.window import ReplayRules
    from resnap.storage.layouts.segments import ShippedSegment
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.planner import Planner, TierOrder


_AGAIN: Final = (
    "to ship these segments again, delete their manifests and run again while the log dir has them; or ship to"
    " another prefix"
)
_AGAIN_FOR_BROKERS: Final = (
    "`resnap remote status LOG_DIR --store` shows which of these segments brokers know: do not delete those; delete "
    "the others, and run again while the log dir has them; or ship to another prefix"
)


def held_problems(
    planner: Planner, orders: Iterable[TierOrder], progress: Progress, warn: Callable[[str], None]
) -> Iterator[VerificationError]:
    """Yield the problem of each partition whose stored snapshots, which ``orders`` doubt, lack a producer.

    ``warn`` is called where that cannot be determined here.

    Raises:
        ResnapError: the replay failed.

    """
    doubtful: dict[TopicPartition, TierOrder] = {}
    for order in (order for order in orders if order.doubted):
        closed = _cannot_decrypt(planner, order)
        if closed is None:
            doubtful[order.selected.topic_partition] = order
        else:
            yield _problem(planner, order, [(segment, f"it may lack producers: {closed}") for segment in order.doubted])
    plans = []
    for order in doubtful.values():
        plans.append(_plan(planner, order))
        if plans[-1].bytes_in_segments >= REPLAYED_HERE_BYTES:
            planner.engine.needed_for(plans[-1])
    results = planner.engine.replay(plans, DISCARD, progress, here_below_bytes=REPLAYED_HERE_BYTES)
    by_partition = {plan.topic_partition: plan for plan in plans}
    for result in results if plans else ():
        order, plan = doubtful[result.topic_partition], by_partition[result.topic_partition]
        found = {boundary.offset: boundary for boundary in result.boundaries}
        here = order.selected.inventory.partition.boundaries
        near = {segment.manifest_key: found.get(_near(segment, here) or -1) for segment in order.doubted}
        apart = [segment for segment in order.doubted if _is_apart(segment, near[segment.manifest_key])]
        if apart:
            warn(
                f"{_difference(planner, order, apart)}; whether producers are missing there is not known, since no"
                f" segment of this log dir ends there: `resnap verify {order.store_url} {_flags(planner.rules)}`"
                " shows it"
            )
        lacks = [_lack(segment, near[segment.manifest_key], plan) for segment in order.doubted if segment not in apart]
        wrong = [lack for lack in lacks if lack is not None]
        if wrong:
            yield _problem(planner, order, wrong)


def _cannot_decrypt(planner: Planner, order: TierOrder) -> ConfigurationError | None:
    """Return why the stored snapshots cannot be decrypted: shipping does not need the private key."""
    try:
        planner.sources.read(_locator(order, order.doubted[0]))
    except ConfigurationError as error:
        return error
    except UNREADABLE:
        return None  # of that one alone, which is said of it when it is compared
    return None


def _plan(planner: Planner, order: TierOrder) -> PartitionPlan:
    inventory = order.selected.inventory
    here = inventory.partition.boundaries
    compare = {one.next_base_offset: _locator(order, one) for one in order.doubted if one.next_base_offset in here}
    wanted = {near for one in order.doubted if (near := _near(one, here)) is not None}
    facts = load_facts(inventory.partition, planner.sources)
    return plan_replay(inventory, facts, [*wanted], planner.rules, compare=compare)


def _problem(planner: Planner, order: TierOrder, wrong: list[tuple[ShippedSegment, str]]) -> VerificationError:
    """Return the error about the segments ``wrong``, each with what its snapshot lacks."""
    what = "; ".join(f"at {segment.next_base_offset} {lacks}" for segment, lacks in wrong[:MOST_SHOWN])
    more = f"; and at {some(len(wrong) - MOST_SHOWN, 'more boundary')}" if len(wrong) > MOST_SHOWN else ""
    return VerificationError(
        f"{_difference(planner, order, [segment for segment, _ in wrong])}: {what}{more}",
        hint=f"nothing in the store was changed; `resnap repair {order.store_url} {_flags(planner.rules)}` replaces "
        "these snapshots, where the store holds the beginning of the log; else"
        f" {_AGAIN if all(segment.is_replaceable for segment, _ in wrong) else _AGAIN_FOR_BROKERS}",
    )


def _difference(planner: Planner, order: TierOrder, segments: list[ShippedSegment]) -> str:
    """Return how the rules of the stored segments differ from this run's."""
    made = [(one.snapshot_origin, one.next_base_offset) for one in segments if one.snapshot_origin is not None]
    partition = order.selected.inventory.partition
    first = first_offset(partition)
    spans = lru_cache(partial(segment_spans, partition, planner.sources))
    less = next((origin for origin, end in made if is_from_less(origin, planner.rules, end, spans, first)), None)
    narrower = next((origin for origin, _ in made if is_narrower(origin, planner.rules)), None)
    reasons = []
    if less is not None:
        reasons.append(f"{read_for(less)}, and here it begins at {first}")
    if narrower is not None:
        reasons.append(f"under {rules_made_under(narrower)}, and this run asks for {_rules_text(planner.rules)}")
    what = f"{order.selected.topic_partition}: what {order.store_url} holds of the offsets {_offsets(segments)}"
    return f"{what} was made {'; and '.join(reasons)}"


def _locator(order: TierOrder, segment: ShippedSegment) -> str:
    return f"{order.store_url}/{segment.snapshot_key}"


def _near(segment: ShippedSegment, boundaries: Sequence[int]) -> int | None:
    """Return the first boundary of this log at or above the end of ``segment``, else its last boundary."""
    at = bisect_left(boundaries, segment.next_base_offset)
    return boundaries[min(at, len(boundaries) - 1)] if boundaries else None


def _is_apart(segment: ShippedSegment, found: BoundaryResult | None) -> bool:
    """Whether ``segment`` does not end at a boundary of this log, and may lack producers."""
    if found is None or found.offset == segment.next_base_offset:
        return found is None
    return found.outcome is not BoundaryOutcome.REBUILT or bool(found.entries)


def _lack(
    segment: ShippedSegment, found: BoundaryResult | None, plan: PartitionPlan
) -> tuple[ShippedSegment, str] | None:
    """Return ``segment`` with the producers that its snapshot lacks, or why it was not compared; else None."""
    if found is None or found.offset != segment.next_base_offset:
        return None  # if no producer is alive, none is missing
    if found.outcome is not BoundaryOutcome.REBUILT or found.comparison is None:
        return segment, f"it may lack producers: {found.reason or 'it could not be compared'}"
    lacks = lacking(found, found.comparison, plan, segment.snapshot_origin)
    return (segment, f"it lacks {producers_text(lacks)}") if lacks.total else None


def _offsets(segments: Iterable[ShippedSegment]) -> str:
    """Return ranges of offsets, with adjoining ones joined."""
    ranges: list[OffsetRange] = []
    for start, end in sorted(segment.offsets for segment in segments):
        if ranges and ranges[-1].end >= start:
            ranges[-1] = OffsetRange(ranges[-1].start, max(end, ranges[-1].end))
        else:
            ranges.append(OffsetRange(start, end))
    return first_of(ranges, MOST_SHOWN)


def _as_of(rules: ReplayRules) -> str:
    return "roll" if rules.as_of.roll else instant(rules.as_of.now_ms)


def _rules_text(rules: ReplayRules) -> str:
    at = "at its roll" if rules.as_of.roll else f"as of {_as_of(rules)}"
    return f"producer.id.expiration.ms {rules.expiry.expiration_ms}, {at}"


def _flags(rules: ReplayRules) -> str:
    return f"--producer-id-expiration-ms {rules.expiry.expiration_ms} --as-of {_as_of(rules)}"
