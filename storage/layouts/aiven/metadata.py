"""What the layout ``aiven`` tells of a segment beside its objects: the broker's metadata, and the plugin's own.

``remoteLogSegmentMetadata`` in a manifest is what the broker knew when copying began; the plugin writes it and never
reads it. Custom metadata stand in the broker's ``__remote_log_metadata``, and only where the plugin was asked for them:
tagged fields as in Kafka's protocol, ascending, at most 128 bytes by default. We only read them: without any, the
plugin finds a segment by its ids and the key prefix that it is set to.

Source: ``KafkaTypeSerdeModule``, ``SegmentCustomMetadataSerde`` of the plugin; ``TaggedFields`` of Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from resnap.storage.errors import FormatError
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.messages.varint import read_unsigned_varint, read_varlong

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)
_LONG_END: Final = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """``RemoteLogSegmentMetadata``, when copying the segment began."""

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    """Inclusive."""
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    leader_epochs: tuple[LeaderEpoch, ...]
    """Those of the segment alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetadata:
    """The fields of ``custom.metadata.fields.include``; None are those that are left out."""

    remote_size: int | None = None
    """Bytes of the three objects."""
    object_prefix: str | None = None
    object_key: str | None = None
    """Without prefix and suffix."""


def segment_record(segment: SegmentMetadata) -> dict[str, Any]:
    """Return ``segment`` as a manifest has it, the fields in its order."""
    return {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": segment.topic_id,
                "topicPartition": {"topic": segment.topic, "partition": segment.partition},
            },
            "id": segment.segment_id,
        },
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "maxTimestampMs": segment.max_timestamp_ms,
        "brokerId": segment.broker_id,
        "eventTimestampMs": segment.event_timestamp_ms,
        "segmentLeaderEpochs": {str(entry.epoch): entry.start_offset for entry in segment.leader_epochs},
    }


def told_segment(values: object) -> SegmentMetadata | None:
    """Return what ``values``, any JSON, tell of a segment; None, where anything is not what the plugin writes."""
    try:
        return _told_segment(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def read_custom_metadata(data: bytes) -> CustomMetadata:
    """Return what ``data`` hold; fields that are not known are passed over.

    Raises:
        FormatError: cut short, too long, or tags that do not ascend.

    """
    found: dict[int, tuple[int, int]] = {}
    count, at = read_unsigned_varint(data, 0) if data else (0, 0)
    for _ in range(count):
        tag, start = read_unsigned_varint(data, at)
        size, start = read_unsigned_varint(data, start)
        if tag <= max(found, default=-1) or start + size > len(data):
            raise FormatError("custom metadata: field", position=at, expected="ascending tags, whole fields", found=tag)
        at = start + size
        found[tag] = (start, at)
    if at != len(data):
        raise FormatError("custom metadata", position=at, expected="their end", found=f"{len(data) - at} bytes more")
    return CustomMetadata(
        remote_size=_number(data, found.get(_REMOTE_SIZE)),
        object_prefix=_string(data, found.get(_OBJECT_PREFIX)),
        object_key=_string(data, found.get(_OBJECT_KEY)),
    )


def _number(data: bytes, place: tuple[int, int] | None) -> int | None:
    if place is None:
        return None
    value, end = read_varlong(data[: place[1]], place[0])
    _check_end(end, place)
    return value


def _string(data: bytes, place: tuple[int, int] | None) -> str | None:
    if place is None:
        return None
    length, start = read_unsigned_varint(data[: place[1]], place[0])
    _check_end(start + length - 1, place)
    try:
        return data[start : place[1]].decode()
    except UnicodeDecodeError:
        raise FormatError("custom metadata: text", position=start, expected="UTF-8", found="something else") from None


def _check_end(end: int, place: tuple[int, int]) -> None:
    if end != place[1]:
        raise FormatError(
            "custom metadata: length", position=place[0], expected=place[1] - place[0], found=end - place[0]
        )


def _told_segment(values: Any) -> SegmentMetadata:  # noqa: ANN401 - whatever stood there
    identity = values["remoteLogSegmentId"]
    place = identity["topicIdPartition"]
    topic_partition = place["topicPartition"]
    epochs = [LeaderEpoch(int(epoch), _long(start)) for epoch, start in values["segmentLeaderEpochs"].items()]
    return SegmentMetadata(
        topic=_text(topic_partition["topic"]),
        topic_id=_text(place["topicId"]),
        partition=_long(topic_partition["partition"]),
        segment_id=_text(identity["id"]),
        start_offset=_long(values["startOffset"]),
        end_offset=_long(values["endOffset"]),
        max_timestamp_ms=_long(values["maxTimestampMs"]),
        broker_id=_long(values["brokerId"]),
        event_timestamp_ms=_long(values["eventTimestampMs"]),
        leader_epochs=tuple(sorted(epochs)),
    )


def _long(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -_LONG_END <= value < _LONG_END:
        raise TypeError("no Java long")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no string")
    return value
