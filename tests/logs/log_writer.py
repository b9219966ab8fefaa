"""Writes partitions and log dirs as a broker writes them: segments, their indexes, checkpoints.

``LogWriter`` appends as a follower does, whole batches at given offsets: it rolls a segment before a batch that would
not fit, and records an aborted transaction in the segment of its marker. It writes no producer snapshots, because these
are what Resnap rebuilds. ``PartitionWriter`` adds compressed batches and made-up
records.

Source: ``UnifiedLog.append`` and ``roll``, ``LogSegment.append`` and ``onBecomeInactiveSegment``,
``TimeIndex.maybeAppend``, ``ProducerStateManager.lastStableOffset``.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs, write_offset_checkpoint
from resnap.storage.log.indexes import (
    AbortedTxn,
    OffsetIndexEntry,
    TimeIndexEntry,
    write_offset_index,
    write_time_index,
    write_transaction_index,
)
from resnap.storage.log.log_dir import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from resnap.storage.log.names import segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS, PARTITION_METADATA
from resnap.storage.log.properties import MetaProperties, PartitionMetadata, write_partition_metadata
from resnap.storage.log.record import COMMIT, read_control_record, write_marker_batch
from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, read_header
from tests.logs.batch_builder import write_data_batch
from tests.logs.stored_frames import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from resnap.storage.log.names import TopicPartition

DEFAULT_SEGMENT_BYTES: Final = 1 << 30
DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
POOL_BYTES: Final = 1 << 16
_ESCAPED_ON_WRITE: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f",
                            "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}  # fmt: skip


class Payloads:
    """Values cut from a pool of random bytes: drawing each byte again would take longer than all the rest."""

    def __init__(self, seed: int) -> None:
        """Fill the pool; equal seeds give equal values for equal draws."""
        self._random = Random(seed)
        self._pool = self._random.randbytes(POOL_BYTES)

    def draw(self, count: int, size_bytes: int) -> list[bytes]:
        """Return ``count`` values of ``size_bytes`` each."""
        while len(self._pool) < 2 * size_bytes:
            self._pool += self._random.randbytes(len(self._pool))
        room = len(self._pool) - size_bytes
        starts = [int(self._random.random() * room) for _ in range(count)]
        return [self._pool[start : start + size_bytes] for start in starts]


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


class PartitionWriter(LogWriter):
    """A ``LogWriter`` that makes up its batches; ``seed`` is that of the payloads."""

    def __init__(self, directory: Path, *, seed: int = 0, **options: Any) -> None:
        super().__init__(directory, **options)
        self._payloads = Payloads(seed)

    def append_data(
        self,
        *,
        timestamps: int | Sequence[int],
        records: int = 1,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        payload_bytes: int = 100,
        compression: int = NONE,
        append_time: int | None = None,
    ) -> int:
        """Append a data batch and return its base offset; ``payload_bytes`` is the size of each record's value.

        The other arguments are those of ``batch_builder.write_data_batch``.
        """
        return self.append_batch(
            write_data_batch(
                offset=self.next_offset, values=self._payloads.draw(records, payload_bytes), timestamps=timestamps,
                producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
                transactional=transactional, compression=compression, append_time=append_time,
                leader_epoch=self.leader_epoch,
            )
        )  # fmt: skip

    def append_marker(
        self, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int, commit: bool
    ) -> int:
        """Append the marker that ends a transaction, ``timestamp`` in milliseconds, and return its offset."""
        return self.append_batch(
            write_marker_batch(
                offset=self.next_offset, producer_id=producer_id, producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch, timestamp=timestamp, commit=commit, leader_epoch=self.leader_epoch,
            )
        )  # fmt: skip

    def write_snapshot(self, offset: int, snapshot: bytes) -> None:
        """Put a ready producer snapshot for ``offset`` beside the segments."""
        (self.directory / segment_name(offset, "snapshot")).write_bytes(snapshot)


def write_log_dir_files(
    log_dir: Path,
    *,
    meta: MetaProperties,
    high_watermarks: Mapping[TopicPartition, int],
    recovery_points: Mapping[TopicPartition, int] | None = None,
    log_start_offsets: Mapping[TopicPartition, int] | None = None,
    cleaner_offsets: Mapping[TopicPartition, int] | None = None,
    clean_shutdown: bool = True,
) -> None:
    """Write what a broker keeps at the top of a log dir.

    Args:
        log_dir: the directory above the partitions.
        meta: for ``meta.properties``.
        high_watermarks: by partition, for ``replication-offset-checkpoint``.
        recovery_points: up to where the log is on disk; the high watermarks, as after a clean stop, if not given.
        log_start_offsets: of partitions whose records before them were deleted.
        cleaner_offsets: of compacted partitions.
        clean_shutdown: whether to leave the marker of a clean shutdown.

    """
    (log_dir / META_PROPERTIES).write_bytes(write_meta_properties(meta))
    checkpoints = {
        HIGH_WATERMARKS: high_watermarks,
        RECOVERY_POINTS: high_watermarks if recovery_points is None else recovery_points,
        LOG_START_OFFSETS: log_start_offsets or {},
        CLEANER_OFFSETS: cleaner_offsets or {},
    }
    for name, offsets in checkpoints.items():
        (log_dir / name).write_bytes(write_offset_checkpoint(offsets))
    if clean_shutdown:
        (log_dir / CLEAN_SHUTDOWN).touch()


def write_meta_properties(meta: MetaProperties) -> bytes:
    """Return the bytes of a ``meta.properties`` with ``meta``."""
    values = {
        "version": str(meta.version),
        "cluster.id": meta.cluster_id,
        "broker.id" if meta.version == 0 else "node.id": None if meta.node_id is None else str(meta.node_id),
        "directory.id": meta.directory_id,
    }
    return write_properties({key: value for key, value in values.items() if value is not None})


def write_properties(properties: Mapping[str, str]) -> bytes:
    """Return ASCII text that Java reads as ``properties``, one per line, in order, without Java's date line."""
    lines = (f"{_escaped(key, spaces=True)}={_escaped(value, spaces=False)}\n" for key, value in properties.items())
    return "".join(lines).encode("ascii")


def _escaped(text: str, *, spaces: bool) -> str:
    """Escape as ``java.util.Properties.store`` does: in a value, only a space at the front."""
    return "".join(
        "\\ " if char == " " and (spaces or index == 0) else _ESCAPED_ON_WRITE.get(char) or _in_ascii(char)
        for index, char in enumerate(text)
    )


def _in_ascii(char: str) -> str:
    if char.isascii() and char.isprintable():
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
