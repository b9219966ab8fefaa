"""Inputs and outputs of jobs by partition: the scan, the plan, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.scheduler.job.sources import SelectedPartition
    from resnap.storage.errors import ResnapError
    from resnap.storage.layouts.segments import Provenance, ShippedSegment
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import SnapshotFile
    from resnap.tiering.broker_blockers import BrokerBlockers
    from resnap.tiering.eligibility import Candidates, Eligibility
    from resnap.tiering.lost_producer_state import LostState
    from resnap.tiering.readiness import TieringSizes, Verdict
    from resnap.tiering.remote_log.waiting import Waiting
    from resnap.tiering.run_cache.results import CachedBoundary
    from resnap.tiering.run_cache.run_cache import CachedPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a replay would read: sizes are those of the segments, of which mostly headers are read."""

    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScan:
    """The result of scanning one partition."""

    selected: SelectedPartition
    blockers: BrokerBlockers
    candidates: Candidates
    cost_now: Cost
    """The cost of making the lost boundaries with ``--as-of now``."""
    cost_roll: Cost
    """With ``--as-of roll``."""
    sizes: TieringSizes
    verdict: Verdict
    lost_state: LostState | None = None
    """What shows that the replica has lost its producer state."""
    waiting: Waiting | None = None
    """Closed segments that are not in remote storage, where the running cluster says that the topic is tiered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One partition and its plan."""

    selected: SelectedPartition
    plan: PartitionPlan
    cached: CachedPartition | None = None
    """The cached results of earlier runs; None if they are not used."""
    still_valid: tuple[CachedBoundary, ...] = ()
    """Boundaries that need not be made, since an earlier run has made them."""

    @property
    def is_settled(self) -> bool:
        """Whether an earlier run has made everything that is wanted."""
        return bool(self.still_valid) and not self.plan.boundaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One partition and the result of its replay."""

    planned: Planned
    result: PartitionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOrder:
    """What is left to ship of one partition."""

    selected: SelectedPartition
    provenance: Provenance
    candidates: Candidates
    """Without what is shipped already."""
    already: int
    store_url: str
    failures: tuple[ResnapError, ...] = ()
    """Manifests in the store that are broken."""
    shown: tuple[SnapshotFile, ...] = ()
    """Snapshots in the store that describe what lies below the log here."""
    cached: CachedPartition | None = None
    """What is known from earlier runs, where anything is left to ship."""
    doubted: tuple[ShippedSegment, ...] = ()
    """What the store holds whose snapshots may lack producers that this run would keep."""
    superseded: tuple[str, ...] = ()
    """Manifests that name missing objects, beside whole segments of the same offsets."""
    settled: Eligibility | None = None
    """The result of an earlier run for what is left, where nothing has changed since."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.selected.topic_partition


def cost_of(plans: Sequence[PartitionPlan]) -> Cost:
    """Return what ``plans`` would read."""
    return Cost(
        segments=sum(run.end - run.start for plan in plans for run in plan.runs),
        size_bytes=sum(plan.bytes_in_segments for plan in plans),
    )
