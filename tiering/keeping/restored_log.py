"""What a log that is restored is besides its files: where it starts, and which transactions are open at its end.

The records that DeleteRecords has removed from the middle of a segment are shipped with it. What says is the leader
epoch checkpoint that is shipped with each segment: a broker cuts it at the log start, and a log start inside a segment
is nobody else's doing. One at the beginning of a segment is retention's as a rule, after which a store holds more than
the broker on purpose.

A transaction whose marker was not shipped is open for good: nobody will write the marker again.

Source: ``UnifiedLog.maybeIncrementLogStartOffset``, ``LeaderEpochFileCache.truncateFromStart``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError
from resnap.storage.log.checkpoints import read_leader_epochs
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.side_by_side import each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.storage.sources.files import Sources


def kept_log_start(partition: PartitionDir, checkpoints: Sequence[str], sources: Sources) -> int | None:
    """Return the log start inside one of the stored segments of ``partition``; None where there is none.

    ``checkpoints`` are the locators of the leader epochs of all its segments. All are read only if the last one begins
    above the first segment.

    Raises:
        StoreError: the store they lie in failed.

    """
    bases = {segment.base_offset for segment in partition.segments}
    last = _begins_at(sources, checkpoints[-1]) if checkpoints else None
    if last is None or last <= min(bases):
        return None
    begins = each(partial(_begins_at, sources), checkpoints, remote=True)
    inside = [start for start in begins if start is not None and start > min(bases) and start not in bases]
    return max(inside, default=None)


def _begins_at(sources: Sources, checkpoint: str) -> int | None:
    try:
        epochs = read_leader_epochs(sources.read(checkpoint))
    except (FormatError, LogDirError, ObjectNotFoundError):
        return None
    return epochs[0].start_offset if epochs else None


def open_at_end(snapshot: str | None, sources: Sources) -> tuple[ProducerEntry, ...]:
    """Return the entries with an open transaction in the last snapshot of a log, by their first offsets.

    Raises:
        StoreError: the store it lies in failed.

    """
    if snapshot is None:
        return ()
    try:
        entries = read_snapshot(sources.read(snapshot)).values()
    except (FormatError, LogDirError, ObjectNotFoundError):
        return ()
    found = [entry for entry in entries if entry.has_open_transaction]
    return tuple(sorted(found, key=lambda entry: entry.current_txn_first_offset))
