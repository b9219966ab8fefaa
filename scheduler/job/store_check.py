"""The steps of reading a store back: its objects, the chains they make, and its snapshots against a replay.

Each snapshot is held against a replay of the segments as they are stored, under the rules that its manifest names, if
it does: a replay under others would miss, or keep, other producers. So a partition that was shipped by several runs is
replayed once for each moment T.

How much lies above a segment must not matter. What lies above says how far back a replay reads, so that of a boundary
beyond the window more may come to light here than whoever shipped it was asked to know. Its snapshot must have the
transactions that span it and were aborted later; those that were committed may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.replay.comparison import Producers
from resnap.replay.results import Outcome
from resnap.replay.staging import DISCARD, snapshot_key
from resnap.scheduler.clock import instant
from resnap.scheduler.job.sources import Scope, look
from resnap.storage.errors import VerificationError
from resnap.storage.layouts.manifest import SnapshotHow
from resnap.storage.sources.log_dirs import tiered_part
from resnap.tiering.checking.chains import Chain, chains_of
from resnap.tiering.checking.verification import StoreReader
from resnap.tiering.planning import load_facts, plan_replay
from resnap.tiering.shipping.stored_rules import RULES_ALONE, Asked, is_of_shorter_log, judged_under, made_under

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resnap.replay.comparison import Comparison
    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult
    from resnap.replay.window import ReplayRules
    from resnap.scheduler.job.engines import Engine
    from resnap.scheduler.job.planner import Planner
    from resnap.scheduler.job.sources import SelectedPartition, Selection
    from resnap.scheduler.output.progress import Progress
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.protocol import Listing
    from resnap.storage.layouts.segments import ManifestFacts
    from resnap.storage.sources.log_dirs import TieredPart
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.checking.verification import VerifiedSegment
    from resnap.tiering.checking.verification_journal import VerificationJournal


MOST_SHOWN: Final = 5
"""Most producers that a message names."""
_BEYOND_WINDOW: Final = {SnapshotHow.BEYOND_WINDOW, SnapshotHow.KEPT}
REPLAYED_HERE_BYTES: Final = 1 << 30
"""Segments of fewer bytes are replayed sooner than a JVM has started."""


class ReplaySource(NamedTuple):
    """What is to be replayed together: a source has one cluster, and one topic of a name."""

    url: str
    topic_ids: Mapping[str, str]
    """By topic, all that count."""


class SnapshotCheck(NamedTuple):
    """What a replay says of a shipped snapshot."""

    key: str
    problem: VerificationError | None
    """None if it is what the replay gives."""
    rebuilt: str | None = None
    """Key of what the replay gives, in the sink; None where it came to nothing."""


@dataclass(slots=True, kw_only=True)
class StoreCheck:
    """One verification of a store; what its steps find is kept for those after them."""

    part: TieredPart
    """What is read."""
    wants: Callable[[str], bool]
    """Whether a topic counts."""
    engine: Engine
    rules: ReplayRules
    """For all that manifests do not say."""
    asked: Asked = RULES_ALONE
    """Which of them a flag asks for."""
    journal: VerificationJournal
    since_ms: int | None = None
    """Only segments that were shipped since then, by the store's clock, are read; None for all."""
    manifests: dict[str, ManifestFacts] = field(default_factory=dict)
    """All that could be read, by key."""
    asked_for: set[str] = field(default_factory=set)
    """Keys of those that are to be verified, by this run or the one that it goes on with."""
    sink: str = DISCARD
    """URL of where rebuilt snapshots go; if they are kept, those are made, too, that no broker could load."""
    resumed: int = 0
    """How many of them an interrupted run has found all right."""
    _listing: Listing | None = None

    @property
    def listing(self) -> Listing:
        """The segments, as one listing shows them.

        Raises:
            StoreError: the store failed.

        """
        if self._listing is None:
            self._listing = self.part.layout.listing(self.part.store, self.wants, self.part.within)
        return self._listing

    def segments(self, progress: Progress) -> Iterator[VerifiedSegment]:
        """Read back the objects of every segment, and yield a word on each, by key.

        Raises:
            ConfigurationError: a segment is encrypted, and its key is not at hand.
            StoreError: the store itself failed.

        """
        listing = self.listing
        reader = StoreReader(store=self.part.store, listing=listing, sources=self.engine.reading.sources)
        since_ms = self.since_ms or 0
        self.asked_for = {key for key, info in listing.manifests.items() if info.modified_ms >= since_ms}
        to_read = {key for key in self.asked_for if not self.journal.has(listing.manifests[key])}
        self.resumed = len(self.asked_for) - len(to_read)
        progress.expect(len(to_read), sum(listing.sizes.get(key, 0) for key in to_read))
        for key, info in listing.manifests.items():
            verified = reader.verify(key, reads_objects=key in to_read)
            if verified.manifest is not None:
                self.manifests[key] = verified.manifest
            if verified.was_read:
                progress.advance(1, verified.size_bytes)
                if not verified.problems:
                    self.journal.note(info)
            yield verified

    def chains(self) -> list[Chain]:
        """Return the chains of all segments whose manifests could be read; after ``segments``."""
        return chains_of(self.manifests.values())

    def snapshots(self, progress: Progress) -> Iterator[SnapshotCheck]:
        """Replay the stored segments, and yield a word on each snapshot that is asked for; after ``segments``.

        Raises:
            ResnapError: the replay failed.

        """
        asked = {key: self.manifests[key] for key in self.asked_for & self.manifests.keys()}
        held = {f"{self.part.store.url}/{one.snapshot_key}": one for one in asked.values()}
        for source in self._sources_of(asked):
            scope = Scope(sources=(source.url,), topics=tuple(sorted(source.topic_ids)), topic_ids=source.topic_ids)
            selection = look(scope, self.engine.reading.sources)
            yield from _unreplayed(selection)
            plans = {one.topic_partition: list(self._plans(one, held)) for one in selection.partitions}
            for depth in range(max(map(len, plans.values()), default=0)):
                layer = [found[depth] for found in plans.values() if depth < len(found)]
                yield from self._replayed(layer, held, progress)

    def _sources_of(self, found: Mapping[str, ManifestFacts]) -> Iterator[ReplaySource]:
        """Yield what is to be replayed for the segments ``found``, by the keys of their manifests."""
        by_folder: dict[str, dict[str, set[str]]] = {}
        for key, one in found.items():
            folder, topic_id = self.listing.source(key)
            if self.wants(one.topic):
                by_folder.setdefault(folder, {}).setdefault(one.topic, set()).add(topic_id)
        for folder, topics in sorted(by_folder.items()):
            for index in range(max(map(len, topics.values()))):
                ids = {topic: sorted(ids)[index] for topic, ids in topics.items() if index < len(ids)}
                yield ReplaySource(f"{self.part.store.url}/{folder}".rstrip("/"), ids)

    def _plans(self, selected: SelectedPartition, held: Mapping[str, ManifestFacts]) -> Iterator[PartitionPlan]:
        inventory = selected.inventory
        offsets: dict[ReplayRules, list[int]] = {}
        for boundary in inventory.boundaries:
            one = held.get(boundary.path or "")
            if one is not None and (boundary.state.is_usable or self.sink != DISCARD):
                offsets.setdefault(self._rules(one), []).append(boundary.offset)
        if offsets:
            facts = load_facts(inventory.partition, self.engine.reading.sources)
            there = {boundary.offset: boundary.path for boundary in inventory.boundaries if boundary.path is not None}
            for rules, wanted in offsets.items():
                plan = plan_replay(inventory, facts, wanted, rules, compare=there)
                if plan.bytes_in_segments >= REPLAYED_HERE_BYTES:
                    self.engine.needed_for(plan)
                yield plan

    def _rules(self, held: ManifestFacts) -> ReplayRules:
        """Return the rules to hold a snapshot against."""
        origin = held.snapshot_origin
        return self.rules if origin is None else judged_under(origin, self.rules, self.asked)

    def _replayed(
        self, plans: list[PartitionPlan], held: Mapping[str, ManifestFacts], progress: Progress
    ) -> Iterator[SnapshotCheck]:
        reads = [plan.segments[index] for plan in plans for run in plan.runs for index in range(run.start, run.end)]
        progress.expect(len(reads), sum(segment.size_bytes for segment in reads))
        results = self.engine.replay(plans, self.sink, progress.advance, progress, here_below_bytes=REPLAYED_HERE_BYTES)
        by_partition = {plan.topic_partition: plan for plan in plans}
        for result in results:
            for found in result.boundaries:
                why = found.reason or str(result.error)
                check = self._check(by_partition[result.topic_partition], found, held, why)
                is_made = found.outcome is Outcome.REBUILT
                rebuilt = snapshot_key(result.topic_partition, found.boundary.offset) if is_made else None
                yield check._replace(rebuilt=rebuilt)

    def _check(
        self, plan: PartitionPlan, found: BoundaryResult, held: Mapping[str, ManifestFacts], why: str
    ) -> SnapshotCheck:
        snapshot = found.boundary.existing or ""
        if found.outcome is not Outcome.REBUILT:
            return _not_compared(
                snapshot, f"{plan.topic_partition} is not rebuilt up to {found.boundary.offset}: {why}"
            )
        if found.comparison is None:  # it passed the look at its object, and did not come a second time
            return _not_compared(snapshot, "it could not be read again, or has gone meanwhile")
        origin = held[snapshot].snapshot_origin
        what = "; ".join(
            f"{word} {named(producers)}"
            for word, producers in (
                ("lacks", lacking(found, found.comparison, plan, origin)),
                ("differs in", _differing(found, found.comparison, origin)),
            )
            if producers.total
        )
        if not what:
            return SnapshotCheck(snapshot, None)
        problem = f"{snapshot}: not what a replay of the stored segments gives: {what}"
        hint = "`resnap explain` shows what an entry depends on"
        if origin is not None and is_of_shorter_log(origin, found.known_from_offset):
            problem += (
                f"; it was made from a log that began at offset {origin.known_from_offset}, and the one that is stored"
                f" begins at {found.known_from_offset}"
            )
            hint += "; `resnap tier` from a log dir that has the beginning names all such segments, and what to do"
        if origin is not None and self._rules(held[snapshot]) != made_under(origin, self.rules):
            problem += f"; it was made under {rules_made_under(origin)}, and is held against others"
        return SnapshotCheck(snapshot, VerificationError(problem, hint=hint))


def store_check(
    planner: Planner, store: ObjectStore, scope: Scope, journal: VerificationJournal, since_ms: int | None = None
) -> StoreCheck:
    """Return the verification of what lies in ``store``, in the layout of the first segment that is met.

    ``journal`` says how far an earlier one came. Of ``scope`` the topics count; ``store`` may be a part of one.
    Segments shipped before ``since_ms``, by the store's clock, are not read.

    Raises:
        StoreError: the store failed.

    """
    return StoreCheck(
        part=tiered_part(store.url, planner.engine.reading.sources),
        wants=scope.wants,
        engine=planner.engine,
        rules=planner.rules,
        asked=planner.asked,
        journal=journal,
        since_ms=since_ms,
    )


def lacking(
    found: BoundaryResult, comparison: Comparison, plan: PartitionPlan, origin: SnapshotOrigin | None
) -> Producers:
    """Return who is missing of a stored snapshot, but for those of whom its origin says why.

    Where it was made from a shorter log, what was in doubt there is settled now. What Resnap has made was swept by no
    broker. Beyond the window it was made from evidence alone, so that those may be missing whose transaction was
    committed later.
    """
    is_own = origin is None or origin.how in {SnapshotHow.PROVEN, SnapshotHow.KEPT}
    lacks = comparison.missing if is_own else Producers.join((comparison.missing, comparison.swept))
    excused = set()
    if origin is not None and not is_of_shorter_log(origin, found.known_from_offset):
        excused = set(lacks.named).intersection(one.producer_id for one in origin.left_out)
    if plan.is_beyond_window(found.boundary) and (origin is None or origin.how in _BEYOND_WINDOW):
        aborted = {txn.producer_id for txn in plan.evidence.aborted_across(found.boundary.offset)}
        excused |= set(lacks.named) - aborted
    # Whom nobody names, nobody can excuse.
    return Producers(lacks.total - len(excused), tuple(pid for pid in lacks.named if pid not in excused))


def _differing(found: BoundaryResult, comparison: Comparison, origin: SnapshotOrigin | None) -> Producers:
    """Return in whom a stored snapshot differs.

    A log without its beginning may not show that a broker had forgotten a producer in between: the coordinator epoch is
    kept then, which harms nobody.
    """
    if origin is None or not is_of_shorter_log(origin, found.known_from_offset):
        return comparison.different
    kept = set(comparison.coordinator_kept.named)
    left = tuple(pid for pid in comparison.different.named if pid not in kept)
    return Producers(comparison.different.total - comparison.coordinator_kept.total, left)


def rules_made_under(origin: SnapshotOrigin) -> str:
    """Return in words which rules a stored snapshot was made under."""
    at = "at its roll" if origin.as_of == "roll" or origin.as_of_ms is None else f"as of {instant(origin.as_of_ms)}"
    return f"producer.id.expiration.ms {origin.producer_id_expiration_ms}, {at}"


def _unreplayed(selection: Selection) -> Iterator[SnapshotCheck]:
    for problem in selection.problems:
        yield _not_compared(str(problem.path), str(problem.error))


def _not_compared(where: str, why: str) -> SnapshotCheck:
    hint = "repair what else is reported of this partition, and verify again"
    return SnapshotCheck(where, VerificationError(f"{where}: cannot be compared: {why}", hint=hint))


def named(producers: Producers) -> str:
    """Return who they are, the first of them by their ids."""
    ids = producers.named[:MOST_SHOWN]
    more = producers.total - len(ids)
    return f"producers {', '.join(map(str, ids))}" + (f" and {more} more" if more else "")
