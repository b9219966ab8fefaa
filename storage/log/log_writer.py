"""Writes partitions as brokers write them: segments, their indexes, leader epochs, and the files of a log dir.

For demonstrations, tests and benchmarks, where no broker is at hand. It appends as a follower does, whole batches at
offsets already given: a segment is rolled before the batch that would not fit, and an aborted transaction is entered
where its marker lies. Producer snapshots are left out. They are what is to be rebuilt.

Source: ``UnifiedLog.append`` and ``roll``, ``ProducerStateManager.lastStableOffset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from resnap.storage.log.batch_builder import write_data_batch, write_emptied_batch, write_message_set
from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs, write_offset_checkpoint
from resnap.storage.log.control_record import COMMIT, read_control_record, write_marker_batch
from resnap.storage.log.indexes import AbortedTxn
from resnap.storage.log.names import segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS, PARTITION_METADATA
from resnap.storage.log.payloads import Payloads
from resnap.storage.log.properties import (
    MetaProperties,
    PartitionMetadata,
    write_meta_properties,
    write_partition_metadata,
)
from resnap.storage.log.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RecordBatchHeader,
    read_header,
)
from resnap.storage.log.segment_writer import SegmentWriter
from resnap.storage.log.stored_frames import NONE
from resnap.storage.log.survey import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from resnap.storage.log.names import TopicPartition

DEFAULT_SEGMENT_BYTES: Final = 1 << 30
DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class PartitionWriter:
    """One partition directory in the making; ``close``, or leave the ``with`` block, to have it whole.

    Attributes:
        next_offset: of the record to be appended next, the log end offset.
        leader_epoch: stamped on the batches to come; enters the leader-epoch checkpoint with the first of them.
        open_transactions: producer id to first offset, of transactions without a marker, the oldest first.

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
        seed: int = 0,
    ) -> None:
        """Begin the partition at ``directory``, made if missing.

        Args:
            directory: of the partition, ``<topic>-<number>``.
            segment_bytes: a segment is rolled rather than grow beyond this (``segment.bytes``).
            index_interval_bytes: ``index.interval.bytes``.
            first_offset: base offset of the first segment.
            leader_epoch: of the first leader.
            topic_id: 22 characters of base64url for ``partition.metadata``; without it the file is not written.
            seed: of the payloads.

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
        self._payloads = Payloads(seed)
        self._segment = SegmentWriter(directory, first_offset, index_interval_bytes)

    @property
    def base_offset(self) -> int:
        """Base offset of the active segment."""
        return self._segment.base_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the log end."""
        return next(iter(self.open_transactions.values()), self.next_offset)

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

    def append_emptied(
        self,
        *,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
        records: int = 1,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
    ) -> int:
        """Append what compaction leaves of a batch of ``records``, of a marker if ``control``; return its base offset.

        The other arguments are those of ``batch_builder.write_emptied_batch``.
        """
        return self.append_batch(
            write_emptied_batch(
                offset=self.next_offset, records=records, timestamp=timestamp, producer_id=producer_id,
                producer_epoch=producer_epoch, base_sequence=base_sequence, transactional=transactional,
                control=control, leader_epoch=self.leader_epoch,
            )
        )  # fmt: skip

    def append_legacy(
        self, *, magic: int, timestamp: int, records: int = 1, payload_bytes: int = 100, compression: int = NONE
    ) -> int:
        """Append messages of ``magic`` 0 or 1, in one wrapper if compressed; return the offset of the first."""
        values = self._payloads.draw(records, payload_bytes)
        messages = write_message_set(
            offset=self.next_offset, magic=magic, values=values, timestamp=timestamp, compression=compression
        )
        max_timestamp = timestamp if magic else NO_TIMESTAMP
        return self.append_raw(messages, last_offset=self.next_offset + records - 1, max_timestamp=max_timestamp)

    def append_batch(self, batch: bytes) -> int:
        """Append a whole batch of magic 2 as it is and return its base offset; offsets before it become a gap.

        Raises:
            FormatError: no batch, or no control batch where its header says so.
            ValueError: the offset is below the log end.

        """
        header = read_header(batch)
        if header.base_offset < self.next_offset:
            raise ValueError(f"offset {header.base_offset} is below the log end, {self.next_offset}")
        control = read_control_record(batch, header) if header.is_control else None
        self.append_raw(batch, last_offset=header.last_offset, max_timestamp=header.max_timestamp)
        self._assign_leader_epoch(header)
        if control is not None and control.is_marker:
            self._end_transaction(header, commit=control.type == COMMIT)
        elif header.is_transactional and header.has_producer and not header.is_control:
            self.open_transactions.setdefault(header.producer_id, header.base_offset)
        return header.base_offset

    def append_raw(self, data: bytes, *, last_offset: int, max_timestamp: int = NO_TIMESTAMP) -> int:
        """Append bytes of any kind, as one unit for segments and indexes, and return the offset they begin at.

        Nothing is read from them: for message sets of old, and for damage. ``max_timestamp`` is in milliseconds.
        """
        first_offset = self.next_offset
        full = self._segment.size_bytes + len(data) > self._segment_bytes
        far = last_offset - self._segment.base_offset > MAX_RELATIVE_OFFSET
        if self._segment.size_bytes and (full or far):
            self.roll()
        self._segment.append(data, last_offset, max_timestamp)
        self.next_offset = last_offset + 1
        return first_offset

    def skip_to(self, offset: int) -> None:
        """Leave a gap before ``offset``, as compaction does."""
        self.next_offset = max(self.next_offset, offset)

    def roll(self) -> int:
        """Close the active segment and begin another at the log end; return its base offset.

        As in Kafka, a segment without a byte is left as it is.
        """
        if self._segment.size_bytes:
            self._segment.close()
            self._segment = SegmentWriter(self.directory, self.next_offset, self._index_interval_bytes)
        return self._segment.base_offset

    def write_snapshot(self, offset: int, snapshot: bytes) -> None:
        """Put a ready producer snapshot for ``offset`` beside the segments."""
        (self.directory / segment_name(offset, "snapshot")).write_bytes(snapshot)

    def close(self) -> None:
        """Complete the active segment as a clean stop does, and write the leader-epoch checkpoint."""
        self._segment.close()
        (self.directory / LEADER_EPOCHS).write_bytes(write_leader_epochs(self._leader_epochs))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _assign_leader_epoch(self, header: RecordBatchHeader) -> None:
        epoch = header.partition_leader_epoch
        if not self._leader_epochs or epoch > self._leader_epochs[-1].epoch:
            self._leader_epochs.append(LeaderEpoch(epoch, header.base_offset))

    def _end_transaction(self, marker: RecordBatchHeader, *, commit: bool) -> None:
        first_offset = self.open_transactions.pop(marker.producer_id, None)
        if first_offset is None or commit:
            return
        self._segment.aborted.append(
            AbortedTxn(marker.producer_id, first_offset, marker.base_offset, self.last_stable_offset)
        )


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
        clean_shutdown: whether to leave the marker of a broker that stopped in order.

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
