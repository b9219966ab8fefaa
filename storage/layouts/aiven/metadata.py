"""The ``remoteLogSegmentMetadata`` of a manifest in the layout ``aiven``: what the broker knew when copying began.

The plugin writes this field, and never reads it.

Source: ``KafkaTypeSerdeModule`` of the plugin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from resnap.storage.log.checkpoints import LeaderEpoch

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


def segment_record(segment: SegmentMetadata) -> dict[str, Any]:
    """Return ``segment`` as a manifest records it, with the fields in the plugin's order."""
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
    """Return the segment that ``values``, any JSON, describe; None if anything is not what the plugin writes."""
    try:
        return _told_segment(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _told_segment(values: Any) -> SegmentMetadata:  # noqa: ANN401 - any JSON value
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
        raise TypeError("not a Java long")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value
