from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.tiering.remote_log.records import (
    PartitionDeleteState,
    RemoteLogRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpoch,
    SegmentState,
    TopicIdPartition,
    decode_record,
    encode_record,
)
from tests.cases import each
from tests.tiering.controller.metadata.record_strategies import messages

PARTITION = TopicIdPartition(name="t", id="AAAAAAAAAAEAAAAAAAAAAg", partition=3)
SEGMENT = RemoteLogSegmentId(topic_id_partition=PARTITION, id="ESIzRFVmd4iZqrvM3e7_AA")
STARTED = RemoteLogSegmentMetadataRecord(
    remote_log_segment_id=SEGMENT,
    start_offset=10,
    end_offset=29,
    broker_id=5,
    max_timestamp_ms=1_700_000_000_123,
    event_timestamp_ms=1_700_000_001_000,
    segment_leader_epochs=(
        SegmentLeaderEpoch(leader_epoch=0, offset=10),
        SegmentLeaderEpoch(leader_epoch=2, offset=15),
    ),
    segment_size_in_bytes=1048,
)
FINISHED = RemoteLogSegmentMetadataUpdateRecord(
    remote_log_segment_id=SEGMENT,
    broker_id=5,
    event_timestamp_ms=1_700_000_002_000,
    remote_log_segment_state=SegmentState.COPY_SEGMENT_FINISHED,
)
DELETED = RemotePartitionDeleteMetadataRecord(
    topic_id_partition=PARTITION,
    broker_id=5,
    event_timestamp_ms=1_700_000_003_000,
    remote_partition_delete_state=PartitionDeleteState.DELETE_PARTITION_MARKED,
)
SEGMENT_BYTES = "0274000000000000000100000000000000020000000300112233445566778899aabbccddeeff0000"
STARTED_BYTES = (
    f"010000{SEGMENT_BYTES}000000000000000a000000000000001d000000050000018bcfe5687b0000018bcfe56be8"
    "0300000000000000000000000a0000000002000000000000000f0000000418000000"
)
GOLDEN: dict[str, tuple[RemoteLogRecord, str]] = {
    "started": (STARTED, STARTED_BYTES),
    "no transactions": (replace(STARTED, txn_index_empty=True), f"{STARTED_BYTES[:-2]}01000101"),
    "finished": (FINISHED, f"010100{SEGMENT_BYTES}000000050000018bcfe56fd0000100"),
    "custom": (
        replace(FINISHED, custom_metadata=b"\1\2\3"),
        f"010100{SEGMENT_BYTES}000000050000018bcfe56fd0040102030100",
    ),
    "deleted": (
        DELETED,
        f"010200{SEGMENT_BYTES[:46]}000000050000018bcfe573b80000",
    ),
}
"""What Kafka's own serializer makes of the same values."""


def started() -> st.SearchStrategy[Any]:
    """Any first record that a broker could have written."""
    epochs = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(
        lambda found: tuple(SegmentLeaderEpoch(leader_epoch=epoch, offset=epoch) for epoch in sorted(found))
    )
    offsets = st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)).map(sorted)
    return st.builds(
        lambda record, epochs, offsets: replace(
            record,
            remote_log_segment_id=replace(record.remote_log_segment_id, topic_id_partition=PARTITION),
            start_offset=offsets[0],
            end_offset=offsets[1],
            segment_leader_epochs=epochs,
            remote_log_segment_state=0,
        ),
        messages(RemoteLogSegmentMetadataRecord, 0),
        epochs,
        offsets,
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_are_those_that_kafka_writes(name: str) -> None:
    record, expected = GOLDEN[name]
    assert encode_record(record).hex() == expected
    assert decode_record(bytes.fromhex(expected)) == record


@given(started())
def test_what_is_written_is_read(record: RemoteLogRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(started(), st.data())
def test_no_front_of_a_record_is_a_record(record: RemoteLogRecord, data: st.DataObject) -> None:
    whole = encode_record(record)
    with pytest.raises(FormatError):
        decode_record(whole[: data.draw(st.integers(0, len(whole) - 1))])


@each(
    ("record", "complaint"),
    [
        (replace(STARTED, remote_log_segment_state=1), "state of a first record"),
        (replace(STARTED, segment_leader_epochs=()), "leader epochs"),
        (replace(STARTED, segment_leader_epochs=STARTED.segment_leader_epochs[::-1]), "leader epochs"),
        (replace(STARTED, start_offset=30), "offsets"),
        (replace(STARTED, start_offset=-1), "offsets"),
        (replace(FINISHED, remote_log_segment_state=4), "segment state"),
        (replace(FINISHED, remote_log_segment_state=0), "state of an update"),
        (replace(DELETED, remote_partition_delete_state=3), "deletion state"),
        (replace(DELETED, topic_id_partition=replace(PARTITION, id="A" * 22)), "partition"),
    ],
)
def test_what_a_brokers_reader_dies_of_cannot_be_written(record: RemoteLogRecord, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        encode_record(record)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        bytes.fromhex(STARTED_BYTES) + b"\0",
        bytes([1, 3, 0]) + bytes.fromhex(STARTED_BYTES)[3:],
        bytes([1, 0, 1]) + bytes.fromhex(STARTED_BYTES)[3:],
        bytes([0]) + bytes.fromhex(STARTED_BYTES)[1:],
    ],
    ids=["tombstone", "empty", "more", "snapshot record", "later version", "other frame"],
)
def test_what_a_brokers_reader_dies_of_cannot_be_read(value: bytes | None) -> None:
    with pytest.raises(FormatError):
        decode_record(value)
