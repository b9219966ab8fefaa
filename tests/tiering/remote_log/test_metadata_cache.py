from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.log.names import OffsetRange
from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadataCache, begun_since, fold_events
from resnap.tiering.remote_log.records import (
    PartitionDeleteState,
    RemoteLogRecord,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentState,
)
from tests.tiering.remote_log.written_records import PARTITION, copied, events, started, updated

if TYPE_CHECKING:
    from collections.abc import Iterable

FINISHED, DELETING, DELETED = list(SegmentState)[1:]


def cached(records: Iterable[RemoteLogRecord]) -> RemoteLogMetadataCache:
    (found,) = fold_events(events(records)).partitions
    return found


def names(segments: Iterable[object]) -> list[str]:
    return [segment.id.lstrip("0")[:-1] for segment in segments]  # type: ignore[attr-defined]


def test_segments_one_after_the_other_are_one_chain() -> None:
    found = cached([*copied("a", 0, 9), *copied("b", 10, 19, {0: 10, 2: 15})])
    assert (found.start_offset, found.end_offset, names(found.readable)) == (0, 20, ["a", "b"])
    assert (found.gaps, found.overlaps, found.orphans, found.copying) == ((), (), (), None)


def test_what_began_and_was_followed_by_another_is_an_orphan_and_the_last_may_be_on_its_way() -> None:
    found = cached([started("x", 0, 9), started("y", 0, 9), *copied("a", 0, 9), started("z", 10, 19)])
    assert names(found.orphans) == ["x", "y"]
    assert found.copying is not None
    assert names([found.copying]) == ["z"]
    assert found.end_offset == 10


def test_an_orphan_stays_one_when_what_followed_it_is_deleted() -> None:
    found = cached([started("x", 0, 9), *copied("a", 0, 9), updated("a", DELETING), updated("a", DELETED)])
    assert (names(found.orphans), found.copying) == (["x"], None)


def test_what_others_began_after_the_first_of_some_segments_is_found_whatever_its_outcome() -> None:
    found = cached([started("x", 0, 9), *copied("a", 0, 9), started("y", 10, 19), *copied("b", 10, 19)])
    a, b = (one.id for one in found.readable)
    assert names(begun_since(found, {a, b})) == ["y"]
    assert begun_since(found, {b}) == begun_since(found, ()) == ()


def test_a_gap_and_an_overlap_are_reported() -> None:
    found = cached([*copied("a", 0, 9), *copied("b", 15, 29), *copied("c", 25, 39)])
    assert found.gaps == (OffsetRange(10, 15),)
    assert found.overlaps == (OffsetRange(25, 30),)


def test_a_later_segment_that_reaches_farther_takes_the_places_of_those_that_begin_within_it() -> None:
    found = cached([*copied("a", 0, 9), *copied("b", 10, 19), *copied("c", 0, 24)])
    assert (names(found.readable), names(found.replaced)) == (["c"], ["a", "b"])


def test_a_duplicate_in_the_middle_takes_the_place_of_the_one_with_its_start_alone() -> None:
    found = cached([*copied("a", 0, 9), *copied("b", 10, 19), *copied("c", 0, 9)])
    assert (names(found.readable), names(found.replaced)) == (["c", "b"], ["a"])


def test_older_ranges_may_be_announced_after_newer_ones() -> None:
    found = cached([*copied("b", 10, 19), *copied("a", 0, 9)])
    assert (names(found.readable), found.gaps) == (["a", "b"], ())


def test_what_comes_out_of_order_is_dropped() -> None:
    never_begun = cached([updated("a", FINISHED), *copied("b", 0, 9)])
    assert (never_begun.dropped, names(never_begun.segments)) == (1, ["b"])
    too_soon = cached([started("a", 0, 9), updated("a", DELETED), updated("a", FINISHED), started("a", 0, 9)])
    assert (too_soon.dropped, names(too_soon.readable)) == (2, ["a"])


def test_a_deleted_partition_has_nothing_left() -> None:
    gone = RemotePartitionDeleteMetadataRecord(
        topic_id_partition=PARTITION,
        broker_id=1,
        event_timestamp_ms=4,
        remote_partition_delete_state=PartitionDeleteState.DELETE_PARTITION_FINISHED,
    )
    found = cached([*copied("a", 0, 9), gone])
    assert (found.segments, found.readable_ids) == ((), frozenset())


SEGMENTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 2)),
    min_size=1,
)


@st.composite
def histories(draw: st.DrawFn) -> list[RemoteLogRecord]:
    """Records of a few segments in any order, orderly or not; some span two leader epochs."""
    segments = draw(SEGMENTS)
    records: list[RemoteLogRecord] = []
    for name, step in draw(st.lists(st.tuples(st.sampled_from(sorted(segments)), st.integers(0, 3)), max_size=30)):
        start, length, epoch = segments[name]
        spanning = {epoch: start, epoch + 1: start + length // 2} if length > 3 else {epoch: start}
        state = SegmentState(step)
        records.append(updated(name, state) if step else started(name, start, start + length, spanning))
    return records


@given(histories())
def test_the_fold_says_what_a_plain_reading_of_kafkas_cache_says(records: list[RemoteLogRecord]) -> None:
    folded = fold_events(events(records)).partitions
    states, readable = plain_reading(records)
    assert [one.readable_ids for one in folded] == ([readable] if folded else [])
    assert [{segment.id: segment.state for segment in part.segments} for part in folded] == ([states] if folded else [])


def plain_reading(records: list[RemoteLogRecord]) -> tuple[dict[str, SegmentState], frozenset[str]]:
    """Kafka's rules said once more, with no thought of speed: all offsets of an epoch are looked through each time."""
    first: dict[str, RemoteLogSegmentMetadataRecord] = {}
    states: dict[str, SegmentState] = {}
    epochs: dict[int, dict[int, str]] = {}
    highest: dict[int, int] = {}
    for record in records:
        name = record.remote_log_segment_id.id  # type: ignore[union-attr]
        if isinstance(record, RemoteLogSegmentMetadataRecord):
            if states.get(name, SegmentState.COPY_SEGMENT_STARTED) == SegmentState.COPY_SEGMENT_STARTED:
                first[name], states[name] = record, SegmentState.COPY_SEGMENT_STARTED
            continue
        assert isinstance(record, RemoteLogSegmentMetadataUpdateRecord)
        now, then = states.get(name), SegmentState(record.remote_log_segment_state)
        if now is None or not (then in {now, now + 1} or (now, then) == (0, 2)):
            continue
        states[name] = then
        if then == DELETED:
            del states[name], first[name]
            continue
        told = first[name].segment_leader_epochs
        for number, one in enumerate(told):
            end = told[number + 1].offset - 1 if number + 1 < len(told) else first[name].end_offset
            places = epochs.setdefault(one.leader_epoch, {})
            if then == DELETING and places.get(one.offset) == name:
                del places[one.offset]
            if then == FINISHED:
                reaches = end >= highest.get(one.leader_epoch, -1)
                for start in [start for start in places if start >= one.offset and reaches]:
                    del places[start]
                places[one.offset] = name
                highest[one.leader_epoch] = max(end, highest.get(one.leader_epoch, -1))
    return states, frozenset(name for places in epochs.values() for name in places.values())
