"""Turns results of jobs into rows: plain mappings under Kafka's own names, for people and programs.

For people, rows of partitions are summed up by topic where there are too many.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.job.contract import Result, View
from resnap.scheduler.output.records import row_of
from resnap.scheduler.output.rendering import PARTITION, Column, plain_text
from resnap.storage.log.producer_snapshot import NO_LAST_OFFSET
from resnap.storage.log.record_batch import MAX_SEQUENCE
from resnap.storage.words import counts_text, human_bytes, instant, some
from resnap.tiering.judging.refusal import Reason, UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.replay.explain import Explanation
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.layouts.lineage import Chain
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.producer_snapshot import ProducerEntry


_MOST_URGENT: Final = (
    Reason.NO_START, Reason.STRAY, Reason.DAMAGED, Reason.INDEX_UNUSABLE, Reason.INDEX_MISSING, Reason.MISSING_SNAPSHOT
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


def stop_of(refusal: RefusalRow | None) -> str:
    """Return the reason of a ``RefusalRow``, and where it is, for a table cell: ``stop_lines`` say the rest."""
    return "-" if refusal is None else f"{refusal['reason']} at {refusal['baseOffset']}"


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


def bytes_of(cost: CostRow) -> str:
    """Return the bytes in a ``CostRow``, for a table cell."""
    return human_bytes(cost["bytes"])


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else human_bytes(size_bytes)


def count_of(values: Sequence[object]) -> str:
    """Return the length of a list, for a table cell; empty for none."""
    return str(len(values) or "")


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
            {"startOffset": one.offsets.start, "endOffset": one.offsets.end, "oneLineage": one.is_one_lineage}
            for one in chain.overlaps
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


R = TypeVar("R", bound=Result)

AGAIN: Final = "Next: the same command again, once what the errors name is repaired, as their hints say."
MOST_ROWS: Final = 50
"""The most rows for people: more partitions are summed up by topic, and more of anything else is counted."""


class SummedView(View[R]):
    """A view of which people see the partitions at the end: all of them, or their topics where there are too many."""

    most_first: ClassVar[str]
    """The key whose numbers, or lists, order the topics."""
    joined: ClassVar[tuple[str, ...]] = ()
    """Keys of lists that are joined; other lists are left out."""

    @cached_property
    def _held(self) -> list[Row]:
        """The rows that people see."""
        return []

    def for_people(self, row: Row) -> Row | None:
        """Return what people see of the row of a partition; None for nothing."""
        return row

    def table_rows(self, result: R) -> Iterable[Row]:
        """Keep back what people see of a result."""
        self._hold(self.rows(result))
        return ()

    def table_rest(self) -> Iterator[Row]:
        """Yield what people see, the most of ``most_first`` first where topics are summed up."""
        self._hold(self.rest())
        yield from summed_by_topic(self._held, self.most_first, *self.joined)

    def _hold(self, rows: Iterable[Row]) -> None:
        self._held.extend(filter(None, map(self.for_people, rows)))

    def summed_note(self) -> Iterator[str]:
        """Say that rows are summed up by topic, where they are."""
        yield from summed_note(self._held)


def summed_by_topic(held: Sequence[Mapping[str, Any]], most_first: str, *joined: str) -> Sequence[Row]:
    """Return rows of partitions, or of their topics where there are too many: the most of ``most_first`` first.

    Lists are left out, but those of ``joined``.
    """
    if len(held) <= MOST_ROWS:
        return held
    by_topic: dict[str, list[Mapping[str, Any]]] = {}
    for row in held:
        by_topic.setdefault(row["topic"], []).append(row)
    topics = sorted(by_topic.values(), key=lambda rows: (-_sum_in(rows, most_first), rows[0]["topic"]))
    return summed_rest([(rows[0] if len(rows) == 1 else _sum_of(rows, joined), rows) for rows in topics], *joined)


def summed_rest(topics: Sequence[tuple[Row, Sequence[Mapping[str, Any]]]], *joined: str) -> Sequence[Row]:
    """Return the first rows of topics, and a row for all others where there are too many; each comes with its parts."""
    shown = [row for row, _ in topics[:MOST_ROWS]]
    rest = [part for _, parts in topics[MOST_ROWS:] for part in parts]
    if rest:
        shown.append({**_sum_of(rest, joined), **more_topics(len(topics))})
    return shown


def more_topics(topics: int) -> Row:
    """Return what names the row of all topics that have none of their own."""
    return {"topic": some(topics - MOST_ROWS, "more topic"), "partition": None}


def _sum_in(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(len(row[key]) if isinstance(row[key], list) else row[key] for row in rows)


def summed_note(held: Sequence[object]) -> Iterator[str]:
    """Say that rows are summed up by topic, where they are."""
    if len(held) > MOST_ROWS:
        yield f"Summed up by topic: {some(len(held), 'partition')}; `--output json` has each."


_OUTCOMES: Final = frozenset({"outcome", "logDir", "verdict"})
"""What a sum counts by its values."""


def _sum_of(rows: Sequence[Mapping[str, Any]], joined: Sequence[str]) -> dict[str, Any]:
    """Return the rows of one topic as one: numbers and bytes add up, but not offsets; of all else the first counts."""
    sums: dict[str, Any] = {}
    for key in rows[0]:
        found = [row[key] for row in rows if row[key]]
        if key in joined:
            sums[key] = [entry for entries in found for entry in entries]
        elif key.endswith("Offset"):
            sums[key] = None
        elif not found:
            sums[key] = rows[0][key]
        elif all(isinstance(value, int) for value in found):
            sums[key] = sum(found)
        elif key in _OUTCOMES:
            sums[key] = found[0] if len(set(found)) == 1 else counts_text(found)
        elif all(isinstance(value, dict) and "bytes" in value for value in found):
            sums[key] = {"bytes": sum(value["bytes"] for value in found)}
        else:
            sums[key] = next((value for value in found if not isinstance(value, list)), None)
    return {**sums, "topic": rows[0]["topic"], "partition": f"* ({len(rows)})"}
