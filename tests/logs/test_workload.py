from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from resnap.storage.log.indexes import read_transaction_index
from resnap.storage.log.record import COMMIT, ControlRecord, read_control_record
from resnap.storage.log.record_batch import MAX_SEQUENCE, RecordBatchHeader, check_crc, read_header, wrap_sequence
from tests.logs.log_writer import PartitionWriter
from tests.logs.workload import DAY_MS, Workload, WorkloadResult, generate

if TYPE_CHECKING:
    from pathlib import Path


class Generated(NamedTuple):
    result: WorkloadResult
    data: list[RecordBatchHeader]
    markers: list[tuple[RecordBatchHeader, ControlRecord]]
    directory: Path

    def by_producer(self) -> dict[int, list[RecordBatchHeader]]:
        found = defaultdict(list)
        for header in self.data:
            if header.has_producer:
                found[header.producer_id].append(header)
        return found


def generated(directory: Path, *, seed: int = 1, **overrides: Any) -> Generated:
    with PartitionWriter(directory, segment_bytes=100_000) as writer:
        result = generate(writer, Workload(**{"rounds": 400, "batch_bytes": 200} | overrides), seed=seed)
    data, markers = [], []
    for path in sorted(directory.glob("*.log")):
        log, position = path.read_bytes(), 0
        while position < len(log):
            header = read_header(log, position)
            batch = log[position : position + header.size_bytes]
            check_crc(batch)
            control = read_control_record(batch, header) if header.is_control else None
            if control is None:
                data.append(header)
            else:
                markers.append((header, control))
            position += header.size_bytes
    return Generated(result, data, markers, directory)


def sequence_breaks(log: Generated) -> list[tuple[RecordBatchHeader, RecordBatchHeader]]:
    """Neighbouring batches of a producer and epoch where the second does not go on from the first."""
    return [
        (before, after)
        for batches in log.by_producer().values()
        for before, after in pairwise(batches)
        if before.producer_epoch == after.producer_epoch
        and after.base_sequence != wrap_sequence(before.last_sequence + 1)
    ]


def test_the_result_counts_what_was_written(tmp_path: Path) -> None:
    log = generated(tmp_path)
    assert log.result.data_batches == len(log.data)
    assert log.result.markers == len(log.markers)
    assert log.result.next_offset == max(log.data[-1].last_offset, log.markers[-1][0].last_offset) + 1
    ids = {header.producer_id for header in log.data if header.has_producer}
    assert ids <= set(range(1000, 1000 + log.result.producer_ids))
    assert len(ids) > 12


def test_there_are_producers_of_every_kind(tmp_path: Path) -> None:
    log = generated(tmp_path)
    kinds = {(header.has_producer, header.is_transactional) for header in log.data}
    assert kinds == {(False, False), (True, False), (True, True)}
    assert {control.type for _, control in log.markers} == {0, 1}
    assert len({header.compression for header in log.data}) > 2


def test_equal_seeds_write_equal_bytes_and_others_do_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generated(tmp_path / name, seed=seed)
    a, b, c = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b", "c")
    )  # fmt: skip
    assert a == b
    assert a != c


@pytest.mark.parametrize("start_sequence", [0, MAX_SEQUENCE - 20])
def test_sequences_go_on_within_an_epoch_and_wrap(tmp_path: Path, start_sequence: int) -> None:
    log = generated(tmp_path, start_sequence=start_sequence)
    assert sequence_breaks(log) == []
    wrapped = any(header.last_sequence < header.base_sequence for header in log.data if header.has_producer)
    assert wrapped == (start_sequence > 0)


def test_epochs_rise_and_a_new_epoch_starts_at_sequence_0(tmp_path: Path) -> None:
    log = generated(tmp_path, restart_share=0.2)
    changes = [
        (before, after)
        for batches in log.by_producer().values()
        for before, after in pairwise(batches)
        if before.producer_epoch != after.producer_epoch
    ]
    assert len(changes) > 10
    assert all(after.producer_epoch > before.producer_epoch and after.base_sequence == 0 for before, after in changes)


def test_only_zombies_write_at_an_older_epoch(tmp_path: Path) -> None:
    log = generated(tmp_path, restart_share=0.2, zombie_share=0.5)
    epochs = [[header.producer_epoch for header in batches] for batches in log.by_producer().values()]
    assert any(before > after for batches in epochs for before, after in pairwise(batches))


@pytest.mark.parametrize("transactions_v2", [False, True])
def test_no_producer_writes_other_data_within_its_transaction(tmp_path: Path, *, transactions_v2: bool) -> None:
    log = generated(tmp_path, transactions_v2=transactions_v2, zombie_share=0.3, restart_share=0.1)
    in_transaction = set()
    for header in sorted([*log.data, *(header for header, _ in log.markers)]):
        if header.is_control:
            in_transaction.discard(header.producer_id)
        elif header.is_transactional:
            in_transaction.add(header.producer_id)
        else:
            assert header.producer_id not in in_transaction
    assert in_transaction == set()


def test_with_transactions_v2_each_marker_is_at_the_next_epoch(tmp_path: Path) -> None:
    log = generated(tmp_path, transactions_v2=True, empty_share=0.0, restart_share=0.0)
    last_epochs: dict[int, int] = {}
    compared = 0
    for header in sorted([*log.data, *(header for header, _ in log.markers)]):
        if header.is_control and header.producer_id in last_epochs:
            assert header.producer_epoch == last_epochs[header.producer_id] + 1
            compared += 1
        last_epochs[header.producer_id] = header.producer_epoch
    assert compared > 20


def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.logs.workload.MAX_PRODUCER_EPOCH", 3)
    log = generated(tmp_path, transactions_v2=True, producers=2, transactional_share=1.0, restart_share=0.1)
    assert max(header.producer_epoch for header in log.data) == 2
    assert max(header.producer_epoch for header, _ in log.markers) == 3
    assert log.result.producer_ids > 10


def test_hanging_transactions_are_all_that_stays_open(tmp_path: Path) -> None:
    log = generated(tmp_path, hanging=3)
    assert len(log.result.hanging) == 3
    marked = {header.producer_id for header, _ in log.markers}
    for producer_id, first_offset in log.result.hanging.items():
        assert producer_id not in marked
        assert [header.base_offset for header in log.by_producer()[producer_id]] == [first_offset]
        assert first_offset > log.result.next_offset * 0.8


def test_what_is_open_for_too_long_is_aborted_at_the_next_epoch(tmp_path: Path) -> None:
    log = generated(tmp_path, end_share=0.0, restart_share=0.0, timeout_turns=2, rounds=600)
    timed_out = [header for header, control in log.markers if control.type != COMMIT]
    data_epochs = {(header.producer_id, header.producer_epoch) for header in log.data}
    assert len(timed_out) > 10
    assert all((header.producer_id, header.producer_epoch) not in data_epochs for header in timed_out)


def test_aborted_transactions_are_indexed(tmp_path: Path) -> None:
    log = generated(tmp_path, empty_share=0.0)
    indexed = [txn for path in sorted(tmp_path.glob("*.txnindex")) for txn in read_transaction_index(path.read_bytes())]
    aborted = [header.base_offset for header, control in log.markers if control.type != COMMIT]
    assert [txn.last_offset for txn in indexed] == aborted


def test_coordinator_and_leader_epochs_rise_as_often_as_asked(tmp_path: Path) -> None:
    log = generated(tmp_path, coordinator_changes=3, leader_changes=2)
    coordinators = [control.coordinator_epoch for _, control in log.markers]
    assert coordinators == sorted(coordinators)
    assert set(coordinators) == {0, 1, 2, 3}
    leaders = [header.partition_leader_epoch for header in log.data]
    assert leaders == sorted(leaders)
    assert set(leaders) == {0, 1, 2}


def test_timestamps_stay_within_the_duration(tmp_path: Path) -> None:
    work = Workload(start_ms=1_700_000_000_000, duration_ms=DAY_MS)
    log = generated(tmp_path, start_ms=work.start_ms, duration_ms=work.duration_ms)
    stamps = [header.max_timestamp for header in log.data]
    assert work.start_ms - 20 <= min(stamps)
    assert work.start_ms + DAY_MS * 0.99 < max(stamps) < work.start_ms + DAY_MS


def test_odd_timestamps_come_when_asked_for(tmp_path: Path) -> None:
    stamps = {header.max_timestamp for header in generated(tmp_path, odd_timestamp_share=0.1).data}
    assert min(stamps) == 0
    assert max(stamps) > 1_700_000_000_000 + 10 * DAY_MS


def test_log_append_time_is_the_clock_of_the_broker(tmp_path: Path) -> None:
    log = generated(tmp_path, log_append_time=True, odd_timestamp_share=0.5)
    stamps = [header.max_timestamp for header in log.data]
    assert all(header.is_log_append_time for header in log.data)
    assert stamps == sorted(stamps)


def test_skew_gives_the_first_producers_most_of_the_turns(tmp_path: Path) -> None:
    log = generated(tmp_path, skew=1.5, producers=50, transactional_share=0.0, restart_share=0.0, plain_share=0.0)
    counts = sorted((len(batches) for batches in log.by_producer().values()), reverse=True)
    assert counts[0] > 0.25 * sum(counts)


def test_producers_with_a_lifespan_come_and_go(tmp_path: Path) -> None:
    log = generated(tmp_path, lifespan=0.1, producers=50, transactional_share=0.0, restart_share=0.0)
    lives = [(batches[0].base_offset, batches[-1].base_offset) for batches in log.by_producer().values()]
    assert len(lives) > 40
    assert max(last - first for first, last in lives) < log.result.next_offset / 3


def test_a_log_may_have_no_producers_at_all(tmp_path: Path) -> None:
    log = generated(tmp_path, producers=0, plain_share=1.0)
    assert log.by_producer() == {}
    assert (log.result.data_batches, log.result.producer_ids) == (400, 0)
