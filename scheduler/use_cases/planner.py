"""From partitions that were sighted to the replay that is planned for them, less what earlier runs have made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from resnap.scheduler.use_cases.remembering import Remembering, nothing_to_read
from resnap.scheduler.use_cases.sources import Scope, look
from resnap.scheduler.use_cases.staged import staged_snapshots
from resnap.scheduler.use_cases.work_items import NO_COST, Cost, Planned, TierOrder, cost_of
from resnap.storage.errors import UsageError
from resnap.tiering.planning import ReplayFacts, SavedPlan, can_be_tiered, load_facts, lost_boundaries, plan_replay
from resnap.tiering.remembered.memory import is_known_as_well

if TYPE_CHECKING:
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.window import ReplayRules
    from resnap.scheduler.use_cases.engines import Engine
    from resnap.scheduler.use_cases.sources import Sighted
    from resnap.storage.sources.files import Sources
    from resnap.tiering.inventory import PartitionInventory
    from resnap.tiering.remembered.memory import KnownBoundary
    from resnap.tiering.remembered.recollection import Recollection


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans replays under the rules of one run."""

    rules: ReplayRules
    engine: Engine
    remembering: Remembering | None

    @property
    def _sources(self) -> Sources:
        return self.engine.reading.sources

    def scan_costs(self, inventory: PartitionInventory) -> tuple[Cost, Cost]:
        """Return what making the lost boundaries costs as of now, and with each as of its roll."""
        lost = lost_boundaries(inventory) if can_be_tiered(inventory) else ()
        if not lost:
            return NO_COST, NO_COST
        facts = replace(load_facts(inventory.partition, self._sources), sources=None)
        now, roll = (
            replace(self.rules, as_of=replace(self.rules.as_of, roll=each_at_its_roll))
            for each_at_its_roll in (False, True)
        )
        return cost_of(plan_replay(inventory, facts, lost, now)), cost_of(plan_replay(inventory, facts, lost, roll))

    def boundaries(
        self, sighted: Sighted, wanted: tuple[int, ...], high_watermark: int | None, sink_url: str | None
    ) -> Planned:
        """Plan the boundaries that are wanted, less those that stand below ``sink_url``, where that is known."""
        partition = sighted.inventory.partition
        recollection = self.remembering.recall(sighted.inventory) if self.remembering is not None else None
        standing: tuple[KnownBoundary, ...] = ()
        facts: ReplayFacts | None = None
        if self.remembering is not None and recollection is not None and sink_url is not None:
            if not recollection.is_same_directory:
                facts = load_facts(partition, self._sources)
                recollection = recollection.told_by(facts.evidence, self.rules)
            standing = self.remembering.standing(recollection, wanted, sink_url)
        if standing and self.rules.max_reach_back_ms is not None:
            facts = facts or load_facts(partition, self._sources)
            whole = plan_replay(sighted.inventory, facts, wanted, self.rules, high_watermark=high_watermark)
            standing = standing if is_known_as_well(standing, whole) else ()
        if sink_url is not None and len(standing) == len(wanted):
            plan = nothing_to_read(sighted.topic_partition, self.rules)
        else:
            facts = facts or load_facts(partition, self._sources)
            plan, standing = self._left(sighted.inventory, facts, wanted, standing, high_watermark)
        return self._planned(sighted, plan, recollection, standing)

    def _left(
        self,
        inventory: PartitionInventory,
        facts: ReplayFacts,
        wanted: tuple[int, ...],
        standing: tuple[KnownBoundary, ...],
        high_watermark: int | None,
    ) -> tuple[PartitionPlan, tuple[KnownBoundary, ...]]:
        """Plan what of ``wanted`` does not stand; where that means to read the whole log, what was not is made anew."""
        made = {known.offset for known in standing}
        left = [offset for offset in wanted if offset not in made]
        plan = plan_replay(inventory, facts, left, self.rules, high_watermark=high_watermark)
        whole = tuple(known for known in standing if plan.rules.full and known.is_whole(plan.segments[0].base_offset))
        if not plan.rules.full or whole == standing:
            return plan, standing
        return self._left(inventory, facts, wanted, whole, high_watermark)

    def past_retention(self, planned: Planned, sink_url: str) -> Planned | None:
        """Plan a partition anew, a segment of which was gone when it was read; None where retention did not take it."""
        before = planned.sighted.inventory.partition
        try:
            now = look(Scope(sources=(str(before.path),)), self._sources).find(before.topic_partition)
        except UsageError:
            return None
        segments = now.inventory.partition.segments
        if not segments or segments[0].base_offset <= before.segments[0].base_offset:
            return None
        made = {boundary.offset for boundary in planned.plan.boundaries} | {known.offset for known in planned.standing}
        wanted = tuple(offset for offset in now.inventory.partition.boundaries if offset in made)
        given = planned.plan.high_watermark
        return self.boundaries(now, wanted, None if given == before.high_watermark else given, sink_url)

    def _planned(
        self,
        sighted: Sighted,
        plan: PartitionPlan,
        recollection: Recollection | None = None,
        standing: tuple[KnownBoundary, ...] = (),
    ) -> Planned:
        if self.remembering is not None and recollection is not None:
            plan = self.remembering.begin(plan, recollection)
        self.engine.needed_for(plan)
        return Planned(sighted=sighted, plan=plan, recollection=recollection, standing=standing)

    def order(self, order: TierOrder) -> Planned:
        """Plan what must be known to ship what is left of a partition."""
        wanted = [segment.next_base_offset for segment in order.candidates.segments]
        facts = load_facts(order.sighted.inventory.partition, self._sources, others=order.shown)
        recollection = order.recollection
        if recollection is not None:
            recollection = recollection.told_by(facts.evidence, self.rules)
        plan = plan_replay(
            order.sighted.inventory,
            facts,
            [offset for offset in wanted if offset is not None],
            self.rules,
            high_watermark=order.candidates.high_watermark,
            to_end=True,
        )
        return self._planned(order.sighted, plan, recollection)

    def comparison(self, sighted: Sighted, snapshots: str | None) -> Planned:
        """Plan what must be known to judge the snapshots of a partition, or those below ``snapshots``."""
        inventory = sighted.inventory
        facts: ReplayFacts = load_facts(inventory.partition, self._sources)
        compare = None if snapshots is None else staged_snapshots(sighted, snapshots, self._sources)
        wanted = (
            [boundary.offset for boundary in inventory.boundaries if boundary.state.is_usable]
            if compare is None
            else list(compare)
        )
        return self._planned(sighted, plan_replay(inventory, facts, wanted, self.rules, compare=compare))


def wanted_boundaries(
    sighted: Sighted, boundaries: Literal["missing", "all"], saved: SavedPlan | None
) -> tuple[int, ...] | None:
    """Return the boundaries to make of a partition; None where it is none to work on."""
    if saved is not None:
        return saved.boundaries.get(sighted.topic_partition)
    if not can_be_tiered(sighted.inventory):
        return None
    return sighted.inventory.partition.boundaries if boundaries == "all" else lost_boundaries(sighted.inventory)
