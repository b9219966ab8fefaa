"""The files of one partition, as Kafka's storage engine left them together, say the same thing."""

from __future__ import annotations

from resnap.storage.log.checkpoints import LeaderEpoch, read_leader_epochs, write_leader_epochs
from resnap.storage.log.indexes import read_transaction_index
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.log.properties import PartitionMetadata, read_partition_metadata, write_partition_metadata
from tests.storage.log import golden


def test_leader_epoch_checkpoint_reads_and_writes_byte_by_byte() -> None:
    data = golden.PARTITION["leader-epoch-checkpoint"]
    assert read_leader_epochs(data) == (LeaderEpoch(0, 0),)
    assert write_leader_epochs(read_leader_epochs(data)) == data


def test_partition_metadata_reads_and_writes_byte_by_byte() -> None:
    data = golden.PARTITION["partition.metadata"]
    assert read_partition_metadata(data) == PartitionMetadata(version=0, topic_id="AAAAAAAAAAEAAAAAAAAAAg")
    assert write_partition_metadata(read_partition_metadata(data)) == data


def test_aborted_transaction_is_open_in_the_snapshot_before_its_marker_and_closed_after() -> None:
    (aborted,) = read_transaction_index(golden.PARTITION["00000000000000000007.txnindex"])
    at_7, at_12 = (read_snapshot(golden.PARTITION[name])[aborted.producer_id] for name in golden.PARTITION_SNAPSHOTS)
    assert at_7.current_txn_first_offset == aborted.first_offset
    assert not at_12.has_open_transaction
    assert at_12.coordinator_epoch == golden.PARTITION_MARKER.coordinator_epoch


def test_last_data_batch_of_each_producer_is_in_the_snapshot_at_the_log_end() -> None:
    headers = [header for segment in golden.PARTITION_HEADERS.values() for header in segment if not header.is_control]
    last = {header.producer_id: header for header in headers}
    at_12 = read_snapshot(golden.PARTITION["00000000000000000012.snapshot"])
    assert {entry.producer_id: (entry.last_sequence, entry.last_offset) for entry in at_12.values()} == {
        header.producer_id: (header.last_sequence, header.last_offset) for header in last.values()
    }
