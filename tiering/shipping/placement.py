"""Decides which segments of a log are shipped beside those that a store holds already, of any origin.

Replicas cut one log at different offsets. A reader uses segments whole, one after the other: each must begin where the
one below it ends. So in each *stretch*, a range of offsets that a store holds without a gap, **every segment but the
first begins where another one ends**: then a reader finds a way down from the end, and shipping can continue from any
boundary. Each placed segment preserves this by itself, so that a run may end after any of them, and everything readable
stays readable. It follows that a segment is placed only

- at an offset that stored segments reach, one after the other, from the beginning of their stretch; or where nothing is
  stored;
- if no stretch begins strictly inside it: readers would skip its beginning, and with it everything that depends on it;
- above a gap, only if the log itself has one there; below stored segments, only if the segments that follow reach
  exactly the beginning of a stretch, and then from there downwards.

Offsets that the store holds in other segments are shipped again only between the last such offset and a missing one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.layouts.lineage import StoredRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resnap.storage.log.names import OffsetRange


class PlacementVerdict(Enum):
    """The decision on a candidate."""

    PLACED = "placed"
    HELD = "held"
    """The store holds all of its offsets, as they are or in other pieces."""
    UNFIT = "unfit"
    """It was no choice: of another lineage, or what the store holds there cannot be read."""
    BEGINS_INSIDE = "begins-inside"
    """It begins inside of what the store holds, and no boundary below is in both logs."""
    COVERS_A_BEGINNING = "covers-a-beginning"
    """A stretch begins strictly inside of it."""
    LEAVES_A_GAP = "leaves-a-gap"
    """One below it has no place, or those above it do not lead to what the store holds."""


class PlacedCandidate(NamedTuple):
    """A placed candidate, and the one that must be shipped before it; both by index."""

    candidate: int
    depends_on: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The decision on each candidate."""

    verdicts: tuple[PlacementVerdict, ...]
    steps: tuple[PlacedCandidate, ...]
    """What is placed, in the order in which it is to become visible."""
    is_attached: bool
    """Whether all that is missing follows on what is stored; else the answer depends on knowing all that is below."""


def place(
    stored: Iterable[OffsetRange],
    candidates: Sequence[OffsetRange],
    unfit: frozenset[int] = frozenset(),
    *,
    log_start: int = 0,
    knows_below: bool = True,
) -> Placement:
    """Return which of ``candidates``, ascending and disjoint, are shipped beside ``stored``.

    Args:
        stored: the segments of one lineage that the store holds; those that end below the first candidate may be
            omitted.
        candidates: offsets of segments.
        unfit: indexes of candidates that must not be shipped.
        log_start: offsets below it need not be shipped.
        knows_below: False if an unreadable segment below the candidates may reach up to them.

    """
    fold = _Fold(StoredRanges(stored), candidates, unfit, log_start, is_parted=not knows_below)
    while len(fold.verdicts) < len(candidates):
        fold.take(len(fold.verdicts))
    return Placement(verdicts=tuple(fold.verdicts), steps=tuple(fold.steps), is_attached=fold.is_attached)


@dataclass(slots=True)
class _Fold:
    """Processes the candidates, ascending."""

    stored: StoredRanges
    candidates: Sequence[OffsetRange]
    unfit: frozenset[int]
    log_start: int
    is_parted: bool
    """Whether something below has no place, so that what does not follow on the store's would leave a gap."""
    led_to: set[int] = field(default_factory=set)
    """Where those that were placed end or begin."""
    bridge: list[int] = field(default_factory=list)
    """Held in other pieces, from the last offset that is led to up to here."""
    verdicts: list[PlacementVerdict] = field(default_factory=list)
    steps: list[PlacedCandidate] = field(default_factory=list)
    is_attached: bool = True

    def take(self, index: int) -> None:
        """Decide on the next candidate, and those that depend on it."""
        span = self.candidates[index]
        if index in self.unfit:
            self._refuse(PlacementVerdict.UNFIT)
        elif span in self.stored.spans:
            self.verdicts.append(PlacementVerdict.HELD)
            self.is_parted, self.bridge = False, []
        elif self.stored.cover(span._replace(start=max(span.start, self.log_start))):
            self._hold(index)
        else:
            self._find_place(index)

    def _hold(self, index: int) -> None:
        """Record a candidate whose offsets are stored in other segments: it may be needed to reach missing offsets."""
        span = self.candidates[index]
        if self._covers_a_beginning(span):
            self.bridge = []
        elif self._is_led_to(span.start):
            self.bridge = [index]
        else:
            self.bridge = [*self.bridge, index] if self._follows_bridge(index) else []
        self.verdicts.append(PlacementVerdict.HELD)
        self.is_parted = False

    def _find_place(self, index: int) -> None:
        span = self.candidates[index]
        if self._covers_a_beginning(span):
            self._refuse(PlacementVerdict.COVERS_A_BEGINNING)
        elif self._is_led_to(span.start):
            self._place([index])
        elif self._follows_bridge(index):
            self._place([*self.bridge, index])
        elif self.stored.touch_from_below(span.start):
            self._refuse(PlacementVerdict.BEGINS_INSIDE)
        elif self.is_parted:
            self._refuse(PlacementVerdict.LEAVES_A_GAP)
        else:
            self._begin_stretch(index)

    def _begin_stretch(self, index: int) -> None:
        """Place a candidate with nothing stored at its base: at the very top, or down from the next stretch."""
        self.is_attached = False
        beginning = self.stored.next_beginning(self.candidates[index].start)
        if beginning is None:
            self._place([index])
            return
        run = self._run_to(index, beginning)
        if self.candidates[run[-1]].end != beginning:
            self.verdicts += [PlacementVerdict.LEAVES_A_GAP] * len(run)
            return
        self.verdicts += [PlacementVerdict.PLACED] * len(run)
        self.steps += [PlacedCandidate(index, index + 1 if index != run[-1] else None) for index in reversed(run)]
        self.is_parted, self.bridge = False, []

    def _run_to(self, index: int, offset: int) -> list[int]:
        """Return the consecutive candidates from ``index`` on that end at ``offset`` or below."""
        run = [index]
        for other in range(index + 1, len(self.candidates)):
            if other in self.unfit or not self._follows(other) or self.candidates[other].end > offset:
                break
            run.append(other)
        return run

    def _place(self, run: list[int]) -> None:
        """Place ``run``, whose candidates but the last one counted as held."""
        self.verdicts.append(PlacementVerdict.PLACED)
        for index in run:
            span = self.candidates[index]
            self.verdicts[index] = PlacementVerdict.PLACED
            self.steps.append(PlacedCandidate(index, index - 1 if self._rests_on_the_one_below(index) else None))
            self.led_to |= {span.start, span.end}
        self.is_parted, self.bridge = False, []

    def _rests_on_the_one_below(self, index: int) -> bool:
        """Whether only the candidate below, which is placed too, reaches it.

        At the very top it may be shipped alone, above the gap that the log has if that one is damaged; but not if that
        one may be missing because it depends on another.
        """
        start = self.candidates[index].start
        if start in self.stored.reached or start not in self.led_to:
            return False
        is_on_top = not self.stored.touch_from_below(start) and self.stored.next_beginning(start) is None
        return not is_on_top or self.steps[-1].depends_on is not None

    def _covers_a_beginning(self, span: OffsetRange) -> bool:
        beginning = self.stored.next_beginning(span.start)
        return beginning is not None and beginning < span.end

    def _is_led_to(self, offset: int) -> bool:
        return offset in self.stored.reached or offset in self.led_to

    def _follows(self, index: int) -> bool:
        return index > 0 and self.candidates[index - 1].end == self.candidates[index].start

    def _follows_bridge(self, index: int) -> bool:
        return bool(self.bridge) and self.bridge[-1] == index - 1 and self._follows(index)

    def _refuse(self, verdict: PlacementVerdict) -> None:
        self.verdicts.append(verdict)
        self.is_parted, self.bridge = True, []
        self.is_attached = False
