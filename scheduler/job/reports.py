"""Results of the use cases as rows: plain mappings under Kafka's own names, the same for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.scheduler.clock import instant
from resnap.scheduler.output.rendering import human_bytes, plain_text
from resnap.storage.log.producer_snapshot import NO_LAST_OFFSET
from resnap.storage.log.record_batch import MAX_SEQUENCE

if TYPE_CHECKING:
    from resnap.replay.explain import Batch, Explanation
    from resnap.scheduler.job.work_items import Cost
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.checking.chains import Chain
    from resnap.tiering.readiness import TieringSizes
    from resnap.tiering.refusal import Refusal


SIZES: Final = ("tierableBytes", "blockedBytes", "shippedBytes", "freeableBytes")


def identity(topic_partition: TopicPartition) -> dict[str, object]:
    """Return what names a partition in every row."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def cost_row(cost: Cost) -> Row:
    """Return what a replay would read."""
    return {"segments": cost.segments, "bytes": cost.size_bytes}


def bytes_of(cost: object) -> str:
    """Return the bytes of what ``cost_row`` made, for a cell of a table."""
    return human_bytes(cost["bytes"]) if isinstance(cost, dict) else ""


def count_of(value: object) -> str:
    """Return how many there are in a list, for a cell of a table; nothing for none."""
    return str(len(value)) if isinstance(value, list) and value else ""


def sizes_row(sizes: TieringSizes) -> dict[str, int | None]:
    """Return what comes of the bytes of closed segments with tiering on."""
    return dict(zip(SIZES, (sizes.tierable, sizes.blocked, sizes.shipped, sizes.freeable), strict=True))


def refusal_row(refusal: Refusal | None) -> Row | None:
    """Return why a segment is not shipped."""
    if refusal is None:
        return None
    return {
        "baseOffset": refusal.base_offset,
        "nextBaseOffset": refusal.next_base_offset,
        "reason": refusal.reason.value,
        "detail": refusal.detail,
        "hint": refusal.hint,
    }


def chain_row(chain: Chain) -> Row:
    """Return what the segments of one partition make together."""
    return {
        **identity(chain.topic_partition),
        "clusterId": chain.cluster_id,
        "topicId": chain.topic_id,
        "startOffset": chain.start,
        "endOffset": chain.end,
        "segments": chain.segments,
        "gaps": [list(gap) for gap in chain.gaps],
        "breaks": [list(gap) for gap in chain.breaks],
        "overlaps": [
            {"startOffset": one.start, "endOffset": one.end, "oneLineage": one.is_one_lineage} for one in chain.overlaps
        ],
    }


def explanation_rows(explanation: Explanation) -> list[Row]:
    """Return the batches that made one entry, a row per role."""
    return [
        {
            "producerId": explanation.producer_id,
            "role": role.value,
            **batch_row(batch),
            "batches": explanation.batches,
        }
        for role, batch in explanation.roles.items()
    ]


def batch_row(batch: Batch) -> dict[str, object]:
    """Return one batch under the names of Kafka's dump tool."""
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "segment": batch.segment_base_offset,
        "producerEpoch": batch.producer_epoch,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "timestamp": batch.timestamp,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_marker,
        "coordinatorEpoch": batch.coordinator_epoch if batch.is_marker else None,
    }


def show_time(value: object) -> str:
    """Return a timestamp for people; -1 means that there is none, and stays what it is."""
    return instant(value) if isinstance(value, int) and value >= 0 else plain_text(value)


def producer_row(entry: ProducerEntry) -> dict[str, object]:
    """Return a snapshot's entry under Kafka's names; null where Kafka's own tool shows nothing."""
    has_data = entry.last_offset != NO_LAST_OFFSET
    return {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": entry.current_txn_first_offset if entry.has_open_transaction else None,
        "lastTimestamp": entry.timestamp,
        "firstSequence": (entry.last_sequence - entry.offset_delta) % (MAX_SEQUENCE + 1) if has_data else None,
        "lastSequence": entry.last_sequence if has_data else None,
        "lastOffset": entry.last_offset if has_data else None,
        "offsetDelta": entry.offset_delta if has_data else None,
    }
