"""The use case of reading a store back: its objects, the chains they make, and its snapshots against a replay.

Each snapshot is held against a replay of the segments as they are stored, under the rules that its manifest names: a
replay under others would miss, or keep, other producers. So a partition that was shipped by several runs is replayed
once for each moment T.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from replay.comparison import Producers
from replay.producer_state import Expiry
from replay.results import Outcome
from replay.staging import DISCARD
from replay.window import AsOf
from scheduler.use_cases.sources import Scope, Sight, look
from tiering.checking.chains import Chain, chains_of
from tiering.checking.verification import StoreReader, VerifiedSegment, list_shipped
from tiering.planning import load_facts, plan_replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replay.plan import PartitionPlan
    from replay.results import BoundaryResult
    from replay.window import ReplayRules
    from scheduler.answers.progress import Progress
    from scheduler.use_cases.engines import Engine
    from scheduler.use_cases.sources import Sighted
    from storage.log.names import TopicPartition
    from storage.remote.layouts.flat import FlatKey
    from storage.remote.manifest import Manifest, SnapshotOrigin
    from storage.remote.object_store import ObjectStore
    from tiering.checking.verification_journal import VerificationJournal


MOST_SHOWN: Final = 5
"""Of producers, in a message."""
REPLAYED_HERE_BYTES: Final = 1 << 30
"""Segments of fewer bytes are replayed sooner than a JVM has started."""


class SnapshotCheck(NamedTuple):
    """What a replay says of a shipped snapshot."""

    key: str
    problem: str | None
    """None if it is what the replay gives."""


@dataclass(slots=True, kw_only=True)
class StoreCheck:
    """One verification of a store; what its steps find is kept for those after them."""

    store: ObjectStore
    engine: Engine
    rules: ReplayRules
    """For all that manifests do not say."""
    journal: VerificationJournal
    wants: Callable[[FlatKey], bool]
    since_ms: int | None = None
    """Only segments that were shipped since then, by the store's clock, are read; None for all."""
    manifests: dict[str, Manifest] = field(default_factory=dict)
    """All that could be read, by key."""
    asked_for: set[str] = field(default_factory=set)
    """Keys of those that are to be verified, by this run or the one that it goes on with."""
    resumed: int = 0
    """How many of them an interrupted run has found all right."""

    def segments(self, progress: Progress) -> Iterator[VerifiedSegment]:
        """Read back the objects of every segment, and yield a word on each, by key.

        Raises:
            StoreError: the store itself failed.

        """
        listing = list_shipped(self.store, self.wants)
        since_ms = self.since_ms or 0
        self.asked_for = {key for key, info in listing.manifests.items() if info.modified_ms >= since_ms}
        to_read = {key for key in self.asked_for if not self.journal.has(listing.manifests[key])}
        self.resumed = len(self.asked_for) - len(to_read)
        progress.expect(len(to_read), listing.size_of(to_read))
        reader = StoreReader(store=self.store)
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
        for url in self._cluster_urls():
            sight = look(self._scope(url), self.engine.reading.sources)
            yield from self._unreplayed(sight)
            plans = {one.topic_partition: list(self._plans(one)) for one in sight.partitions}
            for depth in range(max(map(len, plans.values()), default=0)):
                layer = [found[depth] for found in plans.values() if depth < len(found)]
                yield from self._replayed(layer, progress)

    def _scope(self, url: str) -> Scope:
        topics = {manifest.topic for key, manifest in self.manifests.items() if key in self.asked_for}
        return Scope(sources=(url,), topics=tuple(sorted(topics)))

    def _cluster_urls(self) -> list[str]:
        """Return the URL of each cluster's part of the store: a source has one cluster only."""
        clusters = {key.partition("/")[0] for key in self.asked_for & self.manifests.keys()}
        return [f"{self.store.url}/{cluster}" for cluster in sorted(clusters)]

    def _unreplayed(self, sight: Sight) -> Iterator[SnapshotCheck]:
        for problem in sight.problems:
            yield SnapshotCheck(str(problem.path), f"{problem.path}: its snapshots cannot be compared: {problem.error}")

    def _plans(self, sighted: Sighted) -> Iterator[PartitionPlan]:
        inventory = sighted.inventory
        offsets: dict[ReplayRules, list[int]] = {}
        for boundary in inventory.boundaries:
            if boundary.path is not None and boundary.state.is_usable:
                key = _manifest_beside(self._key(boundary.path))
                if key in self.asked_for and key in self.manifests:
                    rules = _rules_of(self.manifests[key].snapshot_origin, self.rules)
                    offsets.setdefault(rules, []).append(boundary.offset)
        if offsets:
            facts = load_facts(inventory.partition, self.engine.reading.sources)
            for rules, wanted in offsets.items():
                plan = plan_replay(inventory, facts, wanted, rules)
                if plan.bytes_in_segments >= REPLAYED_HERE_BYTES:
                    self.engine.needed_for(plan)
                yield plan

    def _replayed(self, plans: list[PartitionPlan], progress: Progress) -> Iterator[SnapshotCheck]:
        reads = [plan.segments[index] for plan in plans for run in plan.runs for index in range(run.start, run.end)]
        progress.expect(len(reads), sum(segment.size_bytes for segment in reads))
        results = self.engine.replay(plans, DISCARD, progress.advance, progress, here_below_bytes=REPLAYED_HERE_BYTES)
        for result in results:
            for found in result.boundaries:
                why = found.reason or str(result.error)
                yield self._check(result.topic_partition, found, why)

    def _check(self, topic_partition: TopicPartition, found: BoundaryResult, why: str) -> SnapshotCheck:
        key = self._key(found.boundary.existing or "")
        if found.outcome is not Outcome.REBUILT or found.comparison is None:
            problem = f"cannot be compared: {topic_partition} is not rebuilt up to {found.boundary.offset}: {why}"
            return SnapshotCheck(key, f"{key}: {problem}")
        left_out = {one.producer_id for one in self.manifests[_manifest_beside(key)].snapshot_origin.left_out}
        lacks = found.comparison.missing
        excused = left_out.intersection(lacks.named)
        # Whom nobody names, nobody can excuse.
        missing = Producers(lacks.total - len(excused), tuple(pid for pid in lacks.named if pid not in excused))
        what = "; ".join(
            f"{word} {_named(producers)}"
            for word, producers in (("lacks", missing), ("differs in", found.comparison.different))
            if producers.total
        )
        problem = f"{key}: not what a replay of the stored segments gives: {what}"
        return SnapshotCheck(key, problem if what else None)

    def _key(self, locator: str) -> str:
        return locator.removeprefix(f"{self.store.url}/")


def _named(producers: Producers) -> str:
    ids = producers.named[:MOST_SHOWN]
    more = producers.total - len(ids)
    return f"producers {', '.join(map(str, ids))}" + (f" and {more} more" if more else "")


def _manifest_beside(snapshot_key: str) -> str:
    return snapshot_key.removesuffix("snapshot") + "manifest"


def _rules_of(origin: SnapshotOrigin, rules: ReplayRules) -> ReplayRules:
    """Return the rules that a shipped snapshot was made under; ``rules`` tell what its manifest does not."""
    roll = origin.as_of == "roll"
    now_ms = rules.as_of.now_ms if roll or origin.as_of_ms is None else origin.as_of_ms
    expiry = Expiry(origin.producer_id_expiration_ms, origin.check_interval_ms)
    return replace(rules, as_of=AsOf(now_ms=now_ms, roll=roll), expiry=expiry, max_reach_back_ms=None)
