"""Compares an existing snapshot with the entries that a replay has rebuilt.

A broker's own snapshot may correctly hold producers whose records were deleted, may have dropped producers that its
periodic check had just found expired, and may have lost a coordinator epoch by that (``producer_state``: rebirth), or
the last batch, if markers of the same epoch came later. Entries expire in the periodic check, and whenever a broker
loads a snapshot, as in a recovery. The log does not show when, so a replay keeps the batch and the epoch; neither
counts as lost if the producer could not have expired when the file was written.

If retention has deleted the log's beginning, it may also know the coordinator epoch of a deleted marker, and the
deleted first offset of a transaction. Everything else is a difference: in a log that was read from offset 0 nothing is
deleted, nor is any batch that an entry names within the offsets that were read. If batches are missing within these
offsets, after compaction or a loss, an entry may also come from one of those: only an entry that is behind the
remaining batches is a difference. What only snapshots show, they do not prove. Only entries that survive at T count, on
both sides: an entry that a loading broker drops does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from resnap.replay.kernel.summary import NONE, BoolArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resnap.replay.kernel.summary import Array

MOST_NAMED: Final = 1000
"""A false-empty snapshot lacks all producers, and a log may have thousands of them: what a driver holds is bounded."""


class SnapshotVerdict(StrEnum):
    """The result of comparing a broker's snapshot with a replay."""

    PROVEN = "proven"
    """The replay gives the same; producers that have expired as of its time are not compared."""
    UNPROVEN = "unproven"
    """Nothing contradicts it, but entries of it, or producers that it may lack, depend on batches that are gone."""
    FALSE_EMPTY = "false-empty"
    """Valid, no entries, though producers are alive below it."""
    FALSE_PARTIAL = "false-partial"
    """Valid, but producers are absent: what a broker writes after it went on from a false-empty one."""
    DIFFERENT = "different"
    """An entry contradicts the log."""


SOUND: Final = frozenset({SnapshotVerdict.PROVEN, SnapshotVerdict.UNPROVEN})
"""Verdicts on snapshots that nothing contradicts."""


class Producers(NamedTuple):
    """How many producers, and the ids of the first ``MOST_NAMED`` of them, ascending."""

    total: int = 0
    named: tuple[int, ...] = ()

    @staticmethod
    def of(ids: Sequence[int]) -> Producers:
        """Return the producers with these ``ids``, in any order."""
        return Producers(len(ids), tuple(nsmallest(MOST_NAMED, ids)))

    @staticmethod
    def join(parts: Sequence[Producers]) -> Producers:
        """Return the producers of all ``parts``, which must be disjoint."""
        named = nsmallest(MOST_NAMED, (producer_id for part in parts for producer_id in part.named))
        return Producers(sum(part.total for part in parts), tuple(named))


NO_PRODUCERS: Final = Producers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences between a snapshot and the rebuilt entries, by producer."""

    verdict: SnapshotVerdict
    missing: Producers = NO_PRODUCERS
    different: Producers = NO_PRODUCERS
    swept: Producers = NO_PRODUCERS
    """Absent there because the broker had found them expired; rebuilt all the same, since that is not certain."""
    coordinator_lost: Producers = NO_PRODUCERS
    """Equal but for a coordinator epoch that the broker had forgotten by expiry."""
    batch_lost: Producers = NO_PRODUCERS
    """Equal but for a last batch that the broker had forgotten by expiry, before a marker without data."""
    coordinator_kept: Producers = NO_PRODUCERS
    """Of those that differ: equal except for a coordinator epoch that the broker had forgotten and the snapshot has."""
    older_rules: Producers = NO_PRODUCERS
    """Of those that differ: as a broker before 2.4.1, or before 1.0, left an entry at the marker of a transaction."""
    unrecorded: Producers = NO_PRODUCERS
    """There without any record left in what was read."""
    unread_since_ms: int | None = None
    """Oldest timestamp of those whose batch exists but was not read; None if there are none."""
    sha256: str = ""
    """SHA-256 of the compared file, which may have been replaced since."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing contradicts the snapshot, except what the rules of older brokers explain."""
        explained = not self.missing.total and self.different.total == self.older_rules.total
        return explained or self.verdict in SOUND


IdleSince: TypeAlias = "tuple[IntArray, IntArray]"
"""The smallest timestamps that entries had while they could expire: between the last data batch and the last marker,
and between the last marker and the last data batch, 0 where the marker was not read."""


_VALUE_FIELDS: Final = ("producer_epoch", "last_sequence", "last_offset", "offset_delta", "timestamp")


def compare(
    existing: Array,
    rebuilt: Array,
    *,
    kept_after_ms: int,
    written_ms: int,
    expiration_ms: int,
    seen: IntArray,
    read_from: int = 0,
    begins: int = 0,
    left_out: Sequence[int] = (),
    is_empty: bool | None = None,
    lacks_records: bool = False,
    idle_since: Callable[[Array], IdleSince] | None = None,
) -> Comparison:
    """Compare ``existing`` with ``rebuilt``, both ``producer_snapshot.ENTRY_DTYPE``.

    Args:
        existing: entries of the file, in any order.
        rebuilt: by producer id; the entries that a replay gives at T.
        kept_after_ms: idle entries up to this timestamp have expired at T.
        written_ms: when the file was written, by its modification time.
        expiration_ms: of the broker that wrote it.
        seen: all producer ids in the batches that were read, surviving or not.
        read_from: offset from which on the log was read.
        begins: first available offset of the log.
        left_out: producer ids that were not rebuilt because something about them is unknown.
        is_empty: whether the file has no entries at all, if ``existing`` are only some of them.
        lacks_records: as in ``PartitionResult``.
        idle_since: returns since when some entries of ``rebuilt`` could expire; None if that is not known.

    """
    ids, positions = np.unique(existing["producer_id"][::-1], return_index=True)
    theirs = existing[::-1][positions]  # should an id come twice, the later entry wins
    at = np.searchsorted(ids, rebuilt["producer_id"])
    present = np.zeros(len(rebuilt), dtype=bool)
    inside = at < len(ids)
    present[inside] = ids[at[inside]] == rebuilt["producer_id"][inside]
    ours, matched = rebuilt[present], theirs[at[present]]
    equal = _are_equal(_VALUE_FIELDS, ours, matched) & _equal_transactions(ours, matched, read_from)
    lost = equal & (ours["coordinator_epoch"] != matched["coordinator_epoch"]) & (matched["coordinator_epoch"] == NONE)
    forgotten = (ours["coordinator_epoch"] == NONE) & (read_from > 0)
    kept = equal & (ours["coordinator_epoch"] == NONE) & (matched["coordinator_epoch"] != NONE) & ~forgotten
    if lost.any() and idle_since is not None:
        lost[lost] = written_ms - idle_since(ours[lost])[1] >= expiration_ms
    equal &= lost | forgotten | (ours["coordinator_epoch"] == matched["coordinator_epoch"])
    batch_lost = _lacks_batch_alone(ours, matched)
    if batch_lost.any():
        batch_lost[batch_lost] = (
            written_ms - idle_since(ours[batch_lost])[0] >= expiration_ms if idle_since is not None else False
        )
    equal |= batch_lost
    ahead = ~equal & (np.isin(ours["producer_id"], left_out) | (lacks_records & ~_is_behind(matched, ours)))
    absent = rebuilt[~present]
    swept = (_is_idle(absent) | lacks_records) & (written_ms - absent["timestamp"] >= expiration_ms)
    extra = theirs[~np.isin(ids, rebuilt["producer_id"])]
    extra = extra[~_is_idle(extra) | (extra["timestamp"] > kept_after_ms)]
    # An entry that was not rebuilt does not contradict a snapshot that has it.
    contradicted = np.isin(extra["producer_id"], seen) | (extra["last_offset"] >= read_from) | (not read_from)
    contradicted &= ~np.isin(extra["producer_id"], left_out) & (not lacks_records)
    missing, different = absent[~swept], np.concatenate((ours[~equal & ~ahead], extra[contradicted]))
    only_shown = ours[equal & ~np.isin(ours["producer_id"], seen)]
    unrecorded = np.concatenate((extra[~contradicted], only_shown, matched[ahead]))
    is_unread = (unrecorded["last_offset"] >= begins) & (read_from > begins)
    unread = unrecorded[is_unread & ((unrecorded["last_offset"] < read_from) | (not lacks_records))]
    is_empty = not len(existing) if is_empty is None else is_empty
    is_whole = not len(unrecorded) and not left_out
    return Comparison(
        verdict=_verdict(len(missing), len(different), is_empty=is_empty, is_whole=is_whole),
        missing=_ids(missing),
        different=_ids(different),
        swept=_ids(absent[swept]),
        coordinator_lost=_ids(ours[lost]),
        batch_lost=_ids(ours[batch_lost]),
        coordinator_kept=_ids(ours[kept & ~ahead]),
        older_rules=_ids(ours[~equal & ~ahead & _by_older_rules(ours, matched)]),
        unrecorded=_ids(unrecorded),
        unread_since_ms=int(unread["timestamp"].min()) if len(unread) else None,
    )


def _verdict(missing: int, different: int, *, is_empty: bool, is_whole: bool) -> SnapshotVerdict:
    if different:
        return SnapshotVerdict.DIFFERENT
    if missing:
        return SnapshotVerdict.FALSE_EMPTY if is_empty else SnapshotVerdict.FALSE_PARTIAL
    return SnapshotVerdict.PROVEN if is_whole else SnapshotVerdict.UNPROVEN


def _lacks_batch_alone(ours: Array, theirs: Array) -> BoolArray:
    """Return which of ``theirs`` are entries that a marker made, and have all of ``ours`` except the last batch."""
    lacks: BoolArray = (
        _is_idle(ours) & _is_idle(theirs) & (theirs["last_offset"] == NONE) & (ours["last_offset"] != NONE)
    )
    lacks &= (theirs["last_sequence"] == NONE) & (theirs["offset_delta"] == 0)
    return lacks & _are_equal(("producer_epoch", "timestamp", "coordinator_epoch"), ours, theirs)


def _are_equal(names: tuple[str, ...], ours: Array, theirs: Array) -> BoolArray:
    """Return which entries have equal values in the fields ``names``."""
    equal: BoolArray = np.logical_and.reduce([ours[name] == theirs[name] for name in names])
    return equal


def _equal_transactions(ours: Array, theirs: Array, read_from: int) -> BoolArray:
    """Return whether the transactions agree; one begun below what was read seems to begin at its first batch read."""
    mine, other = ours["current_txn_first_offset"], theirs["current_txn_first_offset"]
    equal: BoolArray = (mine == other) | ((mine != NONE) & (other != NONE) & (other < read_from))
    return equal


def _is_behind(theirs: Array, ours: Array) -> BoolArray:
    """Return which of ``theirs`` contradict ``ours``; others may come from batches that were deleted."""
    # A batch that is gone may have been later, a marker, or the first of a transaction.
    first = ours["current_txn_first_offset"]
    behind: BoolArray = (first == NONE) | (theirs["current_txn_first_offset"] >= first)
    for name in ("coordinator_epoch", "timestamp", "last_offset", "producer_epoch"):
        behind = np.where(theirs[name] == ours[name], behind, theirs[name] < ours[name])
    return behind


def _by_older_rules(ours: Array, theirs: Array) -> BoolArray:
    """Return which entries follow the rules of older brokers, for producers whose last batch is a marker.

    Before 2.4.1 the timestamp stayed that of the last data batch, -1 without one (KAFKA-9144). Before 1.0 a marker
    counted as a batch of one record: its offset was the last offset, and the delta 0. Later brokers make of the same
    log what a replay does.

    Source: ``ProducerAppendInfo.appendEndTxnMarker`` of 0.11.0 and 2.4.0; KAFKA-5494, KAFKA-9144.
    """
    by_marker = _is_idle(ours) & _is_idle(theirs) & (ours["coordinator_epoch"] != NONE)
    by_marker &= _are_equal(("producer_epoch", "last_sequence", "coordinator_epoch"), ours, theirs)
    same_batch = (ours["last_offset"] == theirs["last_offset"]) & (ours["offset_delta"] == theirs["offset_delta"])
    as_batch = (theirs["last_offset"] > ours["last_offset"]) & (theirs["offset_delta"] == 0)
    stale = same_batch & (theirs["timestamp"] < ours["timestamp"])
    by_older: BoolArray = by_marker & (stale | (as_batch & (theirs["timestamp"] <= ours["timestamp"])))
    return by_older


def _is_idle(entries: Array) -> BoolArray:
    idle: BoolArray = entries["current_txn_first_offset"] == NONE
    return idle


def _ids(entries: Array) -> Producers:
    return Producers.of(entries["producer_id"].tolist())
