"""Decides which segments belong to one log, and which of overlapping segments are read.

Replicas of one log hold the same records, and cut them into segments at other offsets. Who leads a partition changes,
so a store may hold segments of several of them. A leader epoch has one leader, which writes each offset once, and no
replica appends before its log agrees with the leader's. So two logs with the same epoch at an offset are the same up to
that offset. If the epochs differ, one of the two histories was lost, as after an unclean leader election.

A topic that was deleted and created again has the name, the offsets and often the leader epochs of the old one, but
other batches. Replicas copy batches byte by byte, so logs with the same batch at an offset are the same up to that
offset: ``shared_batch`` compares one that both must have.

Source: KIP-101, KIP-279; ``LeaderEpochFileCache``.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from resnap.storage.errors import FileGoneError, LogDirError, ObjectNotFoundError
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD
from resnap.storage.stores.ranged_reader import ranged_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.readers import RangeReader
    from resnap.storage.stores.protocol import ObjectStore

_OFFSET_BYTES: Final = 8
_RANGE_BYTES: Final = 1 << 20
"""Of a stored log whose headers are read one after the other, which is rare: enough for many of them."""


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
    """The offsets [start, end), of a segment or between segments."""

    start: int
    end: int


class StoredRanges:
    """The ranges of offsets that stored segments cover, and the boundaries that a reader reaches from their start."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = set(spans)
        self.reached: set[int] = set()
        """Boundaries that segments, one after the other, reach from the beginning of their range."""
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
        """Whether a range that begins below ``offset`` reaches up to it."""
        index = bisect_right(self._starts, offset - 1) - 1
        return index >= 0 and self._ends[index] >= offset

    def next_beginning(self, offset: int) -> int | None:
        """Return the beginning of the first range above ``offset``; None if there is none."""
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
    reached = StoredRanges(Span(segment.base_offset, segment.next_base_offset) for segment in found).reached
    chain: list[L] = []
    from_the_top = sorted(enumerate(found), key=lambda one: (one[1].next_base_offset, one[0]), reverse=True)
    for _, next_below in from_the_top:
        is_next = not chain or next_below.next_base_offset <= chain[-1].base_offset
        if is_next and next_below.base_offset in reached:
            chain.append(next_below)
    return chain[::-1]


class Piece(NamedTuple):
    """A segment of a log, with the means to open it."""

    base_offset: int
    next_base_offset: int | None
    """None for the active segment."""
    open: Callable[[int], AbstractContextManager[RangeReader]]
    """Takes how many bytes a request is to bring."""


def stored_piece(store: ObjectStore, key: str, base_offset: int, next_base_offset: int) -> Piece:
    """Return the segment [``base_offset``, ``next_base_offset``) whose log is the object ``key``."""

    def opened(range_bytes: int) -> AbstractContextManager[RangeReader]:
        return ranged_reader(store, key, range_bytes=range_bytes, ranges_in_flight=1)

    return Piece(base_offset, next_base_offset, opened)


class SharedBatch(NamedTuple):
    """The first batch that could be compared."""

    offset: int
    there: Piece
    """The segment of the second log that has it."""
    is_same: bool


def shared_batch(here: Sequence[Piece], there: Sequence[Piece]) -> SharedBatch | None:
    """Return the first batch that could be compared; None if there is none, or none can be read.

    Both ascend. A segment that was deleted is skipped: reading it reports that.

    Raises:
        LogDirError: no batch could be compared, and a file could not be read.
        StoreError: the store failed.

    """
    unread: LogDirError | None = None
    for ours, theirs in _pairs(here, there):
        try:
            offset = max(ours.base_offset, theirs.base_offset)
            first, second = (first_batch(piece, offset)[1] for piece in (ours, theirs))
            if first and second:
                return SharedBatch(offset, theirs, first == second)
        except (FileGoneError, ObjectNotFoundError):
            continue
        except LogDirError as error:
            unread = unread or error
    if unread is not None:
        raise unread
    return None


def _pairs(here: Sequence[Piece], there: Sequence[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield segments that share offsets, first those with the same base offset: they cost one header each."""
    bases = [piece.base_offset for piece in here]
    overlapping = []
    for segment in reversed(there):
        index = len(bases) if segment.next_base_offset is None else bisect_right(bases, segment.next_base_offset - 1)
        end = here[index - 1].next_base_offset if index else segment.base_offset
        if end is not None and end <= segment.base_offset:
            continue
        at = bisect_right(bases, segment.base_offset) - 1
        if at >= 0 and bases[at] == segment.base_offset:
            yield here[at], segment
        else:
            overlapping.append((here[max(at, 0)], segment))
    yield from overlapping


def first_batch(piece: Piece, offset: int) -> tuple[int, bytes]:
    """Return position and header of the first batch at ``offset`` or above; size and no header if there is none.

    Raises:
        LogDirError, StoreError: the segment cannot be read.

    """
    position = 0
    with piece.open(HEADER.size if offset == piece.base_offset else _RANGE_BYTES) as reader:
        while len(header := reader.read(position, HEADER.size)) >= LOG_OVERHEAD:
            if int.from_bytes(header[:_OFFSET_BYTES], "big", signed=True) >= offset:
                return position, header
            length = int.from_bytes(header[_OFFSET_BYTES:LOG_OVERHEAD], "big", signed=True)
            position += LOG_OVERHEAD + max(length, 0)
    return position, b""
