"""The two records that announce a segment, and their bytes, which no broker must die of.

One record that a broker's reader cannot take ends that reader for good, in every broker that follows the metadata
partition; so each is decoded again, by a reader that is as strict, before it is sent.

Source: ``RemoteLogManager.copyLogSegment``, ``ConsumerTask``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.tiering.remote_log.codec import decode_record, encode_record
from resnap.tiering.remote_log.records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    SegmentState,
)

if TYPE_CHECKING:
    from resnap.tiering.remote_log.announceable import Announceable


def records_of(
    one: Announceable, *, broker_id: int, now_ms: int
) -> tuple[RemoteLogSegmentMetadataRecord, RemoteLogSegmentMetadataUpdateRecord]:
    """Return the two records that announce a segment, in the order in which they must come."""
    segment = RemoteLogSegmentId(topic_id_partition=one.partition, id=one.id)
    if one.max_timestamp_ms is None:
        raise AssertionError("judge() lets no such segment pass")
    begun = RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment,
        start_offset=one.base_offset,
        end_offset=one.next_base_offset - 1,
        broker_id=broker_id,
        max_timestamp_ms=one.max_timestamp_ms,
        event_timestamp_ms=now_ms,
        segment_leader_epochs=tuple(
            SegmentLeaderEpoch(leader_epoch=entry.epoch, offset=entry.start_offset) for entry in one.leader_epochs
        ),
        segment_size_in_bytes=one.log_bytes,
    )
    finished = RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment,
        broker_id=broker_id,
        event_timestamp_ms=now_ms,
        remote_log_segment_state=SegmentState.COPY_SEGMENT_FINISHED,
    )
    return begun, finished


def payload(record: RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord) -> bytes:
    """Return the bytes of ``record``, decoded again and compared.

    Raises:
        FormatError: a broker would not survive them.

    """
    value = encode_record(record)
    if decode_record(value) != record:
        raise AssertionError(f"{record} does not survive its own encoding")
    return value
