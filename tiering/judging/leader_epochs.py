"""Finds the first segment with known leader epochs, from the checkpoint and a few batch headers.

A broker uses only its checkpoint, and cannot tier a segment without an epoch: it stops there for good. Messages of
magic 0 and 1 have none, so segments written before 0.11, or in an older message format, never get one. Epochs only
grow, so the first headers of a few segments, found by bisection, are enough.

Source: ``RemoteLogManager.getLeaderEpochEntries``; ``RemoteLogSegmentMetadata``, which takes no empty map of epochs.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError, in_file
from resnap.storage.log.checkpoints import read_leader_epochs
from resnap.storage.sources.files import GONE

if TYPE_CHECKING:
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources

_BATCH_START: Final = struct.Struct(">qiiB")
"""Base offset, length, partition leader epoch (of magic 0 and 1: the checksum), and magic."""
_FIRST_MAGIC_WITH_EPOCH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEpochs:
    """Which closed segments of a partition have known leader epochs."""

    checkpointed_from: int | None
    """Offset at which the checkpoint begins; None where it is empty, lost or damaged."""
    unknown_below: int
    """Segments whose base offset is lower have epochs neither in the checkpoint nor in their batches."""
    damage: str | None = None
    """What is wrong with a damaged checkpoint."""
    unread: LogDirError | None = None
    """Why the existing checkpoint could not be read; nothing is known then."""


ALL_KNOWN: Final = KnownEpochs(checkpointed_from=0, unknown_below=0)
"""Of what was shipped: nothing is without its leader epochs."""


def known_epochs(partition: PartitionDir, sources: Sources) -> KnownEpochs:
    """Return which segments have known epochs; reads headers only if the checkpoint begins too late.

    Raises:
        StoreError: the store of the partition failed.

    """
    epochs: tuple[LeaderEpoch, ...] = ()
    damage: str | None = None
    try:
        epochs = _read_checkpoint(partition.leader_epochs, sources)
    except FormatError as error:
        damage = str(error)
    except LogDirError as error:
        return KnownEpochs(checkpointed_from=0, unknown_below=0, unread=error)
    first = epochs[0] if epochs else None
    start = partition.log_start_offset
    uncovered = [
        segment
        for segment in partition.segments
        if segment.next_base_offset is not None
        and segment.next_base_offset > start
        and (first is None or first.start_offset > max(segment.base_offset, start))
    ]
    index = bisect_left(uncovered, x=True, key=lambda segment: _has_epoch(segment, first, sources))
    if not uncovered or index == 0:
        below = 0
    elif index < len(uncovered):
        below = uncovered[index].base_offset
    else:
        below = uncovered[-1].base_offset + 1
    return KnownEpochs(checkpointed_from=first.start_offset if first else None, unknown_below=below, damage=damage)


def checkpointed_epochs(checkpoint: str | None, sources: Sources) -> tuple[LeaderEpoch, ...]:
    """Return the epochs of the checkpoint at this locator; none if it does not exist or is damaged.

    Raises:
        LogDirError: it exists, but cannot be read.
        StoreError: its store failed.

    """
    try:
        return _read_checkpoint(checkpoint, sources)
    except FormatError:
        return ()


def checkpoint_damage(checkpoint: str | None, sources: Sources) -> str | None:
    """Return what is wrong with the checkpoint at this locator; None if nothing is, or it cannot be read.

    Raises:
        StoreError: its store failed.

    """
    try:
        _read_checkpoint(checkpoint, sources)
    except FormatError as error:
        return str(error)
    except LogDirError:
        pass
    return None


def _read_checkpoint(checkpoint: str | None, sources: Sources) -> tuple[LeaderEpoch, ...]:
    if checkpoint is None:
        return ()
    try:
        with in_file(checkpoint):
            return read_leader_epochs(sources.read(checkpoint))
    except GONE:
        return ()


def _has_epoch(segment: Segment, first: LeaderEpoch | None, sources: Sources) -> bool:
    """Return whether the first batch has an epoch, and, if there is a checkpoint, the checkpoint's first one.

    A checkpoint that begins later in the same epoch was truncated to the current log start. One that begins with
    another epoch has lost the earlier epochs. Unreadable files are reported where the segment is read.
    """
    try:
        head = sources.read_range(segment.path, 0, _BATCH_START.size)
    except (LogDirError, ObjectNotFoundError):
        return True
    if len(head) < _BATCH_START.size:
        return True
    _, _, epoch, magic = _BATCH_START.unpack(head)
    if magic < _FIRST_MAGIC_WITH_EPOCH:
        return False
    return bool(epoch >= 0 if first is None else epoch == first.epoch)
