"""The use cases, one method each: what the command line calls, and whatever else comes to call it.

A method takes plain values and gives frozen ones; it prints nothing and knows no flags. Long work yields a result per
partition as soon as it is there.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

from replay.explain import Explanation, explain
from replay.staging import DISCARD
from scheduler.sources import Scope, Sight, Sighted, destination_url, look
from scheduler.staged import staged_snapshots
from storage.errors import StalePlanError
from storage.remote.urls import open_store
from tiering.eligibility import BrokerBlockers, Candidates, before_replay, broker_blockers
from tiering.planning import (
    ReplayFacts,
    SavedPlan,
    can_be_tiered,
    fingerprint,
    load_facts,
    lost_boundaries,
    plan_replay,
)
from tiering.remainder import remainder
from tiering.shipment import PartitionShipment, Shipper
from tiering.shipped import ShippedTopic
from tiering.uploader import Provenance
from tiering.verification import VerifiedSegment, verify_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from replay.plan import PartitionPlan
    from replay.rebuild import PartitionResult
    from replay.window import ReplayRules
    from scheduler.clock import Clock
    from scheduler.engines import Engine
    from scheduler.progress import Progress
    from storage.errors import ResnapError
    from storage.log.log_dir import PartitionProblem
    from storage.log.names import TopicPartition
    from storage.remote.object_store import ObjectStore
    from tiering.inventory import PartitionInventory

STAGING_PREFIX: Final = ".staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a replay would read: sizes are those of the segments, of which mostly headers are read."""

    segments: int
    size_bytes: int


NO_COST: Final = Cost(segments=0, size_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScan:
    """What a look at one partition showed."""

    sighted: Sighted
    blockers: BrokerBlockers
    candidates: Candidates
    cost_now: Cost
    """Of making the lost boundaries with ``--as-of now``."""
    cost_roll: Cost
    """With ``--as-of roll``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One partition and what would be done."""

    sighted: Sighted
    plan: PartitionPlan

    @property
    def cost(self) -> Cost:
        """What would be read."""
        return cost_of(self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One partition and what its replay gave."""

    planned: Planned
    result: PartitionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOrder:
    """What is left to ship of one partition."""

    sighted: Sighted
    provenance: Provenance
    candidates: Candidates
    """Without what is shipped already."""
    already: int
    failures: tuple[ResnapError, ...] = ()
    """Manifests in the store that are broken."""


def cost_of(plan: PartitionPlan) -> Cost:
    """Return what ``plan`` would read."""
    return Cost(segments=sum(run.end - run.start for run in plan.runs), size_bytes=plan.bytes_in_segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """All use cases, with what they share."""

    rules: ReplayRules
    engine: Engine
    clock: Clock
    version: str

    def scan(self, scope: Scope) -> tuple[Iterator[PartitionScan], tuple[PartitionProblem, ...]]:
        """Tell what is missing, why, and what it would cost; reads no segment.

        Raises:
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = look(scope)
        return (self._scan(sighted, scope) for sighted in sight.partitions), sight.problems

    def _scan(self, sighted: Sighted, scope: Scope) -> PartitionScan:
        inventory = sighted.inventory
        cost_now, cost_roll = self._scan_costs(inventory)
        return PartitionScan(
            sighted=sighted,
            blockers=broker_blockers(inventory, high_watermark=scope.high_watermark),
            candidates=before_replay(inventory, high_watermark=scope.high_watermark),
            cost_now=cost_now,
            cost_roll=cost_roll,
        )

    def _scan_costs(self, inventory: PartitionInventory) -> tuple[Cost, Cost]:
        """Return what making the lost boundaries costs as of now, and with each as of its roll."""
        lost = lost_boundaries(inventory) if can_be_tiered(inventory) else ()
        if not lost:
            return NO_COST, NO_COST
        facts = load_facts(inventory.partition)
        now, roll = (
            replace(self.rules, as_of=replace(self.rules.as_of, roll=each_at_its_roll))
            for each_at_its_roll in (False, True)
        )
        return cost_of(plan_replay(inventory, facts, lost, now)), cost_of(plan_replay(inventory, facts, lost, roll))

    def plan(
        self, scope: Scope, *, boundaries: Literal["missing", "all"], saved: SavedPlan | None = None
    ) -> tuple[list[Planned], Sight]:
        """Plan the replay of every partition in scope that is not compacted, or that ``saved`` names.

        Raises:
            StalePlanError: what ``saved`` rests on has changed.
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = _look(scope, saved)
        planned = []
        for sighted in sight.partitions:
            wanted = _wanted(sighted, boundaries, saved)
            if wanted is not None:
                plan = plan_replay(
                    sighted.inventory,
                    load_facts(sighted.inventory.partition),
                    wanted,
                    self.rules,
                    high_watermark=scope.high_watermark,
                )
                planned.append(Planned(sighted=sighted, plan=plan))
        return planned, sight

    def save(self, scope: Scope, planned: Iterable[Planned]) -> SavedPlan:
        """Return what is to be kept of a plan so that it can be carried out later."""
        made = list(planned)
        return SavedPlan(
            sources=tuple(str(Path(source).absolute()) for source in scope.sources),
            rules=self.rules,
            boundaries={
                p.sighted.topic_partition: tuple(boundary.offset for boundary in p.plan.boundaries) for p in made
            },
            fingerprints={p.sighted.topic_partition: fingerprint(p.sighted.inventory.partition) for p in made},
        )

    def replay(self, planned: list[Planned], sink_url: str, progress: Progress) -> Iterator[Replayed]:
        """Replay what is planned, and write the snapshots to the sink at ``sink_url``."""
        by_partition = {p.sighted.topic_partition: p for p in planned}
        progress.expect(sum(p.cost.segments for p in planned), sum(p.cost.size_bytes for p in planned))
        for result in self.engine.replay([p.plan for p in planned], sink_url, progress.advance):
            yield Replayed(planned=by_partition[result.topic_partition], result=result)

    def prove(self, planned: list[Planned], progress: Progress) -> Iterator[Replayed]:
        """Replay what is planned, write nothing, and compare with the snapshots that are there."""
        return self.replay(planned, DISCARD, progress)

    def sink_url(self, into: str, sight: Sight) -> str:
        """Return the URL of ``into``, a directory or a store, once all is known of it that can be without writing.

        Raises:
            UsageError: no such form of URL, or a directory inside a log dir.
            StoreError: no such bucket, or no access to it.

        """
        url = destination_url(into, sight)
        store = open_store(url, self.engine.s3)
        if not url.startswith("file:"):
            # Asked now, since replays may take hours before the first snapshot is written.
            next(store.list(), None)
        return url

    def regenerate(self, planned: list[Planned], into: str, progress: Progress) -> Iterator[Replayed]:
        """Write the snapshots to ``into``, a URL that ``sink_url`` gave.

        Raises:
            ResnapError: the destination or the engine failed.

        """
        return self.replay(planned, into, progress)

    def tier_orders(
        self, scope: Scope, store: ObjectStore, saved: SavedPlan | None = None
    ) -> tuple[list[TierOrder], Sight]:
        """Find what is left to ship into ``store``, of the partitions that ``saved`` names if it is given.

        Raises:
            StalePlanError: what ``saved`` rests on has changed.
            StoreError: the store cannot be listed.
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = _look(scope, saved)
        destination_url(store.url, sight)
        topics: dict[tuple[str | None, str], ShippedTopic] = {}
        orders = []
        for sighted in sight.partitions:
            if saved is not None and sighted.topic_partition not in saved.boundaries:
                continue
            key = sighted.log_dir.cluster_id, sighted.topic_partition.topic
            if key not in topics:
                topics[key] = ShippedTopic(store, *key)
            orders.append(self._order(sighted, topics[key], scope.high_watermark))
        return orders, sight

    def _order(self, sighted: Sighted, shipped: ShippedTopic, high_watermark: int | None) -> TierOrder:
        candidates = before_replay(sighted.inventory, high_watermark=high_watermark)
        left = remainder(candidates, shipped)
        return TierOrder(
            sighted=sighted,
            provenance=self._provenance(sighted),
            candidates=left.candidates,
            already=left.already,
            failures=left.failures,
        )

    def _provenance(self, sighted: Sighted) -> Provenance:
        inventory = sighted.inventory
        return Provenance(
            cluster_id=sighted.log_dir.cluster_id,
            broker_id=sighted.log_dir.broker_id,
            log_directory=str(sighted.log_dir.path),
            topic_partition=sighted.topic_partition,
            topic_id=inventory.partition.topic_id,
            compaction_assumption=f"{inventory.compaction}: {inventory.compaction_origin}",
            resnap_version=self.version,
        )

    def plan_orders(self, orders: Iterable[TierOrder]) -> list[Planned]:
        """Plan the replay that the orders with something left to ship need."""
        return [self._plan_order(order) for order in orders if order.candidates.segments]

    def _plan_order(self, order: TierOrder) -> Planned:
        wanted = [segment.next_base_offset for segment in order.candidates.segments]
        plan = plan_replay(
            order.sighted.inventory,
            load_facts(order.sighted.inventory.partition),
            [offset for offset in wanted if offset is not None],
            self.rules,
            high_watermark=order.candidates.high_watermark,
            to_end=True,
        )
        return Planned(sighted=order.sighted, plan=plan)

    def tier(
        self,
        orders: list[TierOrder],
        planned: list[Planned],
        store: ObjectStore,
        *,
        replaying: Progress,
        shipping: Progress,
    ) -> Iterator[PartitionShipment]:
        """Replay what is planned and ship what then is eligible, partition by partition.

        A store that fails ends the run: the partition it failed at is the last one given.

        Raises:
            ResnapError: the replay failed.

        """
        by_partition = {order.sighted.topic_partition: order for order in orders}
        with _staging(store, is_remote=self.engine.is_remote) as staging_url:
            staged = open_store(staging_url, self.engine.s3)
            shipper = Shipper(
                store=store,
                staged=staged,
                rules=self.rules,
                now_ms=self.clock.now_ms,
                expect=shipping.expect,
                progress=shipping.advance,
            )
            for replayed in self.replay(planned, staging_url, replaying):
                order = by_partition[replayed.result.topic_partition]
                shipment = shipper.ship_partition(order.provenance, order.candidates, replayed.result)
                shipment.already += order.already
                yield shipment
                if shipment.failures:
                    return

    def verify_source(
        self, scope: Scope, *, snapshots: Path | None, progress: Progress
    ) -> tuple[Iterator[Replayed], Sight]:
        """Replay, and compare with the snapshots of the log dir, or with those below ``snapshots``.

        Raises:
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = look(scope)
        planned = [
            self._plan_comparison(sighted, snapshots)
            for sighted in sight.partitions
            if can_be_tiered(sighted.inventory)
        ]
        return self.replay([p for p in planned if p.plan.boundaries], DISCARD, progress), sight

    def _plan_comparison(self, sighted: Sighted, snapshots: Path | None) -> Planned:
        inventory = sighted.inventory
        facts: ReplayFacts = load_facts(inventory.partition)
        compare = None if snapshots is None else staged_snapshots(sighted, snapshots)
        wanted = (
            [boundary.offset for boundary in inventory.boundaries if boundary.state.is_usable]
            if compare is None
            else list(compare)
        )
        return Planned(sighted=sighted, plan=plan_replay(inventory, facts, wanted, self.rules, compare=compare))

    def verify_store(self, store: ObjectStore, progress: Progress) -> Iterator[VerifiedSegment]:
        """Read every object that a manifest names, and compare.

        Raises:
            StoreError: the store failed.

        """
        return verify_store(store, expect=progress.expect, progress=progress.advance)

    def explain(
        self, scope: Scope, topic_partition: TopicPartition, offset: int, producer_id: int | None
    ) -> list[Explanation]:
        """Return what made the entries at ``offset``, by producer id.

        Raises:
            UsageError: there is no such partition.
            FormatError, LogDirError: a segment cannot be read.

        """
        sighted = look(scope).find(topic_partition)
        return explain(load_facts(sighted.inventory.partition).segments, offset, producer_id)


def _look(scope: Scope, saved: SavedPlan | None) -> Sight:
    """Look at what is in scope, and whether it is still what ``saved`` was made for.

    A partition of the plan that cannot be read is among the problems; one that is not there makes the plan stale.
    """
    sight = look(scope)
    if saved is None:
        return sight
    there = {sighted.topic_partition: sighted for sighted in sight.partitions}
    unread = {problem.path.name for problem in sight.problems}
    for topic_partition in saved.boundaries:
        if topic_partition in there:
            saved.check_fresh(there[topic_partition].inventory)
        elif scope.wants(topic_partition.topic) and str(topic_partition) not in unread:
            raise StalePlanError(f"{topic_partition} is no longer there", hint="make a new plan")
    return sight


def _wanted(sighted: Sighted, boundaries: Literal["missing", "all"], saved: SavedPlan | None) -> tuple[int, ...] | None:
    if saved is not None:
        return saved.boundaries.get(sighted.topic_partition)
    if not can_be_tiered(sighted.inventory):
        return None
    return sighted.inventory.partition.boundaries if boundaries == "all" else lost_boundaries(sighted.inventory)


@contextmanager
def _staging(store: ObjectStore, *, is_remote: bool) -> Iterator[str]:
    """Give the URL of the place where a run's snapshots wait to be shipped, and empty it afterwards.

    A directory of this machine, or, where other machines write, a part of the destination.
    """
    if not is_remote:
        with TemporaryDirectory(prefix="resnap-staging-") as directory:
            yield Path(directory).as_uri()
        return
    prefix = f"{STAGING_PREFIX}/{uuid4()}/"
    try:
        yield f"{store.url}/{prefix.rstrip('/')}"
    finally:
        for info in list(store.list(prefix)):
            store.delete(info.key)
