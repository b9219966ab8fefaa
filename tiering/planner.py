"""From the selected partitions to the replay that is planned for them, less what earlier runs have made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from resnap.replay.results import BoundaryOutcome, partition_result
from resnap.replay.staging import DISCARD, snapshot_key
from resnap.storage.disk import refuse_unwritable
from resnap.storage.errors import FormatError, StalePlanError, UsageError
from resnap.storage.stores.urls import is_store_url, local_path, open_store
from resnap.tiering.installing.staging_area import StagingArea
from resnap.tiering.judging.eligibility import end_of
from resnap.tiering.judging.inventory import with_log_end
from resnap.tiering.judging.planning import (
    ReplayFacts,
    SavedPlan,
    can_be_tiered,
    fingerprint,
    load_facts,
    lost_boundaries,
    plan_replay,
    usable_snapshots,
)
from resnap.tiering.judging.readiness import judge_partition
from resnap.tiering.run_cache.results import is_cached_as_well
from resnap.tiering.run_cache.run_cache import RunCache, nothing_to_read
from resnap.tiering.selection import Scope, Selection, high_watermark_of, select, with_progress
from resnap.tiering.shipping.stored_rules import RULES_ALONE, ExplicitRules
from resnap.tiering.staged import destination_url, staged_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import PartitionResult
    from resnap.replay.watching import Progress
    from resnap.replay.window import ReplayRules
    from resnap.storage.layouts.segments import Provenance, ShippedSegment
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
    from resnap.storage.sources.files import Sources
    from resnap.tiering.engine import Engine
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.judging.known_faults import MetFault
    from resnap.tiering.judging.readiness import JudgedPartition, TieringSizes
    from resnap.tiering.remote_log.waiting import Waiting
    from resnap.tiering.run_cache.results import CachedBoundary
    from resnap.tiering.run_cache.run_cache import CachedPartition
    from resnap.tiering.selection import SelectedPartition
    from resnap.tiering.shipping.remainder import Remainder


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a replay would read: sizes are those of the segments, of which mostly headers are read."""

    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionScan:
    """The result of scanning one partition."""

    selected: SelectedPartition
    judged: JudgedPartition
    cost_now: Cost
    """The cost of making the lost boundaries with ``--as-of now``."""
    cost_roll: Cost
    """With ``--as-of roll``."""
    sizes: TieringSizes
    waiting: Waiting | None = None
    """Closed segments that are not in remote storage, where the running cluster says that the topic is tiered."""
    known_faults: tuple[MetFault, ...] | None = ()
    """Kafka's faults that the brokers' releases have and the partition meets; None where they are not checked."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and number."""
        return self.selected.topic_partition


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


def cost_of(plans: Sequence[PartitionPlan]) -> Cost:
    """Return what ``plans`` would read."""
    return Cost(
        segments=sum(run.end - run.start for plan in plans for run in plan.runs),
        size_bytes=sum(plan.bytes_in_segments for plan in plans),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOrder:
    """What is left to ship of one partition."""

    selected: SelectedPartition
    provenance: Provenance
    left: Remainder
    """Its segments without what is shipped already."""
    store_url: str
    cached: CachedPartition | None = None
    """What is known from earlier runs, where anything is left to ship."""
    doubted: tuple[ShippedSegment, ...] = ()
    """What the store holds whose snapshots may lack producers that this run would keep."""
    settled: Candidates | None = None
    """The result of an earlier run for what is left, where nothing has changed since."""

    @property
    def segments(self) -> Sequence[Segment]:
        """Those to ship, unless an earlier run has settled that they wait."""
        return () if self.settled is not None else self.left.candidates.segments

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.selected.topic_partition


def _ignore(*_: object) -> None:
    """Keep nothing of a state, and warn of nothing."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans replays under the rules of one run."""

    rules: ReplayRules
    engine: Engine
    run_cache: RunCache | None = None
    """Results of earlier runs; None for runs that find out everything themselves."""
    asked: ExplicitRules = RULES_ALONE
    """Which of the rules a flag asks for."""
    on_state: Callable[[TopicPartition, int, int, str | None], None] = _ignore
    """Is called with partition, boundary, number of producers and place of each snapshot that a replay has made."""

    @property
    def sources(self) -> Sources:
        """How segments and stores are reached."""
        return self.engine.reading.sources

    def _facts(self, partition: PartitionDir, others: Sequence[SnapshotFile] = ()) -> ReplayFacts:
        expiration_ms = self.rules.written_under.expiration_ms
        return load_facts(partition, self.sources, others=others, expiration_ms=expiration_ms)

    def select(self, scope: Scope, saved: SavedPlan | None = None) -> Selection:
        """Return what is in scope, once it is sure to be still what ``saved`` was made for.

        A partition of the plan that cannot be read is among the problems; one that is not there makes the plan stale.

        Raises:
            StalePlanError: what ``saved`` was made for has changed.
            UsageError, LogDirError: a source is not what it should be.

        """
        selection = select(scope, self.sources)
        if saved is None:
            return selection
        there = {selected.topic_partition: selected for selected in selection.partitions}
        unread = {problem.topic_partition for problem in selection.problems}
        for topic_partition in saved.boundaries:
            if topic_partition in there:
                saved.check_fresh(_with_log_end(there[topic_partition], self.sources, saved).inventory)
            elif scope.wants(topic_partition.topic) and topic_partition not in unread:
                raise StalePlanError(f"{topic_partition} is no longer there", hint="make a new plan")
        return selection

    def plan(
        self,
        scope: Scope,
        *,
        boundaries: Literal["missing", "all"],
        saved: SavedPlan | None = None,
        into: str | None = None,
        warn: Callable[[str], None] = _ignore,
        progress: Progress | None = None,
    ) -> tuple[list[Planned], Selection]:
        """Plan the replay of every partition in scope that is not compacted, or that ``saved`` names.

        ``into`` is where the snapshots will go: those that an earlier run has left there need not be made again.
        ``warn`` is called about a high watermark that is too high.

        Raises:
            StalePlanError: what ``saved`` was made for has changed.
            UsageError, LogDirError: a source is not what it should be.

        """
        selection = self.select(scope, saved)
        # Before segments are read, also where no earlier run counts.
        url = None if into is None else self.sink_url(into, selection)
        sink_url = None if self.run_cache is None else url
        high_watermark = high_watermark_of(scope, selection, self.sources, warn)
        planned = []
        for selected in with_progress(selection.partitions, progress):
            is_whole = boundaries == "all" or saved is not None
            ended = _with_log_end(selected, self.sources, saved) if is_whole else selected
            wanted = wanted_boundaries(ended, boundaries, saved)
            if wanted is not None:
                planned.append(self.plan_boundaries(ended, wanted, high_watermark, sink_url))
            elif self.run_cache is not None and sink_url is not None:
                self.run_cache.keep(self.run_cache.look_up(selected.inventory), None)
        return planned, selection

    def sink_url(self, into: str, selection: Selection) -> str:
        """Return the URL of ``into``, a directory or a store, once all is known of it that can be without writing.

        Raises:
            UsageError: no such form of URL, or a directory inside a log dir.
            StoreError: no such bucket, or no access to it.

        """
        url = destination_url(into, selection)
        store = open_store(url, self.engine.s3)
        path = local_path(url)
        if path is not None:
            refuse_unwritable(path)
        else:
            # Asked now, since replays may take hours before the first snapshot is written.
            next(store.list(), None)
        return url

    def save(self, scope: Scope, planned: Iterable[Planned]) -> SavedPlan:
        """Return what is to be kept of a plan so that it can be carried out later."""
        made = list(planned)
        return SavedPlan(
            sources=tuple(s if is_store_url(s) else str(Path(s).absolute()) for s in scope.sources),
            remote=scope.remote,
            rules=self.rules,
            boundaries={
                p.selected.topic_partition: tuple(boundary.offset for boundary in p.plan.boundaries) for p in made
            },
            fingerprints={p.selected.topic_partition: fingerprint(p.selected.inventory.partition) for p in made},
        )

    def replay(
        self,
        planned: list[Planned],
        sink_url: str,
        progress: Progress,
        together: Callable[[Sequence[Replayed]], None] | None = None,
    ) -> Generator[Replayed, None, None]:
        """Replay what is planned, and write the snapshots to the sink at ``sink_url``.

        ``together`` is called with what was replayed at once, before the first of it is given, where that is done so.
        """
        by_partition = {p.selected.topic_partition: p for p in planned}
        for plan in planned:
            for known in plan.still_valid:
                self.on_state(plan.selected.topic_partition, known.offset, known.entries, None)
            if plan.is_settled:
                yield Replayed(planned=plan, result=partition_result(plan.plan, (), ()))

        def replayed(result: PartitionResult) -> Replayed:
            return Replayed(planned=by_partition[result.topic_partition], result=result)

        left = [p.plan for p in planned if not p.is_settled]
        for_all = None if together is None else lambda results: together([replayed(result) for result in results])
        for result in self.engine.replay(left, sink_url, progress, together=for_all):
            self.report_states(result, by_partition[result.topic_partition].plan, sink_url)
            yield replayed(result)

    def report_states(self, result: PartitionResult, plan: PartitionPlan, sink_url: str) -> None:
        """Report the states that a replay has found, and written to ``sink_url``, or compared with what is there."""
        there = {boundary.offset: boundary.existing for boundary in plan.boundaries if sink_url == DISCARD}
        for boundary in result.boundaries:
            made = there.get(boundary.offset)
            if sink_url != DISCARD and boundary.outcome is BoundaryOutcome.REBUILT:
                made = f"{sink_url}/{snapshot_key(result.topic_partition, boundary.offset)}"
            self.on_state(result.topic_partition, boundary.offset, boundary.entries, made)

    def scan_costs(self, inventory: PartitionInventory, start: BrokerStart) -> tuple[Cost, Cost]:
        """Return what making the lost boundaries costs as of now, and with each as of its roll.

        ``start`` has read the transaction indexes.
        """
        lost = lost_boundaries(inventory) if can_be_tiered(inventory) else ()
        if not lost:
            return cost_of([]), cost_of([])
        expiration_ms = self.rules.written_under.expiration_ms
        facts = load_facts(inventory.partition, self.sources, expiration_ms=expiration_ms, aborted_in=start.aborted)
        facts = replace(facts, sources=None)
        now, roll = (
            replace(self.rules, as_of=replace(self.rules.as_of, roll=each_at_its_roll))
            for each_at_its_roll in (False, True)
        )
        return cost_of([plan_replay(inventory, facts, lost, now)]), cost_of([plan_replay(inventory, facts, lost, roll)])

    def judge(self, selected: SelectedPartition, high_watermark: int | None, start: BrokerStart) -> JudgedPartition:
        """Return what blocks a broker's tiering of a partition, and what blocks Resnap's."""
        return judge_partition(
            selected.inventory,
            self.sources,
            facts=selected.live_facts,
            start=start,
            remote_end=selected.remote_end,
            retention_ms=selected.retention_ms,
            now_ms=self.rules.as_of.now_ms,
            transaction_max_timeout_ms=self.rules.transaction_max_timeout_ms,
            expiration_ms=self.rules.written_under.expiration_ms,
            high_watermark=high_watermark,
        )

    def plan_boundaries(
        self, selected: SelectedPartition, wanted: tuple[int, ...], high_watermark: int | None, sink_url: str | None
    ) -> Planned:
        """Plan the wanted boundaries, without those that are unchanged below ``sink_url``."""
        partition = selected.inventory.partition
        cached = self.run_cache.look_up(selected.inventory) if self.run_cache is not None else None
        still_valid: tuple[CachedBoundary, ...] = ()
        facts: ReplayFacts | None = None
        if self.run_cache is not None and cached is not None and sink_url is not None:
            if not cached.is_same_directory:
                facts = self._facts(partition)
                cached = cached.supported_by(facts.evidence, self.rules)
            still_valid = self.run_cache.still_valid(cached, wanted, sink_url)
            still_valid = self._compared_with_present(selected.inventory, still_valid, sink_url)
        if still_valid and self.rules.max_reach_back_ms is not None:
            facts = facts or self._facts(partition)
            whole = plan_replay(selected.inventory, facts, wanted, self.rules, high_watermark=high_watermark)
            still_valid = still_valid if is_cached_as_well(still_valid, whole) else ()
        if sink_url is not None and len(still_valid) == len(wanted):
            plan = nothing_to_read(selected.topic_partition, self.rules)
        else:
            facts = facts or self._facts(partition)
            plan, still_valid = self._left(selected.inventory, facts, wanted, still_valid, high_watermark)
        return self._plan_of(selected, plan, cached, still_valid)

    def _compared_with_present(
        self, inventory: PartitionInventory, still_valid: tuple[CachedBoundary, ...], sink_url: str
    ) -> tuple[CachedBoundary, ...]:
        """Return the cached boundaries that were compared with the present snapshots, which `install` needs."""
        beside = usable_snapshots(inventory)
        if beside.keys().isdisjoint(known.offset for known in still_valid):
            return still_valid
        try:
            area = StagingArea(open_store(sink_url, self.engine.s3))
            found = area.fingerprint(inventory.partition.topic_partition)
        except FormatError:
            found = None
        compared = {} if found is None else {offset: file.sha256 for offset, file in found.compared.items()}
        return tuple(
            known
            for known in still_valid
            if (path := beside.get(known.offset)) is None
            or compared.get(known.offset) == hashlib.sha256(self.sources.read(path)).hexdigest()
        )

    def _left(
        self,
        inventory: PartitionInventory,
        facts: ReplayFacts,
        wanted: tuple[int, ...],
        still_valid: tuple[CachedBoundary, ...],
        high_watermark: int | None,
    ) -> tuple[PartitionPlan, tuple[CachedBoundary, ...]]:
        """Plan what of ``wanted`` is not unchanged; a replay of the whole log makes again what was made of a part."""
        made = {known.offset for known in still_valid}
        left = [offset for offset in wanted if offset not in made]
        plan = plan_replay(inventory, facts, left, self.rules, high_watermark=high_watermark)
        whole = tuple(
            known for known in still_valid if plan.rules.full and known.is_whole(plan.segments[0].base_offset)
        )
        if not plan.rules.full or whole == still_valid:
            return plan, still_valid
        return self._left(inventory, facts, wanted, whole, high_watermark)

    def past_retention(self, planned: Planned, sink_url: str) -> Planned | None:
        """Plan a partition again after retention has deleted a segment; None if something else has deleted it."""
        before = planned.selected.inventory.partition
        try:
            scope = Scope(sources=(str(before.path),), remote=planned.selected.log_dir.remote)
            now = select(scope, self.sources).find(before.topic_partition)
        except UsageError:
            return None
        segments = now.inventory.partition.segments
        if not segments or segments[0].base_offset <= before.segments[0].base_offset:
            return None
        made = {boundary.offset for boundary in planned.plan.boundaries} | {
            known.offset for known in planned.still_valid
        }
        wanted = tuple(offset for offset in now.inventory.partition.boundaries if offset in made)
        given = planned.plan.high_watermark
        return self.plan_boundaries(now, wanted, None if given == before.high_watermark else given, sink_url)

    def _plan_of(
        self,
        selected: SelectedPartition,
        plan: PartitionPlan,
        cached: CachedPartition | None = None,
        still_valid: tuple[CachedBoundary, ...] = (),
    ) -> Planned:
        if self.run_cache is not None and cached is not None:
            plan = self.run_cache.begin(plan, cached)
        self.engine.needed_for(plan)
        return Planned(selected=selected, plan=plan, cached=cached, still_valid=still_valid)

    def plan_shipping(self, order: TierOrder) -> Planned:
        """Plan what must be known to ship what is left of a partition."""
        candidates, cached, inventory = order.left.candidates, order.cached, order.selected.inventory
        facts = self._facts(inventory.partition, order.left.shown)
        if cached is not None:
            cached = cached.supported_by(facts.evidence, self.rules).compressed()
        wanted = [end_of(segment) for segment in candidates.segments]
        high_watermark = candidates.high_watermark
        plan = plan_replay(inventory, facts, wanted, self.rules, high_watermark=high_watermark, to_end=True)
        return self._plan_of(order.selected, plan, cached)

    def plan_comparison(self, selected: SelectedPartition, snapshots: str | None) -> Planned:
        """Plan what must be known to judge the snapshots of a partition, or those below ``snapshots``."""
        inventory = selected.inventory
        facts: ReplayFacts = self._facts(inventory.partition)
        compare = None if snapshots is None else staged_snapshots(selected, snapshots, self.sources)
        wanted = filter(inventory.partition.is_local, usable_snapshots(inventory)) if compare is None else compare
        return self._plan_of(selected, plan_replay(inventory, facts, list(wanted), self.rules, compare=compare))


def _with_log_end(selected: SelectedPartition, sources: Sources, saved: SavedPlan | None) -> SelectedPartition:
    """Return ``selected`` with its log end, which a broker loads, where a part is remote and the broker was stopped.

    Of a saved plan it must be among the boundaries.
    """
    log_end = selected.inventory.log_end
    wanted = () if saved is None else saved.boundaries.get(selected.topic_partition, ())
    is_ended = log_end is not None and (saved is None or log_end.offset in wanted)
    if not is_ended or selected.inventory.partition.local_from is None or not selected.log_dir.clean_shutdown:
        return selected
    return replace(selected, inventory=with_log_end(selected.inventory, sources))


def wanted_boundaries(
    selected: SelectedPartition, boundaries: Literal["missing", "all"], saved: SavedPlan | None
) -> tuple[int, ...] | None:
    """Return the boundaries to make of a partition; None where it is none to work on."""
    if saved is not None:
        return saved.boundaries.get(selected.topic_partition)
    if not can_be_tiered(selected.inventory):
        return None
    partition = selected.inventory.partition
    return (
        tuple(filter(partition.is_local, partition.boundaries))
        if boundaries == "all"
        else lost_boundaries(selected.inventory)
    )
