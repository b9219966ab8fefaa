"""What is left to ship of a partition, once it is known what the store holds of it.

The replica that is shipped may change, and another one cuts the same log into other segments. What it has must be of
one lineage with what the store holds, by the leader epochs of both; and it is shipped so that a reader finds a chain in
which no offset is missing and none comes twice: from the last boundary on that the store has, too. What the store holds
in other pieces is not shipped again, unless it is a link of that chain.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import FormatError, LogDirError, VerificationError
from storage.remote.lineage import epochs_in
from storage.source import PLAIN
from tiering.refusal import Reason, refuse
from tiering.segment_bundle import EpochHistory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.log.partition_dir import PartitionDir, Segment
    from storage.remote.manifest import Manifest
    from storage.source import Sources
    from tiering.eligibility import Candidates
    from tiering.refusal import Refusal
    from tiering.shipped import ShippedTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A partition's candidates without those that need no shipping, or must not be shipped."""

    candidates: Candidates
    already: int
    """How many segments the store holds, as they are or in other pieces."""
    failures: tuple[FormatError | VerificationError, ...]
    """What is wrong with manifests of others; those segments are left alone."""


def remainder(candidates: Candidates, shipped: ShippedTopic, sources: Sources = PLAIN) -> Remainder:
    """Return what is left of ``candidates``; what is of another lineage, or can be in no chain, is refused.

    Raises:
        StoreError: the store failed.

    """
    fold = _Fold(candidates.inventory.partition, shipped, _Lineage(candidates.inventory.partition, sources))
    for segment in candidates.segments:
        try:
            fold.take(segment)
        except (FormatError, VerificationError) as error:
            fold.failures.append(error)
    fold.settle()
    ordered = sorted((*candidates.refusals, *fold.refusals), key=lambda refusal: refusal.base_offset)
    return Remainder(
        candidates=replace(candidates, segments=tuple(fold.left), refusals=tuple(ordered)),
        already=fold.already,
        failures=tuple(fold.failures),
    )


class _Piece(NamedTuple):
    """A segment that the store does not hold as it is, and how it lies to those that the store holds."""

    segment: Segment
    beside: Sequence[Manifest]
    """Those that share offsets with it or adjoin it, all of one lineage with it."""
    is_covered: bool
    """Whether they have all of its offsets."""
    follows: bool
    """Whether it begins where one of them begins or ends."""
    begins_inside: bool
    leads_on: bool
    """Whether it ends where one of them begins, or beyond all that the store holds."""


@dataclass(slots=True)
class _Fold:
    """Takes the candidates of ``partition``, ascending."""

    partition: PartitionDir
    shipped: ShippedTopic
    lineage: _Lineage
    left: list[Segment] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    failures: list[FormatError | VerificationError] = field(default_factory=list)
    already: int = 0
    block: list[_Piece] = field(default_factory=list)
    """Pieces that follow one another."""
    held_to: int | None = None
    """Where the segment before ends, if the store holds it as it is."""
    is_parted: bool = False
    """Whether a segment was refused, so that what does not follow on the store's would leave a gap."""

    def take(self, segment: Segment) -> None:
        number, topic_id = self.partition.topic_partition.partition, self.partition.topic_id
        found = self.shipped.find(number, segment.base_offset, _end(segment), topic_id=topic_id)
        if found is None:
            self._take_piece(segment)
            return
        self.settle()
        self.held_to, self.is_parted = _end(segment), False
        if found.log_bytes == segment.size_bytes:
            self.already += 1
        else:
            self._refuse(
                segment, f"the store holds {found.log_bytes} bytes of the same offsets, here are {segment.size_bytes}"
            )

    def _take_piece(self, segment: Segment) -> None:
        if self.block and _end(self.block[-1].segment) != segment.base_offset:
            self.settle()
        below = self.block[-1].beside if self.block else None
        beside = self.shipped.beside(self.partition, segment, below)
        stranger = next((one for one in beside if not self.lineage.has(one, segment)), None)
        if stranger is None:
            self.block.append(self._piece(segment, beside))
            return
        self.settle()
        self._part(
            segment,
            f"the store's [{stranger.base_offset}, {stranger.next_base_offset}) was written under other leader epochs",
        )

    def settle(self) -> None:
        """Decide on the block that ends here."""
        pieces, self.block = self.block, []
        chosen = _chosen(pieces, is_held=bool(pieces) and pieces[0].segment.base_offset == self.held_to,
                         is_parted=self.is_parted)  # fmt: skip
        for piece, is_chosen in zip(pieces, chosen, strict=True):
            if is_chosen:
                self.left.append(piece.segment)
                self.is_parted = False
            elif piece.is_covered:
                self.already += 1
            else:
                self._part(piece.segment, _no_place(piece))

    def _piece(self, segment: Segment, beside: Sequence[Manifest]) -> _Piece:
        base, end = segment.base_offset, _end(segment)
        farthest = max((one.next_base_offset for one in beside), default=end)
        is_last = farthest <= end and not self.shipped.goes_on(self.partition, end)
        return _Piece(
            segment=segment,
            beside=beside,
            is_covered=_is_covered(segment, beside),
            follows=any(base in {one.base_offset, one.next_base_offset} for one in beside),
            begins_inside=any(one.base_offset < base < one.next_base_offset for one in beside),
            leads_on=is_last or any(one.base_offset == end for one in beside),
        )

    def _part(self, segment: Segment, why: str) -> None:
        self.is_parted, self.held_to = True, None
        self._refuse(segment, why)

    def _refuse(self, segment: Segment, why: str) -> None:
        self.refusals.append(refuse(segment, Reason.LINEAGE_CONFLICT, why))


def _chosen(pieces: Sequence[_Piece], *, is_held: bool, is_parted: bool) -> list[bool]:
    """Tell which of ``pieces`` to ship: from a boundary of the store on, to the last one that has something new.

    What begins where nothing is stored begins a chain of its own: it must lead on to what is stored above.
    """
    chosen = [False] * len(pieces)
    start: int | None = None
    must_lead_on = is_new = False
    for index, piece in enumerate(pieces):
        if piece.follows or (index == 0 and is_held):
            start, must_lead_on, is_new = index, False, False
        elif index == 0 and not piece.begins_inside and not is_parted:
            start, must_lead_on = index, True
        is_new = is_new or not piece.is_covered
        if start is not None and is_new and (piece.leads_on or not must_lead_on):
            chosen[start : index + 1] = [True] * (index + 1 - start)
            start, must_lead_on, is_new = index + 1, False, False
    return chosen


def _no_place(piece: _Piece) -> str:
    inside = [one for one in piece.beside if one.base_offset < _end(piece.segment)]
    ranges = ", ".join(f"[{one.base_offset}, {one.next_base_offset})" for one in inside[:3])
    if ranges:
        return f"the store holds {ranges} of another replica, and no boundary below is in both logs"
    return "it would leave a gap to what the store holds"


def _is_covered(segment: Segment, beside: Sequence[Manifest]) -> bool:
    reached = segment.base_offset
    for one in sorted(beside, key=lambda one: one.base_offset):
        if one.base_offset <= reached:
            reached = max(reached, one.next_base_offset)
    return reached >= _end(segment)


class _Lineage:
    """The leader epochs of the log here, read when they are first needed."""

    def __init__(self, partition: PartitionDir, sources: Sources) -> None:
        self._partition = partition
        self._sources = sources
        self._history: EpochHistory | None = None

    def has(self, stored: Manifest, segment: Segment) -> bool:
        """Whether ``stored`` is of this log, as far as both are known up to the end of ``segment``."""
        self._history = self._history or EpochHistory(self._partition, self._sources)
        try:
            known = self._history.up_to(segment)
        except (FormatError, LogDirError):
            return True  # it cannot be shipped, and is refused for just that when it is bundled
        start = max(stored.base_offset, known[0].start_offset)
        end = min(stored.next_base_offset, _end(segment))
        return start >= end or epochs_in(stored.leader_epochs, start, end) == epochs_in(known, start, end)


def _end(segment: Segment) -> int:
    return segment.base_offset if segment.next_base_offset is None else segment.next_base_offset
