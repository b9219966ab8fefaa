"""From what is kept of earlier runs to what still stands, and back again after a run.

Reads directory entries, and of the closed segments that are remembered the tail of the offset index and the first and
last header.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resnap.tiering.eligibility import Eligibility
from resnap.tiering.refusal import Reason
from resnap.tiering.remembered.memory import (
    KnownRefusals,
    Memory,
    directory_key,
    known_boundary,
    looks_of,
    nearest_and_farther,
    rules_key,
)
from resnap.tiering.remembered.segment_marks import mark_of, unchanged_up_to

if TYPE_CHECKING:
    from resnap.replay.evidence import Evidence
    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.replay.window import ReplayRules
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.sources.files import Sources
    from resnap.tiering.eligibility import Candidates
    from resnap.tiering.inventory import PartitionInventory
    from resnap.tiering.remembered.memory_file import MemoryFiles
    from resnap.tiering.remembered.segment_marks import SegmentMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """What is known of one partition, as it stands now."""

    inventory: PartitionInventory
    directory: str
    """Digest of everything in the directory, taken before anything else was read."""
    memory: Memory
    """As far as it holds for the log and the rules of this run."""
    stored: Memory
    """As it was found, for replacing it."""
    is_checked: bool = False
    """Whether the boundaries have been held against the evidence that there is now."""

    @property
    def partition(self) -> PartitionDir:
        """The partition."""
        return self.inventory.partition

    @property
    def is_same_directory(self) -> bool:
        """Whether nothing has changed at all since the boundaries were made, the small files included."""
        return self.memory.directory == self.directory

    def told_by(self, evidence: Evidence, rules: ReplayRules) -> Recollection:
        """Return this without the boundaries that a run under ``rules`` would make otherwise, now that it is known."""
        if self.is_same_directory:
            return replace(self, is_checked=True)
        log_start = self.partition.segments[0].base_offset if self.partition.segments else 0
        return replace(self, memory=self.memory.told_by(evidence, rules, log_start), is_checked=True)

    def refused(self, candidates: Candidates, store: str) -> Eligibility | None:
        """Return the last word on ``candidates`` if an earlier run has said it and nothing has changed since."""
        known = self.memory.refused
        now = self.directory, store, candidates.high_watermark
        if known is None or (known.directory, known.store, known.high_watermark) != now:
            return None
        by_base = {refusal.base_offset: refusal for refusal in known.refusals}
        if any(segment.base_offset not in by_base for segment in candidates.segments):
            return None
        again = [by_base[segment.base_offset] for segment in candidates.segments]
        ordered = sorted([*candidates.refusals, *again], key=lambda refusal: refusal.base_offset)
        return Eligibility(eligible=(), refusals=tuple(ordered), last_stable_offset=known.last_stable_offset)


def recall(
    files: MemoryFiles | None, inventory: PartitionInventory, rules: ReplayRules, sources: Sources
) -> Recollection:
    """Return what is known of a partition and still holds under ``rules``; nothing, where there are no ``files``."""
    partition = inventory.partition
    directory = directory_key(partition)
    stored = Memory() if files is None else files.load(partition)
    end = unchanged_up_to(partition.segments, stored.marks, sources) if stored.marks else None
    memory = replace(stored.below(end).under(rules), topic_id=partition.topic_id)
    return Recollection(inventory=inventory, directory=directory, memory=memory, stored=stored)


def learnt(
    recollection: Recollection, result: PartitionResult | None, rules: ReplayRules, now_ms: int, sources: Sources
) -> Memory:
    """Return what is known once a replay has given ``result``."""
    memory, partition = recollection.memory, recollection.partition
    made = [
        known
        for one in (result.boundaries if result else ())
        if not _moves_on(one, rules) and (known := known_boundary(one, now_ms))
    ]
    # The directory kept with them from now on must not vouch for files that nobody has looked at.
    stood = memory.boundaries if recollection.is_checked or recollection.is_same_directory else {}
    boundaries = dict(stood) | {known.offset: known for known in made}
    anchors = nearest_and_farther([*memory.anchors, *(result.anchors if result else ())])
    return replace(
        memory,
        rules=rules_key(rules),
        topic_id=partition.topic_id,
        marks=_marks(partition, memory, sources) if boundaries or anchors else (),
        directory=recollection.directory,
        looks=looks_of(recollection.inventory),
        boundaries=boundaries,
        anchors=anchors,
    )


def _moves_on(result: BoundaryResult, rules: ReplayRules) -> bool:
    """Whether, under ``roll``, the moment of this run bounded T, since clocks ran ahead: a later one moves it."""
    return rules.as_of.roll and result.as_of_ms >= rules.as_of.now_ms


def with_refusals(
    memory: Memory, eligibility: Eligibility, candidates: Candidates, *, store: str, now_ms: int
) -> Memory:
    """Return ``memory`` with what was refused of ``candidates``, of which everything eligible has been shipped.

    What is at fault with the files is not remembered: whether it has been mended is looked at each time. Nor is what
    the store holds beside a segment.
    """
    looked_at_anew = {Reason.DAMAGED, Reason.UNREADABLE, Reason.SEGMENT_CHANGED}
    if any(refusal.reason in looked_at_anew for refusal in eligibility.refusals):
        return replace(memory, refused=None)
    known = KnownRefusals(
        store=store,
        directory=memory.directory,
        high_watermark=candidates.high_watermark,
        made_ms=now_ms,
        refusals=tuple(one for one in eligibility.refusals if one.reason is not Reason.LINEAGE_CONFLICT),
        last_stable_offset=eligibility.last_stable_offset,
    )
    return replace(memory, refused=known)


def _marks(partition: PartitionDir, memory: Memory, sources: Sources) -> tuple[SegmentMark, ...]:
    """Return the marks of the closed segments, up to the first that cannot be read; those known are not read again."""
    known = {mark.base_offset: mark for mark in memory.marks}
    marks = []
    for segment in partition.segments:
        mark = known.get(segment.base_offset) or mark_of(segment, sources)
        if mark is None:
            break
        marks.append(mark)
    return tuple(marks)
