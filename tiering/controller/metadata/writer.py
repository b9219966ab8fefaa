"""Appends to a metadata log, durably, as the only leader of a quorum of one node.

When ``append`` returns, the records are on disk: a kill or a power loss does not remove them, and leaves at most a torn
batch after them that was never acknowledged. Opening truncates that, reads everything before it, and begins a new
leader epoch, so that the writer of each record is known. The log has Kafka's format: Kafka's tools and brokers can read
it.

A formatted node that was never started has bootstrap metadata instead. ``kafka-storage.sh format`` leaves them in
``bootstrap.checkpoint``, from 4.4 on in the checkpoint of offset 0 of the metadata log. The first active controller
appends them to the empty log. Our records are in batches of their own after the original ones, which stay unchanged,
byte by byte.

Source: ``KafkaRaftClient.onBecomeLeader``, ``BatchAccumulator``, ``RecordsSnapshotWriter`` in Kafka's raft module;
``BootstrapDirectory``, ``ActivationRecordsGenerator.recordsForEmptyLog``; KIP-1170 for 4.4.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import (
    Disk,
    attributes_of,
    is_there,
    make_directories,
    reading,
    writable,
    write_all,
    write_file,
)
from resnap.storage.errors import LogDirError, UsageError
from resnap.storage.log.log_dir_lock import hold_lock
from resnap.storage.log.names import segment_name
from resnap.storage.log.record import KEY, LEADER_CHANGE, SNAPSHOT_FOOTER, write_data_batch, write_record
from resnap.storage.log.record_batch import (
    CONTROL,
    MAGIC_V2,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RecordBatchHeader,
    seal,
)
from resnap.storage.messages.schema import write_message
from resnap.tiering.controller.metadata.batches import (
    ControlMessage,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    TornTail,
    Voter,
    encode_record,
)
from resnap.tiering.controller.metadata.image import METADATA_VERSION
from resnap.tiering.controller.metadata.log_files import (
    METADATA_PARTITION,
    MetadataLogFiles,
    list_metadata_log,
    read_checkpoint,
    read_metadata_log,
)
from resnap.tiering.controller.metadata.records import FeatureLevelRecord, ProducerIdsRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.tiering.controller.metadata.batches import MetadataBatch
    from resnap.tiering.controller.metadata.records import MetadataRecord


MAX_BATCH_BYTES: Final = 8 << 20
"""What a quorum appends at once, at most. Source: ``KafkaRaftClient.MAX_BATCH_SIZE_BYTES``."""
DEFAULT_SEGMENT_BYTES: Final = 1 << 30
"""Default of ``metadata.log.segment.bytes``."""


@dataclass(slots=True, kw_only=True)
class _LogEnd:
    """The end of a log; mutable while it grows."""

    offset: int
    epoch: int
    segment: Path | None
    """The active one; None where there is none yet."""
    segment_bytes: int
    torn: TornTail | None


class MetadataLogWriter:
    """A metadata log that is open for appending; ``open_metadata_log`` makes one.

    Attributes:
        leader_epoch: epoch of all records appended from now on.

    """

    def __init__(self, directory: Path, end: _LogEnd, *, segment_bytes: int, disk: Disk) -> None:
        self.leader_epoch = end.epoch + 1
        self._directory = directory
        self._end = end
        self._segment_bytes = segment_bytes
        self._disk = disk
        self._failed = False
        self._descriptor = self._open_segment()

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self._end.offset

    def append(self, records: Sequence[MetadataRecord], timestamp: int) -> int:
        """Append ``records``, at least one, in one batch, and return the offset of the first.

        They are written in the newest version of their types. On return they are durable; after an error that is
        unknown until the log is opened again.

        Args:
            records: to be appended, in order.
            timestamp: of all of them, milliseconds.

        Raises:
            ValueError: a record that its type cannot hold, or more than fits into a batch.
            LogDirError: the write failed; nothing can be appended until the log is opened again.

        """
        values = [encode_record(record) for record in records]
        batch = write_data_batch(
            offset=self.end_offset, values=values, timestamps=timestamp, leader_epoch=self.leader_epoch
        )
        return self._append(batch, len(values))

    def append_leader_change(self, leader_id: int, timestamp: int) -> int:
        """Append the record that begins a leader epoch; return its offset."""
        voters = (Voter(voter_id=leader_id),)
        message = LeaderChangeMessage(version=0, leader_id=leader_id, voters=voters, granting_voters=voters)
        return self._append(
            control_batch(LEADER_CHANGE, message, self.end_offset, timestamp, leader_epoch=self.leader_epoch), 1
        )

    def close(self) -> None:
        """Close the active segment."""
        self._disk.close(self._descriptor)

    def _append(self, batch: bytes, records: int) -> int:
        if len(batch) > MAX_BATCH_BYTES:
            raise ValueError(f"a batch of {len(batch)} bytes; a quorum appends at most {MAX_BATCH_BYTES} at once")
        if self._failed:
            raise LogDirError(f"{self._directory}: an earlier append has failed, so its end is not known",
                              hint="open the log again")  # fmt: skip
        self._failed = True
        with writable(self._directory):
            if self._end.segment_bytes and self._end.segment_bytes + len(batch) > self._segment_bytes:
                self._disk.close(self._descriptor)
                self._descriptor = self._new_segment()
            write_all(self._disk, self._descriptor, batch)
            self._disk.sync(self._descriptor)
        self._failed = False
        first = self._end.offset
        self._end.offset += records
        self._end.segment_bytes += len(batch)
        return first

    def _open_segment(self) -> int:
        """Open the active segment without its torn tail; create it if there is none."""
        with writable(self._directory):
            if self._end.segment is None:
                return self._new_segment()
            descriptor = self._disk.append(self._end.segment)
            if self._end.torn is not None:
                self._disk.truncate(descriptor, self._end.segment_bytes)
                self._disk.sync(descriptor)
            return descriptor

    def _new_segment(self) -> int:
        self._end.segment = self._directory / segment_name(self._end.offset, "log")
        self._end.segment_bytes = 0
        descriptor = self._disk.create(self._end.segment)
        self._disk.sync_directory(self._directory)
        return descriptor


@contextmanager
def open_metadata_log(
    directory: Path,
    *,
    leader_id: int,
    timestamp: int,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    disk: Disk | None = None,
) -> Iterator[MetadataLogWriter]:
    """Open the metadata log at ``directory``, ``__cluster_metadata-0`` of a log dir; create it if there is none.

    The lock of the log dir is held as long as it is open, so that neither a broker nor another run writes to it.

    Args:
        directory: of the log.
        leader_id: node id of the leader that the new epoch gets.
        timestamp: of the beginning of that epoch, milliseconds.
        segment_bytes: a segment is rolled rather than grow beyond this.
        disk: performs the steps of writing; by default this machine's file system.

    Raises:
        MetadataLogError, FormatError: the log is damaged beyond a torn end; nothing was changed.
        LogDirInUseError: a broker, or another run, holds the lock.
        LogDirError: it cannot be read or written.

    """
    steps = disk or Disk()
    make_directories(steps, directory)
    with hold_lock(directory.parent):
        writer = MetadataLogWriter(directory, _end_of(directory), segment_bytes=segment_bytes, disk=steps)
        try:
            writer.append_leader_change(leader_id, timestamp)
            yield writer
        finally:
            writer.close()


def control_batch(kind: int, message: ControlMessage, offset: int, timestamp: int, *, leader_epoch: int) -> bytes:
    """Return a control batch of one record; ``kind`` is its type, as of ``storage.log.record``."""
    header = RecordBatchHeader(
        base_offset=offset, batch_length=0, partition_leader_epoch=leader_epoch, magic=MAGIC_V2, crc=0,
        attributes=CONTROL, last_offset_delta=0, base_timestamp=timestamp, max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE, records_count=1,
    )  # fmt: skip
    value = write_message(message, message.version)
    return seal(header, write_record(0, 0, KEY.pack(0, kind), value))


def _end_of(directory: Path) -> _LogEnd:
    try:
        files = list_metadata_log(directory)
    except UsageError:  # nothing in it: a log to begin
        return _LogEnd(offset=0, epoch=0, segment=None, segment_bytes=0, torn=None)
    end = _end_before_reading(files)
    for part in read_metadata_log(files):
        if isinstance(part, TornTail):
            end.torn, end.segment_bytes = part, part.position
        elif part.file.suffix == ".log":
            end.offset, end.epoch = part.header.last_offset + 1, part.leader_epoch
    return end


def _end_before_reading(files: MetadataLogFiles) -> _LogEnd:
    """Return the log end according to file names and sizes."""
    checkpoint = files.starting_checkpoint()
    active = files.segments[-1] if files.segments else None
    return _LogEnd(
        offset=max(checkpoint.end_offset if checkpoint else 0, active.base_offset if active else 0),
        epoch=checkpoint.epoch if checkpoint else 0,
        segment=Path(active.path) if active else None,
        segment_bytes=active.size_bytes if active else 0,
        torn=None,
    )


BOOTSTRAP: Final = "bootstrap.checkpoint"
FIRST_CHECKPOINT: Final = f"{0:020d}-{0:010d}.checkpoint"
_RECORDS_IN_BATCH: Final = 1_000
"""Some 100 KB: far below what a quorum appends at once."""
_FORMAT: Final = "format it: kafka-storage.sh format --cluster-id ... --config server.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The content of a file of bootstrap metadata."""

    path: Path
    kept: bytes
    """All before the records of producer ids and what follows, the header included."""
    offset: int
    """The offset of the first record behind that."""
    timestamp: int
    """The time of the last record of the format, milliseconds."""
    features: Mapping[str, int]
    """Levels that the cluster begins with, ``metadata.version`` among them."""
    records: tuple[MetadataRecord, ...]
    """The records of producer ids, the cluster and topics, in this order, that an earlier run has written."""

    def write(self, records: Sequence[MetadataRecord], disk: Disk) -> None:
        """Replace the records of an earlier run by ``records``, durably; the file is always the old or the new one.

        Raises:
            LogDirError: it cannot be written.

        """
        write_file(disk, self.path, [self.kept, *self._batches(records)], attributes_of(self.path))

    def _batches(self, records: Sequence[MetadataRecord]) -> Iterator[bytes]:
        offset, values = self.offset, iter([encode_record(record) for record in records])
        while some := list(islice(values, _RECORDS_IN_BATCH)):
            yield write_data_batch(offset=offset, values=some, timestamps=self.timestamp, leader_epoch=0)
            offset += len(some)
        footer = SnapshotFooterRecord(version=0)
        yield control_batch(SNAPSHOT_FOOTER, footer, offset, self.timestamp, leader_epoch=0)


def read_bootstrap(log_dir: Path) -> Bootstrap:
    """Return the bootstrap metadata in ``log_dir``: a node's ``metadata.log.dir``, or the first of its log dirs.

    Raises:
        UsageError: it was never formatted, or its node was started already.
        MetadataLogError, FormatError: the file is damaged.
        LogDirError: it cannot be read.

    """
    log = log_dir / str(METADATA_PARTITION)
    if is_there(log / segment_name(0, "log")) or is_there(log / "quorum-state"):
        raise UsageError(
            f"{log_dir}: its node was started already, so its cluster has a metadata log of its own",
            hint="a new cluster gets its topics before its first start: format an empty directory",
        )
    path = next((candidate for candidate in (log_dir / BOOTSTRAP, log / FIRST_CHECKPOINT) if is_there(candidate)), None)
    if path is None:
        raise UsageError(f"{log_dir} holds no bootstrap metadata of a new cluster", hint=_FORMAT)
    return _bootstrap(path, list(read_checkpoint(path)))


def _bootstrap(path: Path, batches: list[MetadataBatch]) -> Bootstrap:
    footer = batches[-1]
    # An earlier run has written this batch, and all that follow: a format gives no producer ids.
    ids = (batch for batch in batches if isinstance(batch.records[0].message, ProducerIdsRecord))
    first = next(ids, footer)
    at = batches.index(first)
    levels = [record.message for batch in batches[:at] for record in batch.records]
    features = {level.name: level.feature_level for level in levels if isinstance(level, FeatureLevelRecord)}
    if METADATA_VERSION not in features:
        raise UsageError(f"{path} does not say which metadata.version the cluster begins with", hint=_FORMAT)
    with reading(path):
        kept = path.read_bytes()[: first.position]
    return Bootstrap(
        path=path,
        kept=kept,
        offset=first.header.base_offset,
        timestamp=batches[at - 1].timestamp,
        features=features,
        records=tuple(record.message for batch in batches[at:-1] for record in batch.records),  # type: ignore[misc]
    )
