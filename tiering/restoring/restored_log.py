"""Facts of a restored log besides its files: log start, open transactions, highest producer id, last leader epoch.

A segment is shipped with the records that DeleteRecords has deleted from it. The leader epoch checkpoint that is
shipped with each segment shows the deletion: a broker truncates it at the log start offset, and a log start inside a
segment has no other cause. A log start at the beginning of a segment is usually due to retention, after which a store
intentionally holds more than the broker.

A transaction whose marker was not shipped stays open for ever: the marker will not be written again.

Source: ``UnifiedLog.maybeIncrementLogStartOffset``, ``LeaderEpochFileCache.truncateFromStart``.
"""

from __future__ import annotations

import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import legible
from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError
from resnap.storage.log.checkpoints import read_leader_epochs
from resnap.storage.log.names import FileKind
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.producer_snapshot import load_snapshot, read_snapshot
from resnap.storage.log.record_batch import LOG_OVERHEAD, MAGIC_V2
from resnap.storage.threads import each
from resnap.storage.whole_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.storage.sources.files import Sources
    from resnap.tiering.restoring.restoration import Restoration, ShippedFile

_HEAD: Final = struct.Struct(">8xi4xb26xq10x")
"""Length, magic and producer id of a batch; of older formats the first two."""


def kept_log_start(partition: PartitionDir, checkpoints: Sequence[str], sources: Sources) -> int | None:
    """Return the log start offset inside a stored segment of ``partition``; None if it is not inside one.

    ``checkpoints`` are the locators of the leader epochs of all its segments. They are all read only if the last one
    begins above the first segment.

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


def highest_producer_id(folder: Path) -> int:
    """Return the highest producer id in the batches and snapshots of a partition's directory; -1 for none.

    Raises:
        LogDirError, FormatError: a file cannot be read.

    """
    highest = -1
    with legible(folder):
        for path in folder.iterdir():
            if path.suffix == f".{FileKind.LOG}":
                highest = max(highest, max(_producer_ids(path), default=-1))
            elif path.suffix == f".{FileKind.SNAPSHOT}":
                highest = max(highest, max(load_snapshot(path), default=-1))
    return highest


def _producer_ids(log: Path) -> Iterator[int]:
    """Yield the producer id of each batch of a segment; -1 for one without, and for messages of older formats."""
    position, descriptor = 0, open_regular(log)
    try:
        while len(head := os.pread(descriptor, _HEAD.size, position)) == _HEAD.size:
            length, magic, producer_id = _HEAD.unpack(head)
            if length <= 0:  # zeros: the room that a killed broker had reserved
                return
            yield producer_id if magic == MAGIC_V2 else -1
            position += LOG_OVERHEAD + length
    finally:
        os.close(descriptor)


def highest_in_snapshots(restoration: Restoration) -> int:
    """Return the highest producer id in the snapshots to restore; -1 if there is none.

    Raises:
        StoreError: the store failed.
        ResnapError: one of them is damaged.

    """
    snapshots = [file for file in restoration.files if file.name.endswith(f".{FileKind.SNAPSHOT}")]
    contents = each(_content, snapshots, remote=True)
    return max((max(read_snapshot(content), default=-1) for content in contents), default=-1)


def last_leader_epoch(restoration: Restoration) -> int:
    """Return the last leader epoch of what is restored, 0 if it has none; raises as above."""
    content = next((_content(file) for file in restoration.files if file.name == LEADER_EPOCHS), None)
    return max((one.epoch for one in read_leader_epochs(content)), default=0) if content is not None else 0


def _content(file: ShippedFile) -> bytes:
    with file.open() as chunks:
        return b"".join(chunks)
