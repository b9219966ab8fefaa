"""The use case of reading back what lies in the layout ``aiven``, whoever wrote it: brokers or Resnap.

As ``store_check``, with what the plugin's manifests do not tell: there are no digests, so everything is held against
itself, and no moment T, so snapshots are held against a replay under the rules that are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replay.results import Outcome
from replay.staging import DISCARD
from scheduler.use_cases.sources import Scope, look
from scheduler.use_cases.store_check import SnapshotCheck
from storage.remote.layouts import aiven, flat
from storage.remote.layouts.aiven_members import member_of
from tiering.checking.aiven_verification import list_copies, verify_copy
from tiering.checking.chains import Chain, chains_of
from tiering.planning import load_facts, plan_replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replay.plan import PartitionPlan
    from replay.results import BoundaryResult
    from replay.window import ReplayRules
    from scheduler.answers.progress import Progress
    from scheduler.use_cases.engines import Engine
    from scheduler.use_cases.sources import Sighted
    from storage.remote.layouts.aiven import AivenKey
    from storage.remote.layouts.aiven_log import CopiedSegment
    from storage.remote.object_store import ObjectStore
    from tiering.checking.aiven_verification import VerifiedCopy
    from tiering.checking.verification_journal import VerificationJournal


def holds_copies(store: ObjectStore) -> bool:
    """Whether the first segment that is met in ``store`` is in the layout ``aiven``.

    Raises:
        StoreError: the store failed.

    """
    kinds = (aiven.parse_key(info.key) is not None for info in store.list() if _is_of_a_segment(info.key))
    return next(kinds, False)


def _is_of_a_segment(key: str) -> bool:
    return aiven.parse_key(key) is not None or flat.parse_key(key) is not None


@dataclass(slots=True, kw_only=True)
class CopiesCheck:
    """One verification; what its steps find is kept for those after them."""

    store: ObjectStore
    engine: Engine
    rules: ReplayRules
    journal: VerificationJournal
    wants: Callable[[AivenKey], bool]
    since_ms: int | None = None
    """Only segments that were copied since then, by the store's clock, are read; None for all."""
    manifests: dict[str, CopiedSegment] = field(default_factory=dict)
    """All that could be read, by key."""
    asked_for: set[str] = field(default_factory=set)
    """Keys of those that are to be verified, by this run or the one that it goes on with."""
    resumed: int = 0
    """How many of them an interrupted run has found all right."""

    def segments(self, progress: Progress) -> Iterator[VerifiedCopy]:
        """Read back the objects of every segment, and yield a word on each, by key.

        Raises:
            ConfigurationError: a segment is encrypted, and its key is not at hand.
            StoreError: the store itself failed.

        """
        listing, infos = list_copies(self.store, self.wants)
        since_ms, sources = self.since_ms or 0, self.engine.reading.sources
        self.asked_for = {key for key, info in listing.manifests.items() if info.modified_ms >= since_ms}
        to_read = {key for key in self.asked_for if not self.journal.has(listing.manifests[key])}
        self.resumed = len(self.asked_for) - len(to_read)
        progress.expect(len(to_read), listing.size_of(to_read))
        for key, info in listing.manifests.items():
            verified = verify_copy(self.store, infos, key, sources, reads_objects=key in to_read)
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
        asked = [self.manifests[key] for key in self.asked_for if key in self.manifests]
        topics = tuple(sorted({one.place.topic for one in asked}))
        for prefix in sorted({one.place.prefix for one in asked}):
            url = f"{self.store.url}/{prefix}".rstrip("/")
            sight = look(Scope(sources=(url,), topics=topics), self.engine.reading.sources)
            for problem in sight.problems:
                why = f"{problem.path}: its snapshots cannot be compared: {problem.error}"
                yield SnapshotCheck(str(problem.path), why)
            plans = [plan for one in sight.partitions if (plan := self._plan(one)) is not None]
            yield from self._replayed(plans, progress)

    def _plan(self, sighted: Sighted) -> PartitionPlan | None:
        inventory = sighted.inventory
        wanted = [
            boundary.offset
            for boundary in inventory.boundaries
            if boundary.path is not None and boundary.state.is_usable and self._manifest_of(boundary.path) is not None
        ]
        if not wanted:
            return None
        plan = plan_replay(inventory, load_facts(inventory.partition, self.engine.reading.sources), wanted, self.rules)
        self.engine.needed_for(plan)
        return plan

    def _manifest_of(self, snapshot: str) -> str | None:
        """Return the key of the manifest that the locator ``snapshot`` is of, if it is asked for."""
        member = member_of(snapshot)
        stem = "" if member is None else member.stem.removeprefix(f"{self.store.url}/")
        key = f"{stem}.{aiven.MANIFEST}"
        return key if key in self.asked_for else None

    def _replayed(self, plans: list[PartitionPlan], progress: Progress) -> Iterator[SnapshotCheck]:
        reads = [plan.segments[index] for plan in plans for run in plan.runs for index in range(run.start, run.end)]
        progress.expect(len(reads), sum(segment.size_bytes for segment in reads))
        for result in self.engine.replay(plans, DISCARD, progress.advance, progress):
            for found in result.boundaries:
                why = found.reason or str(result.error)
                yield _checked(f"{result.topic_partition} up to {found.boundary.offset}", found, why)


def _checked(place: str, found: BoundaryResult, why: str) -> SnapshotCheck:
    key = found.boundary.existing or place
    if found.outcome is not Outcome.REBUILT or found.comparison is None:
        return SnapshotCheck(key, f"{key}: cannot be compared: {place} is not rebuilt: {why}")
    missing, different = found.comparison.missing.total, found.comparison.different.total
    if not missing and not different:
        return SnapshotCheck(key, None)
    what = f"{missing} producers are missing, {different} differ"
    return SnapshotCheck(key, f"{key}: not what a replay of the stored segments gives: {what}")
