"""Leader epochs as a checkpoint or a manifest says them, against those that the batches have.

Each batch carries the epoch in which it was written. An epoch of which no batch was written leaves no entry: the next
one takes its place, since it starts at the same offset. So where no cleaner has been both are the same, entry by
entry.

Source: ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from resnap.storage.layouts.lineage import epochs_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import Segment


def contradiction(said: Sequence[LeaderEpoch], seen: Sequence[LeaderEpoch], start: int, end: int) -> str | None:
    """Return where ``said`` differs from what batches in [``start``, ``end``) were seen to have; None if nowhere.

    What lies below the first entry of either is not judged: a checkpoint begins at the log start, batches with epochs
    where messages older than 0.11 end.
    """
    if not said or not seen:
        return None
    start = max(start, said[0].start_offset, seen[0].start_offset)
    if start >= end:
        return None
    theirs, ours = epochs_in(said, start, end), epochs_in(seen, start, end)
    if theirs == ours:
        return None
    at = min(one.start_offset for one in set(theirs) ^ set(ours))
    found, stated = epochs_in(seen, at, at + 1)[0].epoch, epochs_in(said, at, at + 1)[0].epoch
    return f"at offset {at} a batch is of leader epoch {found}, {{}} says {stated}"


class HasEpochs(Protocol):
    """What was found out about the leader epochs of a segment."""

    @property
    def epochs(self) -> tuple[LeaderEpoch, ...]:
        """Leader epochs of the batches, each time another one appears."""
        ...

    @property
    def has_legacy(self) -> bool:
        """Messages are there that have no batch header."""
        ...


@dataclass(slots=True)
class EpochsSeen:
    """The leader epochs of the batches of a partition, as its segments are judged one after the other, upwards."""

    _seen: list[LeaderEpoch] = field(default_factory=list)
    _start: int = -1
    _end: int = -1

    def check(self, segment: Segment, found: HasEpochs, said: Sequence[LeaderEpoch]) -> str | None:
        """Return where the checkpoint ``said`` differs from the batches up to the end of ``segment``."""
        if segment.next_base_offset is None or found.has_legacy:
            return None
        if segment.base_offset != self._end:
            self._seen, self._start = [], segment.base_offset
        fresh = found.epochs
        is_same = bool(self._seen and fresh) and fresh[0].epoch == self._seen[-1].epoch
        self._seen += fresh[1:] if is_same else fresh
        self._end = segment.next_base_offset
        return contradiction(said, self._seen, self._start, self._end)
