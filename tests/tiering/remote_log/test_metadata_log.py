from __future__ import annotations

import re
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.log.log_dir import load_log_dir
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.records import (
    METADATA_TOPIC,
    Event,
    RemoteLogRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentState,
    metadata_partition,
    read_events,
)
from tests.tiering.remote_log.written_records import PARTITION, copied, write_metadata_partition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet


def all_events(log_dir: Path) -> list[Event]:
    return [
        event for one in partitions_of(METADATA_TOPIC, [load_log_dir(log_dir)]).values() for event in read_events(one)
    ]


def test_what_a_broker_wrote_is_a_chain_of_segments_in_the_partition_where_it_belongs(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    tiered = fixture_set("kafka-3.9.1-tiered")
    found = fold_events(all_events(tiered.data))
    assert found.poison == ()
    spans = {str(one.partition.topic_partition): (one.start_offset, one.end_offset) for one in found.partitions}
    assert spans == {"payments-0": (0, 515), "payments-1": (0, 534)}
    for partition in found.partitions:
        assert metadata_partition(partition.partition, 3) == partition.metadata_partition
        assert (partition.gaps, partition.overlaps, partition.orphans, partition.dropped) == ((), (), (), 0)
        folder = f"{partition.partition.topic_partition}-{partition.partition.id}"
        logs = {path.stem for path in (tiered.root / "remote" / "kafka-tiered-storage" / folder).glob("*.log")}
        assert {f"{segment.start_offset:020d}-{segment.id}" for segment in partition.readable} == logs


def in_kafkas_words(record: RemoteLogRecord) -> str:
    """Say a record as Kafka's dump tool does, without what it says of custom metadata."""
    assert not isinstance(record, RemotePartitionDeleteMetadataRecord)
    place = record.remote_log_segment_id.topic_id_partition
    named = (
        f"remoteLogSegmentId=RemoteLogSegmentId{{topicIdPartition={place.id}:{place.topic_partition},"
        f" id={record.remote_log_segment_id.id}}}"
    )
    state = SegmentState(record.remote_log_segment_state).name
    if isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
        event = f"eventTimestampMs={record.event_timestamp_ms}, brokerId={record.broker_id}"
        return f"RemoteLogSegmentMetadataUpdate{{{named}, state={state}, {event}}}"
    epochs = ", ".join(f"{epoch.leader_epoch}={epoch.offset}" for epoch in record.segment_leader_epochs)
    return (
        f"RemoteLogSegmentMetadata{{{named}, startOffset={record.start_offset}, endOffset={record.end_offset},"
        f" brokerId={record.broker_id}, maxTimestampMs={record.max_timestamp_ms},"
        f" eventTimestampMs={record.event_timestamp_ms}, segmentLeaderEpochs={{{epochs}}},"
        f" segmentSizeInBytes={record.segment_size_in_bytes}, state={state}}}"
    )


@pytest.mark.parametrize("name", ["plain", "zstd", "encrypted", "heuristic"])
def test_records_say_what_kafkas_own_dump_tool_says(fixture_set: Callable[[str], FixtureSet], name: str) -> None:
    tiered = fixture_set(f"kafka-3.9.1-aiven-{name}")
    dump = (tiered.root / "remote-log-metadata-dump.txt").read_text(encoding="utf-8")
    told = re.findall(r"offset: (\d+) CreateTime.* payload: (\w+\{.*\})$", dump, flags=re.MULTILINE)
    expected = [(int(offset), re.sub(r" customMetadata=Optional.*?(?=state=)", " ", said)) for offset, said in told]
    found = [(event.offset, in_kafkas_words(event.record)) for event in all_events(tiered.data)]  # type: ignore[arg-type]
    assert expected
    assert found == expected


def test_an_invalid_record_is_an_event_of_its_own_and_hides_no_other(tmp_path: Path) -> None:
    write_metadata_partition(tmp_path, [*copied("a", 0, 9), b"\1\3\0junk", *copied("b", 10, 19)], number=4)
    found = fold_events(all_events(tmp_path))
    assert [(one.metadata_partition, one.offset) for one in found.poison] == [(4, 2)]
    assert [partition.end_offset for partition in found.partitions] == [20]


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_a_batch_that_is_being_written_is_not_there_yet(tmp_path: Path, cut: int) -> None:
    log = write_metadata_partition(tmp_path, copied("a", 0, 9))
    log.write_bytes(log.read_bytes()[:-cut])
    assert [event.offset for event in all_events(tmp_path)] == [0]


def test_a_length_that_goes_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    log = write_metadata_partition(tmp_path, copied("a", 0, 9))
    with log.open("r+b") as file:
        file.seek(8)
        file.write(b"\x7f\xff\xff\xff")
    [partition] = partitions_of(METADATA_TOPIC, [load_log_dir(tmp_path)]).values()
    tracemalloc.start()
    assert list(read_events(partition)) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_changed_byte_is_damage(tmp_path: Path) -> None:
    log = write_metadata_partition(tmp_path, copied("a", 0, 9))
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    with pytest.raises(FormatError, match=r"00000000000000000000\.log: record batch checksum"):
        all_events(tmp_path)


def test_the_same_partition_from_two_log_dirs_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_metadata_partition(tmp_path / name, copied("a", 0, 9))
    with pytest.raises(UsageError, match="__remote_log_metadata-0 lies in"):
        partitions_of(METADATA_TOPIC, [load_log_dir(tmp_path / "a"), load_log_dir(tmp_path / "b")])


def test_records_of_a_partition_name_it(tmp_path: Path) -> None:
    write_metadata_partition(tmp_path, copied("a", 0, 9))
    assert [partition.partition for partition in fold_events(all_events(tmp_path)).partitions] == [PARTITION]
