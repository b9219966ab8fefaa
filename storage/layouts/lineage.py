"""Decides which segments belong to one log, and which of overlapping segments are read.

Replicas of one log hold the same records, and cut them into segments at other offsets. Who leads a partition changes,
so a store may hold segments of several of them. A leader epoch has one leader, which writes each offset once, and no
replica appends before its log agrees with the leader's. So two logs with the same epoch at an offset are the same up to
that offset. If the epochs differ, one of the two histories was lost, as after an unclean leader election.

Source: KIP-101, KIP-279; ``LeaderEpochFileCache``.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from resnap.storage.log.checkpoints import epochs_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.storage.log.checkpoints import LeaderEpoch


class Link(Protocol):
    """The facts of a segment's manifest that its place in a chain depends on, in any layout."""

    @property
    def base_offset(self) -> int:
        """First offset."""
        ...

    @property
    def next_base_offset(self) -> int:
        """Where the segment after it begins."""
        ...

    @property
    def leader_epochs(self) -> tuple[LeaderEpoch, ...]:
        """The leader epochs of this segment only."""
        ...


L = TypeVar("L", bound=Link)


def is_one_lineage(one: Link, other: Link) -> bool:
    """Whether both have the same leader epochs at all offsets that they share; true if they share none."""
    start = max(one.base_offset, other.base_offset)
    end = min(one.next_base_offset, other.next_base_offset)
    return start >= end or epochs_in(one.leader_epochs, start, end) == epochs_in(other.leader_epochs, start, end)


class Span(NamedTuple):
    """The offsets [start, end) of a segment."""

    start: int
    end: int


class Stretches:
    """The offsets that stored segments hold, and those over which a reader moves from one to the next."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = set(spans)
        self.reached: set[int] = set()
        """Boundaries to which segments lead from the beginning of their stretch."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in sorted(self.spans):
            self._add(span)

    def _add(self, span: Span) -> None:
        if not self._ends or span.start > self._ends[-1]:
            self._starts.append(span.start)
            self._ends.append(span.end)
            self.reached.add(span.start)
        self._ends[-1] = max(self._ends[-1], span.end)
        if span.start in self.reached:
            self.reached.add(span.end)

    def touch_from_below(self, offset: int) -> bool:
        """Whether a stretch that begins below ``offset`` reaches up to it."""
        index = bisect_right(self._starts, offset - 1) - 1
        return index >= 0 and self._ends[index] >= offset

    def next_beginning(self, offset: int) -> int | None:
        """Return where the first stretch above ``offset`` begins; None if there is none."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else None

    def cover(self, span: Span) -> bool:
        """Whether the segments hold all offsets of ``span``."""
        index = bisect_right(self._starts, span.start) - 1
        return index >= 0 and self._ends[index] >= span.end


def chain_of(manifests: Iterable[L]) -> list[L]:
    """Return the ``manifests`` of one partition that are to be read, ascending, without shared offsets.

    From the highest end downwards, each where the one above it begins; of several that end there the last one of
    ``manifests``, which are to be in the order in which they were made. In each stretch it is whole from the beginning
    up to the highest end to which segments lead.
    """
    found = list(manifests)
    reached = Stretches(Span(one.base_offset, one.next_base_offset) for one in found).reached
    chain: list[L] = []
    from_the_top = sorted(enumerate(found), key=lambda one: (one[1].next_base_offset, one[0]), reverse=True)
    for _, one in from_the_top:
        is_next = not chain or one.next_base_offset <= chain[-1].base_offset
        if is_next and one.base_offset in reached:
            chain.append(one)
    return chain[::-1]
