"""Finds snapshots that lack producers of their log, written by a broker that had lost its producer state.

A replica that starts from remote storage begins with an empty snapshot at its first local offset, whatever the remote
one holds. Its later snapshots lack the producers from below, their open transactions, and their coordinator epochs; its
transaction indexes lack the aborts of those transactions. When such a replica leads, it tiers these snapshots. So a
snapshot is compared with the last one below it that is known to be right: producers that had not expired when it was
written must be in it. Directly below the first local offset that is the remote one.

Such snapshots are not evidence for a replay. Nor does a replay begin at a remote snapshot, whatever it holds: a lost
producer that has written again has an entry, but its open transaction begins too late. No other snapshot shows that,
only the batches do.

Source: ``TierStateMachine.buildProducerSnapshotFile``, ``ProducerStateManager.truncateFullyAndReloadSnapshots``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.storage.errors import ConfigurationError
from resnap.storage.log.producer_snapshot import HEADER, read_snapshot_array
from resnap.storage.sources.files import UNREADABLE
from resnap.storage.threads import each

if TYPE_CHECKING:
    import numpy.typing as npt

    from resnap.storage.log.partition_dir import PartitionDir, SnapshotFile
    from resnap.storage.sources.files import Sources

    Entries = npt.NDArray[np.void]

MOST_CERTAIN_MS: Final = 86_400_000
"""``producer.id.expiration.ms`` by default, from 3.4 on: no producer counts as lost after a longer silence."""
_NONE: Final = -1


class LossySnapshot(NamedTuple):
    """A snapshot that lacks producers of the one before it."""

    snapshot: SnapshotFile
    before: SnapshotFile
    producers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgement of all snapshots of one log."""

    losses: tuple[LossySnapshot, ...] = ()
    distrusted: frozenset[str] = frozenset()
    """Locators of snapshots that are not evidence, and of logs whose transaction indexes are not."""
    without_entries: frozenset[str] = frozenset()
    """Locators of snapshots without an entry."""
    unread: frozenset[str] = frozenset()
    """Locators of snapshots that cannot be read, or that no broker could load; they show nothing."""


NOTHING_LOST: Final = Judged()


def judge_snapshots(partition: PartitionDir, sources: Sources, expiration_ms: int) -> Judged:
    """Return which snapshots of ``partition``, in offset order, lack producers that were still alive.

    After a loss a snapshot is right again once it has all producers of the last right one, of which one must be left.

    Raises:
        StoreError: the store they are in failed.

    """
    read = [*each(lambda one: _entries(one, sources), partition.snapshots, remote=partition.is_remote)]
    right: tuple[SnapshotFile, Entries] | None = None
    losses: list[LossySnapshot] = []
    distrusted: set[str] = set()
    lost_from: int | None = None
    for snapshot, entries in zip(partition.snapshots, read, strict=True):
        if entries is None:
            continue
        if right is not None:
            silence_ms = min(expiration_ms, MOST_CERTAIN_MS)
            lost = lost_producers(_due(right, snapshot, silence_ms), entries)
            if lost:
                losses.append(LossySnapshot(snapshot, right[0], tuple(lost)))
                lost_from = right[0].offset if lost_from is None else lost_from
            due = None if lost_from is None else _due(right, snapshot, silence_ms, still_open=True)
            if lost or (due is not None and (not len(due) or lost_producers(due, entries))):
                distrusted.add(snapshot.path)
                continue
        if lost_from is not None:
            distrusted |= _logs(partition, lost_from, snapshot.offset)
            lost_from = None
        right = snapshot, entries
    if lost_from is not None:
        distrusted |= _logs(partition, lost_from, None)
    found = zip(partition.snapshots, read, strict=True)
    sizes = {snapshot.path: None if entries is None else len(entries) for snapshot, entries in found}
    return Judged(
        losses=tuple(losses),
        distrusted=frozenset(distrusted),
        without_entries=frozenset(path for path, size in sizes.items() if size == 0),
        unread=frozenset(path for path, size in sizes.items() if size is None),
    )


def lost_producers(due: Entries, after: Entries) -> list[int]:
    """Return the producers of ``due``, the required entries, that a later snapshot lacks in whole or in part.

    They are missing, have an older epoch, or have lost their coordinator epoch.
    """
    order = np.argsort(after["producer_id"], kind="stable")
    ids = after["producer_id"][order]
    at = np.searchsorted(ids, due["producer_id"])
    found = at < len(ids)
    found[found] = ids[at[found]] == due["producer_id"][found]
    lacking = ~found
    same = after[order][at[found]]
    was = due[found]
    forgotten = (was["coordinator_epoch"] != _NONE) & (same["coordinator_epoch"] == _NONE)
    lacking[found] = forgotten | (same["producer_epoch"] < was["producer_epoch"])
    lost: list[int] = due["producer_id"][lacking].tolist()
    return lost


def _due(
    right: tuple[SnapshotFile, Entries], snapshot: SnapshotFile, silence_ms: int, *, still_open: bool = False
) -> Entries:
    """Return the entries of the last right snapshot that had not expired, and must be in a later snapshot.

    An open transaction never expires. It counts at the same offset, and at higher ones only if ``still_open``: it may
    have ended in between.
    """
    before, entries = right
    kept = entries["timestamp"] > snapshot.mtime_ns // 1_000_000 - silence_ms
    if still_open or before.offset == snapshot.offset:
        kept |= entries["current_txn_first_offset"] != _NONE
    due: Entries = entries[kept]
    return due


def _logs(partition: PartitionDir, start: int, end: int | None) -> set[str]:
    return {
        one.path for one in partition.segments if one.base_offset >= start and (end is None or one.base_offset < end)
    }


def _entries(snapshot: SnapshotFile, sources: Sources) -> Entries | None:
    """Return the entries of a snapshot; None if no broker could load it, or it cannot be read."""
    try:
        return read_snapshot_array(sources.read(snapshot.path), snapshot.offset)
    except (*UNREADABLE, ConfigurationError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostState:
    """The evidence that a replica has lost its producer state."""

    offset: int
    """Where the log dir begins, or the first of its snapshots that shows it."""
    is_proven: bool
    """Whether a snapshot below has producers that it lacks; else it only seems so."""
    producers: tuple[int, ...]
    """Producers that are known to be lost."""
    detail: str


def state_of_replica(partition: PartitionDir, sources: Sources, expiration_ms: int) -> LostState | None:
    """Return ``lost_state`` of a directory, using its remote part if it is joined with that.

    Raises:
        StoreError: the store that it is in failed.

    """
    is_joined = partition.local_from is not None
    return lost_state(partition, judge_snapshots(partition, sources, expiration_ms) if is_joined else NOTHING_LOST)


def lost_state(partition: PartitionDir, judged: Judged | None = None) -> LostState | None:
    """Return the sign that a replica without its state leaves in its directory; None if there is none.

    A log dir that begins above the log start has its beginning in remote storage. If its first snapshot has no entries,
    and later ones have some, the replica began without state, or no producer had produced before: only remote snapshots
    show which.

    Args:
        partition: the directory, alone or joined with its remote part.
        judged: the result of ``judge_snapshots``; None to leave a directory with its remote part to a replay.

    """
    losses = () if judged is None else judged.losses
    own = next(
        (one for one in losses if partition.is_local(one.snapshot.offset) and _is_own(partition, one.snapshot)), None
    )
    if own is not None:
        what = f"{own.snapshot.path} lacks producers that {own.before.path} has: {len(own.producers)} of them"
        return LostState(offset=own.snapshot.offset, is_proven=True, producers=own.producers, detail=what)
    begins = partition.local_from
    if begins is None:
        begins = partition.segments[0].base_offset if partition.segments else 0
    elif judged is None or _is_as_remote(partition, judged, begins):
        return None
    if begins <= partition.log_start_offset:
        return None
    sizes = {
        one.offset: one.size_bytes for one in partition.snapshots if one.offset >= begins and _is_own(partition, one)
    }
    if sizes.get(begins) != HEADER.size or max(sizes.values()) == HEADER.size:
        return None
    what = (
        f"the log dir begins at offset {begins}, above the log start {partition.log_start_offset}, with a snapshot"
        " without entries, and later ones have some"
    )
    unread = next((one.path for one in _remote_at(partition, begins) if judged and one.path in judged.unread), None)
    if unread is not None:
        what += f"; {unread}, which would show more, cannot be read"
    return LostState(offset=begins, is_proven=False, producers=(), detail=what)


def _is_as_remote(partition: PartitionDir, judged: Judged, begins: int) -> bool:
    """Whether remote snapshots show that the log dir began with the right state.

    A remote snapshot without entries shows it only for a log that is complete from its beginning, with no loss so far:
    a leader that lost its state also tiers empty snapshots, and the lost producers may have been deleted.
    """
    there = _remote_at(partition, begins)
    if not there or there[-1].path in judged.distrusted | judged.unread:
        return False
    return there[-1].path not in judged.without_entries or partition.segments[0].base_offset == 0


def _remote_at(partition: PartitionDir, offset: int) -> list[SnapshotFile]:
    """Return the remote snapshots at ``offset``."""
    return [one for one in partition.snapshots if one.offset == offset and not _is_own(partition, one)]


def _is_own(partition: PartitionDir, snapshot: SnapshotFile) -> bool:
    """Whether the snapshot is in the directory itself."""
    return snapshot.path.startswith(f"{partition.path}/")
