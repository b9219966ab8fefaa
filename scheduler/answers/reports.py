"""Results of the use cases as rows: plain mappings under Kafka's own names, the same for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.replay.results import Outcome
from resnap.storage.log.producer_snapshot import NO_LAST_OFFSET
from resnap.storage.log.record_batch import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.replay.explain import Batch, Explanation
    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.scheduler.answers.rendering import Row
    from resnap.scheduler.use_cases.work_items import Cost, Planned
    from resnap.storage.layouts.aiven.log import CopiedSegment
    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.checking.chains import Chain
    from resnap.tiering.checking.verification import VerifiedSegment
    from resnap.tiering.refusal import Refusal
    from resnap.tiering.remembered.memory import KnownBoundary
    from resnap.tiering.shipping.shipment import PartitionShipment


def identity(topic_partition: TopicPartition) -> dict[str, object]:
    """Return what names a partition in every row."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def cost_row(cost: Cost) -> Row:
    """Return what a replay would read."""
    return {"segments": cost.segments, "bytes": cost.size_bytes}


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


def plan_row(planned: Planned) -> Row:
    """Return what would be done with one partition."""
    plan = planned.plan
    runs = [
        {
            "baseOffset": plan.segments[run.start].base_offset,
            "nextBaseOffset": plan.segments[run.end - 1].next_base_offset,
            "segments": run.end - run.start,
            "anchor": run.anchor.offset if run.anchor is not None else None,
        }
        for run in plan.runs
    ]
    return {
        **identity(planned.sighted.topic_partition),
        "boundaries": [
            {"offset": boundary.offset, "coverage": boundary.coverage.value} for boundary in plan.boundaries
        ],
        "knownFromOffset": plan.known_from(),
        "snapshots": len(plan.boundaries),
        "read": cost_row(planned.cost),
        "runs": runs,
        "segments": len(plan.segments),
    }


def boundary_row(topic_partition: TopicPartition, found: BoundaryResult) -> Row:
    """Return what became of one boundary in a replay."""
    comparison = found.comparison
    row: dict[str, object] = {
        **identity(topic_partition),
        "offset": found.boundary.offset,
        "outcome": found.outcome.value,
        "coverage": found.boundary.coverage.value,
        "asOfMs": found.as_of_ms,
        "windowStartOffset": found.window_start_offset,
        "knownFromOffset": found.known_from_offset,
        "entries": found.entries if found.outcome is Outcome.REBUILT else None,
        "sha256": found.digest.sha256 if found.digest else None,
        "leftOut": [{"producerId": pid, "reason": reason.value} for pid, reason in found.left_out],
        "reason": found.reason,
    }
    if comparison is not None:
        row["verdict"] = comparison.verdict.value
        for name, producers in (
            ("missing", comparison.missing),
            ("different", comparison.different),
            ("sweptByBroker", comparison.swept),
            ("coordinatorEpochLost", comparison.coordinator_lost),
            ("byOlderRules", comparison.older_rules),
            ("withoutRecords", comparison.unrecorded),
        ):
            row |= {name: list(producers.named), f"{name}Count": producers.total}
    return row


def known_row(topic_partition: TopicPartition, known: KnownBoundary) -> Row:
    """Return one boundary that an earlier run has made, and that was not made again."""
    return {
        **identity(topic_partition),
        "offset": known.offset,
        "outcome": "unchanged",
        "coverage": known.coverage.value,
        "asOfMs": known.as_of_ms,
        "windowStartOffset": known.window_start_offset,
        "knownFromOffset": known.known_from_offset,
        "entries": known.entries,
        "sha256": known.digest.sha256,
        "leftOut": [{"producerId": pid, "reason": reason.value} for pid, reason in known.left_out],
        "reason": None,
        "madeMs": known.made_ms,
    }


def replay_tail(results: Sequence[PartitionResult]) -> Row:
    """Return totals over replays."""
    boundaries = [found for result in results for found in result.boundaries]
    return {
        "partitions": len(results),
        "snapshots": sum(found.outcome is Outcome.REBUILT for found in boundaries),
        "failed": sum(found.outcome is not Outcome.REBUILT for found in boundaries),
        "leftOut": sum(len(found.left_out) for found in boundaries),
        "batches": sum(result.batches for result in results),
        "bytesRead": sum(result.bytes_read for result in results),
        "segmentsRead": sum(result.segments_read for result in results),
    }


def shipment_row(shipment: PartitionShipment) -> Row:
    """Return what became of one partition's segments."""
    return {
        **identity(shipment.topic_partition),
        "shipped": [
            {
                "baseOffset": segment.base_offset,
                "nextBaseOffset": segment.next_base_offset,
                "bytes": segment.size_bytes,
                "snapshot": segment.snapshot.value,
                "entries": segment.entries,
                "manifest": segment.manifest_key,
            }
            for segment in shipment.shipped
        ],
        "already": shipment.already,
        "lastStableOffset": shipment.eligibility.last_stable_offset,
        "refused": [refusal_row(refusal) for refusal in shipment.eligibility.refusals],
        "blocking": refusal_row(shipment.eligibility.blocking),
    }


def verified_row(verified: VerifiedSegment[Manifest] | VerifiedSegment[CopiedSegment]) -> Row:
    """Return what reading one shipped segment back showed."""
    manifest = verified.manifest
    return {
        "manifest": verified.manifest_key,
        "topic": manifest.topic if manifest else None,
        "partition": manifest.partition if manifest else None,
        "baseOffset": manifest.base_offset if manifest else None,
        "nextBaseOffset": manifest.next_base_offset if manifest else None,
        "bytes": verified.size_bytes,
        "result": "different" if verified.problems else "gone" if verified.is_retained_away else "ok",
        "problems": list(verified.problems),
        "undecided": list(verified.undecided),
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
