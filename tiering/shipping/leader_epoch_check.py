"""Compares the leader epochs of a checkpoint or a manifest with those of the batches.

Each batch has the epoch in which it was written. An epoch without a batch leaves no entry: the next one replaces it,
because it starts at the same offset. So without log compaction both are the same, entry by entry.

Source: ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.storage.log.checkpoints import epochs_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import Segment


def contradiction(said: Sequence[LeaderEpoch], seen: Sequence[LeaderEpoch], start: int, end: int) -> str | None:
    """Return where ``said`` differs from the epochs of the batches in [``start``, ``end``); None if nowhere.

    Offsets below the first entry of either are not judged: a checkpoint begins at the log start, and batches with
    epochs after messages older than 0.11.
    """
    if not said or not seen:
        return None
    start = max(start, said[0].start_offset, seen[0].start_offset)
    if start >= end:
        return None
    theirs, ours = epochs_in(said, start, end), epochs_in(seen, start, end)
    if theirs == ours:
        return None
    at = min(epoch.start_offset for epoch in set(theirs) ^ set(ours))
    found, stated = epochs_in(seen, at, at + 1)[0].epoch, epochs_in(said, at, at + 1)[0].epoch
    return f"at offset {at} a batch is of leader epoch {found}, {{}} says {stated}"


@dataclass(slots=True)
class EpochsSeen:
    """The leader epochs of a partition's batches, as its segments are judged in ascending order."""

    _seen: list[LeaderEpoch] = field(default_factory=list)
    _start: int = -1
    _end: int = -1

    def check(self, segment: Segment, fresh: Sequence[LeaderEpoch], said: Sequence[LeaderEpoch]) -> str | None:
        """Return where the checkpoint ``said`` differs from the batches up to the end of ``segment``.

        ``fresh`` are the leader epochs of its batches, one for each change.
        """
        if segment.next_base_offset is None:
            return None
        if segment.base_offset != self._end:
            self._seen, self._start = [], segment.base_offset
        is_same = bool(self._seen and fresh) and fresh[0].epoch == self._seen[-1].epoch
        self._seen += fresh[1:] if is_same else fresh
        self._end = segment.next_base_offset
        return contradiction(said, self._seen, self._start, self._end)
