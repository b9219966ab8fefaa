"""Decides which segments may be shipped, and gives the others a reason and a next step.

It decides twice. ``before_replay`` uses the directory: which segment is active, the high watermark, the log start,
compaction, files of a change in progress, missing or empty logs. ``after_replay`` adds what only the batches show:
damage, input that Kafka itself refuses, and the last stable offset, which is the smaller of the high watermark and the
first offset of the oldest transaction without a marker. Every segment of a partition is either eligible, or refused
once.

``broker_blockers`` has the rules of a stock broker.

Source: ``RemoteLogManager.RLMCopyTask``; ``UnifiedLog.fetchLastStableOffsetMetadata``; KAFKA-15195.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from resnap.replay.results import BLIND, BoundaryOutcome, blind_outcome
from resnap.storage.errors import FormatError
from resnap.storage.packed import pack_all
from resnap.tiering.judging.broker_blockers import lost_records, no_epoch, why_compacted, why_stray
from resnap.tiering.judging.inventory import Compaction
from resnap.tiering.judging.lost_producer_state import lost_state
from resnap.tiering.judging.refusal import Reason, Refusal, Stop, first_blocking, refusal_of, stop_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.tiering.judging.inventory import PartitionInventory

_JOIN_REMOTE: Final = (
    "give --remote URL, the store that brokers tier to: with what it holds of the log, the snapshots become correct"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The segments of a partition that may be shipped, as far as is known by now, and why the others may not."""

    inventory: PartitionInventory
    high_watermark: int | None
    """The one used for the decision; if it is unknown there are no candidates."""
    segments: Sequence[Segment]
    """Ascending."""
    refusals: tuple[Refusal, ...]
    """The refusals by base offset."""
    last_stable_offset: int | None = None
    """None before the replay, and where the high watermark is unknown."""

    @property
    def blocking(self) -> Refusal | None:
        """The first blocker of the partition, apart from the active segment and those below the log start."""
        return first_blocking(self.refusals)

    def also_refusing(self, refusals: Iterable[Refusal]) -> Candidates:
        """Return this without segments found unfit since; refused ones keep their reason."""
        further = {refusal.base_offset: refusal for refusal in refusals}
        moved = [further[segment.base_offset] for segment in self.segments if segment.base_offset in further]
        left = (segment for segment in self.segments if segment.base_offset not in further)
        ordered = sorted([*self.refusals, *moved], key=attrgetter("base_offset"))
        return replace(self, segments=pack_all(left, "base_offset"), refusals=tuple(ordered))

    def unless_state_is_lost(self) -> Candidates:
        """Return this without any segment, if the directory alone shows that its replica lost its producer state."""
        lost = lost_state(self.inventory.partition)
        if lost is None:
            return self
        why = stop_for(Reason.LOST_PRODUCER_STATE, lost.detail, hint=_JOIN_REMOTE)
        return self.also_refusing(refusal_of(segment, why) for segment in self.segments)


def before_replay(inventory: PartitionInventory, *, high_watermark: int | None = None) -> Candidates:
    """Return the segments that may be shipped according to the directory.

    Args:
        inventory: of the partition.
        high_watermark: overrides the checkpoint; None to use the checkpoint.

    """
    if high_watermark is None:
        high_watermark = inventory.partition.high_watermark
    everywhere = _everywhere(inventory, high_watermark)
    segments, refusals = [], []
    partition = inventory.partition
    for segment in (segment for segment in partition.segments if partition.is_local(segment.base_offset)):
        found = (
            _by_place(segment, partition)
            or everywhere
            or _by_leader_epochs(segment, inventory)
            or _by_high_watermark(segment, high_watermark)
        )
        if found is None:
            segments.append(segment)
        else:
            refusals.append(refusal_of(segment, found))
    return Candidates(
        inventory=inventory,
        high_watermark=high_watermark,
        segments=pack_all(segments, "base_offset"),
        refusals=tuple(refusals),
    )


def after_replay(candidates: Candidates, result: PartitionResult) -> Candidates:
    """Return what remains of ``candidates`` after the replay of their partition.

    ``result`` must be final, for the same high watermark, and from a replay up to the log end (``plan_partition(...,
    to_end=True)``): else its last stable offset is not the partition's.
    """
    if result.topic_partition != candidates.inventory.partition.topic_partition:
        raise AssertionError(f"a replay of {result.topic_partition} is not of another partition")
    last_stable_offset = _last_stable_offset(candidates.high_watermark, result.first_unstable_offset)
    everywhere = _by_batches(candidates.inventory, result)
    outcomes = {boundary.offset: boundary for boundary in result.boundaries}
    unread_from = _unread_from(candidates.inventory.partition, result)
    refusals = []
    unreadable: Stop | None = None
    for segment in candidates.segments:
        found = (
            unreadable
            or everywhere
            or _by_outcome(outcomes.get(end_of(segment)), result)
            or _by_damage(segment, outcomes.get(end_of(segment)), unread_from, result)
            or _by_last_stable_offset(segment, last_stable_offset)
        )
        if found is not None:
            refusals.append(refusal_of(segment, found))
            if found.reason is Reason.UNREADABLE:
                unreadable = found  # nothing says that the log has a gap there: what is above waits
    return replace(candidates.also_refusing(refusals), last_stable_offset=last_stable_offset)


def _by_place(segment: Segment, partition: PartitionDir) -> Stop | None:
    if segment.next_base_offset is None:
        return stop_for(Reason.ACTIVE_SEGMENT, "the broker appends to it")
    if segment.next_base_offset <= partition.log_start_offset:
        return stop_for(
            Reason.BELOW_LOG_START,
            f"it ends at offset {segment.next_base_offset}, the log starts at {partition.log_start_offset}",
        )
    return None


def _everywhere(inventory: PartitionInventory, high_watermark: int | None) -> Stop | None:
    """Return the reasons that hold for all segments of the partition, the most permanent first."""
    unfinished = inventory.partition.unfinished
    if inventory.compaction is Compaction.COMPACTED:
        return why_compacted(inventory)
    if inventory.partition.stray is not None:
        return stop_for(Reason.STRAY, why_stray(inventory.partition.stray))
    if unfinished:
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        return stop_for(Reason.DIRECTORY_BUSY, f"the directory is in the middle of a change: {unfinished[0]}{more}")
    lost = next(lost_records(inventory), None)
    if lost is not None:
        return stop_for(Reason.DAMAGED, lost.detail)
    if high_watermark is None:
        return stop_for(Reason.HW_UNKNOWN, "replication-offset-checkpoint does not list the partition")
    return None


def _by_high_watermark(segment: Segment, high_watermark: int | None) -> Stop | None:
    if high_watermark is None or end_of(segment) <= high_watermark:
        return None
    return stop_for(
        Reason.ABOVE_HIGH_WATERMARK, f"it ends at offset {end_of(segment)}, the high watermark is {high_watermark}"
    )


def _by_leader_epochs(segment: Segment, inventory: PartitionInventory) -> Stop | None:
    if segment.base_offset >= inventory.leader_epochs.unknown_below:
        return None
    return stop_for(Reason.LEADER_EPOCHS_UNKNOWN, no_epoch(segment, inventory))


def _last_stable_offset(high_watermark: int | None, first_unstable_offset: int | None) -> int | None:
    if high_watermark is None or first_unstable_offset is None:
        return high_watermark
    return min(high_watermark, first_unstable_offset)


def _by_batches(inventory: PartitionInventory, result: PartitionResult) -> Stop | None:
    if not result.lacks_records:
        return None
    if result.error is not None:  # no cleaner leaves what cannot be read
        return _blind(blind_outcome(result.error), str(result.error), result)
    detail = "offsets or records are missing: they were compacted away or lost"
    if inventory.compaction is Compaction.NOT_COMPACTED:
        # Batches that the cleaner removed before the topic's policy was changed would be needed: no snapshot that a
        # broker of 3.9.1 had of its own equalled the replay's.
        return stop_for(
            Reason.COMPACTED,
            f"{detail}; the topic was compacted once, so a replay cannot show what its producers had written",
            hint="let a broker tier it with its own snapshots; `resnap regenerate` makes missing ones from the"
            " remaining batches, as a broker would, for `resnap install`",
        )
    return stop_for(
        Reason.COMPACTED,
        detail,
        hint="if the topic was never compacted, this replica has lost data: take the partition from another one; if it"
        " was compacted once and is not now, let a broker tier it; else there is nothing to do",
    )


def _by_outcome(boundary: BoundaryResult | None, replay: PartitionResult) -> Stop | None:
    if boundary is None or boundary.outcome is BoundaryOutcome.REBUILT:
        return None
    if boundary.outcome is BoundaryOutcome.UNEXPLAINED:
        raise AssertionError(f"the replay has no final result at offset {boundary.offset}")
    detail = boundary.reason or "the replay did not reach it"
    if boundary.outcome in BLIND:
        return _blind(boundary.outcome, detail, replay)
    return stop_for(Reason.INVALID_TXN_STATE, detail)


def _blind(outcome: BoundaryOutcome, detail: str, replay: PartitionResult) -> Stop:
    """Return the refusal with the hint of the error itself, since the file may be intact but not readable for us."""
    reason = Reason.DAMAGED if outcome is BoundaryOutcome.DAMAGED else Reason.UNREADABLE
    return stop_for(reason, detail, hint=replay.error.hint if replay.error else None)


def _unread_from(partition: PartitionDir, result: PartitionResult) -> int | None:
    """Return the base offset from which the log is not known to be intact; None if all of it was read."""
    if result.error is None:
        return None
    file = result.error.file if isinstance(result.error, FormatError) else None
    damaged = (segment.base_offset for segment in partition.segments if segment.path == file)
    return next(damaged, partition.log_start_offset)


def _by_damage(
    segment: Segment, boundary: BoundaryResult | None, unread_from: int | None, replay: PartitionResult
) -> Stop | None:
    """Refuse segments that need no rebuilding if the replay could not read there: open transactions may be hidden."""
    if boundary is not None or unread_from is None or end_of(segment) <= unread_from:
        return None
    return _blind(blind_outcome(replay.error), str(replay.error), replay)


def _by_last_stable_offset(segment: Segment, last_stable_offset: int | None) -> Stop | None:
    if last_stable_offset is None or end_of(segment) <= last_stable_offset:
        return None
    return stop_for(
        Reason.ABOVE_LAST_STABLE_OFFSET,
        f"it ends at offset {end_of(segment)}, a transaction has been open since offset {last_stable_offset}",
    )


def end_of(segment: Segment) -> int:
    """Return the offset at which a closed segment ends."""
    if segment.next_base_offset is None:
        raise AssertionError("the active segment has no end")
    return segment.next_base_offset
