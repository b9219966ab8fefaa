"""A partition leader's producer state: a test for each that Kafka's own ``ProducerStateManagerTest`` has."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from resnap.replay.leader.append_validation import (
    RULES_2_5,
    RULES_3_6,
    RULES_4_0,
    RULES_4_1,
    RULES_4_5,
    AppendOrigin,
    CompletedTransaction,
    EmptiedControl,
    KnownProducer,
    ProducerAppend,
    rules_of,
)
from resnap.replay.leader.known_snapshots import SnapshotFiles
from resnap.replay.producer_state import DataBatch, Expiry, Marker, ProducerStates, ServerTime
from resnap.storage.kafka_errors import KafkaError, RefusedError
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from resnap.storage.log.record_batch import MAX_SEQUENCE, read_header
from tests.logs.batch_builder import write_emptied_batch
from tests.replay.partitions import EXPIRATION_MS, LATE_MS, PID, Leader
from tests.replay.specification import events_of
from tests.strategies import Event, encode_events, histories

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.replay.leader.append_validation import ValidationRules

REPLICATION = AppendOrigin.REPLICATION
COORDINATOR = AppendOrigin.COORDINATOR


def refused(error: KafkaError, call: Callable[[], object]) -> None:
    with pytest.raises(RefusedError) as caught:
        call()
    assert caught.value.error is error


def out_of_order(call: Callable[[], object]) -> None:
    refused(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, call)


def stale(call: Callable[[], object]) -> None:
    refused(KafkaError.INVALID_PRODUCER_EPOCH, call)


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_basic_id_mapping(leader: Leader) -> None:
    leader.data(0, 0)
    leader.data(1, 1)
    out_of_order(lambda: leader.data(1, 2, records=2))
    out_of_order(lambda: leader.data(5, 2))
    leader.data(0, 2, epoch=1)
    stale(lambda: leader.data(2, 3, epoch=0))


def test_append_txn_marker_with_no_producer_state(leader: Leader) -> None:
    leader.end(27, epoch=2)
    assert leader.known().last_sequence == -1
    stale(lambda: leader.data(0, 28, epoch=0))
    out_of_order(lambda: leader.data(17, 28, epoch=2))
    leader.data(0, 28, epoch=2)
    assert (leader.known().entry.producer_epoch, leader.known().last_sequence) == (2, 0)


def test_producer_sequence_wrap_around(leader: Leader) -> None:
    leader.data(MAX_SEQUENCE, 735, epoch=15, origin=REPLICATION)
    leader.data(0, 1235, epoch=15)
    assert (leader.known().first_sequence, leader.known().last_sequence) == (MAX_SEQUENCE, 0)


def test_producer_sequence_with_wrap_around_batch_record(leader: Leader) -> None:
    leader.data(MAX_SEQUENCE - 10, 2000, epoch=15, records=21, origin=REPLICATION)
    known = leader.known()
    assert (known.first_sequence, known.last_sequence) == (MAX_SEQUENCE - 10, 9)
    assert (known.batches[0].first_offset, known.entry.last_offset) == (2000, 2020)


def test_producer_sequence_invalid_wrap_around(leader: Leader) -> None:
    leader.data(MAX_SEQUENCE, 735, epoch=15, origin=REPLICATION)
    out_of_order(lambda: leader.data(1, 1235, epoch=15))


def test_no_validation_on_first_entry_when_loading_log(leader: Leader) -> None:
    leader.data(16, 735, epoch=5, origin=REPLICATION)
    assert (leader.known().first_sequence, leader.known().last_sequence) == (16, 16)
    assert leader.known().entry.last_offset == 735


def test_control_record_bumps_producer_epoch(leader: Leader) -> None:
    leader.data(0, 0)
    leader.end(1, epoch=1, commit=False)
    assert leader.known().entry.producer_epoch == 1
    assert leader.known().batches == ()
    assert not leader.known().entry.has_open_transaction
    leader.data(0, 2, epoch=1)
    assert leader.known().first_sequence == 0


def test_txn_first_offset_metadata_cached(leader: Leader) -> None:
    leader.data(0, 992_342, transactional=True)
    assert leader.unstable == 992_342


def test_has_late_transaction(leader: Leader) -> None:
    leader.data(0, 100, pid=39, transactional=True)
    assert not leader.late
    leader.now += 500
    leader.data(0, 150, pid=57, transactional=True)
    assert not leader.late
    leader.now += LATE_MS - 500 + 1
    assert leader.late
    leader.now += 500
    leader.end(200, pid=39)
    assert leader.late
    leader.end(250, pid=57)
    assert not leader.late


def test_has_late_transaction_initialized_after_reload(leader: Leader) -> None:
    leader.data(0, 100, pid=39, transactional=True)
    leader.manager.take_snapshot()
    leader.now += LATE_MS + 1
    assert leader.late
    assert leader.restarted(0, leader.manager.end_offset).late


def test_has_late_transaction_updated_after_partial_truncation(leader: Leader) -> None:
    leader.data(0, 100, transactional=True)
    leader.now += LATE_MS + 1
    assert leader.late
    leader.manager.truncate_and_reload(0, 80, leader.now)
    assert not leader.late


def test_has_late_transaction_updated_after_full_truncation(leader: Leader) -> None:
    leader.data(0, 100, transactional=True)
    leader.now += LATE_MS + 1
    assert leader.late
    leader.manager.truncate_fully_and_start_at(150)
    assert not leader.late


def test_prepare_update_does_not_mutate(leader: Leader) -> None:
    first = leader.manager.prepare(PID)
    first.append(DataBatch(PID, 0, 0, 5, 15, 20, leader.now, False))
    assert leader.manager.producers == {}
    leader.manager.update(first)
    second = leader.manager.prepare(PID)
    second.append(DataBatch(PID, 0, 6, 10, 26, 30, leader.now, False))
    assert (leader.known().last_sequence, leader.known().entry.last_offset) == (5, 20)
    leader.manager.update(second)
    assert (leader.known().first_sequence, leader.known().last_sequence) == (0, 10)
    assert leader.known().entry.last_offset == 30


def test_update_producer_transaction_state(leader: Leader) -> None:
    leader.data(0, 9)
    append = leader.manager.prepare(PID)
    append.append(DataBatch(PID, 0, 1, 5, 16, 20, leader.now, True))
    append.append(DataBatch(PID, 0, 6, 10, 26, 30, leader.now, True))
    assert append.updated.entry.current_txn_first_offset == 16
    assert list(append.started) == [16]
    ended = append.append(Marker(PID, 0, 15, 40, leader.now, True))
    assert ended == CompletedTransaction(PID, 16, 40, aborted=False)
    entry = append.updated.entry
    assert (append.updated.first_sequence, entry.last_sequence, entry.last_offset) == (1, 10, 30)
    assert (entry.coordinator_epoch, entry.has_open_transaction) == (15, False)


def test_out_of_sequence_after_control_record_epoch_bump(leader: Leader) -> None:
    leader.data(0, 0, transactional=True)
    leader.data(1, 1, transactional=True)
    leader.end(2, epoch=1, commit=False)
    out_of_order(lambda: leader.data(2, 3, epoch=1, transactional=True))
    out_of_order(lambda: leader.data(2, 3, epoch=2, transactional=True))
    leader.data(0, 3, epoch=1, transactional=True)
    assert (leader.known().entry.producer_epoch, leader.known().last_sequence) == (1, 0)


def test_non_transactional_append_with_ongoing_transaction(leader: Leader) -> None:
    leader.data(0, 0, transactional=True)
    refused(KafkaError.INVALID_TXN_STATE, lambda: leader.data(1, 1))
    refused(KafkaError.INVALID_TXN_STATE, lambda: leader.data(1, 1, origin=REPLICATION))


def test_truncate_and_reload_removes_out_of_range_snapshots(leader: Leader) -> None:
    for number in range(5):
        leader.data(number, number)
        leader.manager.take_snapshot()
    leader.manager.truncate_and_reload(1, 3, leader.now)
    assert leader.manager.snapshots.offsets == [2, 3]


def test_take_snapshot(tmp_path: Path) -> None:
    leader = Leader(SnapshotFiles(tmp_path))
    leader.data(0, 0)
    leader.data(1, 1)
    assert leader.manager.take_snapshot() == 2
    (file,) = tmp_path.iterdir()
    assert file.name == segment_name(2, "snapshot")
    assert list(read_snapshot(file.read_bytes()).values()) == leader.manager.entries()


def test_fetch_snapshot_empty_snap_shot(leader: Leader) -> None:
    assert 1 not in leader.manager.snapshots


def test_recover_from_snapshot_unfinished_transaction(leader: Leader) -> None:
    leader.data(0, 0, transactional=True)
    leader.data(1, 1, transactional=True)
    leader.manager.take_snapshot()
    recovered = leader.restarted(0, 3)
    known = recovered.known()
    assert (known.first_sequence, known.last_sequence, known.batches[0].first_offset) == (1, 1, 1)
    assert known.entry.current_txn_first_offset == 0
    recovered.data(2, 2, transactional=True)


def test_recover_from_snapshot_finished_transaction(leader: Leader) -> None:
    leader.data(0, 0, transactional=True)
    leader.data(1, 1, transactional=True)
    leader.end(2, commit=False)
    leader.manager.take_snapshot()
    known = leader.restarted(0, 3).known()
    assert (known.first_sequence, known.last_sequence, known.batches[0].first_offset) == (1, 1, 1)
    assert not known.entry.has_open_transaction


def test_recover_from_snapshot_empty_transaction(leader: Leader) -> None:
    leader.end(0, commit=False)
    leader.manager.take_snapshot()
    entry = leader.restarted(0, 1).known().entry
    assert (entry.timestamp, entry.has_open_transaction) == (leader.now, False)


def test_producer_state_after_fencing_abort_marker(leader: Leader) -> None:
    leader.data(0, 0, transactional=True)
    leader.end(1, epoch=1, commit=False)
    assert leader.known().entry.last_offset == -1
    assert not leader.known().entry.has_open_transaction
    assert leader.manager.remove_expired(leader.now) == ()
    assert PID in leader.manager.producers


def test_remove_expired_pids_on_reload(leader: Leader) -> None:
    leader.data(0, 0, at=0)
    leader.data(1, 1, at=1)
    leader.manager.take_snapshot()
    recovered = leader.restarted(0, 1, at=70_000)
    assert recovered.manager.producers == {}
    recovered.data(2, 2, at=70_001)
    assert (recovered.known().last_sequence, recovered.manager.end_offset) == (2, 3)


def test_accept_append_without_producer_state_on_replica(leader: Leader) -> None:
    leader.data(0, 0, at=0)
    leader.manager.take_snapshot()
    recovered = leader.restarted(0, 0, at=70_000)
    recovered.data(2, 2, at=70_001, origin=REPLICATION)
    assert (recovered.known().first_sequence, recovered.known().last_sequence) == (2, 2)


def test_accept_append_with_sequence_gaps_on_replica(leader: Leader) -> None:
    leader.data(0, 0)
    out_of_order(lambda: leader.data(3, 1))
    assert leader.known().last_sequence == 0
    leader.data(3, 1, origin=REPLICATION)
    assert leader.known().last_sequence == 3


def test_delete_snapshots_before(leader: Leader) -> None:
    snapshots = leader.manager.snapshots
    for number in (0, 1, 2):
        leader.data(number, number)
        if number:
            leader.manager.take_snapshot()
    assert snapshots.offsets == [2, 3]
    snapshots.delete([at for at in snapshots.offsets if at < 3])
    assert snapshots.offsets == [3]
    snapshots.delete([at for at in snapshots.offsets if at < 4])
    assert (snapshots.offsets, leader.store.offsets()) == ([], ())


def test_truncate_fully_and_start_at(leader: Leader) -> None:
    leader.data(0, 0)
    leader.manager.take_snapshot()
    leader.manager.truncate_fully_and_start_at(0)
    assert leader.store.offsets() == ()
    assert leader.manager.producers == {}
    leader.data(0, 0)
    assert leader.manager.take_snapshot() == 1


def test_reload_snapshots(tmp_path: Path) -> None:
    leader = Leader(SnapshotFiles(tmp_path))
    leader.data(1, 1)
    leader.data(2, 2)
    leader.manager.take_snapshot()
    (first,) = tmp_path.iterdir()
    data = first.read_bytes()
    leader.data(3, 3)
    leader.data(4, 4)
    leader.manager.take_snapshot()
    leader.manager.truncate_and_reload(3, 5, leader.now)
    assert leader.manager.snapshots.offsets == [5]
    first.write_bytes(data)
    leader.manager.truncate_fully_and_reload_snapshots()
    assert leader.manager.snapshots.offsets == [3]


def test_first_unstable_offset_after_truncation(leader: Leader) -> None:
    leader.data(0, 99, transactional=True)
    assert leader.unstable == 99
    leader.manager.take_snapshot()
    leader.end(105)
    leader.manager.transactions.replicated_up_to(106)
    assert leader.unstable is None
    leader.manager.take_snapshot()
    leader.data(1, 106)
    leader.manager.truncate_and_reload(0, 106, leader.now)
    assert leader.unstable is None
    leader.manager.truncate_and_reload(0, 100, leader.now)
    assert leader.unstable == 99


def test_load_from_snapshot_retains_non_expired_producers(leader: Leader) -> None:
    leader.data(0, 0, pid=1)
    leader.data(0, 1, pid=2)
    leader.manager.take_snapshot()
    leader.manager.truncate_and_reload(1, 2, leader.now)
    assert {pid: known.entry.last_offset for pid, known in leader.manager.producers.items()} == {1: 0, 2: 1}


def test_skip_snapshot_if_offset_unchanged(leader: Leader) -> None:
    leader.data(0, 0)
    assert leader.manager.take_snapshot() == 1
    assert leader.manager.take_snapshot() is None
    assert leader.manager.snapshots.offsets == [1]


def test_pid_expiration_timeout(leader: Leader) -> None:
    leader.data(0, 1, epoch=5)
    leader.now += EXPIRATION_MS + 1
    assert leader.manager.remove_expired(leader.now) == (PID,)
    leader.data(1, 2, epoch=5)
    assert (leader.known().last_sequence, leader.manager.end_offset) == (1, 3)


def test_first_unstable_offset(leader: Leader) -> None:
    assert leader.undecided is None
    leader.data(0, 99, transactional=True)
    leader.data(0, 105, pid=2, transactional=True)
    assert (leader.undecided, leader.unstable) == (99, 99)
    leader.end(109)
    assert (leader.undecided, leader.unstable) == (105, 99)
    leader.manager.transactions.replicated_up_to(100)
    assert leader.unstable == 99
    leader.manager.transactions.replicated_up_to(110)
    assert leader.unstable == 105
    leader.end(112, pid=2, commit=False)
    assert (leader.undecided, leader.unstable) == (None, 105)
    leader.manager.transactions.replicated_up_to(113)
    assert leader.unstable is None


def test_producers_with_ongoing_transactions_dont_expire(leader: Leader) -> None:
    leader.data(0, 99, transactional=True)
    leader.now += 10 * EXPIRATION_MS
    assert leader.manager.remove_expired(leader.now) == ()
    assert leader.undecided == 99


def test_sequence_not_validated_for_group_metadata_topic(leader: Leader) -> None:
    leader.data(-1, 99, transactional=True, origin=AppendOrigin.COORDINATOR)
    leader.data(-1, 100, transactional=True, origin=AppendOrigin.COORDINATOR)
    assert leader.known().last_sequence == -1


def test_old_epoch_for_control_record(leader: Leader) -> None:
    leader.data(0, 99, epoch=5, transactional=True)
    stale(lambda: leader.end(100, epoch=3))


def test_coordinator_fencing(leader: Leader) -> None:
    leader.data(0, 99, transactional=True)
    leader.end(100, coordinator_epoch=1)
    assert leader.known().entry.coordinator_epoch == 1
    leader.data(1, 101, transactional=True)
    leader.end(102, coordinator_epoch=1)
    leader.end(103, coordinator_epoch=2)
    refused(KafkaError.TRANSACTION_COORDINATOR_FENCED, lambda: leader.end(104, coordinator_epoch=1))
    leader.end(104, coordinator_epoch=1, origin=REPLICATION)
    assert leader.known().entry.coordinator_epoch == 1


def test_coordinator_fenced_after_reload(leader: Leader) -> None:
    leader.data(0, 99, transactional=True)
    leader.end(100, coordinator_epoch=1)
    leader.manager.take_snapshot()
    recovered = leader.restarted(0, 101)
    refused(KafkaError.TRANSACTION_COORDINATOR_FENCED, lambda: recovered.end(101, coordinator_epoch=0))


def falls_back_where_the_newest_snapshot_is(damaged: Callable[[bytes], bytes], directory: Path) -> None:
    """Damage the newest of two snapshots, and see that it is deleted and the older one used."""
    leader = Leader(SnapshotFiles(directory))
    leader.data(0, 0)
    leader.manager.take_snapshot()
    leader.data(1, 1)
    leader.manager.take_snapshot()
    newest = directory / segment_name(2, "snapshot")
    newest.write_bytes(damaged(newest.read_bytes()))
    recovered = leader.restarted(0, 2)
    assert recovered.manager.snapshots.offsets == [1]
    assert not newest.exists()
    assert (recovered.known().last_sequence, recovered.manager.end_offset) == (0, 1)


def test_load_from_empty_snapshot_file(tmp_path: Path) -> None:
    falls_back_where_the_newest_snapshot_is(lambda _: b"", tmp_path)


def test_load_from_truncated_snapshot_file(tmp_path: Path) -> None:
    falls_back_where_the_newest_snapshot_is(lambda data: data[: len(data) // 2], tmp_path)


def test_load_from_corrupt_snapshot_file(tmp_path: Path) -> None:
    falls_back_where_the_newest_snapshot_is(lambda data: data[:-1] + bytes([data[-1] ^ 1]), tmp_path)


def test_append_empty_control_batch(leader: Leader) -> None:
    leader.manager.append([EmptiedControl(PID, 0)], end_offset=16, origin=REPLICATION)
    assert leader.known() == KnownProducer.unknown(PID)
    assert leader.undecided is None


def kept_beside_segments(bases: list[int], directory: Path) -> list[int]:
    """Return which of the snapshots 2, 5 and 42 stay where segments begin at ``bases``."""
    for offset in (5, 2, 42):
        (directory / segment_name(offset, "snapshot")).touch()
    leader = Leader(SnapshotFiles(directory))
    leader.manager.snapshots.delete_strays(bases)
    assert sorted(leader.store.offsets()) == leader.manager.snapshots.offsets
    return leader.manager.snapshots.offsets


def test_remove_stray_snapshots_keep_clean_shutdown_snapshot(tmp_path: Path) -> None:
    assert kept_beside_segments([5], tmp_path) == [5, 42]


def test_remove_all_stray_snapshots(tmp_path: Path) -> None:
    assert kept_beside_segments([42], tmp_path) == [42]


def test_without_a_segment_the_snapshot_of_a_clean_stop_stays(tmp_path: Path) -> None:
    assert kept_beside_segments([], tmp_path) == [42]


def test_remove_and_mark_snapshot_for_deletion(tmp_path: Path) -> None:
    (tmp_path / segment_name(5, "snapshot")).touch()
    leader = Leader(SnapshotFiles(tmp_path))
    assert leader.manager.snapshots.mark_deleted(5)
    assert [path.name for path in tmp_path.iterdir()] == [f"{segment_name(5, 'snapshot')}.deleted"]
    assert leader.manager.snapshots.latest is None


def test_remove_and_mark_snapshot_for_deletion_already_deleted(tmp_path: Path) -> None:
    (tmp_path / segment_name(5, "snapshot")).touch()
    leader = Leader(SnapshotFiles(tmp_path))
    (tmp_path / segment_name(5, "snapshot")).unlink()
    assert not leader.manager.snapshots.mark_deleted(5)
    assert leader.manager.snapshots.latest is None


def verify(leader: Leader, sequence: int, epoch: int = 0) -> tuple[object, int, int]:
    found = leader.manager.verify(PID, sequence=sequence, epoch=epoch, now_ms=leader.now)
    return found.guard, found.lowest_sequence, found.epoch


def test_entry_for_verification(leader: Leader) -> None:
    guard = verify(leader, 0)[0]
    assert verify(leader, 0)[0] is guard
    leader.data(0, 0, transactional=True)
    assert leader.manager.verifications == {}


def test_sequence_and_epoch_in_verification_entry(leader: Leader) -> None:
    guard = verify(leader, 1)[0]
    assert verify(leader, 0) == (guard, 0, 0)
    assert verify(leader, 2, epoch=1) == (guard, 2, 1)
    assert verify(leader, 0, epoch=0) == (guard, 2, 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_throw_out_of_order_sequence_with_verification_sequence_check(enabled: bool) -> None:
    leader = Leader(rules=RULES_3_6)
    leader.settings.verification_enabled = enabled
    found = leader.manager.verify(PID, sequence=0, epoch=0, now_ms=leader.now)
    batch = DataBatch(PID, 0, 4, 4, 0, 0, leader.now, True)
    out_of_order(lambda: leader.manager.append([batch], end_offset=1, guard=found.guard))
    assert leader.manager.verifications[PID] is found


def test_verification_state_entry_expiration(leader: Leader) -> None:
    verify(leader, 0)
    leader.now += EXPIRATION_MS // 2
    leader.manager.remove_expired(leader.now)
    assert leader.manager.verifications
    leader.now += EXPIRATION_MS // 2
    leader.manager.remove_expired(leader.now)
    assert leader.manager.verifications == {}


def test_last_stable_offset_completed_txn(leader: Leader) -> None:
    first, second, third = 992_342, 992_367, 992_399
    for pid, offset in enumerate((first, second, third), start=1):
        leader.data(0, offset, pid=pid, transactional=True)
    transactions = leader.manager.transactions
    for pid, began, ended, stable, unstable in [
        (1, first, third + 15, second, second),
        (3, third, third + 35, second, second),
        (2, second, third + 113, third + 114, None),
    ]:
        completed = CompletedTransaction(pid, began, ended, aborted=False)
        assert transactions.last_stable_offset(completed) == stable
        leader.manager.complete(completed)
        transactions.replicated_up_to(ended + 1)
        assert leader.unstable == unstable


def test_skip_empty_transactions(leader: Leader) -> None:
    leader.data(0, 16, records=5, transactional=True)
    batches = [
        Marker(PID, 0, 0, 21, leader.now, True),
        Marker(PID, 0, 0, 22, leader.now, True),
        Marker(PID, 0, 0, 23, leader.now, False),
        DataBatch(PID, 0, 5, 8, 24, 27, leader.now, True),
        Marker(PID, 0, 0, 28, leader.now, False),
        Marker(PID, 0, 0, 29, leader.now, False),
        DataBatch(PID, 0, 9, 10, 30, 31, leader.now, True),
    ]
    appended = leader.manager.append(batches, end_offset=32)
    assert appended.completed == (
        CompletedTransaction(PID, 16, 21, aborted=False),
        CompletedTransaction(PID, 24, 28, aborted=True),
    )
    leader.manager.transactions.replicated_up_to(32)
    assert leader.unstable == 30


def test_read_write_snapshot(leader: Leader) -> None:
    leader.data(1, 0, pid=1, records=4, transactional=True)
    leader.end(4, pid=11, epoch=12, coordinator_epoch=13, at=123_456)
    entries = leader.manager.entries()
    loaded = read_snapshot(snapshot_bytes(entries))
    assert list(loaded.values()) == entries
    assert KnownProducer.from_snapshot(loaded[11]).batches == ()
    assert KnownProducer.from_snapshot(loaded[1]) == leader.known(1)


# -- what Kafka's own log test has about duplicates, retention and expiry


def test_duplicate_appends(leader: Leader) -> None:
    for sequence in range(0, 18, 3):
        leader.data(sequence, sequence, records=3)
    for sequence in (15, 6, 3):
        duplicate = leader.data(sequence, 18, records=3).duplicate
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (sequence, sequence + 2)
    out_of_order(lambda: leader.data(16, 18, records=2))
    out_of_order(lambda: leader.data(0, 18, records=3))
    assert leader.manager.end_offset == 18


def test_duplicate_append_to_follower(leader: Leader) -> None:
    leader.data(0, 0, origin=REPLICATION)
    assert leader.data(0, 1, origin=REPLICATION).duplicate is None
    assert leader.manager.end_offset == 2


def test_multiple_producers_with_duplicates_in_single_append(leader: Leader) -> None:
    batches = [DataBatch(pid, 0, 0, 0, offset, offset, leader.now, False) for offset, pid in enumerate((1, 2, 1, 2, 3))]
    leader.manager.append(batches, end_offset=5, origin=REPLICATION)
    assert {pid: known.entry.last_offset for pid, known in leader.manager.producers.items()} == {1: 2, 2: 3, 3: 4}


def test_old_producer_epoch(leader: Leader) -> None:
    leader.data(0, 0, epoch=1)
    stale(lambda: leader.data(0, 1, epoch=0))


@pytest.mark.parametrize("rules", [RULES_2_5, RULES_3_6, RULES_4_0])
def test_should_replace_producer_fenced_with_invalid_producer_epoch_in_produce_response(rules: ValidationRules) -> None:
    leader = Leader(rules=rules)
    leader.data(0, 0, epoch=2)
    stale(lambda: leader.data(1, 1, epoch=1))
    stale(lambda: leader.end(2, epoch=1))


def test_allow_non_zero_sequence_on_first_append_non_zero_epoch() -> None:
    leader = Leader(rules=RULES_3_6)
    guard = leader.manager.start_verification(PID, sequence=3, epoch=1, now_ms=leader.now)
    batch = DataBatch(PID, 1, 3, 3, 0, 0, leader.now, True)
    leader.manager.append([batch], end_offset=1, guard=guard)
    assert leader.known().last_sequence == 3


def test_periodic_producer_id_expiration(leader: Leader) -> None:
    leader.settings.expiry = Expiry(200, 100)
    leader.data(0, 0)
    assert leader.manager.remove_expired(leader.now + 100) == ()
    assert leader.manager.remove_expired(leader.now + 199) == ()
    assert leader.manager.remove_expired(leader.now + 200) == (PID,)


def test_producer_id_expiration_on_segment_deletion(leader: Leader) -> None:
    leader.data(0, 0, pid=1)
    leader.data(0, 1, pid=2)
    leader.manager.log_start_incremented(2)
    assert set(leader.manager.producers) == {1, 2}


def test_delete_snapshots_on_increment_log_start_offset(leader: Leader) -> None:
    leader.data(0, 0, pid=1)
    leader.manager.take_snapshot()
    leader.data(0, 1, pid=2)
    leader.manager.take_snapshot()
    leader.manager.log_start_incremented(2)
    assert leader.manager.snapshots.mark_deleted(1)
    assert (leader.manager.snapshots.offsets, set(leader.manager.producers)) == ([2], {1, 2})


def test_producer_id_map_offset_updated_for_non_idempotent_data(leader: Leader) -> None:
    leader.manager.append([], end_offset=1)
    assert leader.manager.take_snapshot() == 1
    assert leader.manager.entries() == []


def test_producer_snapshot_after_segment_roll_on_append(leader: Leader) -> None:
    leader.data(0, 0)
    before = leader.manager.entries()
    rolled_at = leader.manager.take_snapshot()
    leader.data(1, 1)
    assert rolled_at == 1
    assert list(read_snapshot(leader.store.read(1)).values()) == before


def test_producer_id_map_truncate_to(leader: Leader) -> None:
    leader.data(0, 0)
    leader.manager.take_snapshot()
    leader.data(1, 1)
    leader.manager.take_snapshot()
    leader.manager.truncate_and_reload(0, 1, leader.now)
    assert (leader.manager.snapshots.latest, leader.manager.end_offset, leader.known().last_sequence) == (1, 1, 0)


def test_producer_id_map_truncate_fully_and_start_at(leader: Leader) -> None:
    leader.data(0, 0)
    leader.manager.take_snapshot()
    leader.manager.truncate_fully_and_start_at(29)
    assert (leader.manager.snapshots.latest, leader.manager.end_offset) == (None, 29)


def counts_with_all_its_sequences(origin: AppendOrigin) -> None:
    """Append a batch of which compaction has left nothing but its header."""
    leader = Leader()
    header = read_header(
        write_emptied_batch(offset=7, records=3, timestamp=5, producer_id=PID, producer_epoch=0, base_sequence=4)
    )
    assert header.records_count == 0
    batch = DataBatch(PID, 0, 4, header.last_sequence, 7, header.last_offset, 5, False)
    leader.manager.append([batch], end_offset=10, origin=origin)
    assert (leader.known().first_sequence, leader.known().last_sequence, leader.known().entry.last_offset) == (4, 6, 9)


def test_rebuild_producer_id_map_with_compacted_data() -> None:
    counts_with_all_its_sequences(REPLICATION)


def test_rebuild_producer_state_with_empty_compacted_batch() -> None:
    counts_with_all_its_sequences(AppendOrigin.CLIENT)


@pytest.fixture
def of_three_segments(tmp_path: Path) -> Leader:
    """A leader whose log has rolled after each of three batches."""
    leader = Leader(SnapshotFiles(tmp_path))
    for number in range(3):
        leader.data(number, number)
        leader.manager.take_snapshot()
    return leader


def test_retention_deletes_producer_state_snapshots(of_three_segments: Leader) -> None:
    snapshots = of_three_segments.manager.snapshots
    assert snapshots.mark_deleted(1)
    assert snapshots.mark_deleted(2)
    assert snapshots.offsets == [3]
    assert of_three_segments.known().last_sequence == 2


def test_log_start_offset_movement_deletes_snapshots(of_three_segments: Leader) -> None:
    of_three_segments.manager.log_start_incremented(2)
    assert of_three_segments.manager.snapshots.mark_deleted(1)
    assert of_three_segments.manager.snapshots.offsets == [2, 3]
    assert of_three_segments.known().last_sequence == 2


def test_compaction_deletes_producer_state_snapshots(of_three_segments: Leader) -> None:
    snapshots = of_three_segments.manager.snapshots
    assert snapshots.mark_deleted(2), "the segment that began there is now part of the one before"
    assert snapshots.offsets == [1, 3]
    assert not snapshots.mark_deleted(2)


def test_producer_expire_check_after_delete() -> None:
    leader = Leader()
    leader.data(0, 0)
    manager = weakref.ref(leader.manager)
    leader.manager.remove_expired(leader.now)
    del leader
    gc.collect()
    assert manager() is None, "a log that is gone leaves nothing that would check it for expired producers"


def test_loading_log_deletes_producer_state_snapshots_past_log_end_offset(leader: Leader) -> None:
    for number in range(3):
        leader.data(number, number)
        leader.manager.take_snapshot()
    assert leader.restarted(0, 2).manager.snapshots.offsets == [1, 2]
    assert set(leader.store.offsets()) == {1, 2}


def test_multiple_producer_ids_per_memory_record(leader: Leader) -> None:
    batches = [DataBatch(pid, epoch, 0, 0, pid, pid, 5, False) for pid, epoch in enumerate((5, 3, 9), start=1)]
    leader.manager.append(batches, end_offset=4, origin=REPLICATION)
    leader.manager.take_snapshot()
    again = leader.restarted(0, 4, at=5)
    assert again.manager.entries() == leader.manager.entries()
    assert [entry.producer_epoch for entry in again.manager.entries()] == [5, 3, 9]


def test_update_producer_id_map_with_compacted_data(leader: Leader) -> None:
    leader.manager.append([DataBatch(PID, 1, 5, 9, 20, 24, leader.now, False)], end_offset=30, origin=REPLICATION)
    leader.data(10, 30, epoch=1)
    assert leader.known().last_sequence == 10


# -- where releases differ


def test_transactions_are_verified_from_3_6_on() -> None:
    leader = Leader(rules=RULES_3_6)
    refused(KafkaError.INVALID_TXN_STATE, lambda: leader.data(0, 0, transactional=True))
    leader.settings.verification_enabled = False
    leader.data(0, 0, transactional=True)
    assert leader.undecided == 0


def test_a_guard_of_another_verification_does_not_count() -> None:
    leader = Leader(rules=RULES_3_6)
    old = leader.manager.start_verification(PID, sequence=0, epoch=0, now_ms=leader.now)
    leader.end(0)
    leader.manager.start_verification(PID, sequence=0, epoch=0, now_ms=leader.now)
    batch = DataBatch(PID, 0, 0, 0, 1, 1, leader.now, True)
    refused(KafkaError.INVALID_TXN_STATE, lambda: leader.manager.append([batch], end_offset=2, guard=old))


def test_from_4_0_on_a_marker_of_the_next_epoch_leaves_the_verification_of_that_epoch() -> None:
    leader = Leader(rules=RULES_4_0)
    start = leader.manager.start_verification
    first = start(PID, sequence=0, epoch=0, now_ms=leader.now, supports_epoch_bump=True)
    leader.manager.append([DataBatch(PID, 0, 0, 0, 0, 0, leader.now, True)], end_offset=1, guard=first)
    second = start(PID, sequence=0, epoch=1, now_ms=leader.now, supports_epoch_bump=True)
    assert second is not None
    leader.end(1, epoch=1)
    leader.manager.append([DataBatch(PID, 1, 0, 0, 2, 2, leader.now, True)], end_offset=3, guard=second)
    assert leader.undecided == 2


@pytest.mark.parametrize("rules", [RULES_4_0, RULES_4_1])
def test_from_4_1_on_a_producer_of_transactions_v2_without_state_begins_with_0(rules: ValidationRules) -> None:
    leader = Leader(rules=rules)
    guard = leader.manager.start_verification(PID, sequence=5, epoch=0, now_ms=leader.now, supports_epoch_bump=True)
    batch = DataBatch(PID, 0, 5, 5, 0, 0, leader.now, True)
    if rules is RULES_4_1:
        out_of_order(lambda: leader.manager.append([batch], end_offset=1, guard=guard))
    else:
        leader.manager.append([batch], end_offset=1, guard=guard)
        assert leader.known().last_sequence == 5


@pytest.mark.parametrize("rules", [RULES_4_0, RULES_4_1])
def test_from_4_1_on_a_stale_epoch_is_refused_before_it_is_verified(rules: ValidationRules) -> None:
    leader = Leader(rules=rules)
    leader.end(0, epoch=3)
    if rules is RULES_4_1:
        stale(lambda: leader.manager.start_verification(PID, sequence=0, epoch=2, now_ms=leader.now))
    else:
        assert leader.manager.start_verification(PID, sequence=0, epoch=2, now_ms=leader.now) is not None


@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, REPLICATION])
def test_from_4_5_on_a_log_that_never_held_a_record_begins_with_0(origin: AppendOrigin) -> None:
    leader = Leader(rules=RULES_4_5)
    late = DataBatch(PID, 0, 17, 21, 0, 4, leader.now, False)

    def append(batch: DataBatch) -> object:
        return leader.manager.append([batch], end_offset=batch.last_offset + 1, origin=origin)

    if origin is AppendOrigin.CLIENT:
        out_of_order(lambda: append(late))
        append(DataBatch(PID, 0, 0, 16, 0, 16, leader.now, False))
        append(DataBatch(PID, 0, 17, 21, 17, 21, leader.now, False))
        append(DataBatch(PID + 1, 0, 5, 5, 22, 22, leader.now, False))  # the log has held records: any may begin
    else:
        append(late)


def test_the_raft_leader_checks_epochs_but_no_sequences() -> None:
    append = ProducerAppend(KnownProducer.unknown(PID), AppendOrigin.RAFT_LEADER, None)
    append.append(DataBatch(PID, 1, 7, 7, 0, 0, 0, False))
    append.append(DataBatch(PID, 1, 3, 3, 1, 1, 0, False))
    stale(lambda: append.append(DataBatch(PID, 0, 4, 4, 2, 2, 0, False)))


@pytest.mark.parametrize(("release", "taken"), [((4, 1), True), ((4, 2), False), ((4, 4), False)])
def test_from_4_2_on_a_marker_of_the_open_transactions_own_epoch_is_refused(
    release: tuple[int, int], taken: bool
) -> None:
    leader = Leader(rules=rules_of(release))
    leader.manager.append([DataBatch(PID, 3, 0, 0, 0, 0, leader.now, True)], end_offset=1, origin=REPLICATION)
    marker = Marker(PID, 3, 1, 1, leader.now, True)

    def end() -> object:
        return leader.manager.append([marker], end_offset=2, origin=COORDINATOR, transaction_version=2)

    if taken:
        end()
    else:
        stale(end)
        leader.manager.append(
            [marker._replace(producer_epoch=4)], end_offset=2, origin=COORDINATOR, transaction_version=2
        )
        leader.manager.append(
            [marker._replace(producer_epoch=4)], end_offset=3, origin=COORDINATOR, transaction_version=2
        )


def test_rules_are_chosen_by_release() -> None:
    assert rules_of((3, 9)) is RULES_3_6
    assert (rules_of((4, 0)), rules_of((4, 1))) == (RULES_4_0, RULES_4_1)
    assert rules_of((4, 2)) == replace(RULES_4_1, markers_bring_next_epoch=True)
    assert rules_of((4, 4)) == replace(rules_of((4, 2)), markers_end_last_epoch=True)
    assert rules_of((4, 5)) is RULES_4_5
    assert replace(rules_of((2, 8)), verifies_transactions=True) == RULES_3_6
    with pytest.raises(ValueError, match=r"2\.4 is older"):
        rules_of((2, 4))


# -- the same rules as the replay's


@given(histories(epoch_returns=True))
def test_a_follower_knows_what_the_fold_of_its_log_says(events: list[Event]) -> None:
    never = Expiry(2**62, 1)
    fold = ProducerStates(never)
    follower = Leader()
    follower.settings.expiry = never
    for event in events_of(encode_events(events)):
        fold.append([event])
        if not isinstance(event, ServerTime):
            end = (event.offset if isinstance(event, Marker) else event.last_offset) + 1
            follower.manager.append([event], end_offset=end, origin=REPLICATION)
    assert {entry.producer_id: entry for entry in follower.manager.entries()} == fold.entries
