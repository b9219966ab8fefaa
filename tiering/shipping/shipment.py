"""Ships the eligible segments of one partition after its replay.

Several segments are uploaded in parallel, of one partition or of several. Those of a partition become visible one after
the other, in an order in which the store never shows a gap that the log does not have: usually upwards. A segment that
turns out unfit while it is bundled is refused like the others. If the log itself has a gap there, as its bytes or its
deletion by retention prove, the next one that does not depend on it is tried; else, as when it cannot be read, all that
follow are refused with it, and wait for the next run. A failing store ends the shipment, which keeps what was shipped
until then.
"""

from __future__ import annotations

import zlib
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Final

from resnap.replay.evidence import BoundaryEvidence
from resnap.storage.errors import FormatError, LockedError, LogDirError, StoreError, VerificationError
from resnap.storage.layouts.segments import ShippedMeanwhileError, TopicIdUnknownError, TopicNameTooLongError
from resnap.storage.sources.files import PLAIN
from resnap.storage.spans import span
from resnap.storage.threads import side_by_side
from resnap.tiering.judging.eligibility import after_replay, end_of
from resnap.tiering.judging.refusal import Reason, refuse
from resnap.tiering.shipping.remainder import remainder
from resnap.tiering.shipping.segment_bundle import (
    CopyOrder,
    EpochHistory,
    LeaderEpochsUnknownError,
    LeaderEpochsWrongError,
    SegmentChangedError,
    SegmentDeletedError,
    reporting_change,
)
from resnap.tiering.shipping.segment_copy import carry_out, publish
from resnap.tiering.shipping.segment_indexes import IndexUnusableError, TransactionHistory
from resnap.tiering.shipping.shipped import ShippedTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.replay.window import ReplayRules
    from resnap.storage.errors import ResnapError
    from resnap.storage.layouts.manifest import SnapshotHow
    from resnap.storage.layouts.protocol import Layout
    from resnap.storage.layouts.segments import Provenance
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.judging.refusal import Refusal
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.remainder import Remainder
    from resnap.tiering.shipping.segment_copy import CopiedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """One segment that was shipped by this run."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    """The size of all its objects."""
    snapshot: SnapshotHow
    entries: int
    manifest_key: str


@dataclass(slots=True, kw_only=True)
class PartitionShipment:
    """The outcome of one partition's segments."""

    topic_partition: TopicPartition
    eligibility: Candidates
    """What of it may be shipped, and why the rest may not."""
    shipped: list[Shipped] = field(default_factory=list)
    manifests: list[bytes] = field(default_factory=list)
    """The manifests of these segments, compressed by zlib."""
    already: int = 0
    """Segments that an earlier run has shipped."""
    counted: int = 0
    """Segments that were reported as progress."""
    failures: list[ResnapError] = field(default_factory=list)
    newest_snapshot: str | None = None
    """Locator of the snapshot of the highest offset that this run has shipped."""
    warnings: tuple[str, ...] = ()
    """Warnings about snapshots that were shipped nevertheless."""


class NotLedToError(LogDirError):
    """The segment can be reached only through another one, which is missing."""


_GAPS: Final = (
    FormatError,
    SegmentDeletedError,
    LeaderEpochsUnknownError,
    LeaderEpochsWrongError,
    IndexUnusableError,
    TopicIdUnknownError,
    TopicNameTooLongError,
    NotLedToError,
)
"""What shows that no later run ships a segment as it is, though no file is missing: others continue above it.

All else that is said of a log dir leaves open what the segment holds, or whether it is of the log.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipper:
    """Ships segments of partitions into one store."""

    delivery: Delivery
    layout: Layout
    """Where objects are."""
    staged: ObjectStore
    """Where the replay left its snapshots."""
    rules: ReplayRules
    sources: Sources = PLAIN
    """How the segments are reached."""
    parallel: int = 1
    """Segments of a partition on their way at once; they become visible one after the other."""
    threads: Executor
    """Copies segments of all partitions that are shipped at once."""
    copy_elsewhere: Callable[[CopyOrder, Delivery], CopiedSegment] | None = None
    """Has a segment copied by another process, unless the delivery is stopped, and waits; None for the thread's own."""
    now_ms: Callable[[], int]
    expect: Callable[[int, int], None]
    """Called with (segments, bytes of their logs) of what is eligible, before any of it is shipped."""
    progress: Callable[[int, int], None]
    """Called with the same of what is shipped."""

    def ship_partition(
        self,
        provenance: Provenance,
        candidates: Candidates,
        result: PartitionResult,
        hold_lease: Callable[[], None] = lambda: None,
    ) -> PartitionShipment:
        """Ship the eligible segments; a failing store ends the shipment and is among its failures.

        Another replica may have shipped segments since the run was planned: the placement is decided again.
        ``hold_lease`` is called before anything is written, and raises if another run is at work on the partition.
        Several partitions may be shipped at once, by a thread each.
        """
        eligibility = after_replay(candidates, result)
        shipment = PartitionShipment(topic_partition=provenance.topic_partition, eligibility=eligibility)
        if not eligibility.segments:
            return shipment
        with span("ship partition", **{"resnap.partition": str(provenance.topic_partition)}):
            try:
                shipped = self.shipped_of(provenance)
                left = remainder(eligibility, shipped, self.sources)
            except StoreError as error:
                shipment.failures.append(error)
                return shipment
            sources, inventory = self.sources, eligibility.inventory
            partition = _Partition(
                shipper=self,
                shipment=shipment,
                delivery=self.delivery.part(),
                provenance=replace(provenance, apart=left.apart),
                left=left,
                shipped=shipped,
                rebuilt={boundary.offset: boundary for boundary in result.boundaries},
                lease=hold_lease,
                epochs=EpochHistory(inventory.partition, sources),
                transactions=TransactionHistory.of(inventory.partition, sources),
            )
            shipment.already += left.already
            shipment.failures += left.failures if left.unsettled else ()
            segments = left.candidates.segments
            self.expect(len(segments), sum(segment.size_bytes for segment in segments))
            copies = side_by_side(partition.copy, left.order, self.parallel, partition.delivery.stop, self.threads)
            with closing(copies):
                for number, (_, copied) in enumerate(copies):
                    if not partition.settle(number, copied):
                        break
            if partition.newest is not None:
                objects = partition.newest.objects
                found = self.layout.read_manifest(objects.manifest_key, objects.manifest)
                shipment.newest_snapshot = f"{self.delivery.store.url}/{found.snapshot_key}"
            shipment.eligibility = left.candidates.also_refusing(partition.refusals)
        return shipment

    def shipped_of(self, provenance: Provenance) -> ShippedTopic:
        """Return the partition's segments that the store holds now."""
        place, topic_id = provenance.topic_partition, provenance.topic_id
        only = None if topic_id is None else (topic_id, place.partition)
        return ShippedTopic(self.delivery.store, self.layout, provenance.cluster_id, place.topic, only=only)


@dataclass(slots=True, kw_only=True)
class _Partition:
    """The remainder of one partition while it is shipped."""

    shipper: Shipper
    shipment: PartitionShipment
    """Its outcome, which is added to."""
    refusals: list[Refusal] = field(default_factory=list)
    delivery: Delivery
    """Its own, that may be stopped by itself."""
    provenance: Provenance
    left: Remainder
    shipped: ShippedTopic
    """What ``left`` was decided by."""
    rebuilt: Mapping[int, BoundaryResult]
    """The rebuilt boundaries by offset."""
    lease: Callable[[], None]
    epochs: EpochHistory
    transactions: TransactionHistory
    newest: CopiedSegment | None = None
    """The segment of the highest offset that was shipped."""
    _was_listed_again: bool = False
    _lock: Lock = field(default_factory=Lock)

    def settle(self, number: int, copied: Callable[[], CopiedSegment]) -> bool:
        """Publish the segment with this number in the order, or note why not; return whether others may follow it."""
        segment, depends_on = self.left.order[number]
        try:
            _check_led_to(segment, depends_on, self.shipment.shipped)
            ready = copied()
            self.transactions.check(segment, ready.transactions, ready.aborted)
            self._publish(ready)
        except _GAPS as error:
            self.refusals.append(_refusal(segment, error))
            self._count(segment)
        except LogDirError as error:
            # The segment is of the log, for all that is known: those that follow wait for it.
            self.refusals += [_refusal(waiting, error) for waiting, _ in self.left.order[number:]]
            return False
        except ShippedMeanwhileError:
            self.shipment.already += 1
            self._count(segment)
        except (StoreError, VerificationError, LockedError) as error:
            self.shipment.failures.append(error)
            return False
        return True

    def copy(self, step: tuple[Segment, int | None]) -> CopiedSegment:
        """Have the objects of a segment written, here or on an executor: all that can run in parallel with others."""
        self.delivery.check_going_on()
        (segment, _), shipper = step, self.shipper
        attributes: dict[str, str | int] = {"resnap.segment": segment.path, "resnap.bytes": segment.size_bytes}
        with span("ship segment", **attributes):
            order = self._order(segment)
            if shipper.copy_elsewhere is not None:
                copied = shipper.copy_elsewhere(order, self.delivery)
            else:
                copied = carry_out(order, self.delivery, shipper.layout, shipper.staged, shipper.rules)
            self.delivery.note_written(copied.objects.files)
            return copied

    def _order(self, segment: Segment) -> CopyOrder:
        """Take the lease, and return the order, with what was listed if no other run can write unnoticed."""
        self._hold_lease()
        sources = self.shipper.sources
        with reporting_change(segment, sources):
            leader_epochs = self.epochs.up_to(segment)
        found = self.rebuilt[end_of(segment)]
        return CopyOrder(
            provenance=self.provenance,
            segment=segment,
            log_start_offset=self.epochs.log_start_offset,
            sources=sources,
            leader_epochs=leader_epochs,
            rebuilt=replace(found, boundary=replace(found.boundary, evidence=BoundaryEvidence())),
            created_at_ms=self.shipper.now_ms(),
            beside=self.shipped.beside(segment.base_offset) if self.delivery.keeps_conditions else None,
        )

    def _publish(self, copied: CopiedSegment) -> None:
        """Publish the segment, and add it to what was shipped."""
        self._hold_lease()
        publish(self.delivery, self.shipper.layout, copied)
        segment = copied.segment
        published = Shipped(
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            size_bytes=copied.size_bytes,
            snapshot=segment.origin.how,
            entries=segment.origin.entries_count,
            manifest_key=copied.objects.manifest_key,
        )
        is_ours = True
        try:
            self._hold_lease()  # where conditions do not hold, who took over may have deleted what it names
        except LockedError:
            is_ours = False
            raise
        finally:  # also for want of a thread or memory: the segment is visible already
            if is_ours or self._is_there(published):
                if self.newest is None or self.newest.segment.base_offset < segment.base_offset:
                    self.newest = copied
                self.shipment.shipped.append(published)
                self.shipment.manifests.append(zlib.compress(copied.objects.manifest, 1))
                self._count(copied.order.segment)

    def _count(self, segment: Segment) -> None:
        self.shipment.counted += 1
        self.shipper.progress(1, segment.size_bytes)

    def _hold_lease(self) -> None:
        """Take the lease, and check that the facts of the decision still hold.

        Raises:
            LockedError: another run is, or was, at work on the partition.

        """
        self.lease()
        with self._lock:
            if not self._was_listed_again and not self.shipped.list_again(self.provenance.topic_partition.partition):
                what = f"{self.provenance.topic_partition}: another run has shipped segments of it meanwhile"
                raise LockedError(what, hint="run again: the next run continues from there")
            self._was_listed_again = True

    def _is_there(self, published: Shipped) -> bool:
        """Whether the store has ``published`` complete, since another run may have deleted it."""
        partition, topic_id = self.provenance.topic_partition.partition, self.provenance.topic_id
        with suppress(FormatError, StoreError, VerificationError):
            found = self.shipper.shipped_of(self.provenance).find(
                partition, published.base_offset, published.next_base_offset, topic_id=topic_id
            )
            return found is not None
        return False


def _check_led_to(segment: Segment, depends_on: int | None, shipped: Iterable[Shipped]) -> None:
    """Check that a reader can reach the segment."""
    if depends_on is not None and all(other.base_offset != depends_on for other in shipped):
        raise NotLedToError(
            f"{segment.path}: it would leave a gap: the segment at offset {depends_on}, on which it depends,"
            " was not shipped",
            hint="run again, when what is wrong with that one has been repaired",
        )


_REASONS: Final = {
    SegmentChangedError: Reason.SEGMENT_CHANGED,
    LeaderEpochsUnknownError: Reason.LEADER_EPOCHS_UNKNOWN,
    LeaderEpochsWrongError: Reason.LEADER_EPOCHS_WRONG,
    IndexUnusableError: Reason.INDEX_UNUSABLE,
    TopicIdUnknownError: Reason.TOPIC_ID_UNKNOWN,
    TopicNameTooLongError: Reason.TOPIC_NAME_TOO_LONG,
    NotLedToError: Reason.LINEAGE_CONFLICT,
    FormatError: Reason.DAMAGED,
}


def _refusal(segment: Segment, error: FormatError | LogDirError) -> Refusal:
    reason = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), Reason.UNREADABLE)
    return refuse(segment, reason, str(error), hint=error.hint)
