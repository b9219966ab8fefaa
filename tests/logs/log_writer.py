"""Writes partitions and log dirs as brokers write them, with all that tests and benchmarks need.

To what ``LogWriter`` appends come compressed batches, what compaction leaves, message sets of old, and made-up records.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.log.checkpoints import write_offset_checkpoint
from resnap.storage.log.log_dir import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from resnap.storage.log.log_writer import LogWriter
from resnap.storage.log.names import segment_name
from resnap.storage.log.properties import MetaProperties, write_properties
from resnap.storage.log.record import write_marker_batch
from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from tests.logs.batch_builder import write_data_batch, write_emptied_batch, write_message_set
from tests.logs.stored_frames import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from resnap.storage.log.names import TopicPartition

POOL_BYTES: Final = 1 << 16


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

    def skip_to(self, offset: int) -> None:
        """Leave a gap before ``offset``, as compaction does."""
        self.next_offset = max(self.next_offset, offset)

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
