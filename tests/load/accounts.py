"""What a stream of events owes to its reader, compared with what it sent."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.load.clients import Followed, Seen


def faults(seen: Seen) -> list[str]:
    """Return what was lost, doubled, out of order or left open, of all streams; nothing if all is well."""
    by_run = defaultdict(list)
    for followed in seen.streams:
        by_run[followed.run].append(followed)
    return [fault for streams in by_run.values() for fault in _of_one_run(streams)]


def _of_one_run(streams: Sequence[Followed]) -> Iterator[str]:
    """Compare the streams of one run: whatever one of them sent, the others owe.

    Of progress only the last word is kept, so that a stream owes what came after the piece with which it began.
    """
    known = {seq for one in streams for seq, kind in zip(one.ids, one.kinds, strict=True) if kind != "progress"}
    for number, one in enumerate(streams):
        if one.ids != sorted(set(one.ids)):
            yield f"{one.run}, stream {number}: doubled, or out of order: {one.ids}"
        owed = known | {*range(one.caught_up, max(known) + 1)}
        if lost := owed - set(one.ids):
            yield f"{one.run}, stream {number}: lost {sorted(lost)} behind {one.caught_up}"
        if not one.last_state or one.kinds[-1] != "state":
            yield f"{one.run}, stream {number}: ended before the run did"
