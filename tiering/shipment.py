"""Ships what is eligible of one partition after its replay.

Several segments go up side by side; they become visible one after the other, in offset order, so that what the store
shows of a partition never has a gap that is not in the log. A segment that turns out unfit while it is bundled is
refused like the others, and the next one is tried. A store that fails ends the shipment, with what was shipped until
then.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import FormatError, LockedError, LogDirError, StoreError, VerificationError
from storage.source import PLAIN
from tiering.aiven_uploader import copy
from tiering.aiven_uploader import publish as publish_copied
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
from tiering.side_by_side import side_by_side
from tiering.snapshot_choice import ChosenSnapshot, choose_snapshot
from tiering.uploader import ShippedMeanwhileError, TopicIdUnknownError, publish, upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.results import BoundaryResult, PartitionResult
    from replay.window import ReplayRules
    from storage.errors import ResnapError
    from storage.log.names import TopicPartition
    from storage.log.partition_dir import Segment
    from storage.remote.layouts.aiven_body import AivenForm
    from storage.remote.manifest import SnapshotHow, SnapshotOrigin
    from storage.remote.object_store import ObjectStore
    from storage.source import Sources
    from tiering.delivery import Delivery
    from tiering.eligibility import Candidates, Refusal
    from tiering.shipped import ShippedSegment
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


class _Prepared(NamedTuple):
    """A segment whose objects are in the store."""

    bundle: SegmentBundle
    chosen: ChosenSnapshot
    publish: Callable[[], ShippedSegment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipper:
    """Ships segments of partitions into one store."""

    delivery: Delivery
    staged: ObjectStore
    """Where the replay left its snapshots."""
    rules: ReplayRules
    sources: Sources = PLAIN
    """How the segments are reached."""
    parallel: int = 1
    """Segments on their way at once; they become visible one after the other, in offset order."""
    aiven: AivenForm | None = None
    """How segments are written in the layout ``aiven``; None for every other."""
    now_ms: Callable[[], int]
    expect: Callable[[int, int], None]
    """Told (segments, bytes of their logs) of what is eligible, before any of it is shipped."""
    progress: Callable[[int, int], None]
    """Told the same of what is shipped."""

    def ship_partition(
        self,
        provenance: Provenance,
        candidates: Candidates,
        result: PartitionResult,
        hold_lease: Callable[[], None] = lambda: None,
    ) -> PartitionShipment:
        """Ship what is eligible; a failing store ends the shipment and is among its failures.

        ``hold_lease`` is called before anything is written, and raises if another run is at work on the partition.
        """
        eligibility = after_replay(candidates, result)
        shipment = PartitionShipment(topic_partition=provenance.topic_partition, eligibility=eligibility)
        self.expect(len(eligibility.eligible), sum(segment.size_bytes for segment in eligibility.eligible))
        refusals: list[Refusal] = []
        epochs = EpochHistory(candidates.inventory.partition, self.sources)
        rebuilt = {boundary.boundary.offset: boundary for boundary in result.boundaries}

        def prepare(segment: Segment) -> _Prepared:
            return self._prepare(provenance, epochs, segment, rebuilt[_end(segment)], hold_lease)

        self.delivery.go_on()
        with closing(side_by_side(prepare, eligibility.eligible, self.parallel, self.delivery.stop)) as under_way:
            for segment, prepared in under_way:
                try:
                    ready = prepared()
                    hold_lease()
                    shipment.shipped.append(self._publish(ready))
                except (FormatError, LogDirError) as error:
                    refusals.append(_refusal(segment, error))
                except ShippedMeanwhileError:
                    shipment.already += 1
                except (StoreError, VerificationError, LockedError) as error:
                    shipment.failures.append(error)
                    break
                self.progress(1, segment.size_bytes)
        shipment.eligibility = eligibility.also_refusing(refusals)
        return shipment

    def _prepare(
        self,
        provenance: Provenance,
        epochs: EpochHistory,
        segment: Segment,
        at_end: BoundaryResult,
        hold_lease: Callable[[], None],
    ) -> _Prepared:
        """Do all that may be done while other segments are on their way, too."""
        chosen = choose_snapshot(
            provenance.topic_partition, at_end, self.rules, self.staged, self.sources, as_found=self.aiven is not None
        )
        bundle = make_bundle(epochs, segment, chosen.body, self.sources)
        hold_lease()
        return _Prepared(bundle, chosen, self._upload(provenance, bundle, chosen.origin))

    def _upload(
        self, provenance: Provenance, bundle: SegmentBundle, origin: SnapshotOrigin
    ) -> Callable[[], ShippedSegment]:
        """Put the objects of one segment into the store, and return what makes it visible."""
        now_ms = self.now_ms()
        if self.aiven is not None:
            copied = copy(self.delivery, provenance, bundle, self.aiven, created_at_ms=now_ms)
            return partial(publish_copied, self.delivery, copied)
        return partial(publish, self.delivery, upload(self.delivery, provenance, bundle, origin, created_at_ms=now_ms))

    def _publish(self, prepared: _Prepared) -> Shipped:
        return _shipped(prepared.bundle, prepared.chosen, prepared.publish().manifest_key)


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
        case TopicIdUnknownError():
            reason = Reason.TOPIC_ID_UNKNOWN
        case FormatError():
            reason = Reason.DAMAGED
        case _:
            reason = Reason.UNREADABLE
    return refuse(segment, reason, str(error), hint=error.hint)
