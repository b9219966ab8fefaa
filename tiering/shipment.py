"""Ships what is eligible of one partition after its replay, segment by segment in offset order.

A segment that turns out unfit while it is bundled is refused like the others, and the next one is tried. A store that
fails ends the shipment, with what was shipped until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage.errors import FormatError, LogDirError, StoreError, VerificationError
from storage.source import PLAIN
from tiering.eligibility import Eligibility, after_replay, refuse
from tiering.refusal import Reason
from tiering.segment_bundle import (
    EpochHistory,
    LeaderEpochsUnknownError,
    SegmentBundle,
    SegmentChangedError,
    make_bundle,
)
from tiering.segment_indexes import IndexUnusableError
from tiering.snapshot_choice import ChosenSnapshot, choose_snapshot
from tiering.uploader import ShippedMeanwhileError, ship

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.results import BoundaryResult, PartitionResult
    from replay.window import ReplayRules
    from storage.errors import ResnapError
    from storage.log.names import TopicPartition
    from storage.log.partition_dir import Segment
    from storage.remote.manifest import SnapshotHow
    from storage.remote.object_store import ObjectStore
    from storage.source import Sources
    from tiering.eligibility import Candidates, Refusal
    from tiering.uploader import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """One segment that was shipped by this run."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    """Of all its objects."""
    snapshot: SnapshotHow
    entries: int
    manifest_key: str


@dataclass(slots=True, kw_only=True)
class PartitionShipment:
    """What became of one partition's segments."""

    topic_partition: TopicPartition
    eligibility: Eligibility
    shipped: list[Shipped] = field(default_factory=list)
    already: int = 0
    """Segments that an earlier run has shipped."""
    failures: list[ResnapError] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipper:
    """Ships segments of partitions into one store."""

    store: ObjectStore
    staged: ObjectStore
    """Where the replay left its snapshots."""
    rules: ReplayRules
    sources: Sources = PLAIN
    """How the segments are reached."""
    now_ms: Callable[[], int]
    expect: Callable[[int, int], None]
    """Told (segments, bytes of their logs) of what is eligible, before any of it is shipped."""
    progress: Callable[[int, int], None]
    """Told the same of what is shipped."""

    def ship_partition(
        self, provenance: Provenance, candidates: Candidates, result: PartitionResult
    ) -> PartitionShipment:
        """Ship what is eligible; a failing store ends the shipment and is among its failures."""
        eligibility = after_replay(candidates, result)
        shipment = PartitionShipment(topic_partition=provenance.topic_partition, eligibility=eligibility)
        self.expect(len(eligibility.eligible), sum(segment.size_bytes for segment in eligibility.eligible))
        refusals: list[Refusal] = []
        epochs = EpochHistory(candidates.inventory.partition, self.sources)
        rebuilt = {boundary.boundary.offset: boundary for boundary in result.boundaries}
        for segment in eligibility.eligible:
            at_end = rebuilt[_end(segment)]
            try:
                shipment.shipped.append(self._ship_segment(provenance, epochs, segment, at_end))
            except (FormatError, LogDirError) as error:
                self.progress(1, segment.size_bytes)
                refusals.append(_refusal(segment, error))
            except ShippedMeanwhileError:
                self.progress(1, segment.size_bytes)
                shipment.already += 1
            except (StoreError, VerificationError) as error:
                shipment.failures.append(error)
                break
        shipment.eligibility = eligibility.also_refusing(refusals)
        return shipment

    def _ship_segment(
        self, provenance: Provenance, epochs: EpochHistory, segment: Segment, at_end: BoundaryResult
    ) -> Shipped:
        chosen = choose_snapshot(provenance.topic_partition, at_end, self.rules, self.staged, self.sources)
        bundle = make_bundle(epochs, segment, chosen.body, self.sources)
        named = ship(
            self.store,
            provenance,
            bundle,
            chosen.origin,
            created_at_ms=self.now_ms(),
        )
        self.progress(1, segment.size_bytes)
        return _shipped(bundle, chosen, named.manifest_key)


def _end(segment: Segment) -> int:
    if segment.next_base_offset is None:
        raise AssertionError("the active segment is never eligible")
    return segment.next_base_offset


def _shipped(bundle: SegmentBundle, chosen: ChosenSnapshot, manifest_key: str) -> Shipped:
    return Shipped(
        base_offset=bundle.segment.base_offset,
        next_base_offset=bundle.next_base_offset,
        size_bytes=sum(part.size_bytes for part in bundle.parts),
        snapshot=chosen.origin.how,
        entries=chosen.origin.entries_count,
        manifest_key=manifest_key,
    )


def _refusal(segment: Segment, error: FormatError | LogDirError) -> Refusal:
    match error:
        case SegmentChangedError():
            reason = Reason.SEGMENT_CHANGED
        case LeaderEpochsUnknownError():
            reason = Reason.LEADER_EPOCHS_UNKNOWN
        case IndexUnusableError():
            reason = Reason.INDEX_UNUSABLE
        case _:
            reason = Reason.DAMAGED
    return refuse(segment, reason, str(error), hint=error.hint)
