"""Records of ``__remote_log_metadata``, made short; and a log dir whose metadata topic holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.log.record import write_record
from resnap.storage.log.record_batch import RecordBatchHeader, seal
from resnap.tiering.remote_log.records import (
    Event,
    RemoteLogRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    SegmentState,
    TopicIdPartition,
    encode_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PARTITION: Final = TopicIdPartition(name="payments", id="qRkflhTtSyCfY_5C8Ka4hg", partition=0)


def segment_id(name: str) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(topic_id_partition=PARTITION, id=name.rjust(21, "0") + "A")


def started(name: str, start: int, end: int, epochs: dict[int, int] | None = None) -> RemoteLogRecord:
    """The first record of a segment; ``end`` is inclusive."""
    told = {0: start} if epochs is None else epochs
    return RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id(name),
        start_offset=start,
        end_offset=end,
        broker_id=1,
        max_timestamp_ms=1,
        event_timestamp_ms=2,
        segment_leader_epochs=tuple(SegmentLeaderEpoch(leader_epoch=epoch, offset=at) for epoch, at in told.items()),
        segment_size_in_bytes=100,
    )


def updated(name: str, state: SegmentState) -> RemoteLogSegmentMetadataUpdateRecord:
    return RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment_id(name), broker_id=1, event_timestamp_ms=3, remote_log_segment_state=state
    )


def copied(name: str, start: int, end: int, epochs: dict[int, int] | None = None) -> list[RemoteLogRecord]:
    return [started(name, start, end, epochs), updated(name, SegmentState.COPY_SEGMENT_FINISHED)]


def events(records: Iterable[RemoteLogRecord]) -> list[Event]:
    return [Event(7, offset, record) for offset, record in enumerate(records)]


def write_metadata_partition(directory: Path, values: Sequence[bytes | RemoteLogRecord], number: int = 0) -> Path:
    """Write a partition of the metadata topic with one batch per value into a log dir; return its segment."""
    folder = directory / f"__remote_log_metadata-{number}"
    folder.mkdir(parents=True)
    (folder / "leader-epoch-checkpoint").write_text("0\n0\n")
    log = folder / f"{0:020d}.log"
    append_records(log, values, at=0)
    return log


def append_records(log: Path, values: Sequence[bytes | RemoteLogRecord], at: int) -> None:
    """Append a batch for each value to a segment of the metadata topic, the first with the offset ``at``."""
    with log.open("ab") as file:
        for offset, value in enumerate(values, at):
            file.write(_batch(offset, value if isinstance(value, bytes) else encode_record(value)))


def _batch(offset: int, value: bytes) -> bytes:
    header = RecordBatchHeader(
        base_offset=offset, batch_length=0, partition_leader_epoch=0, magic=2, crc=0, attributes=0,
        last_offset_delta=0, base_timestamp=1, max_timestamp=1, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        records_count=1,
    )  # fmt: skip
    return seal(header, write_record(0, 0, None, value))
