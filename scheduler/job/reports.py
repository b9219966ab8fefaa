"""Turns results of jobs into rows: plain mappings under Kafka's own names, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.output.records import row_of
from resnap.scheduler.output.rendering import PARTITION, Column, plain_text
from resnap.storage.log.producer_snapshot import NO_LAST_OFFSET
from resnap.storage.log.record_batch import MAX_SEQUENCE
from resnap.storage.words import first_of, human_bytes, instant, some
from resnap.tiering.judging.refusal import Reason, UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from resnap.replay.explain import Explanation
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.log_dir import Incomplete
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.verifying.chains import Chain


_MOST_SEGMENTS_NAMED: Final = 20
_MOST_URGENT: Final = (
    Reason.STRAY, Reason.DAMAGED, Reason.INDEX_UNUSABLE, Reason.INDEX_MISSING, Reason.MISSING_SNAPSHOT
)  # fmt: skip
SIZES: Final = ("tierableBytes", "blockedBytes", "shippedBytes", "freeableBytes")


class Identity(TypedDict):
    """What names a partition."""

    topic: Annotated[str, "topic_partition.topic"]
    partition: Annotated[int, "topic_partition.partition", PARTITION]


class CostRow(TypedDict):
    """What a replay would read."""

    segments: int
    bytes: Annotated[int, "size_bytes"]


class SizesRow(TypedDict):
    """Bytes of closed segments, by what tiering would do with them; null where it is unknown what is remote."""

    tierableBytes: Annotated[int, "sizes.tierable", Column(title="TIERABLE", right=True, show=_size, extra=True)]
    blockedBytes: Annotated[int, "sizes.blocked", Column(title="BLOCKED", right=True, show=_size)]
    shippedBytes: Annotated[int | None, "sizes.shipped", Column(title="SHIPPED", right=True, show=_size, extra=True)]
    freeableBytes: Annotated[int, "sizes.freeable", Column(title="COULD BE FREED", right=True, show=_size, extra=True)]


class RefusalRow(TypedDict):
    """Why a segment is not tiered, and what to do about it."""

    baseOffset: int
    nextBaseOffset: int | None
    reason: str
    detail: str
    hint: str
    unblockedBy: UnblockedBy
    untilMs: int | None


def stop_of(refusal: object) -> str:
    """Return the reason of a ``RefusalRow``, and where it is, for a table cell: ``stop_lines`` say the rest."""
    return f"{refusal['reason']} at {refusal['baseOffset']}" if isinstance(refusal, dict) else "-"


def stop_lines(refusal: Mapping[str, Any], where: object) -> Iterator[str]:
    """Yield what stops at a partition or topic, and what to do about it, for people."""
    yield f"{refusal['reason']}: {where}: {refusal['detail']}"
    yield f"  -> {refusal['hint']}"


def most_urgent(reasons: Collection[str]) -> str | None:
    """Return the reason to do something about first: what a broker's start or a copy loses data by, then a rebuild."""
    return next((reason for reason in (*_MOST_URGENT, *reasons) if reason in reasons), None)


def identity(topic_partition: TopicPartition) -> Identity:
    """Return the fields that identify a partition in every row."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def incomplete_warning(segments: Sequence[Incomplete], url: str) -> Iterator[str]:
    """Yield a warning if segments of the store at ``url`` lack objects, with the next step."""
    if segments:
        named = [f"{one.topic_partition} from offset {one.base_offset} ({one.missing_key})" for one in segments]
        yield (
            f"{some(len(segments), 'segment')} skipped, since an object is missing: a copy or a deletion did not "
            f"finish, or the object was lost: {first_of(named, _MOST_SEGMENTS_NAMED)}; `resnap remote status LOG_DIR"
            f" --store {url}` shows whether brokers know the segment;"
            " if they do, restore the object from another copy of the store"
        )


def bytes_of(cost: object) -> str:
    """Return the bytes in a ``CostRow``, for a table cell."""
    return human_bytes(cost["bytes"]) if isinstance(cost, dict) else ""


def _size(value: object) -> str:
    return human_bytes(value) if isinstance(value, int) else "-"


def count_of(value: object) -> str:
    """Return the length of a list, for a table cell; empty for none."""
    return str(len(value)) if isinstance(value, list) and value else ""


def chain_row(chain: Chain) -> Row:
    """Return the chain of one partition's segments as a row."""
    return {
        **identity(chain.topic_partition),
        "clusterId": chain.cluster_id,
        "topicId": chain.topic_id,
        "layout": chain.layout,
        "startOffset": chain.start,
        "endOffset": chain.end,
        "segments": chain.segments,
        "gaps": [list(gap) for gap in chain.gaps],
        "breaks": [list(gap) for gap in chain.breaks],
        "overlaps": [
            {"startOffset": one.start, "endOffset": one.end, "oneLineage": one.is_one_lineage} for one in chain.overlaps
        ],
    }


def show_time(value: object) -> str:
    """Return a timestamp for people; -1, which means none, is shown as -1."""
    return instant(value) if isinstance(value, int) and value >= 0 else plain_text(value)


class BatchRow(TypedDict):
    """One batch under the names of Kafka's dump tool."""

    baseOffset: Annotated[int, Column(title="OFFSET", right=True)]
    lastOffset: Annotated[int, Column(title="TO", right=True, extra=True)]
    segment: Annotated[int, "segment_base_offset"]
    producerEpoch: Annotated[int, Column(title="EPOCH", right=True, extra=True)]
    baseSequence: Annotated[int, Column(title="SEQUENCE", right=True, extra=True)]
    lastSequence: Annotated[int, Column(title="TO SEQUENCE", right=True, extra=True)]
    timestamp: Annotated[int, Column(title="TIME", show=show_time)]
    isTransactional: Annotated[bool, Column(title="TRANSACTIONAL", extra=True)]
    isControl: Annotated[bool, "is_marker"]
    coordinatorEpoch: Annotated[
        int | None,
        lambda batch: batch.coordinator_epoch if batch.is_marker else None,
        Column(title="COORDINATOR EPOCH", right=True, extra=True),
    ]


def explanation_rows(explanation: Explanation) -> Iterator[Row]:
    """Yield the batches that made one entry, a row per role."""
    for role, batch in explanation.roles.items():
        about = {"producerId": explanation.producer_id, "role": role.value}
        yield {**about, **row_of(BatchRow, batch), "batches": explanation.batches}


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
