"""A segment that lies in a store, in whatever layout, as it is announced to brokers: its facts, and its two records.

A layout that brokers read has one place for each object of a segment; what lies elsewhere no broker finds. Announced is
only what Resnap has written: its ids are UUIDs of version 5, and those that brokers draw are of version 4.

One record that a broker's reader cannot take ends that reader for good, in every broker that follows the metadata
partition; so each is decoded again, by a reader that is as strict, before it is sent.

Source: ``RemoteLogManager.copyLogSegment``, ``ConsumerTask``.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from resnap.storage.layouts.aiven import keys as aiven
from resnap.storage.layouts.local_tiered import keys as local_tiered
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.wire import ZERO_UUID, uuid_text
from resnap.tiering.remote_log.codec import decode_record, encode_record
from resnap.tiering.remote_log.records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    SegmentLeaderEpoch,
    SegmentState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from resnap.storage.layouts.aiven.log import CopiedSegment
    from resnap.storage.layouts.manifest import Manifest
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
    """Whose log it is of; None where it is not known."""
    misplaced: str | None
    """Why brokers would not find it; None where all lies where they look."""


def of_manifest(key: str, manifest: Manifest) -> Announceable:
    """Return the segment of Resnap's own ``manifest``, which brokers read in the layout ``local-tiered``."""
    log = manifest.object(ObjectKind.LOG)
    elsewhere = [entry.key for entry in manifest.objects if entry.key != _local_tiered_key(manifest, entry.kind)]
    missing = set(ObjectKind) - {entry.kind for entry in manifest.objects} - {ObjectKind.TXN_INDEX}
    misplaced = f"{elsewhere[0]} is not where brokers read" if elsewhere else None
    return Announceable(
        partition=TopicIdPartition(
            name=manifest.topic, id=manifest.topic_id or ZERO_UUID, partition=manifest.partition
        ),
        id=uuid_text(manifest.segment_id.bytes),
        manifest_key=key,
        base_offset=manifest.base_offset,
        next_base_offset=manifest.next_base_offset,
        leader_epochs=manifest.leader_epochs,
        max_timestamp_ms=manifest.max_timestamp_ms,
        log_bytes=0 if log is None else log.size_bytes,
        stored_bytes=sum(entry.size_bytes for entry in manifest.objects),
        created_at_ms=manifest.created_at_ms,
        cluster_id=manifest.cluster_id,
        broker_id=manifest.broker_id,
        misplaced=misplaced or (f"there is no {min(missing)}" if missing else None),
    )


def of_copy(segment: CopiedSegment, *, key_prefix: str, cluster_id: str | None) -> Announceable:
    """Return the ``segment`` of the layout ``aiven``, which brokers with ``key_prefix`` read."""
    metadata, manifest, key = segment.metadata, segment.manifest, segment.place.key
    place = TopicPartition(metadata.topic, metadata.partition)
    expected = aiven.object_key(
        place, metadata.topic_id, metadata.start_offset, metadata.segment_id, aiven.MANIFEST, prefix=key_prefix
    )
    return Announceable(
        partition=TopicIdPartition(name=metadata.topic, id=metadata.topic_id, partition=metadata.partition),
        id=metadata.segment_id,
        manifest_key=key,
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        leader_epochs=segment.leader_epochs,
        max_timestamp_ms=metadata.max_timestamp_ms if metadata.max_timestamp_ms >= 0 else None,
        log_bytes=manifest.chunks.file_size,
        stored_bytes=manifest.chunks.stored_size + manifest.indexes.end,
        created_at_ms=metadata.event_timestamp_ms,
        cluster_id=cluster_id,
        broker_id=metadata.broker_id if metadata.broker_id >= 0 else None,
        misplaced=None if key == expected else f"brokers with the key prefix {key_prefix!r} do not look at {key}",
    )


def is_ours(segment_id: str) -> bool:
    """Whether Resnap made ``segment_id``, which is in Kafka's form; segments of brokers are announced by themselves."""
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


def payload(record: RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataUpdateRecord) -> bytes:
    """Return the bytes of ``record``, decoded again and compared.

    Raises:
        FormatError: a broker would not survive them.

    """
    value = encode_record(record)
    if decode_record(value) != record:
        raise AssertionError(f"{record} does not survive its own encoding")
    return value


def _local_tiered_key(manifest: Manifest, kind: ObjectKind) -> str | None:
    if manifest.topic_id is None:
        return None
    place = TopicPartition(manifest.topic, manifest.partition)
    return local_tiered.object_key(place, manifest.topic_id, manifest.base_offset, manifest.segment_id, kind)
