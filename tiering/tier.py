"""``TierRun``: finds what is left to ship of each partition, and ships it as soon as its replay is done."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from socket import gethostname
from threading import Lock
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from resnap.replay.scratch import scratch_directory
from resnap.storage.errors import LockedError
from resnap.storage.layouts.manifest import TOMBSTONE, SnapshotHow
from resnap.storage.layouts.segments import Provenance
from resnap.storage.log.work_lock import at_work_on
from resnap.storage.sources.registry import layout_named
from resnap.storage.stores.throttle import Throttle
from resnap.storage.stores.urls import open_store
from resnap.storage.version import resnap_version
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType
from resnap.tiering.judging.eligibility import before_replay, refusing_all
from resnap.tiering.judging.lost_producer_state import lost_state
from resnap.tiering.judging.planning import left_out_warning, unread_warning
from resnap.tiering.judging.refusal import Reason
from resnap.tiering.selection import destination_url, looked_at
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.shipping.lease import lease_place, leased
from resnap.tiering.shipping.remainder import remainder
from resnap.tiering.shipping.segment_copy import CopyTask
from resnap.tiering.shipping.shipment import SHIPPING_THREADS, PartitionShipment, Shipper
from resnap.tiering.shipping.shipped import ShippedTopic
from resnap.tiering.shipping.side_by_side import as_done
from resnap.tiering.shipping.stored_rules import first_offset, is_cut_short, is_narrower, is_of_shorter_log
from resnap.tiering.shipping.stored_topics import TopicSettings, keep_topic, topic_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from resnap.replay.spark.task_pool import TaskPool
    from resnap.replay.watching import Progress
    from resnap.storage.errors import ResnapError
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.protocol import Layout
    from resnap.storage.layouts.segments import ShippedSegment
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import SnapshotFile
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.facts import TopicFacts
    from resnap.tiering.controller.metadata.image import MetadataImage
    from resnap.tiering.judging.eligibility import Candidates, Eligibility
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.planner import Planned, Planner, Replayed
    from resnap.tiering.run_cache.run_cache import CachedPartition
    from resnap.tiering.selection import Scope, SelectedPartition, Selection
    from resnap.tiering.shipping.delivery import Verification
    from resnap.tiering.shipping.segment_copy import CopiedSegment, CopyOrder

STAGING_PREFIX: Final = ".staging"
_JOIN_REMOTE: Final = (
    "give --remote URL, the store that brokers tier to: with what it holds of the log, the snapshots become correct"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploading:
    """Settings for uploading objects."""

    parallel: int = 1
    """Partitions, segments of all of them together, and objects of a segment, at once."""
    is_parallel_asked: bool = True
    """Whether it was given; else executors of other machines have as many segments as they have room for."""
    bytes_per_s: int | None = None
    verification: Verification = "auto"
    layout: Layout = field(default_factory=partial(layout_named, "flat"))
    """Where objects lie."""

    complain: Callable[[str], None] = lambda _: None

    def delivery(self, store: ObjectStore) -> Delivery:
        """Return the delivery to ``store`` for one run."""
        return Delivery(
            store=store,
            verification=self.verification,
            parallel=self.parallel,
            throttle=Throttle(bytes_per_s=self.bytes_per_s),
            complain=self.complain,
        )


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


@dataclass(frozen=True, slots=True)
class TierRun:
    """One run of ``tier`` into one store, under the rules of its planner, which manifests record."""

    planner: Planner
    store: ObjectStore
    uploading: Uploading
    now_ms: Callable[[], int]

    def orders(
        self,
        selection: Selection,
        saved: SavedPlan | None,
        high_watermark: int | None,
        progress: Progress | None = None,
    ) -> list[TierOrder]:
        """Return what is left to ship, of the partitions in ``saved`` if it is given.

        Raises:
            StoreError: the store cannot be listed.
            UsageError: the store is inside one of the log dirs.

        """
        destination_url(self.store.url, selection)
        topics: dict[tuple[str | None, str], ShippedTopic] = {}
        orders = []
        for selected in looked_at(selection.partitions, progress):
            if saved is not None and selected.topic_partition not in saved.boundaries:
                continue
            key = selected.log_dir.cluster_id, selected.topic_partition.topic
            if key not in topics:
                topics[key] = ShippedTopic(self.store, self.uploading.layout, *key)
            orders.append(self._order(selected, topics[key], high_watermark))
        return orders

    def plans(self, orders: Iterable[TierOrder], progress: Progress | None = None) -> list[Planned]:
        """Plan what must be known to ship what is left."""
        to_plan = {one.topic_partition: one for one in orders if one.candidates.segments and one.settled is None}
        selected = looked_at([one.selected for one in to_plan.values()], progress)
        left = (to_plan[one.topic_partition] for one in selected)
        return [self.planner.to_ship(one.selected, one.candidates, one.shown, one.cached) for one in left]

    def _order(self, selected: SelectedPartition, shipped: ShippedTopic, high_watermark: int | None) -> TierOrder:
        candidates = before_replay(selected.inventory, high_watermark=high_watermark)
        left = remainder(candidates, shipped, self.planner.engine.reading.sources)
        lost = lost_state(selected.inventory.partition)
        if lost is not None:
            refused = refusing_all(left.candidates, Reason.LOST_PRODUCER_STATE, lost.detail, hint=_JOIN_REMOTE)
            left = replace(left, candidates=refused)
        held = shipped.with_origins(left.held)
        cached = None
        if self.planner.run_cache is not None and left.candidates.segments:
            cached = self.planner.run_cache.look_up(selected.inventory)
        return TierOrder(
            selected=selected,
            store_url=self.store.url,
            cached=cached,
            settled=cached.refused(left.candidates, self.store.url) if cached is not None else None,
            provenance=self._provenance(selected),
            candidates=left.candidates,
            already=left.already,
            failures=left.failures,
            doubted=tuple(
                one for one in held if one.snapshot_origin is not None and self._doubts(one.snapshot_origin, selected)
            ),
            shown=left.shown,
            superseded=left.superseded,
        )

    def _doubts(self, origin: SnapshotOrigin, selected: SelectedPartition) -> bool:
        """Whether a stored snapshot may lack a producer that this run would keep."""
        return (
            is_narrower(origin, self.planner.rules)
            or is_cut_short(origin, self.planner.rules)
            or is_of_shorter_log(origin, first_offset(selected.inventory.partition))
        )

    def _provenance(self, selected: SelectedPartition) -> Provenance:
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

    def keep_topics(self, orders: Iterable[TierOrder], scope: Scope) -> None:
        """Write the settings of the topics to ship beside their segments, as the cluster or its metadata log has them.

        Topics without an id, or of which neither says anything, are skipped.

        Raises:
            StoreError: the store failed.

        """
        images: dict[str, MetadataImage | None] = {}
        topics = {order.topic_partition.topic: order.selected for order in orders if order.candidates.segments}
        for topic, one in topics.items():
            topic_id, source = one.inventory.partition.topic_id, str(one.log_dir.path)
            if topic_id is None:
                continue
            if one.live is not None:
                settings: TopicSettings | None = _by_cluster(one.live)
            else:
                if source not in images:
                    images[source] = scope.metadata(source).image()
                settings = _by_metadata(topic, topic_id, images[source])
            if settings is not None:
                keep_topic(self.store, topic_key(topic, topic_id, self.uploading.layout.key_prefix), settings)

    def ship(
        self, orders: Sequence[TierOrder], planned: list[Planned], *, replaying: Progress, shipping: Progress
    ) -> Iterator[PartitionShipment]:
        """Ship the eligible segments of each partition as soon as its replay is done.

        Several partitions are shipped at once, and yielded as they are completed. If the store fails, the started ones
        are completed, and no others are started.

        Raises:
            UsageError: executors cannot reach the segments, or the store.
            ResnapError: the replay failed.

        """
        by_partition = {order.topic_partition: order for order in orders}
        to_copy = [one.candidates.segments[0].path for one in orders if one.candidates.segments and one.settled is None]
        is_remote = self.planner.engine.is_remote and bool(to_copy)
        if is_remote:
            self.planner.engine.check_reach(to_copy, self.store.url)
        with ExitStack() as stack:
            for directory in _to_be_locked(orders):
                stack.enter_context(at_work_on(directory))
            for order in orders:
                self._bury(order)
                if order.settled is not None:
                    yield PartitionShipment(
                        topic_partition=order.topic_partition, eligibility=order.settled, already=order.already
                    )
            staging_url = stack.enter_context(staging(self.store, is_remote=is_remote))
            executors = stack.enter_context(self._executors(staging_url)) if is_remote else None
            at_once = self.uploading.parallel if executors is None else executors.items_at_once
            threads = stack.enter_context(ThreadPoolExecutor(at_once, SHIPPING_THREADS))
            shipper = self._shipper(staging_url, shipping, threads, executors)
            work = _Work(shipper, self.store, by_partition, shipping, executors)
            replays = stack.enter_context(closing(self.planner.replay(planned, staging_url, replaying)))
            shipments = as_done(
                work.ship, work.until_failure(replays), at_once, work.stop, name="resnap-partition", look=work.look
            )
            for replayed, shipped in stack.enter_context(closing(shipments)):
                order, shipment = by_partition[replayed.result.topic_partition], shipped()
                cache, cached = self.planner.run_cache, replayed.planned.cached
                if cache is not None and cached is not None:
                    said = None if shipment.failures else shipment.eligibility
                    cache.keep_shipment(cached, replayed.result, order.candidates, said, order.store_url)
                shipment.already += order.already
                shipment.warnings = tuple(_left_out(replayed, shipment))
                yield shipment

    def _bury(self, order: TierOrder) -> None:
        """Put tombstones over manifests that came late, beside whole segments, unless another run is at work there."""
        place = lease_place(order.provenance.cluster_id, order.provenance.topic_partition)
        with suppress(LockedError), leased(self.store, place, who=this_run(), now_ms=self.now_ms()) as lease:
            for key in order.superseded:
                lease.hold()
                self.store.put(key, TOMBSTONE)

    @contextmanager
    def _executors(self, staging_url: str) -> Iterator[TaskPool[CopyOrder, CopiedSegment]]:
        """Yield the executors that copy segments; a limit on bytes per second is divided among their tasks."""
        engine, uploading = self.planner.engine, self.uploading
        asked = uploading.parallel if uploading.is_parallel_asked else None
        most_tasks, bytes_per_s = engine.shares(asked, uploading.bytes_per_s)
        task = CopyTask(
            store_url=self.store.url,
            staged_url=staging_url,
            layout=uploading.layout,
            rules=self.planner.rules,
            sources=engine.reading.sources,
            verification=uploading.verification,
            parallel=uploading.parallel,
            bytes_per_s=bytes_per_s,
        )
        with engine.task_pool(task, "copying segments", most_tasks=most_tasks, most_items=asked) as pool:
            yield pool

    def _shipper(
        self,
        staging_url: str,
        shipping: Progress,
        threads: Executor,
        executors: TaskPool[CopyOrder, CopiedSegment] | None,
    ) -> Shipper:
        return Shipper(
            delivery=self.uploading.delivery(self.store),
            layout=self.uploading.layout,
            staged=open_store(staging_url, self.planner.engine.s3),
            rules=self.planner.rules,
            sources=self.planner.engine.reading.sources,
            parallel=self.uploading.parallel if executors is None else executors.items_at_once,
            threads=threads,
            copy_elsewhere=None if executors is None else partial(_copy_by, executors, set()),
            now_ms=self.now_ms,
            expect=shipping.expect,
            progress=shipping.advance,
        )


def _by_cluster(facts: TopicFacts) -> TopicSettings:
    own = {name: value for name, value in facts.settings.items() if name in facts.own_settings}
    return TopicSettings(partitions=len(facts.partitions), config=own)


def _by_metadata(topic: str, topic_id: str, image: MetadataImage | None) -> TopicSettings | None:
    known = None if image is None else image.topics.get(topic)
    if image is None or known is None or known.topic_id != topic_id:
        return None
    config = image.configs.get(ConfigResource(ResourceType.TOPIC, topic), {})
    return TopicSettings(partitions=len(known.partitions), config=dict(config))


def _copy_by(
    pool: TaskPool[CopyOrder, CopiedSegment], said: set[str], order: CopyOrder, delivery: Delivery
) -> CopiedSegment:
    """Let executors copy a segment, unless ``delivery`` is stopped before; raises what ``copy_segment`` does.

    A finding of several executors about the store is reported once.
    """
    size_bytes = order.listed.segment.size_bytes
    copied = pool.result(order, size_bytes, lambda: not delivery.is_stopped)
    if (copied.listed, copied.segment.provenance) != (order.listed, order.provenance):
        raise AssertionError(f"{order.listed.segment.path}: an executor has copied {copied.listed.segment.path}")
    for warning in copied.warnings:
        if warning not in said:
            said.add(warning)
            delivery.complain(warning)
    return copied


@dataclass(slots=True)
class _Work:
    """Ships partitions, each in a thread of its own, until the store fails."""

    shipper: Shipper
    store: ObjectStore
    orders: Mapping[TopicPartition, TierOrder]
    progress: Progress
    executors: TaskPool[CopyOrder, CopiedSegment] | None
    _lock: Lock = field(default_factory=Lock)
    _under_way: int = 0
    _has_failed: bool = False

    def until_failure(self, replays: Iterator[Replayed]) -> Iterator[Replayed]:
        """Yield ``replays``, and stop once the store has failed."""
        while not self._has_failed and (replayed := next(replays, None)) is not None:
            yield replayed

    def ship(self, replayed: Replayed) -> PartitionShipment:
        """Ship the eligible segments of a partition, unless another run does: the others need not wait for it."""
        order = self.orders[replayed.result.topic_partition]
        now_ms = self.shipper.now_ms()
        place = lease_place(order.provenance.cluster_id, order.provenance.topic_partition)
        self._note(1)
        try:
            with leased(self.store, place, who=this_run(), now_ms=now_ms) as lease:
                shipment = self.shipper.ship_partition(order.provenance, order.candidates, replayed.result, lease.hold)
        finally:
            self._note(-1)
        if not all(isinstance(failure, LockedError) for failure in shipment.failures):
            self._has_failed = True  # and never again otherwise: other threads write it, too
        return shipment

    def stop(self) -> None:
        """Drop all work in progress, in all threads and on all executors."""
        self.shipper.delivery.stop()
        if self.executors is not None:
            self.executors.close()

    def look(self) -> None:
        """Report the work in progress although nothing is completed: the listener may end it."""
        self._note(0)

    def _note(self, more: int) -> None:
        with self._lock:
            self._under_way += more
            if self._under_way:
                self.progress.at_work("shipping", self._under_way if self.executors is None else self.executors.tasks)


def _left_out(replayed: Replayed, shipment: PartitionShipment) -> Iterator[str]:
    """Yield the producers missing from snapshots that were made and shipped, or that may be."""
    own = {SnapshotHow.KEPT, SnapshotHow.PROVEN}
    made = {one.next_base_offset for one in shipment.shipped if one.snapshot not in own}
    if made:
        yield from unread_warning(replayed.planned.plan)
    for found in replayed.result.boundaries:
        if found.boundary.offset in made:
            yield from left_out_warning(shipment.topic_partition, found.boundary.offset, found.left_out)


def _to_be_locked(orders: Iterable[TierOrder]) -> list[Path]:
    """Return the local log dirs of partitions with something to do."""
    busy = [order.selected.log_dir.path for order in orders if order.candidates.segments and order.settled is None]
    return sorted({path for path in busy if isinstance(path, Path)})


def this_run() -> str:
    """Return the name of this run for others."""
    return f"{gethostname()}, process {os.getpid()}"


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
        for info in list(store.list(prefix)):
            store.delete(info.key)
