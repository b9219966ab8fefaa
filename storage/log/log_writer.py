"""Writes a partition as a broker writes it: segments, their indexes, and the leader-epoch checkpoint.

For the demonstration and for tests without a broker. It appends as a follower does, whole batches at given offsets: it
rolls a segment before a batch that would not fit, and records an aborted transaction in the segment of its marker. It
writes no producer snapshots, because these are what Resnap rebuilds.

Source: ``UnifiedLog.append`` and ``roll``, ``LogSegment.append`` and ``onBecomeInactiveSegment``,
``TimeIndex.maybeAppend``, ``ProducerStateManager.lastStableOffset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs
from resnap.storage.log.indexes import (
    AbortedTxn,
    OffsetIndexEntry,
    TimeIndexEntry,
    write_offset_index,
    write_time_index,
    write_transaction_index,
)
from resnap.storage.log.names import segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS, PARTITION_METADATA
from resnap.storage.log.properties import PartitionMetadata, write_partition_metadata
from resnap.storage.log.record import COMMIT, read_control_record
from resnap.storage.log.record_batch import NO_TIMESTAMP, read_header

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

DEFAULT_SEGMENT_BYTES: Final = 1 << 30
DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class LogWriter:
    """Writes one partition directory, which is complete after ``close`` or the end of the ``with`` block.

    Attributes:
        next_offset: offset of the next record, which is the log end offset.
        leader_epoch: written into the next batches; the checkpoint takes its epochs from the batches.
        open_transactions: first offset by producer id, of transactions without a marker, the oldest first.

    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        first_offset: int = 0,
        leader_epoch: int = 0,
        topic_id: str | None = None,
    ) -> None:
        """Begin the partition at ``directory``, made if missing.

        Args:
            directory: of the partition, ``<topic>-<number>``.
            segment_bytes: a segment is rolled rather than grow beyond this (``segment.bytes``).
            index_interval_bytes: ``index.interval.bytes``.
            first_offset: base offset of the first segment.
            leader_epoch: of the first leader.
            topic_id: 22 characters of base64url for ``partition.metadata``; without it the file is not written.

        """
        directory.mkdir(parents=True, exist_ok=True)
        if topic_id is not None:
            metadata = PartitionMetadata(version=0, topic_id=topic_id)
            (directory / PARTITION_METADATA).write_bytes(write_partition_metadata(metadata))
        self.directory = directory
        self.next_offset = first_offset
        self.leader_epoch = leader_epoch
        self.open_transactions: dict[int, int] = {}
        self._segment_bytes = segment_bytes
        self._index_interval_bytes = index_interval_bytes
        self._leader_epochs: list[LeaderEpoch] = []
        self._segment = _Segment(directory, first_offset, index_interval_bytes)

    @property
    def base_offset(self) -> int:
        """Base offset of the active segment."""
        return self._segment.base_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the log end."""
        return next(iter(self.open_transactions.values()), self.next_offset)

    def append_batch(self, batch: bytes) -> int:
        """Append a whole batch of magic 2 unchanged and return its base offset; skipped offsets become a gap.

        Raises:
            FormatError: not a batch, or a batch whose header wrongly says that it is a control batch.
            ValueError: the offset is below the log end.

        """
        header = read_header(batch)
        if header.base_offset < self.next_offset:
            raise ValueError(f"offset {header.base_offset} is below the log end, {self.next_offset}")
        control = read_control_record(batch, header) if header.is_control else None
        self.append_raw(batch, last_offset=header.last_offset, max_timestamp=header.max_timestamp)
        epoch = header.partition_leader_epoch
        if not self._leader_epochs or epoch > self._leader_epochs[-1].epoch:
            self._leader_epochs.append(LeaderEpoch(epoch, header.base_offset))
        if control is not None and control.is_marker:
            begun = self.open_transactions.pop(header.producer_id, None)
            if begun is not None and control.type != COMMIT:
                transaction = AbortedTxn(header.producer_id, begun, header.base_offset, self.last_stable_offset)
                self._segment.aborted.append(transaction)
        elif header.is_transactional and header.has_producer and not header.is_control:
            self.open_transactions.setdefault(header.producer_id, header.base_offset)
        return header.base_offset

    def append_raw(self, data: bytes, *, last_offset: int, max_timestamp: int = NO_TIMESTAMP) -> int:
        """Append any bytes as one unit for segments and indexes, and return their base offset.

        The bytes are not parsed. ``max_timestamp`` is in milliseconds.
        """
        first_offset = self.next_offset
        full = self._segment.size_bytes + len(data) > self._segment_bytes
        far = last_offset - self._segment.base_offset > MAX_RELATIVE_OFFSET
        if self._segment.size_bytes and (full or far):
            self.roll()
        self._segment.append(data, last_offset, max_timestamp)
        self.next_offset = last_offset + 1
        return first_offset

    def roll(self) -> int:
        """Close the active segment and begin another at the log end; return its base offset.

        As in Kafka, an empty segment is not rolled.
        """
        if self._segment.size_bytes:
            self._segment.close()
            self._segment = _Segment(self.directory, self.next_offset, self._index_interval_bytes)
        return self._segment.base_offset

    def close(self) -> None:
        """Complete the active segment as a clean shutdown does, and write the leader-epoch checkpoint."""
        self._segment.close()
        (self.directory / LEADER_EPOCHS).write_bytes(write_leader_epochs(self._leader_epochs))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Segment:
    """The segment that is being appended to: an open ``.log``, and its indexes in memory.

    Indexes are sparse. A batch gets an entry if more than ``index_interval_bytes`` lie between it and the last batch
    with an entry. Timestamps are entered at the same time, and once more at the end.
    """

    def __init__(self, directory: Path, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.aborted: list[AbortedTxn] = []
        """Transactions whose abort marker is in the segment."""
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_last_entry = 0
        self._latest = TimeIndexEntry(NO_TIMESTAMP, 0)
        self._offsets: list[OffsetIndexEntry] = []
        self._times: list[TimeIndexEntry] = []
        self._log = (directory / segment_name(base_offset, "log")).open("wb")

    def append(self, data: bytes, last_offset: int, max_timestamp: int) -> None:
        """Append ``data`` as one unit, whose last record has ``last_offset``; ``max_timestamp`` is in milliseconds."""
        relative_offset = last_offset - self.base_offset
        if max_timestamp > self._latest.timestamp:
            self._latest = TimeIndexEntry(max_timestamp, relative_offset)
        if self._bytes_since_last_entry > self._index_interval_bytes:
            self._offsets.append(OffsetIndexEntry(relative_offset, self.size_bytes))
            self._maybe_append_time()
            self._bytes_since_last_entry = 0
        self._log.write(data)
        self.size_bytes += len(data)
        self._bytes_since_last_entry += len(data)

    def close(self) -> None:
        """Write the indexes, trimmed, the time index with its final entry; a transaction index only if needed."""
        self._log.close()
        self._maybe_append_time()
        self._write("index", write_offset_index(self._offsets))
        self._write("timeindex", write_time_index(self._times))
        if self.aborted:
            self._write("txnindex", write_transaction_index(self.aborted))

    def _maybe_append_time(self) -> None:
        newest = self._times[-1].timestamp if self._times else NO_TIMESTAMP
        if self._latest.timestamp > newest:
            self._times.append(self._latest)

    def _write(self, suffix: str, content: bytes) -> None:
        (self._directory / segment_name(self.base_offset, suffix)).write_bytes(content)
