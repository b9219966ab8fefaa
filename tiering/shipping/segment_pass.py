"""One pass over the batch headers of a closed segment, to check its indexes, transactions and leader epochs.

Every segment that is shipped, or verified in a layout without digests, is read so once, with all its bytes: the digests
of the log are computed meanwhile. A scan of batch headers reads a file in order, block by block: some bytes twice, if a
batch crosses the end of a block, and some not at all, if it continues beyond it.

Each batch has the leader epoch in which it was written. An epoch without a batch leaves no entry in a checkpoint: the
next one replaces it, because it starts at the same offset. So without log compaction both are the same, entry by entry.

Source: ``LeaderEpochFileCache.assign``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.scan.header_scan import Block, ScanFacts, SegmentRange, control_record, read_blocks
from resnap.storage.crc32c import crc32c
from resnap.storage.log.checkpoints import LeaderEpoch, epochs_in
from resnap.storage.log.record import ABORT, UNUSUAL, usual_marker_types
from resnap.storage.log.record_batch import CONTROL, TRANSACTIONAL
from resnap.storage.sources.files import PLAIN
from resnap.storage.stores.ranged_reader import RangedReader
from resnap.tiering.shipping.aborted_transactions import SegmentTransactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from resnap.replay.kernel.summary import Array
    from resnap.storage.log.indexes import OffsetIndexEntry, TimeIndexEntry
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.readers import RangeReader
    from resnap.storage.sources.files import Sources

    Ints = npt.NDArray[np.int64]

_DIGEST_BLOCK: Final = 1 << 20


class SegmentPass(NamedTuple):
    """The result of a pass over the headers."""

    end_offset: int
    max_timestamp_ms: int
    """-1 where no batch has one."""
    confirmed_offsets: int
    """Entries of the offset index that point at a batch and are not below it."""
    confirmed_times: int
    """Entries of the time index that name a batch with their timestamp, the largest up to there."""
    epochs: tuple[LeaderEpoch, ...]
    """Leader epochs of the batches, each time another one appears."""
    has_legacy: bool
    """Messages are there that have no batch header."""
    transactions: SegmentTransactions


def transactions_of(segment: Segment, sources: Sources = PLAIN) -> SegmentTransactions:
    """Return the transactions in the headers of all batches of ``segment``; raises as ``pass_over`` does."""
    with sources.open(segment.path) as reader:
        return transactions_in(reader, SegmentRange.whole(segment))


def transactions_in(reader: RangeReader, segment: SegmentRange) -> SegmentTransactions:
    """Return the same from ``reader``, which reads ``segment``."""
    transactions = SegmentTransactions()
    for block in read_blocks(reader, segment, ScanFacts()):
        _take_transactions(reader, block, transactions)
    return transactions


def pass_over(
    segment: Segment,
    offsets: Sequence[OffsetIndexEntry],
    times: Sequence[TimeIndexEntry],
    sources: Sources = PLAIN,
) -> tuple[SegmentPass, DigestingReader]:
    """Read all headers, and find those that the entries of both indexes name; also return the log, read to its end.

    Raises:
        FormatError: the segment is damaged.
        LogDirError, StoreError: it cannot be read.

    """
    facts, transactions = ScanFacts(), SegmentTransactions()
    claims = _Claims(
        positions=np.array([entry.position for entry in offsets], dtype=np.int64),
        offsets=np.array([entry.relative_offset for entry in offsets], dtype=np.int64) + segment.base_offset,
        timestamps=np.array([entry.timestamp for entry in times], dtype=np.int64),
        timed_offsets=np.array([entry.relative_offset for entry in times], dtype=np.int64) + segment.base_offset,
    )
    epochs: list[LeaderEpoch] = []
    batches = 0
    with sources.open(segment.path) as opened:
        reader = DigestingReader(opened)
        for block in read_blocks(reader, SegmentRange.whole(segment), facts):
            batches += len(block.headers)
            claims.look_up(block)
            _take_transactions(reader, block, transactions)
            _take_epochs(block.headers, epochs)
        reader.finish()
    seen = SegmentPass(
        end_offset=facts.end_offset,
        max_timestamp_ms=facts.max_timestamp_ms,
        confirmed_offsets=claims.confirmed_offsets,
        confirmed_times=claims.confirmed_times,
        epochs=tuple(epochs),
        has_legacy=batches != facts.batches,
        transactions=transactions,
    )
    return seen, reader


@dataclass(slots=True, kw_only=True)
class _Claims:
    """The entries of both indexes, and how many of them batches have confirmed so far."""

    positions: Ints
    offsets: Ints
    timestamps: Ints
    timed_offsets: Ints
    confirmed_offsets: int = 0
    confirmed_times: int = 0
    _largest: int = field(default=-1, init=False)
    """Timestamp in all blocks so far."""

    def look_up(self, block: Block) -> None:
        """Count the entries that ``block`` confirms."""
        if not len(block.headers):
            return
        headers, starts = block.headers, block.positions + block.at
        lasts = headers["base_offset"] + headers["last_offset_delta"].astype(np.int64)
        self._look_up_positions(starts, lasts)
        largest = np.maximum.accumulate(headers["max_timestamp"].astype(np.int64))
        np.maximum(largest, self._largest, out=largest)
        self._look_up_times(headers, lasts, largest)
        self._largest = int(largest[-1])

    def _look_up_positions(self, starts: Ints, lasts: Ints) -> None:
        """Count confirmed entries of the offset index.

        The offset of an entry may be above the batch that starts there: a follower appends several batches at once, and
        enters the last offset of all.
        """
        at, entry = _pointed_at(starts, self.positions)
        self.confirmed_offsets += int((lasts[at] <= self.offsets[entry]).sum())

    def _look_up_times(self, headers: Array, lasts: Ints, largest: Ints) -> None:
        """Count confirmed entries of the time index: the offset's batch has the timestamp, none below a later one.

        Source: ``TimeIndex.lookup`` and ``LogSegment.findOffsetByTimestamp``, which begin to read at that offset.
        """
        bases = headers["base_offset"].astype(np.int64)
        first, end = np.searchsorted(self.timed_offsets, np.array([bases[0], lasts[-1] + 1])).tolist()
        named, said = self.timed_offsets[first:end], self.timestamps[first:end]
        at = np.searchsorted(bases, named, side="right") - 1
        is_borne_out = (named <= lasts[at]) & (headers["max_timestamp"][at] == said) & (largest[at] == said)
        self.confirmed_times += int(is_borne_out.sum())


def _take_epochs(headers: Array, epochs: list[LeaderEpoch]) -> None:
    """Add to ``epochs`` the batches with another leader epoch than the previous one."""
    found = headers["partition_leader_epoch"].astype(np.int64)
    before = np.concatenate(([epochs[-1].epoch if epochs else -1], found[:-1])) if len(found) else found
    changes = np.flatnonzero((found != before) & (found >= 0)).tolist()
    epochs += [LeaderEpoch(int(found[i]), int(headers["base_offset"][i])) for i in changes]


def _pointed_at(starts: Ints, positions: Ints) -> tuple[Ints, Ints]:
    """Return the indexes, in both, of the common values; both ascend."""
    if not len(starts):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    first, end = np.searchsorted(positions, np.array([starts[0], starts[-1] + 1])).tolist()
    entry = np.arange(first, end, dtype=np.int64)
    at = np.searchsorted(starts, positions[entry])
    hits = starts[at] == positions[entry]
    return at[hits], entry[hits]


def _take_transactions(reader: RangeReader, block: Block, transactions: SegmentTransactions) -> None:
    """Add the transactional batches and the markers of ``block`` to ``transactions``."""
    headers = block.headers
    transactional = np.flatnonzero((headers["attributes"] & TRANSACTIONAL != 0) & (headers["producer_id"] >= 0))
    producer_ids = headers["producer_id"][transactional].tolist()
    offsets = headers["base_offset"][transactional].tolist()
    ends = headers["attributes"][transactional] & CONTROL != 0
    aborts = _aborts(reader, block, transactional[ends])
    batches = zip(transactional.tolist(), producer_ids, offsets, ends.tolist(), strict=True)
    for i, producer_id, offset, is_end in batches:
        if is_end:
            transactions.end(producer_id, offset, is_abort=i in aborts)
        else:
            transactions.begin(producer_id, offset)


def _aborts(reader: RangeReader, block: Block, controls: Ints) -> set[int]:
    """Return which of the control batches, by their index in ``block``, are markers that abort a transaction."""
    types = usual_marker_types(block.data, block.positions[controls])
    found = set(controls[types == ABORT].tolist())
    for i in controls[types == UNUSUAL].tolist():
        marker = control_record(reader, block, i)
        if marker is not None and marker.type == ABORT:
            found.add(i)
    return found


class DigestingReader:
    """A ``RangeReader`` over ``reader`` that adds each byte to the digests once, in order."""

    def __init__(self, reader: RangeReader) -> None:
        self.locator = reader.locator
        self.size_bytes = reader.size_bytes
        self.etag = reader.etag if isinstance(reader, RangedReader) else None
        """The etag of an object that is read as it is."""
        self.crc32c = 0
        """The checksum of the first ``digested_bytes``, as is the other digest."""
        self.digested_bytes = 0
        self._reader = reader
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """In hexadecimal digits."""
        return self._sha256.hexdigest()

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        self._reach(position)
        data = self._reader.read(position, length)
        self._take(memoryview(data)[max(0, self.digested_bytes - position) :])
        return data

    def finish(self) -> None:
        """Read the remaining bytes, up to the current end of the file."""
        while data := self._reader.read(self.digested_bytes, _DIGEST_BLOCK):
            self._take(memoryview(data))

    def _reach(self, position: int) -> None:
        """Read the bytes between the last read and ``position``."""
        while self.digested_bytes < position:
            data = self._reader.read(self.digested_bytes, min(_DIGEST_BLOCK, position - self.digested_bytes))
            if not data:
                return
            self._take(memoryview(data))

    def _take(self, data: memoryview) -> None:
        self.crc32c = crc32c(data, self.crc32c)
        self._sha256.update(data)
        self.digested_bytes += len(data)


def contradiction(said: Sequence[LeaderEpoch], seen: Sequence[LeaderEpoch], start: int, end: int) -> str | None:
    """Return where ``said`` differs from the epochs of the batches in [``start``, ``end``); None if nowhere.

    Offsets below the first entry of either are not judged: a checkpoint begins at the log start, and batches with
    epochs after messages older than 0.11.
    """
    if not said or not seen:
        return None
    start = max(start, said[0].start_offset, seen[0].start_offset)
    if start >= end:
        return None
    theirs, ours = epochs_in(said, start, end), epochs_in(seen, start, end)
    if theirs == ours:
        return None
    at = min(epoch.start_offset for epoch in set(theirs) ^ set(ours))
    found, stated = epochs_in(seen, at, at + 1)[0].epoch, epochs_in(said, at, at + 1)[0].epoch
    return f"at offset {at} a batch is of leader epoch {found}, {{}} says {stated}"


@dataclass(slots=True)
class EpochsSeen:
    """The leader epochs of a partition's batches, as its segments are judged in ascending order."""

    _seen: list[LeaderEpoch] = field(default_factory=list)
    _start: int = -1
    _end: int = -1

    def check(self, segment: Segment, fresh: Sequence[LeaderEpoch], said: Sequence[LeaderEpoch]) -> str | None:
        """Return where the checkpoint ``said`` differs from the batches up to the end of ``segment``.

        ``fresh`` are the leader epochs of its batches, one for each change.
        """
        if segment.next_base_offset is None:
            return None
        if segment.base_offset != self._end:
            self._seen, self._start = [], segment.base_offset
        is_same = bool(self._seen and fresh) and fresh[0].epoch == self._seen[-1].epoch
        self._seen += fresh[1:] if is_same else fresh
        self._end = segment.next_base_offset
        return contradiction(said, self._seen, self._start, self._end)
