"""The rules of the fold, one by one; Kafka's ``ProducerStateManagerTest`` has the same for what replication applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.replay.producer_state import DataBatch, Expiry, Marker, ProducerStates, ServerTime
from resnap.storage.log.producer_snapshot import ProducerEntry
from resnap.storage.log.record_batch import MAX_SEQUENCE
from tests.cases import each

if TYPE_CHECKING:
    from resnap.replay.producer_state import Event

EXPIRY = Expiry(1_000, 100)
NOW_MS = 1_700_000_000_000


def state_after(*events: Event) -> ProducerEntry:
    states = ProducerStates(EXPIRY)
    states.append(events)
    return states.entries[7]


def data(offset: int = 0, **fields: object) -> DataBatch:
    usual = {
        "producer_id": 7, "producer_epoch": 0, "base_sequence": offset, "last_sequence": offset, "base_offset": offset,
        "last_offset": offset, "timestamp": NOW_MS, "transactional": False,
    }  # fmt: skip
    return DataBatch(**usual | fields)


def marker(offset: int, **fields: object) -> Marker:
    usual = {
        "producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 5, "offset": offset, "timestamp": NOW_MS,
        "commit": True,
    }  # fmt: skip
    return Marker(**usual | fields)


def test_a_data_batch_is_the_last_batch_of_its_producer() -> None:
    batch = data(3, base_sequence=10, last_sequence=14, last_offset=7, timestamp=NOW_MS)
    assert state_after(batch) == ProducerEntry(7, 0, 14, 7, 4, NOW_MS, -1, -1)


def test_producers_do_not_touch_each_other() -> None:
    states = ProducerStates(EXPIRY)
    states.append([data(0), data(1, producer_id=8), marker(2, producer_id=8)])
    assert states.entries[7] == state_after(data(0))


def test_transactional_data_opens_a_transaction_where_it_begins() -> None:
    assert state_after(data(4, transactional=True), data(9, transactional=True)).current_txn_first_offset == 4


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_closes_the_transaction_and_keeps_the_last_batch_of_its_epoch(commit: bool) -> None:
    entry = state_after(data(4, transactional=True), marker(9, timestamp=NOW_MS + 5, commit=commit))
    assert entry == ProducerEntry(7, 0, 4, 4, 0, NOW_MS + 5, 5, -1)


def test_a_marker_of_another_epoch_forgets_the_last_batch() -> None:
    entry = state_after(data(4, transactional=True), marker(9, producer_epoch=1))
    assert entry == ProducerEntry(7, 1, -1, -1, 0, NOW_MS, 5, -1)


def test_an_epoch_that_goes_away_and_comes_back_forgets_the_last_batch_as_on_a_leader() -> None:
    entry = state_after(data(4, transactional=True), marker(9, producer_epoch=1), marker(10, producer_epoch=0))
    assert entry == ProducerEntry(7, 0, -1, -1, 0, NOW_MS, 5, -1)


def test_a_marker_alone_makes_an_entry_without_a_batch() -> None:
    assert state_after(marker(9)) == ProducerEntry(7, 0, -1, -1, 0, NOW_MS, 5, -1)


def test_data_of_another_epoch_takes_over_even_if_it_is_older() -> None:
    entry = state_after(data(0, producer_epoch=3), data(1, producer_epoch=1), data(2, producer_epoch=3))
    assert (entry.producer_epoch, entry.last_offset) == (3, 2)
    assert state_after(data(0, producer_epoch=3), marker(1, producer_epoch=1), marker(2, producer_epoch=3)) == (
        ProducerEntry(7, 3, -1, -1, 0, NOW_MS, 5, -1)
    )


def test_a_second_marker_brings_its_own_coordinator_epoch_even_if_it_is_older() -> None:
    entry = state_after(marker(0, coordinator_epoch=9), marker(1, coordinator_epoch=2))
    assert entry.coordinator_epoch == 2


def test_a_sequence_goes_on_at_zero_after_the_largest() -> None:
    last = data(0, base_sequence=MAX_SEQUENCE, last_sequence=MAX_SEQUENCE)
    assert state_after(last, data(1, base_sequence=0, last_sequence=0)).last_sequence == 0


def test_a_timestamp_may_fall_or_be_none() -> None:
    assert state_after(data(0), data(1, timestamp=5)).timestamp == 5
    assert state_after(data(0), data(1, timestamp=-1)).timestamp == -1


def test_plain_data_within_an_open_transaction_is_illegal_from_there_on() -> None:
    states = ProducerStates(EXPIRY)
    states.append([data(0, transactional=True), data(1), data(2), marker(3), data(4)])
    assert states.illegal == {7: 1}


def test_plain_data_after_the_marker_is_legal() -> None:
    states = ProducerStates(EXPIRY)
    states.append([data(0, transactional=True), marker(1), data(2)])
    assert states.illegal == {}


def test_events_may_come_in_any_portions() -> None:
    events = [data(0, transactional=True), marker(1), ServerTime(NOW_MS + 1_100), data(2)]
    whole, portions = ProducerStates(EXPIRY), ProducerStates(EXPIRY)
    whole.append(events)
    for event in events:
        portions.append([event])
    assert portions.entries == whole.entries


REBORN, KEPT = -1, 5


@each(
    ("between", "after", "expected"),
    [
        ([], data(9, timestamp=NOW_MS + 1_100), KEPT),
        ([ServerTime(NOW_MS + 1_099)], data(9, timestamp=NOW_MS + 1_100), KEPT),
        ([ServerTime(NOW_MS + 1_100)], data(9, timestamp=NOW_MS + 1_100), REBORN),
        ([ServerTime(NOW_MS + 1_100)], data(9, timestamp=-1), REBORN),
        ([marker(8, producer_id=8, timestamp=NOW_MS + 1_100)], data(9), REBORN),
        ([data(8, producer_id=8, timestamp=NOW_MS + 9_999)], data(9), KEPT),
        ([data(8, producer_id=8, timestamp=NOW_MS + 1_100, append_time=True)], data(9), REBORN),
        ([], data(9, timestamp=NOW_MS + 1_100, append_time=True), REBORN),
        ([ServerTime(NOW_MS + 1_100)], marker(9), KEPT),
        ([ServerTime(NOW_MS + 9_999), ServerTime(NOW_MS)], data(9), REBORN),
    ],
    ids=[
        "a client's clock alone",
        "a server clock too early by a millisecond",
        "a server clock late enough",
        "the data's own timestamp does not matter",
        "the marker of another producer",
        "another client's clock",
        "the append time of another producer",
        "the append time of the data itself",
        "a marker is no data",
        "the newest clock decides",
    ],
)
def test_a_producer_is_reborn_only_if_a_server_clock_since_its_marker_shows_the_silence(
    between: list[Event], after: Event, expected: int
) -> None:
    assert state_after(data(0, transactional=True), marker(1), *between, after).coordinator_epoch == expected


def test_a_clock_before_the_marker_says_nothing_of_the_silence() -> None:
    assert state_after(ServerTime(NOW_MS + 9_999), marker(1), data(2)).coordinator_epoch == KEPT


def test_data_after_data_is_not_a_rebirth() -> None:
    events = [marker(0), data(1), ServerTime(NOW_MS + 9_999), data(2)]
    assert state_after(*events).coordinator_epoch == KEPT


def test_a_negative_marker_timestamp_causes_no_rebirth() -> None:
    assert state_after(marker(0, timestamp=-1), ServerTime(NOW_MS), data(1)).coordinator_epoch == KEPT


def test_a_reborn_producer_learns_the_next_coordinator_epoch() -> None:
    events = [marker(0), ServerTime(NOW_MS + 1_100), data(1, transactional=True), marker(2, coordinator_epoch=6)]
    assert state_after(*events).coordinator_epoch == 6


def test_an_idle_entry_expires_at_the_expiration_and_not_a_millisecond_before() -> None:
    entry = state_after(data(0))
    assert not EXPIRY.is_expired(entry, NOW_MS + 999)
    assert EXPIRY.is_expired(entry, NOW_MS + 1_000)


def test_an_open_transaction_never_expires() -> None:
    assert not EXPIRY.is_expired(state_after(data(0, transactional=True)), NOW_MS + 10**12)
