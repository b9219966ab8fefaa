"""Decides what is left to ship of a partition, given the segments that the store holds of it.

The replica that is shipped may change, and another one cuts the same log into other segments. Its segments must be of
one lineage with those in the store, by the leader epochs of both; ``placement`` then decides which segments are
shipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, LogDirError, VerificationError
from resnap.storage.layouts.lineage import OpenableSegment, chain_of, openable_segment, shared_batch
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.names import OffsetRange
from resnap.storage.log.partition_dir import SnapshotFile
from resnap.storage.packed import pack_all
from resnap.storage.sources.files import GONE, PLAIN
from resnap.tiering.judging.eligibility import end_of
from resnap.tiering.judging.refusal import Reason, refuse
from resnap.tiering.shipping.placement import Placement, PlacementVerdict, place
from resnap.tiering.shipping.segment_bundle import EpochHistory, LeaderEpochsUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from resnap.storage.layouts.segments import ShippedSegment
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources
    from resnap.tiering.judging.eligibility import Candidates
    from resnap.tiering.shipping.shipped import Neighbours, ShippedTopic

_WHY: Final = {
    PlacementVerdict.BEGINS_INSIDE: "it begins inside {there}, and no boundary below it is in both logs",
    PlacementVerdict.COVERS_A_BEGINNING: "it would hide the beginning of {there}",
    PlacementVerdict.LEAVES_A_GAP: "it would leave a gap between it and {there}",
}
_OTHER_BOUNDARIES: Final = (
    "the logs agree, but the store has other segment boundaries: continue with the log dir that shipped them, or"
    " from a replica that still has a boundary in common with them; if none has, ship to another prefix"
)
_RETAINED: Final = (
    "nothing to do; to ship it again, delete what `.resnap/retained/` of the store holds of its partition"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A partition's candidates without those that need not, or must not, be shipped."""

    candidates: Candidates
    order: tuple[tuple[Segment, int | None], ...] = ()
    """The same segments, as they become visible one after the other, each with the base offset of the one it needs."""
    already: int = 0
    """How many segments the store holds, as they are or in other pieces."""
    failures: tuple[FormatError | VerificationError, ...] = ()
    """What is wrong with manifests of others."""
    unsettled: tuple[Segment, ...] = ()
    """The segments that are left alone for it."""
    held: tuple[ShippedSegment, ...] = ()
    """What readers of the store take of the offsets of all candidates that are of its log."""
    apart: frozenset[str] = frozenset()
    """Manifests of another topic of this name, which keys say from this one: one of them has an id, the other none."""
    shown: tuple[SnapshotFile, ...] = ()
    """Stored snapshots of the same log where the log here begins, or next to there: its beginning may be gone here."""
    superseded: tuple[str, ...] = ()
    """Manifests that name missing objects beside a whole segment of the same offsets: they came late."""


def remainder(candidates: Candidates, shipped: ShippedTopic, sources: Sources = PLAIN) -> Remainder:
    """Return what is left of ``candidates``; those of another lineage, or without a place, are refused.

    All are refused if the local log's lineage cannot be read.

    Raises:
        StoreError: the store failed.

    """
    if not candidates.segments:
        return Remainder(candidates=candidates)
    try:
        return _remainder(candidates, shipped, sources)
    except LogDirError as error:
        refused = [refuse(segment, Reason.UNREADABLE, str(error), hint=error.hint) for segment in candidates.segments]
        return Remainder(candidates=candidates.also_refusing(refused))


def _remainder(candidates: Candidates, shipped: ShippedTopic, sources: Sources) -> Remainder:
    lineage = _Lineage(candidates, sources)
    judged = _judge(candidates, shipped, lineage, deep=False)
    if not judged.placement.is_attached and not judged.beside.is_all_below:
        judged = _judge(candidates, shipped, lineage, deep=True)
    if judged.placement.is_attached:
        return judged.remainder(candidates)
    left = _without_retained(candidates, judged, shipped)
    return judged.remainder(candidates) if left is None else remainder(left, shipped, sources)


def _without_retained(candidates: Candidates, judged: _Judged, shipped: ShippedTopic) -> Candidates | None:
    """Return ``candidates`` without the segments that `retain` has deleted; None if it has deleted none.

    A late manifest may name deleted objects: then everything is shipped again, so that it is complete.
    """
    if judged.has_torn:
        return None
    partition = candidates.inventory.partition
    number, topic_id = partition.topic_partition.partition, partition.topic_id
    retained = shipped.retained(number, topic_id)
    if retained is None or not retained.is_of(partition.segments, topic_id):
        return None
    start = retained.log_start_offset
    gone = [
        segment
        for segment, verdict in zip(candidates.segments, judged.placement.verdicts, strict=True)
        if end_of(segment) <= start and verdict is not PlacementVerdict.HELD
    ]
    if not gone:
        return None
    what = f"`resnap retain` has deleted it from the store, where the log starts at offset {start} since"
    refused = [refuse(segment, Reason.BELOW_LOG_START, what, hint=_RETAINED) for segment in gone]
    return candidates.also_refusing(refused)


class _Judged(NamedTuple):
    """The decision on each candidate, and its reason."""

    spans: Sequence[OffsetRange]
    beside: Neighbours
    foreign: dict[int, str]
    failures: dict[int, FormatError | VerificationError]
    placement: Placement
    apart: frozenset[str]
    shown: tuple[SnapshotFile, ...]
    has_torn: bool
    """Whether a manifest names missing objects, so that its segment is shipped again."""
    superseded: tuple[str, ...]

    def remainder(self, candidates: Candidates) -> Remainder:
        segments, placement = tuple(candidates.segments), self.placement
        refused = [
            refuse(segments[index], Reason.LINEAGE_CONFLICT, self._why(index, verdict), hint=self._hint(index, verdict))
            for index, verdict in enumerate(placement.verdicts)
            if verdict in _WHY or index in self.foreign
        ]
        order = [
            (segments[index], None if below is None else segments[below].base_offset)
            for index, below in placement.steps
        ]
        left = sorted((segment for segment, _ in order), key=attrgetter("base_offset"))
        unread = [unreadable.error for unreadable in self.beside.unreadable]
        missing = [error for error in self.failures.values() if error not in unread]
        return Remainder(
            candidates=replace(candidates.also_refusing(refused), segments=pack_all(left, "base_offset")),
            order=tuple(order),
            already=placement.verdicts.count(PlacementVerdict.HELD),
            failures=(*unread, *missing),
            unsettled=tuple(segments[index] for index in sorted(self.failures)),
            held=tuple(self._of_this_log()),
            apart=self.apart,
            shown=self.shown,
            superseded=self.superseded,
        )

    def _of_this_log(self) -> Iterator[ShippedSegment]:
        """Yield the store's readable segments, without those that share offsets with a candidate of another log.

        Where the same log has only other boundaries here, they are of it, whether or not the candidate has a place.
        """
        judged = zip(self.spans, self.placement.verdicts, strict=True)
        foreign = [span for span, verdict in judged if verdict is PlacementVerdict.UNFIT]
        for shipped in chain_of(sorted(self.beside.segments, key=lambda one: (one.made[0], one.manifest_key))):
            if not any(_overlapping(span, [shipped]) for span in foreign):
                yield shipped

    def _hint(self, index: int, verdict: PlacementVerdict) -> str | None:
        """Return the hint if the leader epochs are those of one log; None for the usual hint on two histories."""
        return _OTHER_BOUNDARIES if verdict in _WHY and index not in self.foreign else None

    def _why(self, index: int, verdict: PlacementVerdict) -> str:
        if index in self.foreign:
            return self.foreign[index]
        near = _overlapping(self.spans[index], self.beside.segments) or self.beside.segments
        there = ", ".join(str(segment.offsets) for segment in near[:3])
        return _WHY[verdict].format(there=f"what the store holds, {there}" if there else "what is below it")


def _judge(candidates: Candidates, shipped: ShippedTopic, lineage: _Lineage, *, deep: bool) -> _Judged:
    """Return the decision on each of ``candidates``, by the segments near them; by all of those below if ``deep``."""
    partition = candidates.inventory.partition
    spans = [OffsetRange(segment.base_offset, end_of(segment)) for segment in candidates.segments]
    start, end = spans[0].start, spans[-1].end
    number, topic_id = partition.topic_partition.partition, partition.topic_id
    beside = shipped.neighbours(number, start, end, topic_id=topic_id, deep=deep)
    torn = [segment for segment in beside.segments if shipped.is_torn(segment)]
    complete = {segment.offsets for segment in beside.segments if segment not in torn}
    superseded = tuple(segment.manifest_key for segment in torn if segment.offsets in complete)
    # A segment that is torn, and is one here, too, counts as not shipped.
    whole = [segment for segment in beside.segments if segment not in torn or segment.offsets not in spans]
    has_torn = any(segment.offsets in spans and segment.offsets not in complete for segment in torn)
    beside = beside._replace(segments=whole)
    others = _of_other_topics(partition, beside.segments, shipped, lineage.sources)
    elsewhere = frozenset(
        segment.manifest_key
        for segment in beside.segments
        if segment.manifest_key in others and shipped.topic_id_of(segment) != topic_id
    )
    beside = beside._replace(segments=[one for one in beside.segments if one.manifest_key not in elsewhere])
    foreign: dict[int, str] = {}
    failures: dict[int, FormatError | VerificationError] = {}
    side_by_side = _side_by_side(spans, beside.segments)
    for index, (segment, (near, apart)) in enumerate(zip(candidates.segments, side_by_side, strict=True)):
        error = _failure(shipped, spans[index], near, beside)
        why = lineage.why_foreign(segment, spans[index], [*near, *apart])
        why = why or next((others[other.manifest_key] for other in near if other.manifest_key in others), None)
        if why is None and not shipped.may_overlap:
            why = _overlap(spans[index], near)
        if error is not None:
            failures[index] = error
        elif why is not None:
            foreign[index] = why
    placement = place(
        {segment.offsets for segment in beside.segments},
        spans,
        frozenset((*foreign, *failures)),
        log_start=partition.log_start_offset,
        knows_below=not any(unreadable.base_offset < start for unreadable in beside.unreadable),
    )
    of_topic = [segment for segment in beside.segments if segment.manifest_key not in others]
    shown = tuple(_nearest_snapshots(candidates, shipped, lineage, of_topic))
    return _Judged(spans, beside, foreign, failures, placement, elsewhere, shown, has_torn, superseded)


def _nearest_snapshots(
    candidates: Candidates, shipped: ShippedTopic, lineage: _Lineage, stored: Sequence[ShippedSegment]
) -> Iterator[SnapshotFile]:
    """Yield the stored snapshot where the local log begins, or the nearest ones; none if that is its beginning."""
    first, begins = candidates.segments[0], candidates.inventory.partition.segments[0].base_offset
    span = OffsetRange(first.base_offset, end_of(first))
    of_log = [segment for segment in stored if begins and lineage.why_foreign(first, span, [segment]) is None]
    by_end = sorted(of_log, key=attrgetter("next_base_offset"))
    below = [segment for segment in by_end if segment.next_base_offset <= begins][-1:]
    above = [segment for segment in by_end if segment.next_base_offset > begins][:1]
    is_at = bool(below) and below[0].next_base_offset == begins
    for segment in below if is_at else (*below, *above):
        path = f"{shipped.store.url}/{segment.snapshot_key}"
        yield SnapshotFile(offset=segment.next_base_offset, path=path, size_bytes=0, mtime_ns=0)


def _failure(
    shipped: ShippedTopic, span: OffsetRange, near: Sequence[ShippedSegment], beside: Neighbours
) -> FormatError | VerificationError | None:
    """Return what is wrong with the stored segment of these offsets, or with one that begins inside them."""
    problem: FormatError | VerificationError | None = None
    for segment in near:
        if segment.offsets == span:
            try:
                shipped.check(segment)
            except VerificationError as error:
                problem = problem or error
            else:
                return None
    if problem is not None:
        return problem
    return next((one.error for one in beside.unreadable if span.start <= one.base_offset < span.end), None)


def _of_other_topics(
    partition: PartitionDir, stored: Iterable[ShippedSegment], shipped: ShippedTopic, sources: Sources
) -> dict[str, str]:
    """Return the segments of ``stored`` that belong to another topic of the same name: the reason, by manifest.

    Brokers before 2.8 had no topic ids: a topic that was deleted and created again has the name, the offsets and the
    leader epochs of the old one. Only its batches differ: one batch that both must have decides, if ids do not.
    If no batch can be compared, a segment counts as this topic's: its offsets are not in the local log.

    Raises:
        LogDirError: nothing can be compared because local segments cannot be read.
        StoreError: the store failed.

    """

    def opened(path: str, _: int) -> AbstractContextManager[RangeReader]:
        return sources.open(path)

    local = [
        OpenableSegment(segment.base_offset, segment.next_base_offset, partial(opened, segment.path))
        for segment in partition.segments
    ]
    found: dict[str, str] = {}
    by_topic = sorted(stored, key=lambda segment: shipped.topic_id_of(segment) or "")
    for topic_id, group in groupby(by_topic, key=shipped.topic_id_of):
        if topic_id is not None and partition.topic_id is not None:
            continue
        segments = sorted(group, key=attrgetter("base_offset"))
        there = [openable_segment(shipped.store, segment.log_key, *segment.offsets) for segment in segments]
        shared = shared_batch(local, there)
        if shared is not None and not shared.is_same:
            span = f"[{shared.there.base_offset}, {shared.there.next_base_offset}) of the store"
            witness = f"{span} is of another topic of this name: other batches at {shared.offset}"
            found |= dict.fromkeys((segment.manifest_key for segment in segments), witness)
    return found


def _side_by_side(
    spans: Sequence[OffsetRange], stored: Sequence[ShippedSegment]
) -> Iterator[tuple[list[ShippedSegment], list[ShippedSegment]]]:
    """Yield for each of ``spans`` the segments in ``stored`` that overlap or adjoin it; both are in ascending order.

    If there are none, the one that ends nearest below. Also the nearest others on either side: a segment elsewhere may
    still prove that it is of another log.
    """
    near: list[ShippedSegment] = []
    taken = 0
    for span in spans:
        while taken < len(stored) and stored[taken].base_offset <= span.end:
            near.append(stored[taken])
            taken += 1
        beside = [segment for segment in near if segment.next_base_offset >= span.start]
        apart = (segment for segment in near if segment.next_base_offset < span.start)
        below, above = sorted(apart, key=attrgetter("next_base_offset"))[-1:], list(stored[taken : taken + 1])
        near = [*below, *beside]
        yield (beside, [*below, *above]) if beside else (below, above)


def _overlap(span: OffsetRange, near: Sequence[ShippedSegment]) -> str | None:
    """Return the stored segment that ``span`` overlaps without being the same; None if there is none."""
    found = _overlapping(span, near)
    if not found or span in [segment.offsets for segment in found]:
        return None
    return f"the store holds {found[0].offsets}, of another replica"


def _overlapping(span: OffsetRange, stored: Sequence[ShippedSegment]) -> list[ShippedSegment]:
    """Return the segments that share offsets with ``span``."""
    return [segment for segment in stored if segment.base_offset < span.end and segment.next_base_offset > span.start]


class _Lineage:
    """The leader epochs of the local log, read at their first use."""

    def __init__(self, candidates: Candidates, sources: Sources) -> None:
        self._candidates = candidates
        self.sources = sources

    @cached_property
    def _history(self) -> EpochHistory:
        return EpochHistory(self._candidates.inventory.partition, self.sources)

    @cached_property
    def _epochs(self) -> tuple[LeaderEpoch, ...]:
        try:
            return self._history.up_to(self._candidates.segments[-1], self._known_to)
        except (FormatError, LeaderEpochsUnknownError, *GONE):
            return ()

    @cached_property
    def _known_to(self) -> int:
        """Up to where the local log's epochs are certain: committed offsets, from a checkpoint, or read."""
        end = end_of(self._candidates.segments[-1])
        return max(end, self._candidates.high_watermark or 0) if self._history.is_checkpointed else end

    def why_foreign(self, segment: Segment, span: OffsetRange, near: Sequence[ShippedSegment]) -> str | None:
        """Return why ``segment`` is not of the log of the stored segments ``near`` it; None if it is."""
        for shipped in near:
            is_same = shipped.offsets == span
            if is_same and shipped.log_bytes != segment.size_bytes:
                return f"the store holds {shipped.log_bytes} bytes of the same offsets, here are {segment.size_bytes}"
            # Reading all headers is not worthwhile: a stored segment of the same length is not shipped again anyway.
            if (self._history.is_checkpointed or not is_same) and not self._has(shipped, span):
                return f"{shipped.offsets} of the store was written under other leader epochs"
        return None

    def _has(self, stored: ShippedSegment, span: OffsetRange) -> bool:
        """Whether ``stored`` belongs to this log, as far as both are known up to the end of ``span``.

        If one ends before the other begins, descending epochs prove that it does not.
        """
        known = self._epochs
        if not known or not stored.leader_epochs:
            return not known  # what has no epochs here is refused for just that when it is bundled
        log_end = self._known_to
        start = max(stored.base_offset, known[0].start_offset)
        end = min(stored.next_base_offset, log_end, max(span.end, stored.base_offset + 1))
        if start < end:
            return epochs_in(stored.leader_epochs, start, end) == epochs_in(known, start, end)
        if stored.base_offset >= log_end:
            return stored.leader_epochs[0].epoch >= known[-1].epoch
        return stored.leader_epochs[-1].epoch <= known[0].epoch
