"""Segments that brokers deleted although retention kept them, as their own records show it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from resnap.tiering.remote_log.comparison import FindingKind, compare
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.records import SegmentState
from tests.cases import each
from tests.tiering.remote_log.written_records import PARTITION, copied, events, updated

if TYPE_CHECKING:
    from resnap.tiering.remote_log.records import RemoteLogRecord

DELETED = [updated("a", SegmentState.DELETE_SEGMENT_STARTED), updated("a", SegmentState.DELETE_SEGMENT_FINISHED)]
TWO = [*copied("a", 0, 9), *copied("b", 10, 19)]
WEEK_LATER = [replace(one, event_timestamp_ms=604_800_001) for one in DELETED]
"""The records of the segment are of 1."""


@each(
    "records, settings, size_bytes",
    [
        ([*TWO, *DELETED], {"retention.bytes": "200"}, 100),
        ([*TWO, *DELETED], {"retention.bytes": "199"}, 0),
        ([*TWO, *DELETED], {"retention.bytes": "-1"}, 0),
        ([*TWO, *DELETED], {}, 0),
        # What was local only then, and was copied later, counts: it was written before.
        ([*TWO, *DELETED, *copied("c", 20, 29)], {"retention.bytes": "299"}, 0),
        ([*TWO, *DELETED, *copied("c", 20, 29)], {"retention.bytes": "300"}, 100),
        # The records are of 1, the deletion of 3, milliseconds.
        ([*TWO, *DELETED], {"retention.bytes": "200", "retention.ms": "2"}, 0),
        ([*TWO, *DELETED], {"retention.bytes": "200", "retention.ms": "3"}, 100),
        (TWO, {"retention.bytes": "200"}, 0),
        # Where a metadata log has no retention.ms of the topic, Kafka's default of a week may have called for it.
        ([*TWO, *WEEK_LATER], {"retention.bytes": "200"}, 0),
        ([*TWO, *WEEK_LATER], {"retention.bytes": "200", "retention.ms": "-1"}, 100),
    ],
)
def test_a_deletion_that_neither_size_nor_time_called_for_is_named(
    records: list[RemoteLogRecord], settings: dict[str, str], size_bytes: int
) -> None:
    found = compare(
        fold_events(events(records)), [], None, settings={PARTITION.name: settings}, overdue_from_ms=0
    ).findings
    named = [one for one in found if one.kind is FindingKind.DELETED_WITHIN_RETENTION]
    assert sum(one.size_bytes for one in named) == size_bytes
    assert all("[0, 10)" in one.detail and "KAFKA-20732 (3.6.0 to 4.3.1)" in one.detail for one in named)
