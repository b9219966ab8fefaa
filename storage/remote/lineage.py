"""Which segments are of one log, and which of those that overlap are to be read.

Replicas of one log hold the same records, and cut them into segments at other offsets. Who leads a partition changes,
so a store may hold segments of several of them. A leader epoch has one leader, who writes each offset once; and nobody
appends to a log before it has become as the leader's: so where two logs have the same epoch at an offset, they are the
same up to there. Where they differ, one of the two was lost, as after an unclean election.

Source: KIP-101, KIP-279; ``LeaderEpochFileCache``.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage.log.checkpoints import LeaderEpoch
    from storage.remote.manifest import Manifest


def epochs_in(epochs: Sequence[LeaderEpoch], start: int, end: int) -> list[LeaderEpoch]:
    """Return the leader epochs of the offsets [``start``, ``end``), the first one as if it began there."""
    first = max(bisect_right(epochs, start, key=attrgetter("start_offset")) - 1, 0)
    inside = [entry for entry in epochs[first:] if entry.start_offset < end]
    return [entry._replace(start_offset=max(entry.start_offset, start)) for entry in inside]


def is_one_lineage(one: Manifest, other: Manifest) -> bool:
    """Whether the leader epochs of both are the same in the offsets that they share; true if they share none."""
    start = max(one.base_offset, other.base_offset)
    end = min(one.next_base_offset, other.next_base_offset)
    return start >= end or epochs_in(one.leader_epochs, start, end) == epochs_in(other.leader_epochs, start, end)


def chain_of(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return those of ``manifests``, of one partition, that are to be read, ascending: no two of them share offsets.

    They hold as many offsets as any such choice does, thus all, wherever segments follow one another without a break.
    Of choices that are as good, the one whose last segments were made last; of two segments with the same offsets,
    likewise.
    """
    newest = {(one.base_offset, one.next_base_offset): one for one in sorted(manifests, key=_age)}
    ordered = sorted(newest.values(), key=lambda one: (one.next_base_offset, _age(one)))
    ends = [one.next_base_offset for one in ordered]
    held = [0]
    """By how many of ``ordered`` may be chosen from: how many offsets the best choice holds."""
    taken: list[bool] = []
    below = [bisect_right(ends, one.base_offset) for one in ordered]
    for one, room in zip(ordered, below, strict=True):
        with_it = held[room] + one.next_base_offset - one.base_offset
        taken.append(with_it >= held[-1])
        held.append(max(with_it, held[-1]))
    chain, left = [], len(ordered)
    while left:
        left -= 1
        if taken[left]:
            chain.append(ordered[left])
            left = below[left]
    return chain[::-1]


def _age(manifest: Manifest) -> tuple[int, str]:
    return manifest.created_at_ms, str(manifest.segment_id)
