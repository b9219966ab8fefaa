"""What a log dir shows without a replay: its producer snapshots, and the first segment whose leader epochs are known.

Each closed segment [B, N) needs ``N.snapshot``. That a file is useless can be seen without a replay, that it is right
can not: a valid snapshot without entries is normal where no producer is idempotent, and is also what a broker
writes, without looking, when it finds no snapshot at all. So ``EMPTY`` and ``PRESENT`` are both unproven.

Compaction is known by the topic's configuration where that is given, else by the cleaner's checkpoint; else it is taken
to be absent. What batches show of it comes with a replay (``PartitionResult.lacks_records``).

For leader epochs a broker uses only its checkpoint, and cannot tier a segment without an epoch: it stops there for
good. Messages of magic 0 and 1 have none, so segments written before 0.11, or in an older message format, never get
one. Epochs only grow, so the first headers of a few segments, found by bisection, are enough.

Source: ``ProducerStateManager.removeStraySnapshots``; ``LogCleanerManager`` for the checkpoint;
``RemoteLogManager.getLeaderEpochEntries``; ``RemoteLogSegmentMetadata``, which takes no empty map of epochs.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError, in_file
from resnap.storage.log.checkpoints import read_leader_epochs
from resnap.storage.log.log_dir import PartitionProblem
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.packed import pack_all
from resnap.storage.sources.files import GONE, PLAIN
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
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
"""The leader epochs of what was shipped: no segment is without them."""


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
        epoch = leader_epoch_of(sources.read_range(segment.path, 0, _BATCH_START.size))
    except (LogDirError, ObjectNotFoundError):
        return True
    return epoch is None or (epoch >= 0 if first is None else epoch == first.epoch)


def leader_epoch_of(head: bytes) -> int | None:
    """Return the leader epoch of the batch that begins with ``head``, -1 if it has none; None if that is cut short."""
    if len(head) < _BATCH_START.size:
        return None
    _, _, epoch, magic = _BATCH_START.unpack_from(head)
    return int(epoch) if magic >= _FIRST_MAGIC_WITH_EPOCH else -1


INTERNAL_COMPACTED_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Compacted by nature: brokers create them so."""
NEVER_TIERED: Final = INTERNAL_COMPACTED_TOPICS | {"__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
"""Brokers tier none of these, whatever their settings say (``UnifiedLog.isRemoteLogEnabled``)."""


class SnapshotState(StrEnum):
    """What stands at a boundary, as seen from the outside."""

    MISSING = "missing"
    """There is no file."""
    CORRUPT = "corrupt"
    """Another version, length or checksum than a broker would load, or entries from above its offset."""
    ZERO_BYTE = "zero-byte"
    """What a crash leaves of a snapshot that was never synced."""
    EMPTY = "empty"
    """Valid, without entries; unproven."""
    PRESENT = "present"
    """Valid, with entries; unproven."""

    @property
    def is_usable(self) -> bool:
        """Whether a broker could load it."""
        return self is SnapshotState.EMPTY or self is SnapshotState.PRESENT


class Compaction(StrEnum):
    """Whether the records of a partition are thinned out, so that neither tiering nor a replay can take them."""

    COMPACTED = "compacted"
    NOT_COMPACTED = "not-compacted"
    ASSUMED_NOT = "assumed-not"
    """Nothing speaks for it; reports say that it was assumed."""


class CompactionOrigin(StrEnum):
    """How it is known that a partition is compacted."""

    INTERNAL_TOPIC = "internal-topic"
    TOPIC_CONFIGURATION = "topic-configuration"
    CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryStatus:
    """One boundary and the snapshot there."""

    offset: int
    """N: its snapshot speaks of everything below."""
    segment: Segment
    """The closed segment that ends at N."""
    state: SnapshotState
    entries: int | None = None
    """None unless the state is usable."""
    detail: str | None = None
    """What is wrong with a corrupt file: what, at which byte, expected, found."""
    path: str | None = None
    """None where it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInventory:
    """What one partition's directory says."""

    partition: PartitionDir
    boundaries: Sequence[BoundaryStatus]
    """One for each closed segment, ascending."""
    log_end: SnapshotFile | None
    """The newest snapshot where it is above all segment bases: a clean stop wrote it at the log end."""
    strays: tuple[SnapshotFile, ...]
    """The other snapshots that stand at no segment base; a broker deletes them when it loads the log."""
    compaction: Compaction
    compaction_origin: CompactionOrigin
    leader_epochs: KnownEpochs

    @property
    def unusable(self) -> list[BoundaryStatus]:
        """Boundaries without a snapshot that a broker could load."""
        return [boundary for boundary in self.boundaries if not boundary.state.is_usable]

    @property
    def lost(self) -> int:
        """Number of these boundaries."""
        return len(self.unusable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a log dir says."""

    partitions: tuple[PartitionInventory, ...]
    """The partitions by topic, then number; without those that became a problem."""
    problems: tuple[PartitionProblem, ...]
    """The problems of the log dir, and partitions with a snapshot that could not be read."""


def take_inventory(
    log_dir: LogDir,
    *,
    cleanup_policies: Mapping[str, str] | None = None,
    sources: Sources = PLAIN,
    taken: Callable[[PartitionDir], None] = lambda _: None,
) -> Inventory:
    """Return what ``log_dir`` says of its snapshots; a partition that cannot be read becomes a problem.

    Args:
        log_dir: as loaded.
        cleanup_policies: ``cleanup.policy`` by topic, as far as it is known.
        sources: how the files are reached.
        taken: is called with each partition once it has been looked at.

    Raises:
        StoreError: the store that the log dir is in failed.

    """
    partitions: list[PartitionInventory] = []
    problems = list(log_dir.problems)
    policies = cleanup_policies or {}
    for partition in log_dir.partitions:
        policy = policies.get(partition.topic_partition.topic)
        try:
            partitions.append(
                take_partition_inventory(
                    partition, cleanup_policy=policy, sources=sources, is_shipped=log_dir.is_shipped
                )
            )
        except LogDirError as error:
            problems.append(
                PartitionProblem(path=partition.path, error=error, topic_partition=partition.topic_partition)
            )
        taken(partition)
    return Inventory(partitions=tuple(partitions), problems=tuple(problems))


def take_partition_inventory(
    partition: PartitionDir,
    *,
    cleanup_policy: str | None = None,
    sources: Sources = PLAIN,
    is_shipped: bool = False,
) -> PartitionInventory:
    """Return what the directory of ``partition`` says; the arguments are those of ``take_inventory``.

    ``is_shipped`` says that its segments are in a store, as ``tier`` or a broker has shipped them.

    Raises:
        LogDirError: a snapshot at a boundary cannot be read.
        StoreError: the store they are in failed.

    """
    snapshots = {snapshot.offset: snapshot for snapshot in partition.snapshots}
    closed = [
        (segment, end, snapshots.get(end))
        for segment in partition.segments
        if (end := segment.next_base_offset) is not None
    ]
    statuses = each(lambda place: _status(sources, *place), closed, remote=partition.is_remote)
    # The active segment, which has none, comes last.
    boundaries = pack_all(statuses, "offset", segment=partition.segments)
    log_end, strays = _apart_from_bases(partition)
    compaction, origin = _compaction(partition, cleanup_policy)
    return PartitionInventory(
        partition=partition,
        boundaries=boundaries,
        log_end=log_end,
        strays=strays,
        compaction=compaction,
        compaction_origin=origin,
        leader_epochs=ALL_KNOWN if is_shipped else known_epochs(partition, sources),
    )


def with_log_end(inventory: PartitionInventory, sources: Sources = PLAIN) -> PartitionInventory:
    """Return ``inventory`` with a boundary at the log end, if a stopped broker left a snapshot there."""
    log_end = inventory.log_end
    if log_end is None:
        return inventory
    closed = inventory.partition.ending_at(log_end.offset)
    at_end = _status(sources, closed.segments[-1], log_end.offset, log_end)
    return replace(inventory, partition=closed, boundaries=(*inventory.boundaries, at_end), log_end=None)


def with_beginning(inventory: PartitionInventory) -> PartitionInventory:
    """Return ``inventory`` with a boundary where the directory begins, if the log begins below, in remote storage."""
    partition = inventory.partition
    if not partition.segments or partition.segments[0].base_offset <= partition.log_start_offset:
        return inventory
    first = partition.segments[0]
    snapshot = next((at_start for at_start in partition.snapshots if at_start.offset == first.base_offset), None)
    at_start = _status(PLAIN, first, first.base_offset, snapshot)
    return replace(inventory, boundaries=(at_start, *inventory.boundaries))


def _status(sources: Sources, segment: Segment, offset: int, snapshot: SnapshotFile | None) -> BoundaryStatus:
    """Return a boundary by the content of its snapshot: that it is missing, too, if a live broker has deleted it."""
    status = partial(BoundaryStatus, offset=offset, segment=segment)
    if snapshot is None:
        return status(state=SnapshotState.MISSING)
    if snapshot.size_bytes == 0:
        return status(state=SnapshotState.ZERO_BYTE, path=snapshot.path)
    try:
        entries = len(read_snapshot_array(sources.read(snapshot.path), snapshot.offset))
    except GONE:
        return status(state=SnapshotState.MISSING)
    except FormatError as error:
        return status(state=SnapshotState.CORRUPT, detail=str(error), path=snapshot.path)
    state = SnapshotState.PRESENT if entries else SnapshotState.EMPTY
    return status(state=state, entries=entries, path=snapshot.path)


def _apart_from_bases(partition: PartitionDir) -> tuple[SnapshotFile | None, tuple[SnapshotFile, ...]]:
    """Return the log end's snapshot, if there is one, and the strays.

    A snapshot at the first segment's base is neither: it belongs to a segment that retention has taken.
    """
    bases = {segment.base_offset for segment in partition.segments}
    apart = tuple(snapshot for snapshot in partition.snapshots if snapshot.offset not in bases)
    if apart and apart[-1].offset > max(bases, default=-1):
        return apart[-1], apart[:-1]
    return None, apart


def _compaction(partition: PartitionDir, cleanup_policy: str | None) -> tuple[Compaction, CompactionOrigin]:
    if partition.topic_partition.topic in INTERNAL_COMPACTED_TOPICS:
        return Compaction.COMPACTED, CompactionOrigin.INTERNAL_TOPIC
    if cleanup_policy is not None:
        is_compacted = "compact" in {policy.strip() for policy in cleanup_policy.split(",")}
        compaction = Compaction.COMPACTED if is_compacted else Compaction.NOT_COMPACTED
        return compaction, CompactionOrigin.TOPIC_CONFIGURATION
    if partition.cleaner_offset is not None:
        return Compaction.COMPACTED, CompactionOrigin.CLEANER_CHECKPOINT
    return Compaction.ASSUMED_NOT, CompactionOrigin.NONE
