"""Finds the closed segments that wait to be copied to remote storage, and since when: tiering that has stopped.

A leader copies a closed segment within seconds of its roll, so one that has waited for hours shows that tiering has
stopped, whatever the cause: a segment without a snapshot, a task that an Error ended, a request to the store that never
returns, a paused topic, an open transaction. The cause is not looked for. A segment was closed when the broker wrote
the snapshot at its end, or after the last append to it where there is no such file.

Source: ``RemoteLogManager.RLMCopyTask.candidateLogSegments``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from resnap.storage.log.partition_dir import PartitionDir

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The closed segments of a partition that are not in remote storage."""

    offset: int
    """Base offset of the oldest."""
    since_ms: int
    """When the oldest was closed."""
    segments: int
    size_bytes: int
    is_estimate: bool = False
    """Whether number and size were estimated from the outside of a broker, and the size includes the active segment."""


def waiting_segments(partition: PartitionDir, remote_end: int) -> Waiting | None:
    """Return the closed local segments with offsets from ``remote_end`` on; None if there are none.

    Segments above the high watermark are not copied, and those below the log start are about to be deleted.
    """
    lowest, end = max(remote_end, partition.log_start_offset), partition.high_watermark
    found = [
        (one, closed_at)
        for one in partition.segments
        if (closed_at := one.next_base_offset) is not None
        and closed_at > lowest
        and (end is None or closed_at <= end)
        and partition.is_local(one.base_offset)
    ]
    if not found:
        return None
    oldest, its_end = found[0]
    rolled = next((one.mtime_ns for one in partition.snapshots if one.offset == its_end), 0)
    return Waiting(
        offset=oldest.base_offset,
        since_ms=max(oldest.mtime_ns, rolled) // _NS_PER_MS,
        segments=len(found),
        size_bytes=sum(one.size_bytes for one, _ in found),
    )
