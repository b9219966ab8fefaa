"""Ships what of log dirs can be tiered, and is not in the store yet: ``tier`` has the steps, one after the other.

Used as a library it needs a plan's rules, an engine and a store, and tells its caller what became of each partition.
"""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from uuid import uuid4

from resnap.replay.evidence import segment_spans
from resnap.replay.staging import scratch_directory
from resnap.replay.watching import Progress
from resnap.storage.errors import LockedError, VerificationError
from resnap.storage.layouts.manifest import TOMBSTONE, SnapshotHow
from resnap.storage.layouts.segments import Provenance
from resnap.storage.processes import at_work_on
from resnap.storage.stores.protocol import delete_below
from resnap.storage.stores.urls import open_store
from resnap.storage.threads import Threads, as_done
from resnap.storage.version import resnap_version
from resnap.tiering.held_check import held_problems
from resnap.tiering.judging.eligibility import before_replay
from resnap.tiering.judging.planning import left_out_warning, unread_warning
from resnap.tiering.planner import TierOrder
from resnap.tiering.selection import high_watermark_of, warn_of_gaps, with_progress
from resnap.tiering.shipping.lease import lease_name, lease_on
from resnap.tiering.shipping.notes import by_cluster, by_metadata, keep_topic, topic_key
from resnap.tiering.shipping.remainder import remainder
from resnap.tiering.shipping.segment_copy import Uploading, copy_on_executor
from resnap.tiering.shipping.shipment import PartitionShipment, Shipper
from resnap.tiering.shipping.shipped import ShippedTopic, written_version
from resnap.tiering.shipping.stored_rules import first_offset, is_from_less, is_narrower
from resnap.tiering.staged import destination_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.storage.errors import ResnapError
    from resnap.storage.layouts.segments import ShippedSegment
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.planner import Planned, Planner, Replayed
    from resnap.tiering.selection import Scope, SelectedPartition, Selection
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.remainder import Remainder
    from resnap.tiering.shipping.segment_bundle import CopyOrder
    from resnap.tiering.shipping.segment_copy import CopiedSegment

STAGING_PREFIX: Final = ".staging"


class LeftToShip(NamedTuple):
    """What was found, and what of it is left to ship; reported before any segment is written."""

    selection: Selection
    orders: list[TierOrder]


class TieredPartition(NamedTuple):
    """One partition, also where nothing was left of it."""

    order: TierOrder
    shipment: PartitionShipment
    """What was shipped of it and what was not."""


class TierEnd(NamedTuple):
    """The end of shipping, also where the run was cut short."""

    unfinished: int
    """Segments that are in the store, of partitions that did not come to their end."""
    partly_done: bool = False
    """Whether nothing failed, and something was in the store before."""


TierRow: TypeAlias = LeftToShip | TieredPartition | TierOrder | TierEnd | VerificationError
"""What is reported. An order was not begun, since the store had failed; an error is of what an earlier run shipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierWork:
    """What one run works with: a planner, whose rules manifests record, and the store to ship to."""

    planner: Planner
    store: ObjectStore
    now_ms: Callable[[], int]
    uploading: Uploading = field(default_factory=Uploading)
    progress: Callable[..., AbstractContextManager[Sequence[Progress]]] = lambda *tasks: nullcontext(
        [Progress()] * len(tasks)
    )
    """Gives what to report to while tasks last that go on side by side, one for each name."""
    warn: Callable[[str], None] = lambda _: None


def tier(scope: Scope, work: TierWork, report: Callable[[TierRow], None], *, saved: SavedPlan | None = None) -> None:
    """Ship what is left of each partition in scope; ``report`` is called with each as soon as it is done.

    If the store fails, the partitions on their way are completed, and no others are begun.

    Raises:
        StalePlanError: what ``saved`` was made for has changed.
        StoreError: the store cannot be listed.
        UsageError: a source is not what it should be, or executors cannot reach the segments, or the store.
        ResnapError: the replay failed.

    """
    # Select, and look for what may be shipped by its place in the log, and is not in the store.
    with work.progress("look", "plan") as (looking, planning):
        left = left_to_ship(scope, work, saved, looking)
        # Plan: which segments must be read for the state at the boundaries where snapshots may be lacking.
        plans = plans_of(work, left.orders, planning)
    _note_topics(work, left.orders, scope)
    report(left)
    waiting = {order.topic_partition: order for order in left.orders}
    failures: list[ResnapError] = []
    finished, visible = 0, list[int]()
    with work.progress("replay", "ship") as (replaying, shipping):
        try:
            with _shipping(work, left.orders, shipping, visible) as workers:
                for order in (order for order in left.orders if order.settled is not None):
                    report(TieredPartition(waiting.pop(order.topic_partition), _not_shipped(order)))
                # Replay: scan headers, combine them to the state at each boundary, and stage the snapshots.
                replays = work.planner.replay(plans, workers.staging_url, replaying)
                # Choose the snapshot of each segment, copy and verify its objects, publish it: its manifest is last.
                at_once, look = workers.shipper.parallel, partial(workers.note, 0)
                rest = _until_failure(replays, failures)
                shipments = as_done(workers.ship, rest, at_once, workers.stop, look=look)
                with closing(replays), closing(shipments):
                    for replayed, shipped in shipments:
                        order, shipment = waiting.pop(replayed.result.topic_partition), shipped()
                        finished += shipment.counted
                        failures += shipment.failures
                        _keep_outcome(work, order, replayed, shipment)
                        report(TieredPartition(order, shipment))
        except (KeyboardInterrupt, Exception):
            report(TierEnd(len(visible) - finished))
            raise
    for order in waiting.values():
        report(order if order.left.candidates.segments else TieredPartition(order, _not_shipped(order)))
    had_begun = any(order.left.already for order in left.orders)
    report(TierEnd(len(visible) - finished) if failures else TierEnd(0, partly_done=had_begun))
    # Verify what the store held already, where this run would keep more producers than the one that shipped it.
    if not _has_failed(failures) and any(order.doubted for order in left.orders):
        with work.progress("verify") as (progress,):
            for wrong in held_problems(work.planner, left.orders, progress, work.warn):
                report(wrong)


def _has_failed(failures: Iterable[ResnapError]) -> bool:
    """Whether anything else failed than partitions that other runs are at work on."""
    return not all(isinstance(failure, LockedError) for failure in failures)


def _until_failure(replays: Iterator[Replayed], failures: Sequence[ResnapError]) -> Iterator[Replayed]:
    while not _has_failed(failures) and (replayed := next(replays, None)) is not None:
        yield replayed


def left_to_ship(scope: Scope, work: TierWork, saved: SavedPlan | None, progress: Progress) -> LeftToShip:
    """Return what is left to ship, of the partitions in ``saved`` if it is given.

    Raises:
        StalePlanError: what ``saved`` was made for has changed.
        StoreError: the store cannot be listed.
        UsageError: a source is not what it should be, or the store is inside one of the log dirs.

    """
    sources = work.planner.sources
    selection = work.planner.select(scope, saved)
    warn_of_gaps(scope, selection, work.warn)
    high_watermark = high_watermark_of(scope, selection, sources, work.warn)
    destination_url(work.store.url, selection)
    # Partitions come topic by topic: what the store holds of a topic is not kept when the next one is listed.
    topic_of = lru_cache(maxsize=1)(partial(ShippedTopic, work.store, work.uploading.layout))
    orders = []
    for selected in with_progress(selection.partitions, progress):
        if saved is not None and selected.topic_partition not in saved.boundaries:
            continue
        shipped = topic_of(selected.log_dir.cluster_id, selected.topic_partition.topic)
        orders.append(_order(work, selected, shipped, high_watermark))
        while shipped.damaged:
            error = shipped.damaged.pop(0)
            work.warn(f"{error}; {error.hint}")
    return LeftToShip(selection, orders)


def plans_of(work: TierWork, orders: Iterable[TierOrder], progress: Progress) -> list[Planned]:
    """Plan what must be known to ship what is left."""
    to_plan = [order for order in orders if order.segments]
    looked = with_progress([order.selected for order in to_plan], progress)
    return [work.planner.plan_shipping(order) for order, _ in zip(to_plan, looked, strict=True)]


def _order(work: TierWork, selected: SelectedPartition, shipped: ShippedTopic, high_watermark: int | None) -> TierOrder:
    candidates = before_replay(selected.inventory, high_watermark=high_watermark)
    left = _remainder(work, candidates, shipped)
    left = replace(left, candidates=left.candidates.unless_state_is_lost())
    held = shipped.with_origins(left.held)
    cache = work.planner.run_cache
    cached = cache.look_up_to_wait(selected.inventory) if cache is not None and left.candidates.segments else None
    return TierOrder(
        selected=selected,
        store_url=work.store.url,
        cached=cached,
        settled=cached.refused(left.candidates, work.store.url) if cached is not None else None,
        provenance=_provenance(selected),
        left=replace(left, held=(), order=()),  # the doubted ones alone are used again, and the order is made again
        doubted=tuple(_doubted_segments(work, held, selected)),
    )


def _remainder(work: TierWork, candidates: Candidates, shipped: ShippedTopic) -> Remainder:
    """Return what is left, without reading manifests that earlier runs have read."""
    cache, sources = work.planner.run_cache, work.planner.sources
    if cache is None:
        return remainder(candidates, shipped, sources)
    partition = candidates.inventory.partition
    before = cache.manifests(partition)
    with shipped.recalling(before) as used:
        left = remainder(candidates, shipped, sources)
    cache.keep_manifests(partition, used, before=before)
    return left


def _doubted_segments(
    work: TierWork, held: Iterable[ShippedSegment], selected: SelectedPartition
) -> Iterator[ShippedSegment]:
    """Yield the segments in ``held`` whose snapshots may lack producers that this run would keep."""
    rules, partition = work.planner.rules, selected.inventory.partition
    first, sources = first_offset(partition), work.planner.sources
    spans = lru_cache(partial(segment_spans, partition, sources))
    for segment in held:
        origin = segment.snapshot_origin
        if origin is not None and (
            is_narrower(origin, rules) or is_from_less(origin, rules, segment.next_base_offset, spans, first)
        ):
            yield segment


def _provenance(selected: SelectedPartition) -> Provenance:
    inventory = selected.inventory
    return Provenance(
        cluster_id=selected.log_dir.cluster_id,
        broker_id=selected.log_dir.broker_id,
        log_directory=str(selected.log_dir.path),
        topic_partition=selected.topic_partition,
        topic_id=inventory.partition.topic_id,
        compaction_assumption=f"{inventory.compaction}: {inventory.compaction_origin}",
        resnap_version=resnap_version(),
    )


def _note_topics(work: TierWork, orders: Iterable[TierOrder], scope: Scope) -> None:
    """Write the settings of the topics to ship beside their segments, as the cluster or its metadata log has them.

    Topics without an id, or of which neither says anything, are skipped.

    Raises:
        StoreError: the store failed.

    """
    image_of = lru_cache(lambda source: scope.metadata(source).image())
    topics = {order.topic_partition.topic: order.selected for order in orders if order.left.candidates.segments}
    for topic, partition in topics.items():
        topic_id, facts = partition.inventory.partition.topic_id, partition.live
        if topic_id is None:
            continue
        found = None if facts is None else by_cluster(facts)
        settings = found or by_metadata(topic, topic_id, image_of(str(partition.log_dir.path)))
        if settings is not None:
            keep_topic(work.store, topic_key(topic, topic_id, work.uploading.layout.key_prefix), settings)


@contextmanager
def _shipping(
    work: TierWork, orders: Sequence[TierOrder], progress: Progress, visible: list[int]
) -> Iterator[_PartitionWorkers]:
    """Yield what ships partitions, once nothing else works on their log dirs, and executors have reached them all.

    ``visible`` gets the size of each segment that is shipped.

    Raises:
        UsageError: executors cannot reach the segments, or the store.

    """
    engine, uploading = work.planner.engine, work.uploading
    to_copy = [order.segments[0].path for order in orders if order.segments]
    is_remote = engine.is_remote and bool(to_copy)

    def advance(segments: int, size_bytes: int) -> None:
        visible.append(size_bytes)
        progress.advance(segments, size_bytes)

    if is_remote:
        engine.check_reach(to_copy, work.store.url)
    with ExitStack() as stack:
        busy = {order.selected.log_dir.path for order in orders if order.segments}
        for directory in sorted(path for path in busy if isinstance(path, Path)):
            stack.enter_context(at_work_on(directory))
        for order in orders:
            _write_tombstones(work, order)
        staging_url = stack.enter_context(staging(work.store, is_remote=is_remote))
        executors = stack.enter_context(_executors(work, staging_url)) if is_remote else None
        at_once = uploading.parallel if executors is None else executors.items_at_once
        threads = stack.enter_context(Threads(at_once, "resnap-ship"))
        shipper = Shipper(
            delivery=uploading.delivery(work.store, work.warn),
            layout=uploading.layout,
            staged=open_store(staging_url, engine.s3),
            rules=work.planner.rules,
            sources=engine.reading.sources,
            parallel=at_once,
            threads=threads,
            copy_elsewhere=None if executors is None else partial(_copy_by, executors, set()),
            now_ms=work.now_ms,
            expect=progress.expect,
            progress=advance,
        )
        for order in orders:
            progress.expect(*_amount(order))
        by_partition = {order.topic_partition: order for order in orders}
        yield _PartitionWorkers(staging_url, shipper, by_partition, progress, executors)


def _amount(order: TierOrder) -> tuple[int, int]:
    return len(order.segments), sum(segment.size_bytes for segment in order.segments)


def _not_shipped(order: TierOrder) -> PartitionShipment:
    """Return the outcome of a partition of which nothing was tried."""
    eligibility, already = order.settled or order.left.candidates, order.left.already
    return PartitionShipment(topic_partition=order.topic_partition, eligibility=eligibility, already=already)


def _keep_outcome(work: TierWork, order: TierOrder, replayed: Replayed, shipment: PartitionShipment) -> None:
    """Keep for later runs what was refused and written, and add to ``shipment`` what else is known of it."""
    cache, cached = work.planner.run_cache, replayed.planned.cached
    if cache is not None and cached is not None:
        refused = None if shipment.failures else shipment.eligibility
        cache.keep(cached, replayed.result, refused, order.store_url)
        written = map(zlib.decompress, shipment.manifests)
        cache.add_manifests(order.selected.inventory.partition, {written_version(body): body for body in written})
    shipment.manifests.clear()
    shipment.already += order.left.already
    shipment.warnings = tuple(_left_out(replayed, shipment))


def _write_tombstones(work: TierWork, order: TierOrder) -> None:
    """Put tombstones over manifests that came late, beside whole segments, unless another run is at work there."""
    name = lease_name(order.provenance.cluster_id, order.provenance.topic_partition)
    with suppress(LockedError), lease_on(work.store, name, now_ms=work.now_ms()) as lease:
        for key in order.left.superseded:
            lease.hold()
            work.store.put(key, TOMBSTONE)


def _executors(work: TierWork, staging_url: str) -> AbstractContextManager[TaskPool[CopyOrder, CopiedSegment]]:
    """Return the executors that copy segments; a limit on bytes per second is divided among their tasks."""
    engine, uploading = work.planner.engine, work.uploading
    asked = uploading.parallel if uploading.is_parallel_asked else None

    def task(bytes_per_s: int | None) -> Callable[[CopyOrder], CopiedSegment]:
        return partial(
            copy_on_executor,
            store_url=work.store.url,
            staged_url=staging_url,
            uploading=replace(uploading, bytes_per_s=bytes_per_s),
            rules=work.planner.rules,
            sources=engine.reading.sources,
        )

    return engine.task_pool(task, "copying segments", at_once=asked, bytes_per_s=uploading.bytes_per_s)


def _copy_by(
    pool: TaskPool[CopyOrder, CopiedSegment], said: set[str], order: CopyOrder, delivery: Delivery
) -> CopiedSegment:
    """Let executors copy a segment, unless ``delivery`` is stopped before; raises what ``copy_segment`` does.

    A finding of several executors about the store is reported once.
    """
    size_bytes = order.segment.size_bytes
    copied = pool.result(order, size_bytes, lambda: not delivery.is_stopped)
    if (copied.order.segment, copied.order.provenance) != (order.segment, order.provenance):
        raise AssertionError(f"{order.segment.path}: an executor has copied {copied.order.segment.path}")
    for warning in copied.warnings:
        if warning not in said:
            said.add(warning)
            delivery.warn(warning)
    return copied


@dataclass(slots=True)
class _PartitionWorkers:
    """Ships partitions, each in a thread of its own."""

    staging_url: str
    """Where the replay leaves its snapshots."""
    shipper: Shipper
    orders: Mapping[TopicPartition, TierOrder]
    progress: Progress
    executors: TaskPool[CopyOrder, CopiedSegment] | None
    _lock: Lock = field(default_factory=Lock)
    _under_way: int = 0

    def ship(self, replayed: Replayed) -> PartitionShipment:
        """Ship the eligible segments of a partition, unless another run does: the others need not wait for it."""
        order = self.orders[replayed.result.topic_partition]
        now_ms = self.shipper.now_ms()
        name = lease_name(order.provenance.cluster_id, order.provenance.topic_partition)
        self.note(1)
        segments, size_bytes = _amount(order)
        self.progress.expect(-segments, -size_bytes)  # what of it is eligible counts from here on
        try:
            with lease_on(self.shipper.delivery.store, name, now_ms=now_ms) as lease:
                candidates = order.left.candidates
                return self.shipper.ship_partition(order.provenance, candidates, replayed.result, lease.hold)
        finally:
            self.note(-1)

    def stop(self) -> None:
        """Drop all work in progress, in all threads and on all executors."""
        self.shipper.delivery.stop()
        if self.executors is not None:
            self.executors.close()

    def note(self, more: int) -> None:
        """Show how many partitions, or segments on executors, are being shipped: ``more`` than before."""
        with self._lock:
            self._under_way += more
            if self._under_way:
                self.progress.at_work("shipping", self._under_way if self.executors is None else self.executors.tasks)


def _left_out(replayed: Replayed, shipment: PartitionShipment) -> Iterator[str]:
    """Yield the producers missing from snapshots that were made and shipped, or that may be."""
    own = {SnapshotHow.KEPT, SnapshotHow.PROVEN}
    made = {shipped.next_base_offset for shipped in shipment.shipped if shipped.snapshot not in own}
    if made:
        yield from unread_warning(replayed.planned.plan)
    for found in replayed.result.boundaries:
        if found.offset in made:
            yield from left_out_warning(shipment.topic_partition, found.offset, found.left_out)


@contextmanager
def staging(store: ObjectStore, *, is_remote: bool) -> Iterator[str]:
    """Yield the URL of the staging area for a run's snapshots, and empty it afterwards.

    It is a directory of this machine, or, if other machines write, a part of the destination.
    """
    if not is_remote:
        with scratch_directory("staging") as directory:
            yield directory.as_uri()
        return
    prefix = f"{STAGING_PREFIX}/{uuid4()}/"
    try:
        yield f"{store.url}/{prefix.rstrip('/')}"
    finally:
        delete_below(store, prefix)
