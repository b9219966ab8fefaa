"""Explains a snapshot entry: lists the batches that made it.

For a person who investigates an incident. An entry is made by at most four batches, each in a role: the last data
batch, the last marker, the batch that opened the transaction, and the producer's first batch that was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from resnap.replay.kernel.summary import Array
    from resnap.replay.window import SegmentSpan
    from resnap.storage.sources.files import Sources


class BatchRole(StrEnum):
    """What a batch contributes to an entry."""

    FIRST_SEEN = "first-seen"
    LAST_BATCH = "last-batch"
    """Gives last sequence, last offset and offset delta."""
    TRANSACTION_START = "transaction-start"
    """Gives the first offset of the open transaction."""
    LAST_MARKER = "last-marker"
    """Gives the coordinator epoch, and closed the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A data batch or marker, with the fields that concern its producer."""

    segment_base_offset: int
    base_offset: int
    last_offset: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    timestamp: int
    is_marker: bool
    is_transactional: bool
    coordinator_epoch: int


@dataclass(slots=True)
class Explanation:
    """One producer: its batches by role, and their number in all."""

    producer_id: int
    batches: int = 0
    roles: dict[BatchRole, Batch] = field(default_factory=dict)
    last: Batch | None = None
    """The last one of either kind, which gives epoch and timestamp."""
    markers: int = 0
    """Markers of the last epoch."""
    ended_at: int | None = None
    """Offset of the marker that ends the open transaction further on in the log, where ``find_ends`` has found one."""

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction is open at the offset."""
        return BatchRole.TRANSACTION_START in self.roles

    def add(self, batch: Batch) -> None:
        """Add the next batch of this producer, by the rules of ``producer_state``."""
        self.batches += 1
        self.roles.setdefault(BatchRole.FIRST_SEEN, batch)
        if self.last is not None and self.last.producer_epoch != batch.producer_epoch:
            self.roles.pop(BatchRole.LAST_BATCH, None)
            self.markers = 0
        self.last = batch
        if batch.is_marker:
            self.markers += 1
            self.roles[BatchRole.LAST_MARKER] = batch
            self.roles.pop(BatchRole.TRANSACTION_START, None)
            return
        self.roles[BatchRole.LAST_BATCH] = batch
        if batch.is_transactional:
            self.roles.setdefault(BatchRole.TRANSACTION_START, batch)


def explain(
    segments: Iterable[SegmentSpan], offset: int, producer_id: int | None = None, *, sources: Sources = PLAIN
) -> list[Explanation]:
    """Return the batches that made the entries at ``offset``, by producer id; of one producer if it is given.

    Reads every segment below ``offset`` among ``segments``, in order.

    Raises:
        FormatError: damage below ``offset``.
        LogDirError, StoreError: a segment cannot be read.

    """
    found: dict[int, Explanation] = {}
    for segment in segments:
        if segment.base_offset >= offset:
            break
        for event in _events(segment, sources):
            pid = int(event["producer_id"])
            if event["offset"] >= offset:
                break
            if producer_id in {None, pid}:
                found.setdefault(pid, Explanation(pid)).add(_batch(segment.base_offset, event))
    return [found[pid] for pid in sorted(found)]


def find_ends(
    explanations: Iterable[Explanation], segments: Iterable[SegmentSpan], offset: int, *, sources: Sources = PLAIN
) -> None:
    """Set the ends of the transactions that are open at ``offset``, if the log has their markers.

    Raises:
        FormatError: damage from ``offset`` on, before all have ended.
        LogDirError, StoreError: a segment cannot be read.

    """
    waiting = {explanation.producer_id: explanation for explanation in explanations if explanation.has_open_transaction}
    for segment in segments:
        if segment.next_base_offset is not None and segment.next_base_offset <= offset:
            continue
        if not waiting:
            return
        for event in _events(segment, sources):
            pid = int(event["producer_id"])
            if event["offset"] >= offset and event["is_marker"] and pid in waiting:
                waiting.pop(pid).ended_at = int(event["offset"])


def log_end(locator: str, base_offset: int, sources: Sources) -> int:
    """Return the log end offset, for which the last segment is read, which begins at ``base_offset``.

    Raises:
        FormatError: it is damaged.
        LogDirError, StoreError: it cannot be read.

    """
    facts = ScanFacts()
    for _ in _scan(locator, base_offset, None, facts, sources):
        pass
    return facts.end_offset


def batches_of(segment: SegmentSpan, producer_ids: Collection[int], sources: Sources) -> Iterator[tuple[int, Batch]]:
    """Yield the batches of ``producer_ids`` in a segment, each with its producer; raises as ``explain`` does."""
    wanted = np.array(list(producer_ids), dtype=np.int64)
    for events in _blocks(segment, sources):
        for event in events[np.isin(events["producer_id"], wanted)]:
            yield int(event["producer_id"]), _batch(segment.base_offset, event)


def _events(segment: SegmentSpan, sources: Sources) -> Iterator[np.void]:
    for events in _blocks(segment, sources):
        yield from events


def _blocks(segment: SegmentSpan, sources: Sources) -> Iterator[Array]:
    return _scan(segment.locator, segment.base_offset, segment.next_base_offset, ScanFacts(), sources)


def _scan(locator: str, base: int, end: int | None, facts: ScanFacts, sources: Sources) -> Iterator[Array]:
    from resnap.replay.scan.producer_fold import scan  # noqa: PLC0415 - imports numba

    with sources.open(locator) as reader:
        yield from scan(reader, SegmentRange(locator=locator, base_offset=base, next_base_offset=end), facts)


def _batch(segment_base_offset: int, event: np.void) -> Batch:
    return Batch(
        segment_base_offset=segment_base_offset,
        base_offset=int(event["offset"]),
        last_offset=int(event["last_offset"]),
        producer_epoch=int(event["producer_epoch"]),
        base_sequence=int(event["base_sequence"]),
        last_sequence=int(event["last_sequence"]),
        timestamp=int(event["timestamp"]),
        is_marker=bool(event["is_marker"]),
        is_transactional=bool(event["is_transactional"]),
        coordinator_epoch=int(event["coordinator_epoch"]),
    )
