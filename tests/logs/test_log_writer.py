from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.checkpoints import read_offset_checkpoint
from resnap.storage.log.indexes import read_time_index
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.message_set import read_legacy_message
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.properties import MetaProperties
from resnap.storage.log.record import ABORT, COMMIT, read_control_record
from resnap.storage.log.record_batch import RecordBatchHeader, check_crc, read_header
from tests.builders import a_batch
from tests.logs.log_writer import PartitionWriter, write_log_dir_files
from tests.storage.log import golden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

NOON = 1_700_000_000_000


def batches(log: bytes) -> Iterator[tuple[int, RecordBatchHeader]]:
    position = 0
    while position < len(log):
        header = read_header(log, position)
        check_crc(log[position : position + header.size_bytes])
        yield position, header
        position += header.size_bytes


def headers(directory: Path) -> list[RecordBatchHeader]:
    return [header for path in sorted(directory.glob("*.log")) for _, header in batches(path.read_bytes())]


def copy_batches(log: bytes, writer: PartitionWriter) -> None:
    position = 0
    while position < len(log):
        if log[position + 16] == 2:
            size = read_header(log, position).size_bytes
            writer.append_batch(log[position : position + size])
        else:
            message = read_legacy_message(log, position)
            size = message.size_bytes
            writer.append_raw(log[position : position + size], last_offset=message.offset,
                              max_timestamp=message.timestamp)  # fmt: skip
        position += size


@pytest.mark.parametrize(
    ("name", "partition", "same_time_index"),
    [
        ("kafka-2.7.2", "payments-0", False),
        ("kafka-2.7.2", "orders-0", True),
        ("kafka-2.7.2", "dash-ed.topic_1-0", True),
        ("kafka-2.7.2-then-3.9.1", "payments-1", False),
        ("kafka-3.9.1-steady", "payments-0", True),
        ("kafka-4.1.1-kraft", "payments-1", True),
    ],
)
def test_the_batches_of_a_real_broker_come_out_in_the_files_of_that_broker(
    name: str, partition: str, *, same_time_index: bool, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    real = fixture_set(name).data / partition
    with PartitionWriter(tmp_path / partition, segment_bytes=16_384, index_interval_bytes=1024) as writer:
        for path in sorted(real.glob("*.log")):
            copy_batches(path.read_bytes(), writer)
    ours = {path.name: path.read_bytes() for path in (tmp_path / partition).iterdir()}
    theirs = {path.name: path.read_bytes() for path in real.iterdir() if path.suffix not in {".snapshot", ".metadata"}}
    assert ours.keys() == theirs.keys()
    for file, content in theirs.items():
        if file.endswith(".timeindex") and not same_time_index:
            # A leader before 3.0 names the record, not its batch, that has the largest timestamp.
            stamps = [entry.timestamp for entry in read_time_index(content)]
            assert [entry.timestamp for entry in read_time_index(ours[file])] == stamps
        else:
            assert ours[file] == content, file


def test_the_batches_of_the_golden_partition_come_out_in_its_files(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path, index_interval_bytes=64, topic_id="AAAAAAAAAAEAAAAAAAAAAg") as writer:
        for name in sorted(golden.PARTITION):
            if name.endswith(".log"):
                writer.roll()
                copy_batches(golden.PARTITION[name], writer)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {name: data for name, data in golden.PARTITION.items() if not name.endswith(".snapshot")}


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path, first_offset=50, leader_epoch=3) as writer:
        offsets = [
            writer.append_data(timestamps=NOON, records=5),
            writer.append_data(timestamps=[NOON, NOON + 2], records=2, producer_id=9, producer_epoch=1, base_sequence=4,
                               transactional=True),
            writer.append_marker(producer_id=9, producer_epoch=1, coordinator_epoch=6, timestamp=NOON + 3, commit=True),
        ]  # fmt: skip
        assert writer.next_offset == 58
    found = headers(tmp_path)
    assert offsets == [50, 55, 57] == [header.base_offset for header in found]
    assert [header.last_offset for header in found] == [54, 56, 57]
    assert [header.producer_id for header in found] == [-1, 9, 9]
    assert [header.records_count for header in found] == [5, 2, 1]
    assert {header.partition_leader_epoch for header in found} == {3}


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_how_the_transaction_ended(tmp_path: Path, *, commit: bool) -> None:
    with PartitionWriter(tmp_path) as writer:
        writer.append_marker(producer_id=9, producer_epoch=1, coordinator_epoch=6, timestamp=NOON, commit=commit)
    batch = (tmp_path / f"{0:020}.log").read_bytes()
    assert read_control_record(batch, read_header(batch)) == (COMMIT if commit else ABORT, 6, NOON)


def test_a_batch_larger_than_a_segment_has_one_for_itself(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path, segment_bytes=10) as writer:
        writer.append_batch(a_batch(offset=0))
        writer.append_batch(a_batch(offset=1))
    assert sorted(int(path.stem) for path in tmp_path.glob("*.log")) == [0, 1]


def test_a_segment_rolls_where_relative_offsets_would_not_fit_the_index(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path) as writer:
        writer.append_batch(a_batch(offset=0))
        writer.append_batch(a_batch(offset=2**31 - 1))
        writer.append_batch(a_batch(offset=2**31))
    assert sorted(int(path.stem) for path in tmp_path.glob("*.log")) == [0, 2**31]


def test_an_empty_segment_is_not_rolled(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path, first_offset=5) as writer:
        assert writer.roll() == 5
        writer.append_data(timestamps=NOON)
        assert writer.roll() == writer.roll() == 6
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{5:020}.log", f"{6:020}.log"]


def test_a_transaction_without_marker_stays_open(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path) as writer:
        writer.append_data(timestamps=NOON, records=4)
        writer.append_data(timestamps=NOON, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert (writer.open_transactions, writer.last_stable_offset) == ({1: 4}, 4)


def test_a_batch_below_the_log_end_is_refused(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path, first_offset=10) as writer, pytest.raises(ValueError, match="below the log end, 10"):
        writer.append_batch(a_batch(offset=9))


def test_raw_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    with PartitionWriter(tmp_path) as writer:
        assert writer.append_raw(b"anything", last_offset=7) == 0
        assert writer.next_offset == 8
    assert (tmp_path / f"{0:020}.log").read_bytes() == b"anything"


def test_the_log_dir_reads_back_as_a_broker_left_it(tmp_path: Path) -> None:
    payments = TopicPartition("payments", 0)
    with PartitionWriter(tmp_path / str(payments), topic_id="AAAAAAAAAAEAAAAAAAAAAg") as writer:
        writer.append_data(timestamps=NOON, records=3)
        writer.roll()
        writer.write_snapshot(3, golden.EMPTY_SNAPSHOT)
    meta = MetaProperties(version=0, node_id=1, cluster_id="z5W3VT5QSCibauYNT3y0NQ", directory_id=None)
    write_log_dir_files(tmp_path, meta=meta, high_watermarks={payments: 3}, log_start_offsets={payments: 1})
    log_dir = load_log_dir(tmp_path)
    (partition,) = log_dir.partitions
    assert (log_dir.broker_id, log_dir.cluster_id, log_dir.clean_shutdown) == (1, "z5W3VT5QSCibauYNT3y0NQ", True)
    assert (partition.boundaries, partition.topic_id) == ((3,), "AAAAAAAAAAEAAAAAAAAAAg")
    assert [snapshot.offset for snapshot in partition.snapshots] == [3]
    assert (partition.high_watermark, partition.recovery_point, partition.log_start_offset) == (3, 3, 1)


def test_a_killed_broker_leaves_no_marker_and_an_older_recovery_point(tmp_path: Path) -> None:
    payments = TopicPartition("payments", 0)
    meta = MetaProperties(version=0, node_id=1, cluster_id=None, directory_id=None)
    write_log_dir_files(tmp_path, meta=meta, high_watermarks={payments: 3}, recovery_points={payments: 0},
                        clean_shutdown=False)  # fmt: skip
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    recovery_points = read_offset_checkpoint((tmp_path / "recovery-point-offset-checkpoint").read_bytes())
    assert recovery_points == {payments: 0}
