"""A shipped segment, in any layout, in the form in which it is announced to brokers: its facts, and its two records.

A layout that brokers read has one key for each object of a segment; brokers do not find other objects. Only segments
that Resnap has written are announced: their ids are UUIDs of version 5, and those of brokers are of version 4.

Source: ``RemoteLogManager.copyLogSegment``, ``ConsumerTask``.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from resnap.storage.messages.wire import ZERO_UUID
from resnap.tiering.remote_log.records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    SegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from resnap.storage.layouts.segments import StoredManifest
    from resnap.storage.log.checkpoints import LeaderEpoch

_OUR_VERSION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Announceable:
    """One shipped segment."""

    partition: TopicIdPartition
    id: str
    """Id of the segment, in Kafka's form."""
    manifest_key: str
    base_offset: int
    next_base_offset: int
    leader_epochs: tuple[LeaderEpoch, ...]
    """Those of the segment alone."""
    max_timestamp_ms: int | None
    log_bytes: int
    """As brokers count it: before anything was compressed or encrypted."""
    stored_bytes: int
    """Size of all its objects but the manifest."""
    created_at_ms: int
    cluster_id: str | None
    broker_id: int | None
    """The broker whose log it comes from; None if unknown."""
    misplaced: str | None
    """Why brokers would not find it; None if they would."""


def announceable(key: str, found: StoredManifest, *, misplaced: str | None, cluster_id: str | None) -> Announceable:
    """Return the segment of the manifest at ``key``, in the cluster ``cluster_id``."""
    facts = found.facts
    largest, (made_ms, _) = facts.max_timestamp_ms, facts.made
    return Announceable(
        partition=TopicIdPartition(name=facts.topic, id=facts.topic_id or ZERO_UUID, partition=facts.partition),
        id=facts.remote_id,
        manifest_key=key,
        base_offset=facts.base_offset,
        next_base_offset=facts.next_base_offset,
        leader_epochs=facts.leader_epochs,
        max_timestamp_ms=None if largest is not None and largest < 0 else largest,
        log_bytes=facts.log_bytes,
        stored_bytes=found.size_bytes,
        created_at_ms=made_ms,
        cluster_id=cluster_id,
        broker_id=facts.broker_id,
        misplaced=misplaced,
    )


def is_ours(segment_id: str) -> bool:
    """Whether Resnap made ``segment_id``, in Kafka's base64 form; brokers announce their own segments."""
    return UUID(bytes=urlsafe_b64decode(f"{segment_id}==")).version == _OUR_VERSION


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
