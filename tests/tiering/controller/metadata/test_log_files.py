from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, TypeAlias

import pytest

from resnap.storage.errors import FormatError, MetadataLogError, UsageError
from resnap.storage.messages.schema import message_json
from resnap.tiering.controller.metadata.batches import LeaderChangeMessage, MetadataBatch, TornTail
from resnap.tiering.controller.metadata.log_files import (
    MetadataLogFiles,
    list_metadata_log,
    read_checkpoint,
    read_metadata_log,
)
from resnap.tiering.controller.metadata.records import (
    TYPES_BY_MESSAGE,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
)
from resnap.tiering.controller.metadata.writer import open_metadata_log
from tests.logs.metadata_checkpoint import checkpoint_bytes
from tests.tiering.controller.metadata.metadata_dump import (
    DumpedBatch,
    DumpedRecord,
    dumped_batches,
    dumped_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

KRAFT = ("kafka-3.9.1-kraft", "kafka-4.1.1-kraft", "kafka-4.4.0-kraft")


def batches(files: MetadataLogFiles) -> list[MetadataBatch]:
    parts = list(read_metadata_log(files))
    assert not any(isinstance(part, TornTail) for part in parts)
    return [part for part in parts if isinstance(part, MetadataBatch)]


def as_dumped(batch: MetadataBatch) -> DumpedBatch:
    return DumpedBatch(
        base_offset=batch.header.base_offset,
        last_offset=batch.header.last_offset,
        leader_epoch=batch.leader_epoch,
        is_control=batch.header.is_control,
        position=batch.position,
        timestamp=batch.timestamp,
        size_bytes=batch.header.size_bytes,
        crc=batch.header.crc,
    )


def records_as_dumped(batch: MetadataBatch) -> list[DumpedRecord]:
    return [
        DumpedRecord(
            offset=record.offset,
            timestamp=batch.timestamp,
            payload={
                "type": TYPES_BY_MESSAGE[type(record.message)].name,
                "version": record.version,
                "data": message_json(record.message, record.version),
            },
        )
        for record in batch.records
    ]


@pytest.mark.parametrize("name", KRAFT)
def test_every_batch_and_record_is_as_kafkas_own_tool_shows_it(name: str, fixture_set: Sets) -> None:
    fixture = fixture_set(name)
    dump = (fixture.root / "metadata-dump.txt").read_text()
    ours, theirs = batches(list_metadata_log(fixture.data)), list(dumped_batches(dump))
    # The brokers up to 4.1.1 went on for a few seconds after the tool had read, and then shut down cleanly.
    assert len(theirs) > 70
    assert [as_dumped(batch) for batch in ours[: len(theirs)]] == theirs
    data = [batch for batch in ours[: len(theirs)] if not batch.header.is_control]
    records = [record for batch in data for record in records_as_dumped(batch)]
    assert records == list(dumped_records(dump))
    later = {type(record.message) for batch in ours[len(theirs) :] for record in batch.records}
    assert later <= {NoOpRecord, BrokerRegistrationChangeRecord, PartitionChangeRecord}


@pytest.mark.parametrize("name", KRAFT)
def test_a_log_begins_with_who_leads(name: str, fixture_set: Sets) -> None:
    message = batches(list_metadata_log(fixture_set(name).data))[0].records[0].message
    assert isinstance(message, LeaderChangeMessage)
    assert message.leader_id == 1


@pytest.mark.parametrize("name", KRAFT)
def test_the_log_dir_and_the_directory_in_it_are_the_same(name: str, fixture_set: Sets) -> None:
    data = fixture_set(name).data
    assert list_metadata_log(data) == list_metadata_log(data / "__cluster_metadata-0")


def test_an_unbroken_log_needs_no_checkpoint(fixture_set: Sets) -> None:
    files = list_metadata_log(fixture_set(KRAFT[0]).data)
    assert len(files.checkpoints) == 6
    assert files.starting_checkpoint() is None


def written(directory: Path, records: int, segment_bytes: int = 300) -> MetadataLogFiles:
    """A log of several segments, one record to a batch."""
    with open_metadata_log(directory, leader_id=1, timestamp=0, segment_bytes=segment_bytes) as log:
        for number in range(1, records):
            log.append([FeatureLevelRecord(name="metadata.version", feature_level=number)], timestamp=number)
    return list_metadata_log(directory)


def test_a_log_without_its_beginning_starts_with_the_oldest_checkpoint_that_reaches_it(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    files = written(directory, 10)
    for segment in files.segments[:2]:
        (directory / segment.path).unlink()
    cut = list_metadata_log(directory)
    assert cut.start_offset == 6
    for end_offset in (5, 7, 9):
        name = f"{end_offset:020d}-0000000001.checkpoint"
        records = [FeatureLevelRecord(name="metadata.version", feature_level=end_offset - 1)]
        (directory / name).write_bytes(checkpoint_bytes(records, epoch=1, timestamp=end_offset - 1))
    found = list_metadata_log(directory)
    starting = found.starting_checkpoint()
    assert starting is not None
    assert starting.end_offset == 7
    offsets = [batch.header.base_offset for batch in batches(found)]
    assert offsets == [0, 1, 2, 7, 8, 9], "three batches of the checkpoint, then what it does not stand for"


def test_a_log_without_its_beginning_and_without_a_checkpoint_that_reaches_it_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    files = written(directory, 10)
    (directory / files.segments[0].path).unlink()
    with pytest.raises(MetadataLogError, match=r"from offset 0 to 3 are missing: .* and there is no checkpoint"):
        read_metadata_log(list_metadata_log(directory))
    early = directory / f"{2:020d}-0000000001.checkpoint"
    early.write_bytes(checkpoint_bytes([], epoch=1, timestamp=1))
    with pytest.raises(MetadataLogError, match=r"offset 2 to 3 are missing: .* and the newest checkpoint ends at 2"):
        read_metadata_log(list_metadata_log(directory))


def test_a_missing_segment_in_between_is_reported(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    files = written(directory, 10)
    (directory / files.segments[1].path).unlink()
    with pytest.raises(MetadataLogError, match=r"06\.log: begins at offset 6, but the segment before it ends at 3"):
        list(read_metadata_log(list_metadata_log(directory)))


def test_a_leader_epoch_never_goes_back(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    written(directory, 3)
    written(directory, 3)
    log = max(directory.glob("*.log"))
    data = bytearray(log.read_bytes())
    data[15] = 0  # the leader epoch is not under the checksum
    log.write_bytes(data)
    with pytest.raises(MetadataLogError, match=r"the batch at byte 0 is of leader epoch 0, the one before it of"):
        list(read_metadata_log(list_metadata_log(directory)))


def test_a_checkpoint_alone_is_a_log(fixture_set: Sets, tmp_path: Path) -> None:
    files = list_metadata_log(fixture_set(KRAFT[1]).data)
    shutil.copy(files.checkpoints[-1].path, tmp_path)
    assert len(batches(list_metadata_log(tmp_path))) > 1


@pytest.mark.parametrize(("first", "last", "complaint"), [(0, -1, "not end with the footer"), (1, 9, "gap")])
def test_a_checkpoint_that_was_never_finished_is_refused(
    first: int, last: int, complaint: str, fixture_set: Sets, tmp_path: Path
) -> None:
    whole = list_metadata_log(fixture_set(KRAFT[0]).data).checkpoints[-1]
    found = list(read_checkpoint(whole.path))
    cut = tmp_path / whole.path.name
    end = found[last].position if last < 0 else whole.path.stat().st_size
    cut.write_bytes(whole.path.read_bytes()[found[first].position : end])
    expected = (
        (MetadataLogError, complaint) if first == 0 else (FormatError, "base offset of a metadata batch at byte 0")
    )
    with pytest.raises(expected[0], match=expected[1]):
        list(read_checkpoint(cut))


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path / "__cluster_metadata-0", 3)
    with pytest.raises(MetadataLogError, match="does not begin with the header of a checkpoint"):
        list(read_checkpoint(tmp_path / "__cluster_metadata-0" / files.segments[0].path))


def test_a_place_without_a_metadata_log_is_reported(tmp_path: Path, fixture_set: Sets) -> None:
    with pytest.raises(UsageError, match="holds no metadata log"):
        list_metadata_log(fixture_set("kafka-2.7.2-no-producers").data)
    with pytest.raises(UsageError, match="no such directory"):
        list_metadata_log(tmp_path / "nowhere")


def test_the_directory_of_another_topic_is_no_damaged_metadata_log(fixture_set: Sets) -> None:
    with pytest.raises(UsageError, match="is a partition of payments, and no metadata log"):
        list_metadata_log(fixture_set(KRAFT[0]).data / "payments-0")


def test_a_file_is_not_a_place_of_a_metadata_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a directory"):
        list_metadata_log(tmp_path / "file")
