"""Evidence from the small files beside the segments, without reading a segment: timestamps and transactions.

- ``.timeindex``: the largest timestamp of each closed segment (``largest_timestamp``).
- ``.txnindex``: transactions that were aborted, with their first offset and the offset of their marker.
- snapshots that exist: transactions that were open when they were written, and producers whose last batch is below
  the first segment. Such an entry is trusted, because it comes from real batches; the *absence* of a producer is not,
  because brokers also write empty snapshots without reading the log.

An unreadable file here is not an error: its values are unknown, and unknown means that more is read. A failing store is
an error: it fails for the segments, too.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.explain import batches_of
from resnap.replay.largest_timestamp import largest_timestamps
from resnap.replay.producer_state import no_entry
from resnap.replay.window import SegmentSpan
from resnap.storage.errors import ConfigurationError
from resnap.storage.log.indexes import AbortedTxn, read_transaction_index
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, NO_OPEN_TRANSACTION, ProducerEntry, read_snapshot_array
from resnap.storage.packed import pack_all
from resnap.storage.sources.files import GONE, PLAIN, UNREADABLE
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from resnap.replay.explain import Batch
    from resnap.replay.kernel.summary import Array
    from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
    from resnap.storage.sources.files import Sources

SHOWN_DTYPE: Final = np.dtype([*ENTRY_DTYPE.descr, ("first_seen", ">i8"), ("last_seen", ">i8")])
"""An entry, and the offsets of the first and the last snapshot that have it just so."""
NOTHING_SHOWN: Final = np.zeros(0, dtype=SHOWN_DTYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTransaction:
    """A transaction that the snapshot at offset ``seen_at`` shows as open."""

    seen_at: int
    entry: ProducerEntry

    @property
    def first_offset(self) -> int:
        """Offset of its first batch."""
        return self.entry.current_txn_first_offset


@dataclass(slots=True)
class BoundaryEvidence:
    """Transactions known to be open at one boundary, by producer id."""

    spanning: dict[int, int] = field(default_factory=dict)
    """First offset of each."""
    shown: dict[int, ProducerEntry] = field(default_factory=dict)
    """Entry that a snapshot at or after the boundary has of it: first offset and coordinator epoch are the same."""
    at_boundary: dict[int, ProducerEntry] = field(default_factory=dict)
    """Those entries that were so at the boundary already, since no batch came in between."""
    by_index: dict[int, ProducerEntry] = field(default_factory=dict)
    """What a transaction index and the marker show of those begun below the first segment: all but the last batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Facts about one partition's transactions that need no replay."""

    aborted: tuple[AbortedTxn, ...] = ()
    markers: Mapping[AbortedTxn, Batch] = field(default_factory=dict)
    """The markers of transactions that began below the first segment."""
    open: tuple[ShownTransaction, ...] = ()
    newest_snapshot: int | None = None
    """Offset of the newest valid snapshot that has entries."""
    newest_empty: int | None = None
    """Offset of the newest valid snapshot without entries."""
    is_whole: bool = True
    """False if a transaction index could not be read: then nothing is known of the unread segments."""
    below: Array = field(default_factory=lambda: NOTHING_SHOWN, compare=False, repr=False)
    """Entries (``SHOWN_DTYPE``) whose last batch is below the first segment, each once."""

    def at(self, offsets: Sequence[int]) -> dict[int, BoundaryEvidence]:
        """Return what is known at each of the ascending ``offsets``; offsets without evidence are omitted."""
        found: dict[int, BoundaryEvidence] = {}
        for txn in self.aborted:
            for offset in _offsets_between(offsets, txn.first_offset, txn.last_offset):
                known = found.setdefault(offset, BoundaryEvidence())
                known.spanning[txn.producer_id] = txn.first_offset
                if (marker := self.markers.get(txn)) is not None:
                    known.by_index[txn.producer_id] = no_entry(txn.producer_id)._replace(
                        producer_epoch=marker.producer_epoch,
                        timestamp=marker.timestamp,
                        current_txn_first_offset=txn.first_offset,
                    )
        for seen in self.open:
            for offset in _offsets_between(offsets, seen.first_offset, seen.seen_at):
                known = found.setdefault(offset, BoundaryEvidence())
                known.spanning[seen.entry.producer_id] = seen.first_offset
                known.shown[seen.entry.producer_id] = seen.entry
                if seen.entry.last_offset < offset:
                    known.at_boundary[seen.entry.producer_id] = seen.entry
        return found

    def shows_hanging_below(self, offset: int) -> bool:
        """Whether a snapshot would show the hanging transactions that began below ``offset``.

        A snapshot without entries counts only if the log shows no sign of transactions: a broker that finds no snapshot
        writes empty ones without reading the log.
        """
        if not self.is_whole:
            return False
        if self.newest_snapshot is not None and self.newest_snapshot >= offset:
            return True
        return self.newest_empty is not None and self.newest_empty >= offset and not self.aborted

    def aborted_across(self, offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that began below ``offset`` and ended at or above it."""
        return [txn for txn in self.aborted if txn.first_offset < offset <= txn.last_offset]

    def hanging_from_below(self, offset: int) -> list[ShownTransaction]:
        """Return the transactions begun below ``offset`` that may still be open there.

        No later snapshot may lack them: that would show that their marker came in between.
        """
        newest = self.newest_snapshot or 0
        return [seen for seen in self.open if seen.first_offset < offset and seen.seen_at >= min(offset, newest)]


def _offsets_between(offsets: Sequence[int], above: int, up_to: int) -> Sequence[int]:
    return offsets[bisect_right(offsets, above) : bisect_right(offsets, up_to)]


def segment_spans(partition: PartitionDir, sources: Sources = PLAIN) -> Sequence[SegmentSpan]:
    """Return the segments of ``partition`` with their largest timestamps.

    Raises:
        StoreError: the store they are in failed.

    """
    largest = largest_timestamps(partition.segments, sources, remote=partition.is_remote)
    return pack_all(map(_span, partition.segments, largest), "base_offset")


def _span(segment: Segment, largest_ms: int | None) -> SegmentSpan:
    return SegmentSpan(
        locator=segment.path,
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        size_bytes=segment.size_bytes,
        mtime_ms=segment.mtime_ns // 1_000_000,
        largest_timestamp_ms=largest_ms,
    )


def load_evidence(
    partition: PartitionDir,
    sources: Sources = PLAIN,
    *,
    others: Sequence[SnapshotFile] = (),
    distrusted: Collection[str] = (),
    aborted_in: Mapping[str, Sequence[AbortedTxn]] = MappingProxyType({}),
) -> Evidence:
    """Read the transaction indexes and the snapshots of ``partition``, and ``others`` of the same log.

    Files at the locators ``distrusted`` are skipped: snapshots, and logs whose transaction indexes are wrong.
    ``aborted_in`` gives the transactions aborted in some logs, and overrides their indexes.

    Raises:
        StoreError: the store they are in failed.

    """
    is_remote = partition.is_remote
    indexed = [one for one in partition.segments if one.path not in distrusted and one.path not in aborted_in]
    aborted = [*aborted_in.values(), *each(partial(_aborted_txns, sources), indexed, remote=is_remote)]
    seen_open: dict[ProducerEntry, int] = {}
    newest: dict[bool, int] = {}
    begins = partition.segments[0].base_offset if partition.segments else 0
    own = (snapshot for snapshot in partition.snapshots if snapshot.path not in distrusted)
    snapshots = sorted((*own, *others), key=attrgetter("offset"))
    shown = each(partial(_entries_of, sources, begins), snapshots, remote=is_remote or bool(others))
    below = []
    for snapshot, found in zip(snapshots, shown, strict=True):
        if found is not None:
            if snapshot not in others:  # our own snapshots are not evidence
                newest[found[0]] = snapshot.offset
            seen_open |= dict.fromkeys(found[1], snapshot.offset)
            if len(found[2]):
                below.append(found[2])
    transactions = tuple(txn for of_segment in aborted for txn in of_segment or ())
    begun_below = (txn for txn in transactions if txn.first_offset < begins)
    shown_open = {(entry.producer_id, entry.current_txn_first_offset) for entry in seen_open}
    return Evidence(
        aborted=transactions,
        markers=_markers(partition, [txn for txn in begun_below if txn[:2] not in shown_open], sources),
        open=tuple(ShownTransaction(seen_at=offset, entry=entry) for entry, offset in seen_open.items()),
        newest_snapshot=newest.get(True),
        newest_empty=newest.get(False),
        is_whole=None not in aborted,
        below=_each_once(below),
    )


def _aborted_txns(sources: Sources, segment: Segment) -> list[AbortedTxn] | None:
    """Return the entries of the transaction index of ``segment``, None if it exists and cannot be read."""
    if not segment.txnindex_bytes:
        return []
    try:
        return read_transaction_index(sources.read(segment.sibling("txnindex")))
    except GONE:
        return []
    except UNREADABLE:
        return None


def _markers(partition: PartitionDir, aborted: Sequence[AbortedTxn], sources: Sources) -> dict[AbortedTxn, Batch]:
    """Return the markers of the transactions ``aborted``, as far as their segments can be read."""
    if not aborted:
        return {}
    at = {txn.last_offset: txn for txn in aborted}
    in_segment: dict[int, set[int]] = {}
    for txn in aborted:
        index = bisect_right(partition.segments, txn.last_offset, key=attrgetter("base_offset")) - 1
        in_segment.setdefault(max(index, 0), set()).add(txn.producer_id)
    found: dict[AbortedTxn, Batch] = {}
    for index, producer_ids in in_segment.items():
        with suppress(*UNREADABLE):
            for producer_id, batch in batches_of(_span(partition.segments[index], None), producer_ids, sources):
                ended = at.get(batch.base_offset)
                if ended is not None and batch.is_marker and ended.producer_id == producer_id:
                    found[ended] = batch
    return found


def _entries_of(
    sources: Sources, begins: int, snapshot: SnapshotFile
) -> tuple[bool, list[ProducerEntry], Array] | None:
    """Return whether a snapshot has entries, those with an open transaction, and those last seen below ``begins``."""
    try:
        entries = read_snapshot_array(sources.read(snapshot.path), snapshot.offset)
    except (*UNREADABLE, ConfigurationError):  # the key of a store that is only written to may be elsewhere
        return None
    below = _below(entries, begins, snapshot.offset) if begins else NOTHING_SHOWN
    return bool(len(entries)), _open_entries(entries), below


def _below(entries: npt.NDArray[np.void], begins: int, seen_at: int) -> Array:
    """Return the entries whose batch nothing at or above the offset ``begins`` has changed."""
    last_of_id = np.unique(entries["producer_id"][::-1], return_index=True)[1]
    kept = entries[::-1][last_of_id]  # should an id come twice, the later entry wins
    kept = kept[(kept["last_offset"] < begins) & (kept["current_txn_first_offset"] < begins)]
    shown = np.zeros(len(kept), dtype=SHOWN_DTYPE)
    for name in ENTRY_DTYPE.names or ():
        shown[name] = kept[name]
    shown["first_seen"] = shown["last_seen"] = seen_at
    return shown


def _each_once(shown: Sequence[Array]) -> Array:
    """Return each distinct entry of the ascending snapshots, with the first and the last snapshot that has it."""
    if not shown:
        return NOTHING_SHOWN
    every = np.concatenate(shown)
    entries = np.zeros(len(every), dtype=ENTRY_DTYPE)
    for name in ENTRY_DTYPE.names or ():
        entries[name] = every[name]
    keys = entries.view(np.dtype((np.void, ENTRY_DTYPE.itemsize)))
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    once: Array = every[first]
    np.maximum.at(last := once["last_seen"].astype(np.int64), which, every["last_seen"].astype(np.int64))
    np.minimum.at(begun := once["first_seen"].astype(np.int64), which, every["first_seen"].astype(np.int64))
    once["last_seen"], once["first_seen"] = last, begun
    return once


def _open_entries(entries: npt.NDArray[np.void]) -> list[ProducerEntry]:
    ids, is_open = entries["producer_id"], entries["current_txn_first_offset"] != NO_OPEN_TRANSACTION
    # Few are open, so only these become Python's values; should an id come twice, the later entry wins.
    concerned = entries[np.isin(ids, ids[is_open])] if is_open.any() else entries[:0]
    by_id = {entry.producer_id: entry for entry in map(ProducerEntry._make, concerned.tolist())}
    return [entry for entry in by_id.values() if entry.has_open_transaction]
