"""Prepares the indexes of a segment for shipping: trimmed, checked against the batches, rebuilt if necessary.

The offset index is compared with the batches themselves: an entry must name a byte at which a batch starts, and an
offset at or above all of that batch. A flipped bit in a position that still rises would pass every other check, and a
broker would send consumers the middle of a batch. An entry of the time index must name a batch with that largest
timestamp, and nothing later below it; the last one, the segment's largest.

Offset and time index can be rebuilt from the log. The transaction index cannot be rebuilt from one segment alone, so a
segment with a damaged one is not shipped, nor is one with an index that the batches contradict
(``aborted_transactions``): with a wrong or missing entry, consumers would get aborted records as committed.

The transactions open at a segment's base offset are those that the segment below has left open: ``TransactionHistory``
judges segments in ascending order. If the one below was not read, the snapshot at that offset shows some: those it
shows are trusted, those it does not show prove nothing.

Source: ``OffsetIndex.sanityCheck``, ``TransactionIndex.sanityCheck``, ``LogSegment.recover``.

``judge_indexes`` compares the transaction indexes of a stored log with its batches, from the first segment on. The
transactions open at a segment's base offset are those that the segments below have left open, so everything is known if
the log begins at offset 0. Otherwise transactions may reach in from below: then everything is known where the replay
has rebuilt the complete state at the segment's base offset, and elsewhere only what the log itself shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from resnap.replay.scan.header_scan import Block, ScanFacts, SegmentRange, read_blocks
from resnap.storage.errors import FormatError, LogDirError, StoreAccessError, in_file
from resnap.storage.log.indexes import (
    AbortedTxn,
    OffsetIndexEntry,
    TimeIndexEntry,
    check_offset_index,
    read_offset_index,
    read_time_index,
    read_transaction_index,
    write_offset_index,
    write_time_index,
    write_transaction_index,
)
from resnap.storage.log.record_batch import LOG_OVERHEAD
from resnap.storage.sources.files import GONE, PLAIN, UNREADABLE
from resnap.tiering.shipping.aborted_transactions import InheritedTransactions, SegmentTransactions, open_in
from resnap.tiering.shipping.segment_pass import pass_over, transactions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.aborted_transactions import SegmentTransactions
    from resnap.tiering.shipping.segment_pass import DigestingReader, SegmentPass

_T = TypeVar("_T")
INDEX_INTERVAL_BYTES: Final = 4096
"""``index.interval.bytes`` by default: how densely a rebuilt index is filled."""
_WITHOUT_INTERVAL: Final = 2
"""Entries of a time index that no interval brought."""
_MOST_NAMED: Final = 3
"""Differences of one index that a message names."""
_UNUSABLE: Final = "take the partition from the log dir of another replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndexes:
    """The files to ship, and the facts from reading the headers for them."""

    offset: bytes
    time: bytes
    transaction: bytes | None
    """None where nothing was aborted; an empty file is not shipped, since absent means empty."""
    aborted: tuple[AbortedTxn, ...]
    """Its entries."""
    max_timestamp_ms: int
    """Largest of the segment; the log's modification time where no batch has one, as in ``LogSegment``."""
    seen: SegmentPass
    """What its batches say."""
    log: DigestingReader
    """Read to its end."""


class IndexUnusableError(LogDirError):
    """An index is damaged and cannot be rebuilt from the segment alone."""


def load_indexes(segment: Segment, sources: Sources = PLAIN) -> SegmentIndexes:
    """Read and check the indexes of the closed ``segment``, and rebuild missing or unfit ones.

    All headers are read: segments older than the window were not replayed, and may be damaged. All other bytes are
    read, too, for the digests of the log.

    Raises:
        IndexUnusableError: the transaction index is damaged, or an index of messages older than 0.11.
        FormatError: the segment itself is damaged.
        LogDirError, StoreError: a file cannot be read.

    """
    unread: list[LogDirError] = []
    claimed = _if_fit(lambda: _read_offsets(segment, sources), unread)
    claimed_times = _if_fit(lambda: read_time_index(sources.read(segment.sibling("timeindex"))), unread)
    seen, log = pass_over(segment, claimed or [], claimed_times or [], sources)
    times = claimed_times if claimed_times is not None and _are_of(segment, claimed_times, seen) else None
    is_believed = claimed is not None and (_is_true(claimed, seen) if claimed else _may_be_empty(segment, times))
    offsets = claimed if is_believed else None
    if offsets is None or times is None:
        if seen.has_legacy and unread:
            raise unread[0]
        if seen.has_legacy:
            what = "an index is missing or damaged, and messages older than 0.11 have no header to rebuild it from"
            raise IndexUnusableError(f"{segment.path}: {what}", hint=_UNUSABLE)
        rebuilt_offsets, rebuilt_times = rebuild_indexes(segment, sources=sources)
        offsets = rebuilt_offsets if offsets is None else offsets
        times = rebuilt_times if times is None else times
    largest_ms = seen.max_timestamp_ms
    aborted = _aborted_transactions(segment, seen.transactions, sources)
    return SegmentIndexes(
        offset=write_offset_index(offsets),
        time=write_time_index(times),
        transaction=write_transaction_index(aborted) if aborted else None,
        aborted=aborted,
        max_timestamp_ms=largest_ms if largest_ms >= 0 else segment.mtime_ns // 1_000_000,
        seen=seen,
        log=log,
    )


def read_batches(segment: Segment, facts: ScanFacts, sources: Sources = PLAIN) -> Iterator[Block]:
    """Yield the content of ``segment``, block by block; see ``header_scan.read_blocks``."""
    with sources.open(segment.path) as reader:
        yield from read_blocks(reader, SegmentRange.whole(segment), facts)


def rebuild_indexes(
    segment: Segment, interval_bytes: int = INDEX_INTERVAL_BYTES, *, sources: Sources = PLAIN
) -> tuple[list[OffsetIndexEntry], list[TimeIndexEntry]]:
    """Return both indexes as recovery would write them, with an entry for each ``interval_bytes``."""
    offsets: list[OffsetIndexEntry] = []
    times: list[TimeIndexEntry] = []
    since, largest, largest_at = 0, -1, 0
    for block in read_batches(segment, ScanFacts(), sources):
        for header, position in zip(block.headers, (block.positions + block.at).tolist(), strict=True):
            last = int(header["base_offset"]) + int(header["last_offset_delta"]) - segment.base_offset
            if header["max_timestamp"] > largest:
                largest, largest_at = int(header["max_timestamp"]), last
            if since > interval_bytes:
                offsets.append(OffsetIndexEntry(last, position))
                _append_time(times, largest, largest_at)
                since = 0
            since += int(header["batch_length"]) + LOG_OVERHEAD
    _append_time(times, largest, largest_at)
    return offsets, times


def _append_time(times: list[TimeIndexEntry], timestamp: int, relative_offset: int) -> None:
    if timestamp >= 0 and (not times or timestamp > times[-1].timestamp):
        times.append(TimeIndexEntry(timestamp, relative_offset))


def _if_fit(read: Callable[[], _T | None], unread: list[LogDirError]) -> _T | None:
    """Return what ``read`` returns; None if the file is missing, unfit, or unreadable (added to ``unread``)."""
    try:
        return read()
    except (FormatError, *GONE):
        return None
    except LogDirError as error:
        unread.append(error)
        return None


def _read_offsets(segment: Segment, sources: Sources) -> list[OffsetIndexEntry] | None:
    """Return the entries of the offset index, None if they do not fit the segment; raises if they are invalid."""
    body = sources.read(segment.sibling("index"))
    entries = read_offset_index(body)
    check_offset_index(entries, segment.size_bytes)
    if not entries:
        return None if body else entries  # a closed segment's has no padding
    return entries if _is_inside(segment, entries[-1].relative_offset) else None


def _are_of(segment: Segment, times: list[TimeIndexEntry], seen: SegmentPass) -> bool:
    """Whether the batches confirm ``times``, and the last one is the largest timestamp of the segment."""
    newest = times[-1] if times else TimeIndexEntry(-1, 0)
    is_newest = newest.timestamp == seen.max_timestamp_ms and _is_inside(segment, newest.relative_offset)
    return is_newest and (seen.has_legacy or seen.confirmed_times == len(times))


def _is_inside(segment: Segment, relative_offset: int) -> bool:
    return segment.next_base_offset is None or segment.base_offset + relative_offset < segment.next_base_offset


def _is_true(claimed: list[OffsetIndexEntry], seen: SegmentPass) -> bool:
    """Whether the batches confirm ``claimed``; entries for messages without a batch header are trusted."""
    return seen.has_legacy or seen.confirmed_offsets == len(claimed)


def _may_be_empty(segment: Segment, times: list[TimeIndexEntry] | None) -> bool:
    """Whether an offset index may have no entry: in a segment too small for one, or by the topic's settings.

    The time index gets an entry with each entry of the offset index, except at a roll and at a clean shutdown. If it
    has no others, ``index.interval.bytes`` is larger than the segment, or timestamps do not rise.
    """
    return segment.size_bytes <= INDEX_INTERVAL_BYTES or (times is not None and len(times) <= _WITHOUT_INTERVAL)


def _aborted_transactions(
    segment: Segment, transactions: SegmentTransactions, sources: Sources
) -> tuple[AbortedTxn, ...]:
    """Return the entries of the transaction index, unless the segment alone contradicts them."""
    path = segment.sibling("txnindex")
    try:
        entries = _read_transactions(path, sources)
    except FormatError as error:
        # Never advise to delete it: a broker that then recovers the segment deletes the snapshots above it.
        raise IndexUnusableError(str(error), hint=_UNUSABLE) from error
    for txn in entries:
        if txn.last_offset < segment.base_offset or not _is_inside(segment, txn.last_offset - segment.base_offset):
            raise IndexUnusableError(
                f"{path}: names a marker at offset {txn.last_offset}, outside its segment", hint=_UNUSABLE
            )
    check_aborted(segment, transactions, entries, InheritedTransactions({}, segment.base_offset))
    return tuple(entries)


def check_aborted(
    segment: Segment, transactions: SegmentTransactions, aborted: Iterable[AbortedTxn], before: InheritedTransactions
) -> tuple[str, ...]:
    """Compare the entries of the transaction index with the batches; return what cannot be decided.

    Raises:
        IndexUnusableError: they differ.

    """
    path = segment.sibling("txnindex")
    found = transactions.judge(aborted, before)
    if found.problems:
        raise IndexUnusableError(f"{path}: {'; '.join(found.problems[:_MOST_NAMED])}", hint=_UNUSABLE)
    more = len(found.undecided) - 1
    return tuple(f"{path}: {text}" + (f"; and {more} more like it" if more else "") for text in found.undecided[:1])


def _read_transactions(path: str, sources: Sources) -> list[AbortedTxn]:
    """Return the entries of the transaction index at ``path``; none if there is none."""
    try:
        body = sources.read(path)
    except GONE:
        return []
    with in_file(path):
        return read_transaction_index(body)


def index_there(segment: Segment, sources: Sources) -> tuple[AbortedTxn, ...] | None:
    """Return the entries of the transaction index of ``segment``, perhaps none; None if it is damaged.

    Raises:
        LogDirError, StoreError: it cannot be read.

    """
    try:
        return tuple(_read_transactions(segment.sibling("txnindex"), sources))
    except FormatError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionHistory:
    """Compares transaction indexes with the batches of their segment, and of the segments below."""

    sources: Sources = PLAIN
    snapshots: dict[int, str] = field(default_factory=dict)
    """Locators of snapshots, by offset; may grow."""
    _open_at: dict[int, InheritedTransactions] = field(default_factory=dict)

    @classmethod
    def of(cls, partition: PartitionDir, sources: Sources) -> TransactionHistory:
        """Return the history of ``partition``, with its own snapshots."""
        return cls(sources=sources, snapshots={snapshot.offset: snapshot.path for snapshot in partition.snapshots})

    def check(
        self, segment: Segment, transactions: SegmentTransactions, aborted: Sequence[AbortedTxn]
    ) -> tuple[str, ...]:
        """Compare the index of the closed ``segment``, ``aborted``, with its batches; return what cannot be decided.

        Raises:
            IndexUnusableError: they differ.
            StoreError: the store that the snapshot is in failed.

        """
        before = self._before(segment.base_offset)
        if segment.next_base_offset is not None:
            self._open_at[segment.next_base_offset] = transactions.after(before)
        return check_aborted(segment, transactions, aborted, before)

    def _before(self, offset: int) -> InheritedTransactions:
        known = self._open_at.get(offset)
        if known is None:
            snapshot = self.snapshots.get(offset)
            shown = {} if snapshot is None else _open_in(snapshot, self.sources)
            known = InheritedTransactions(shown, known_from=offset)
        return known


def _open_in(snapshot: str, sources: Sources) -> dict[int, int]:
    """Return the first offsets of the open transactions in ``snapshot``; none if it cannot be read."""
    try:
        return open_in(sources.read(snapshot))
    except UNREADABLE:
        return {}


class ReadSegment(NamedTuple):
    """A stored segment, with the transactions of its batches and of its index."""

    segment: Segment
    found: SegmentTransactions | None
    """None where the segment cannot be read."""
    there: tuple[AbortedTxn, ...] | None
    """What the index names, which there need not be; None where it is damaged."""


class JudgedIndex(NamedTuple):
    """The judgement of one segment's transaction index."""

    segment: Segment
    there: tuple[AbortedTxn, ...] | None
    problems: tuple[str, ...]
    """Sentences without a subject; none where nothing contradicts it."""
    right: tuple[AbortedTxn, ...] | None
    """What it must name; None if its segment cannot be read."""
    is_all_known: bool
    """Whether that is all; else what began below the log stays as the index has it."""

    @property
    def body(self) -> bytes | None:
        """The replacement; None if the index stays."""
        if self.right is None or not self.problems:
            return None
        return write_transaction_index(list(self.right))

    @property
    def lacking(self) -> int:
        """Number of aborted transactions that it lacks or records wrongly."""
        return len(set(self.right or ()).difference(self.there or ()))

    @property
    def known(self) -> tuple[AbortedTxn, ...] | None:
        """The aborted transactions of the segment, as far as known; None if nothing is known."""
        if not self.problems:
            return self.there
        return self.right if self.is_all_known else None


def read_segment(segment: Segment, sources: Sources) -> ReadSegment:
    """Return the transactions in the headers of all batches of ``segment``, and its index.

    Raises:
        StoreError: the store failed.

    """
    try:
        found = transactions_of(segment, sources)
    except (*UNREADABLE, StoreAccessError):
        found = None  # the replay says what is wrong with it
    return ReadSegment(segment, found, index_there(segment, sources) if segment.txnindex_bytes else ())


def judge_indexes(read: Sequence[ReadSegment], known_open: Mapping[int, Mapping[int, int]]) -> Iterator[JudgedIndex]:
    """Yield the judgement of the indexes of the segments ``read``, of one log and in order.

    ``known_open`` has the open transactions, producers and first offsets, by offset, where all are known.
    """
    before = InheritedTransactions({}, known_from=read[0].segment.base_offset) if read else InheritedTransactions({}, 0)
    for segment in read:
        base_offset, end = segment.segment.base_offset, segment.segment.next_base_offset or segment.segment.base_offset
        if before.known_from and base_offset in known_open:
            before = InheritedTransactions(known_open[base_offset], known_from=0)
        if segment.found is None:
            yield JudgedIndex(segment.segment, segment.there, (), None, is_all_known=False)
            before = InheritedTransactions({}, known_from=end)
            continue
        if segment.there is None:
            problems: tuple[str, ...] = ("is damaged",)
        else:
            problems = segment.found.judge(segment.there, before).problems
        is_known = not before.known_from or not any(marker.is_abort for marker in segment.found.markers)
        right = segment.found.entries(before) if is_known else segment.found.corrected(segment.there or (), before)
        yield JudgedIndex(segment.segment, segment.there, problems, tuple(right), is_all_known=is_known)
        before = segment.found.after(before)
