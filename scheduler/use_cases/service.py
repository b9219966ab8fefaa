"""The use cases, one method each: what the command line calls, and whatever else comes to call it.

A method takes plain values and gives frozen ones; it prints nothing and knows no flags. Long work yields a result per
partition as soon as it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from resnap.replay.results import partition_result
from resnap.replay.staging import DISCARD
from resnap.scheduler.use_cases.held_check import HeldCheck
from resnap.scheduler.use_cases.planner import Planner, wanted_boundaries
from resnap.scheduler.use_cases.sources import Scope, Sight, destination_url, lies_beside, look
from resnap.scheduler.use_cases.staged import StagedCheck, check_staged
from resnap.scheduler.use_cases.store_check import StoreCheck
from resnap.scheduler.use_cases.stored_layouts import CopiedLayout, ShippedLayout
from resnap.scheduler.use_cases.tier_run import TierRun, Uploading
from resnap.scheduler.use_cases.work_items import Planned, Replayed, TierOrder
from resnap.storage.errors import FileGoneError, StalePlanError, UsageError
from resnap.storage.sources.log_dirs import shipped_part
from resnap.storage.stores.urls import is_store_url, open_store
from resnap.tiering.checking.aiven_verification import holds_copies
from resnap.tiering.installing.fingerprint import print_segment
from resnap.tiering.installing.staging_area import StagingArea, prints_of
from resnap.tiering.planning import SavedPlan, can_be_tiered, fingerprint
from resnap.tiering.shipping.stored_rules import RULES_ALONE, Asked

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from resnap.replay.window import ReplayRules
    from resnap.scheduler.answers.progress import Progress
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.use_cases.engines import Engine
    from resnap.scheduler.use_cases.remembering import Remembering
    from resnap.scheduler.use_cases.stored_layouts import Held, StoredLayout
    from resnap.storage.errors import VerificationError
    from resnap.storage.layouts.aiven.log import CopiedSegment
    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.checking.verification_journal import VerificationJournal
    from resnap.tiering.installing.fingerprint import SegmentPrint
    from resnap.tiering.shipping.shipment import PartitionShipment
    from resnap.tiering.shipping.shipped import ShippedTopic

REPLANS: Final = 3
"""So often a partition is planned anew in one run because retention deleted what was to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """All use cases, with what they share."""

    rules: ReplayRules
    engine: Engine
    clock: Clock
    version: str
    remembering: Remembering | None = None
    """Results of earlier runs; None for runs that find out everything themselves."""
    uploading: Uploading = field(default_factory=Uploading)
    asked: Asked = RULES_ALONE
    """Which of the rules a flag asks for."""

    @property
    def _sources(self) -> Sources:
        return self.engine.reading.sources

    @property
    def _planner(self) -> Planner:
        return Planner(self.rules, self.engine, self.remembering)

    def plan(
        self,
        scope: Scope,
        *,
        boundaries: Literal["missing", "all"],
        saved: SavedPlan | None = None,
        into: str | None = None,
    ) -> tuple[list[Planned], Sight]:
        """Plan the replay of every partition in scope that is not compacted, or that ``saved`` names.

        ``into`` is where the snapshots will go: those that an earlier run has left there need not be made again.

        Raises:
            StalePlanError: what ``saved`` rests on has changed.
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = self._look(scope, saved)
        url = (
            None if into is None else self.sink_url(into, sight)
        )  # before segments are read, also where it is not used
        sink_url = None if self.remembering is None else url
        planned = []
        for sighted in sight.partitions:
            wanted = wanted_boundaries(sighted, boundaries, saved)
            if wanted is not None:
                planned.append(self._planner.boundaries(sighted, wanted, scope.high_watermark, sink_url))
            elif self.remembering is not None and sink_url is not None:
                self.remembering.keep(self.remembering.recall(sighted.inventory), None)
        return planned, sight

    def save(self, scope: Scope, planned: Iterable[Planned]) -> SavedPlan:
        """Return what is to be kept of a plan so that it can be carried out later."""
        made = list(planned)
        return SavedPlan(
            sources=tuple(_absolute(source) for source in scope.sources),
            rules=self.rules,
            boundaries={
                p.sighted.topic_partition: tuple(boundary.offset for boundary in p.plan.boundaries) for p in made
            },
            fingerprints={p.sighted.topic_partition: fingerprint(p.sighted.inventory.partition) for p in made},
        )

    def replay(self, planned: list[Planned], sink_url: str, progress: Progress) -> Generator[Replayed, None, None]:
        """Replay what is planned, and write the snapshots to the sink at ``sink_url``."""
        by_partition = {p.sighted.topic_partition: p for p in planned}
        progress.expect(sum(p.cost.segments for p in planned), sum(p.cost.size_bytes for p in planned))
        for one in planned:
            if one.is_settled:
                yield Replayed(planned=one, result=partition_result(one.plan, (), ()))
        left = [p.plan for p in planned if not p.is_settled]
        for result in self.engine.replay(left, sink_url, progress.advance, progress):
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

        Where that is the copy of a log dir that they are made for, they come to stand beside its segments. With them
        goes what they rest on, for whoever installs them.

        Raises:
            UsageError: a snapshot that stands beside the segments would be replaced.
            ResnapError: the destination or the engine failed.

        """
        _refuse_replacing(planned, into)
        replays = self._replay_past_retention(planned, into, progress)
        return self._remembered(self._with_fingerprints(replays, into))

    def _replay_past_retention(
        self, planned: list[Planned], into: str, progress: Progress, replans: int = REPLANS
    ) -> Iterator[Replayed]:
        """Replay what is planned; where retention was faster, plan the partition anew and replay what is left."""
        overtaken: list[Planned] = []
        for replayed in self.replay(planned, into, progress):
            is_gone = replans and isinstance(replayed.result.error, FileGoneError)
            anew = self._planner.past_retention(replayed.planned, into) if is_gone else None
            if anew is None:
                yield replayed
            else:
                overtaken.append(anew)
        if overtaken:
            yield from self._replay_past_retention(overtaken, into, progress, replans - 1)

    def _with_fingerprints(self, replays: Iterator[Replayed], into: str) -> Iterator[Replayed]:
        area = StagingArea(open_store(into, self.engine.s3))
        for replayed in replays:
            partition = replayed.planned.sighted.inventory.partition
            made, standing = (
                prints_of(partition, found) for found in (replayed.result.boundaries, replayed.planned.standing)
            )
            area.leave(partition, made, standing, self._print_segments)
            yield replayed

    def _print_segments(self, segments: Sequence[Segment]) -> list[SegmentPrint | None]:
        return self.engine.each(partial(print_segment, sources=self._sources), segments)

    def _remembered(self, replays: Iterator[Replayed]) -> Iterator[Replayed]:
        for replayed in replays:
            recollection = replayed.planned.recollection
            if self.remembering is not None and recollection is not None:
                self.remembering.keep(recollection, replayed.result)
            yield replayed

    def tier_orders(
        self, scope: Scope, store: ObjectStore, saved: SavedPlan | None = None
    ) -> tuple[list[TierOrder], Sight]:
        """Find what is left to ship into ``store``, of the partitions that ``saved`` names if it is given.

        Raises:
            StalePlanError: what ``saved`` rests on has changed.
            StoreError: the store cannot be listed.
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = self._look(scope, saved)
        destination_url(store.url, sight)
        run = TierRun(self.rules, self.engine, self.version, self.remembering, self.uploading)
        topics: dict[tuple[str | None, str], ShippedTopic] = {}
        orders = []
        for sighted in sight.partitions:
            if saved is not None and sighted.topic_partition not in saved.boundaries:
                continue
            key = sighted.log_dir.cluster_id, sighted.topic_partition.topic
            if key not in topics:
                topics[key] = self.uploading.shipped(store, *key)
            orders.append(run.order(sighted, topics[key], store.url, scope.high_watermark))
        return orders, sight

    def plan_orders(self, orders: Iterable[TierOrder]) -> list[Planned]:
        """Plan the replay that the orders with something left to ship need."""
        return [self._planner.order(order) for order in orders if order.candidates.segments and order.settled is None]

    def tier(
        self,
        orders: list[TierOrder],
        planned: list[Planned],
        store: ObjectStore,
        *,
        replaying: Progress,
        shipping: Progress,
    ) -> Iterator[PartitionShipment]:
        """Replay what is planned and ship what then is eligible: several partitions at once, given as they are done.

        Where the store fails those that were begun come to their end, and no others are begun.

        Raises:
            ResnapError: the replay failed.

        """
        run = TierRun(self.rules, self.engine, self.version, self.remembering, self.uploading)
        return run.ship(
            orders, store, partial(self.replay, planned), self.clock.now_ms, replaying=replaying, shipping=shipping
        )

    def check_held(
        self, orders: Iterable[TierOrder], progress: Progress, warn: Callable[[str], None]
    ) -> Iterator[VerificationError]:
        """Replay what earlier runs may have shipped with too few producers, and yield who is missing, by partition.

        ``warn`` is told where that cannot be found out here.

        Raises:
            ResnapError: the replay failed.

        """
        return HeldCheck(self.engine, self.rules).problems(orders, progress, warn)

    def verify_source(
        self, scope: Scope, *, snapshots: str | None, progress: Progress
    ) -> tuple[Iterator[Replayed], Sight]:
        """Replay, and compare with the snapshots of the log dir, or with those below ``snapshots``.

        Raises:
            UsageError, LogDirError: a source is not what it should be.

        """
        sight = look(scope, self._sources)
        planned = [
            self._planner.comparison(sighted, snapshots)
            for sighted in sight.partitions
            if can_be_tiered(sighted.inventory)
        ]
        return self.replay([p for p in planned if p.plan.boundaries], DISCARD, progress), sight

    def check_staged(self, sight: Sight, root: str) -> StagedCheck:
        """Look at the snapshots below ``root``, a directory or a URL, before they are compared.

        Raises:
            UsageError: ``root`` is no directory, or has no snapshot of any boundary in scope.
            StoreError: the store failed.

        """
        return check_staged(sight, root, self._sources)

    def check_store(
        self, scope: Scope, store: ObjectStore, journal: VerificationJournal, since_ms: int | None
    ) -> StoreCheck[Manifest] | StoreCheck[CopiedSegment]:
        """Return the verification of what lies in ``store``, in the layout of the first segment that is met.

        ``journal`` tells how far an earlier one came. Of ``scope`` the topics count; ``store`` may be a part of
        one. Segments shipped before ``since_ms``, by the store's clock, are not read.

        Raises:
            StoreError: the store failed.

        """
        whole, within = shipped_part(store.url, self._sources)
        if holds_copies(whole, within):
            copied = CopiedLayout(store=whole, scope=scope, sources=self._sources, within=within)
            return self.check(copied, journal, since_ms)
        return self.check(ShippedLayout(store=whole, scope=scope, within=within), journal, since_ms)

    def check(
        self, layout: StoredLayout[Held], journal: VerificationJournal, since_ms: int | None = None
    ) -> StoreCheck[Held]:
        """Return the verification of what lies in ``layout``, otherwise as ``check_store``."""
        return StoreCheck(
            layout=layout, engine=self.engine, rules=self.rules, asked=self.asked, journal=journal, since_ms=since_ms
        )

    def _look(self, scope: Scope, saved: SavedPlan | None) -> Sight:
        """Look at what is in scope, and whether it is still what ``saved`` was made for.

        A partition of the plan that cannot be read is among the problems; one that is not there makes the plan stale.
        """
        sight = look(scope, self._sources, None if self.remembering is None else self.remembering.looks)
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


def _absolute(source: str) -> str:
    return source if is_store_url(source) else str(Path(source).absolute())


def _refuse_replacing(planned: Iterable[Planned], into: str) -> None:
    """Refuse to put a snapshot into the place of one that a broker could load."""
    for one in planned:
        if lies_beside(into, one.sighted):
            there = next((boundary.existing for boundary in one.plan.boundaries if boundary.existing), None)
            if there is not None:
                raise UsageError(f"{there} would be replaced",
                                 hint="leave out --boundaries all, or choose another place")  # fmt: skip
