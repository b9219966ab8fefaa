"""Decides which segments belong to one log, which of overlapping ones are read, and what chains they make.

Replicas of one log hold the same records, and cut them into segments at other offsets. Who leads a partition changes,
so a store may hold segments of several of them. A leader epoch has one leader, which writes each offset once, and no
replica appends before its log agrees with the leader's. So two logs with the same epoch at an offset are the same up to
that offset. If the epochs differ, one of the two histories was lost, as after an unclean leader election.

A topic that was deleted and created again has the name, the offsets and often the leader epochs of the old one, but
other batches. Replicas copy batches byte by byte, so logs with the same batch at an offset are the same up to that
offset: ``shared_batch`` compares one that both must have.

Source: KIP-101, KIP-279; ``LeaderEpochFileCache``.

A chain is what a reader can follow: segments in offset order, each beginning where the previous one ends. It breaks if
there are further segments, but none begins where it ends. An overlap is of one lineage if the leader epochs of both
segments agree in the shared offsets: the same log, cut at other boundaries by another replica. Otherwise two histories
claim the same offsets, as after an unclean leader election.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from resnap.storage.errors import FileGoneError, LogDirError, ObjectNotFoundError
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.names import OffsetRange
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD
from resnap.storage.stores.ranged_reader import ranged_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from resnap.storage.layouts.manifest import ManifestFacts
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.readers import RangeReader
    from resnap.storage.stores.protocol import ObjectStore

_OFFSET_BYTES: Final = 8
_RANGE_BYTES: Final = 1 << 20
"""How much is read at once of a stored log, header after header, which is rare: enough for many of them."""


L = TypeVar("L", bound="ManifestFacts")


def is_one_lineage(one: ManifestFacts, other: ManifestFacts) -> bool:
    """Whether both have the same leader epochs at all offsets that they share; true if they share none."""
    start = max(one.base_offset, other.base_offset)
    end = min(one.next_base_offset, other.next_base_offset)
    return start >= end or epochs_in(one.leader_epochs, start, end) == epochs_in(other.leader_epochs, start, end)


class StoredRanges:
    """The ranges of offsets that stored segments cover, and the boundaries that a reader reaches from their start."""

    def __init__(self, spans: Iterable[OffsetRange]) -> None:
        self.spans = set(spans)
        self.reached: set[int] = set()
        """Boundaries that segments, one after the other, reach from the beginning of their range."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in sorted(self.spans):
            self._add(span)

    def _add(self, span: OffsetRange) -> None:
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

    def cover(self, span: OffsetRange) -> bool:
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
    reached = StoredRanges(segment.offsets for segment in found).reached
    chain: list[L] = []
    from_the_top = sorted(enumerate(found), key=lambda one: (one[1].next_base_offset, one[0]), reverse=True)
    for _, next_below in from_the_top:
        is_next = not chain or next_below.next_base_offset <= chain[-1].base_offset
        if is_next and next_below.base_offset in reached:
            chain.append(next_below)
    return chain[::-1]


class OpenableSegment(NamedTuple):
    """A segment of a log, with the means to open it."""

    base_offset: int
    next_base_offset: int | None
    """None for the active segment."""
    open: Callable[[int], AbstractContextManager[RangeReader]]
    """Takes how many bytes a request is to bring."""


def openable_segment(store: ObjectStore, key: str, base_offset: int, next_base_offset: int) -> OpenableSegment:
    """Return the segment [``base_offset``, ``next_base_offset``) whose log is the object ``key``."""

    def opened(range_bytes: int) -> AbstractContextManager[RangeReader]:
        return ranged_reader(store, key, range_bytes=range_bytes, ranges_in_flight=1)

    return OpenableSegment(base_offset, next_base_offset, opened)


class SharedBatch(NamedTuple):
    """The first batch that could be compared."""

    offset: int
    there: OpenableSegment
    """The segment of the second log that has it."""
    is_same: bool


def shared_batch(here: Sequence[OpenableSegment], there: Sequence[OpenableSegment]) -> SharedBatch | None:
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


def _pairs(
    here: Sequence[OpenableSegment], there: Sequence[OpenableSegment]
) -> Iterator[tuple[OpenableSegment, OpenableSegment]]:
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


def first_batch(piece: OpenableSegment, offset: int) -> tuple[int, bytes]:
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


class Overlap(NamedTuple):
    """Offsets that two segments share."""

    offsets: OffsetRange
    is_one_lineage: bool
    """Whether the leader epochs of both agree there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The segments of one partition of one topic, in all [start, end)."""

    cluster_id: str | None
    topic_id: str | None
    topic_partition: TopicPartition
    start: int
    end: int
    segments: int
    gaps: tuple[OffsetRange, ...]
    """Offsets that no segment of the chain has, between others."""
    overlaps: tuple[Overlap, ...]
    breaks: tuple[OffsetRange, ...]
    """Offsets that the chain lacks though there are segments with them: none of those begins where another ends."""
    layout: str = ""
    """Name of the layout whose manifests or keys name its segments; a store may hold several."""
    is_beside_unread: bool = False
    """Whether a manifest beside its own could not be read: what seems to be a gap may be the segment of that."""


def chains_of(manifests: Iterable[ManifestFacts]) -> list[Chain]:
    """Return the chains that ``manifests`` make, by cluster, partition and topic id."""
    found: dict[tuple[str, TopicPartition, str], list[ManifestFacts]] = {}
    for manifest in manifests:
        found.setdefault(manifest.log_id, []).append(manifest)
    return [_chain(found[log_id]) for log_id in sorted(found)]


def _chain(manifests: list[ManifestFacts]) -> Chain:
    """Return the chain of one partition; segments with the same offsets count once."""
    by_range = {manifest.offsets: manifest for manifest in manifests}
    ordered = [by_range[offsets] for offsets in sorted(by_range)]
    last = ordered[-1]
    return Chain(
        cluster_id=last.cluster_id,
        topic_id=next((manifest.topic_id for manifest in ordered if manifest.topic_id is not None), None),
        topic_partition=last.topic_partition,
        start=ordered[0].base_offset,
        end=max(manifest.next_base_offset for manifest in ordered),
        segments=len(ordered),
        gaps=tuple(_gaps(ordered)),
        overlaps=tuple(_overlaps(ordered)),
        breaks=tuple(_breaks(ordered)),
    )


def _gaps(ordered: Sequence[ManifestFacts]) -> Iterator[OffsetRange]:
    reached = ordered[0].base_offset
    for manifest in ordered:
        if manifest.base_offset > reached:
            yield OffsetRange(reached, manifest.base_offset)
        reached = max(reached, manifest.next_base_offset)


def _breaks(ordered: Sequence[ManifestFacts]) -> Iterator[OffsetRange]:
    gaps = set(_gaps(ordered))
    start, end = ordered[0].base_offset, max(manifest.next_base_offset for manifest in ordered)
    links = [manifest.offsets for manifest in chain_of(ordered)]
    for below, above in pairwise([OffsetRange(start, start), *links, OffsetRange(end, end)]):
        between = OffsetRange(below.end, above.start)
        if between.start < between.end and between not in gaps:
            yield between


def _overlaps(ordered: Sequence[ManifestFacts]) -> Iterator[Overlap]:
    """Yield the offsets that a segment shares with the segment below it that has the highest end."""
    farthest = ordered[0]
    for manifest in ordered[1:]:
        if manifest.base_offset < farthest.next_base_offset:
            shared = OffsetRange(manifest.base_offset, min(manifest.next_base_offset, farthest.next_base_offset))
            yield Overlap(shared, is_one_lineage(farthest, manifest))
        farthest = max(farthest, manifest, key=lambda segment: segment.next_base_offset)
