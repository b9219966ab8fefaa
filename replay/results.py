"""The results of a replay: of each boundary, each run, and each partition.

If a boundary has entries with an uncertain past and more may be read, nothing is written for it: the run is planned
again with a longer window (``next_round``). So everything that is written is final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from resnap.replay.boundary_state import harmful
from resnap.replay.comparison import Verdict
from resnap.replay.plan import PartitionPlan, reach_back
from resnap.storage.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.replay.boundary_state import LeftOut
    from resnap.replay.comparison import Comparison
    from resnap.replay.kernel.summary import Array
    from resnap.replay.plan import Boundary
    from resnap.replay.scan.state_file import Anchor
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import SnapshotDigest


class Outcome(StrEnum):
    """The outcome of one boundary."""

    REBUILT = "rebuilt"
    DAMAGED = "damaged"
    """A segment below it is not what Kafka writes."""
    UNREADABLE = "unreadable"
    """A segment below it could not be read: the system or a store refused or failed, or it has gone."""
    ILLEGAL = "invalid-txn-state"
    """Below it is input that Kafka itself refuses to load."""
    UNEXPLAINED = "unexplained"
    """More must be read first; never the last word of a replay."""


BLIND: Final = frozenset({Outcome.DAMAGED, Outcome.UNREADABLE})
"""What is above could not be seen."""


def blind_outcome(error: ResnapError | None) -> Outcome:
    """Return the outcome of the boundaries above a segment in which ``error`` occurred."""
    return Outcome.DAMAGED if error is None or isinstance(error, DataError) else Outcome.UNREADABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryResult:
    """The result of one boundary, written or not."""

    boundary: Boundary
    outcome: Outcome
    as_of_ms: int
    window_start_offset: int | None
    """Base offset of the first segment that was read for it; None if nothing was."""
    known_from_offset: int = 0
    """First available offset of the log; below it only what snapshots show is known."""
    entries: int = 0
    digest: SnapshotDigest | None = None
    """Digest of the snapshot as written; None if it was not."""
    left_out: tuple[LeftOut, ...] = ()
    comparison: Comparison | None = None
    unexplained_since_ms: int | None = None
    moved: frozenset[int] = frozenset()
    """Producers whose state at the run's beginning differed from the snapshots, as the run has shown."""
    unmoved: frozenset[int] = frozenset()
    """Those whose state was as in the snapshots."""
    reason: str | None = None
    """Why it was not rebuilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one run."""

    boundaries: tuple[BoundaryResult, ...]
    first_unstable_offset: int | None
    lacks_records: bool
    batches: int
    bytes_read: int
    segments_read: int
    error: ResnapError | None
    anchors: tuple[Anchor, ...] = ()
    """States that were kept on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result of the replay of one partition."""

    topic_partition: TopicPartition
    boundaries: tuple[BoundaryResult, ...]
    """By offset."""
    first_unstable_offset: int | None
    """First offset of the oldest transaction without a marker below the high watermark; None if all have one."""
    lacks_records: bool = False
    """Records are missing inside what was read, as only a cleaner, or a loss, leaves it."""
    batches: int = 0
    bytes_read: int = 0
    segments_read: int = 0
    error: ResnapError | None = None
    """Damage, or a segment that could not be read: boundaries above it are not rebuilt."""
    anchor: int | None = None
    """Offset of the state that the last run began with; everything below it was known from an earlier replay."""
    anchors: tuple[Anchor, ...] = ()
    """States that were kept on the way, for later replays to begin with."""

    def proves_wrong(self, found: BoundaryResult) -> bool:
        """Whether this proves the snapshot wrong that was compared at a boundary, so that the rebuilt one is better."""
        if found.comparison is None or found.comparison.is_sound:
            return False
        return found.comparison.verdict is Verdict.FALSE_EMPTY or not (harmful(found.left_out) or self.lacks_records)


class SnapshotSink(Protocol):
    """Stores the snapshots of a replay."""

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest | None:
        """Store the entries (``ENTRY_DTYPE``, by producer id) as the snapshot at ``offset``, whole or not at all.

        Returns None if these are only some of the entries, and the snapshot is still to be joined.
        """
        ...


class PartSink(SnapshotSink, Protocol):
    """Also stores snapshots that come in parts."""

    def write_parts(
        self, topic_partition: TopicPartition, offset: int, parts: Iterable[Array], count: int
    ) -> SnapshotDigest:
        """Write ``count`` entries as ``write`` does, in parts, of which one at a time is in memory."""
        ...


def partition_result(plan: PartitionPlan, runs: Sequence[RunResult], idle: Sequence[BoundaryResult]) -> PartitionResult:
    """Join the results of one partition's runs, in their order."""
    results = [*idle, *(result for run in runs for result in run.boundaries)]
    return PartitionResult(
        topic_partition=plan.topic_partition,
        boundaries=tuple(sorted(results, key=lambda result: result.boundary.offset)),
        first_unstable_offset=runs[-1].first_unstable_offset if runs else None,
        lacks_records=any(run.lacks_records for run in runs),
        batches=sum(run.batches for run in runs),
        bytes_read=sum(run.bytes_read for run in runs),
        segments_read=sum(run.segments_read for run in runs),
        error=next((run.error for run in runs if run.error), None),
        anchor=next((run.anchor.offset for run in plan.runs if run.anchor is not None), None),
        anchors=tuple(anchor for run in runs for anchor in run.anchors),
    )


def next_round(plan: PartitionPlan, result: PartitionResult) -> PartitionPlan | None:
    """Return the plan that reads further back, or None if ``result`` is final."""
    times = (one.unexplained_since_ms for one in result.boundaries if one.unexplained_since_ms is not None)
    since_ms = min(times, default=None)
    moved = plan.moved.union(*(one.moved for one in result.boundaries))
    unmoved = plan.unmoved.union(*(one.unmoved for one in result.boundaries))
    if since_ms is None and (moved, unmoved) == (plan.moved, plan.unmoved):
        return None
    further = replace(plan, moved=moved, unmoved=unmoved)
    return further if since_ms is None else reach_back(further, since_ms)


def join_rounds(earlier: PartitionResult | None, later: PartitionResult) -> PartitionResult:
    """Return ``later``, with the results of ``earlier`` where only the longer window met damage."""
    made = {b.boundary.offset: b for b in earlier.boundaries if b.outcome is Outcome.REBUILT} if earlier else {}
    return replace(
        later,
        boundaries=tuple(made.get(b.boundary.offset, b) if b.outcome in BLIND else b for b in later.boundaries),
    )
