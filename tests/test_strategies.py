from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import a_partition
from tests.logs.log_writer import PartitionWriter
from tests.strategies import (
    DataEvent,
    EmptyControlEvent,
    Event,
    LegacyEvent,
    MarkerEvent,
    PlainEvent,
    encode_events,
    histories,
    is_legal,
    write_events,
)

if TYPE_CHECKING:
    from pathlib import Path

EVENTS: list[Event] = [
    DataEvent(producer_id=1, records=3, transactional=True),
    PlainEvent(records=2, append_time=True),
    LegacyEvent(magic=0, records=2, compressed=True),
    MarkerEvent(producer_id=1, commit=False),
    EmptyControlEvent(producer_id=1),
    DataEvent(producer_id=1, base_sequence=3, records=4, emptied=True),
    LegacyEvent(records=2),
]


def test_events_encode_to_the_segment_that_a_writer_makes_of_them(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path, first_offset=5, leader_epoch=2) as writer:
        offsets = write_events(writer, EVENTS)
    assert offsets == [5, 8, 10, 12, 13, 14, 18]
    assert (tmp_path / f"{5:020}.log").read_bytes() == encode_events(EVENTS, first_offset=5, leader_epoch=2)


def test_a_partition_has_a_segment_for_each_list_of_events(tmp_path: Path) -> None:
    partition = a_partition(tmp_path, [EVENTS[:2], EVENTS[2:4], []], name="orders-3")
    assert partition == tmp_path / "orders-3"
    assert [int(path.stem) for path in sorted(partition.glob("*.log"))] == [0, 5, 8]


@given(histories())
def test_histories_are_legal_unless_asked_otherwise(events: list[Event]) -> None:
    assert is_legal(events)


def features(events: list[Event]) -> set[str]:
    data = [event for event in events if isinstance(event, DataEvent)]
    epochs = [(event.producer_id, event.producer_epoch) for event in data]
    found = {
        "illegal": not is_legal(events),
        "emptied marker": any(isinstance(event, EmptyControlEvent) for event in events),
        "emptied data": any(event.emptied for event in data),
        "legacy": any(isinstance(event, LegacyEvent) for event in events),
        "no timestamp": any(event.timestamp == -1 for event in events),
        "falling timestamps": any(before.timestamp > after.timestamp >= 0 for before, after in pairwise(events)),
        "a later epoch": any(epoch > 0 for _, epoch in epochs),
        "an epoch returns": any(
            first == third and first[0] == second[0] and second[1] > first[1]
            for first, second, third in zip(epochs, epochs[1:], epochs[2:], strict=False)
        ),
        "a sequence wraps": any(event.base_sequence + event.records > 2**31 for event in data),
        "abort": any(isinstance(event, MarkerEvent) and not event.commit for event in events),
    }  # fmt: skip
    return {name for name, is_there in found.items() if is_there}


@pytest.mark.slow
def test_histories_reach_every_corner() -> None:
    reached = set()

    @settings(derandomize=True, database=None, max_examples=300)
    @given(histories(legal=False, min_events=5))
    def collect(events: list[Event]) -> None:
        reached.update(features(events))

    collect()
    assert reached == {
        "illegal", "emptied marker", "emptied data", "legacy", "no timestamp", "falling timestamps", "a later epoch",
        "an epoch returns", "a sequence wraps", "abort",
    }  # fmt: skip


@given(histories(odd_timestamps=False, epoch_returns=False))
def test_timestamps_rise_and_epochs_do_not_return_where_that_is_asked_for(events: list[Event]) -> None:
    assert "an epoch returns" not in features(events)
    stamps = [event.timestamp for event in events]
    assert stamps == sorted(stamps)


@given(st.data())
def test_a_history_keeps_its_bounds(data: st.DataObject) -> None:
    events = data.draw(histories(min_events=2, max_events=5, producer_ids=(8, 9)))
    assert 2 <= len(events) <= 5
    ids = {event.producer_id for event in events if isinstance(event, DataEvent | MarkerEvent | EmptyControlEvent)}
    assert ids <= {8, 9}
