from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from resnap.replay.scan import header_scan
from resnap.replay.scan.header_scan import SegmentRange
from resnap.replay.spark.header_rows import ROW_SCHEMA, LogSegment, read_header_rows
from resnap.storage.errors import FormatError
from resnap.storage.log.record import LEADER_CHANGE
from resnap.storage.log.record_batch import (
    CONTROL,
    MAGIC_V2,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    RecordBatchHeader,
    read_header,
    seal,
)
from tests.builders import a_batch, a_marker
from tests.examples import examples
from tests.replay.plain_rows import Row, plain_rows
from tests.strategies import START_MS, EmptyControlEvent, LegacyEvent, encode_events, histories

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.strategies import Event


def rows_of(log: Path, *, next_base: int | None = None) -> list[Row]:
    """Return the rows of a segment in the order of its batches; it is taken for one of ``payments-0``."""
    segment = SegmentRange(locator=str(log), base_offset=int(log.stem), next_base_offset=next_base)
    place = LogSegment(topic="payments", partition=0, size_bytes=log.stat().st_size, range=segment)
    batches = list(read_header_rows(place))
    assert all(batch.schema == ROW_SCHEMA for batch in batches)
    rows: list[Row] = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: int(str(row["position"])))


def a_log(directory: Path, data: bytes) -> Path:
    """Write the segment at base offset 0 of ``payments-0``."""
    log = directory / "payments-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(data)
    return log


def one_row(directory: Path, data: bytes) -> Row:
    """Return the only row of a segment."""
    (row,) = rows_of(a_log(directory, data))
    return row


@pytest.mark.parametrize("name", ["kafka-2.7.2", "kafka-2.7.2-odd-timestamps", "kafka-4.1.1-kraft"])
def test_rows_of_brokers_segments_are_what_the_codecs_read(name: str, fixture_set: Callable[[str], FixtureSet]) -> None:
    logs = sorted(fixture_set(name).data.glob("payments-0/*.log"))
    assert len(logs) > 2
    for log in logs:
        assert rows_of(log) == plain_rows([log])


@pytest.mark.parametrize("block_bytes", [61, 140, 1 << 20])
@examples(50)
@given(events=histories(legal=False))
def test_rows_are_what_the_codecs_read_wherever_a_block_ends(block_bytes: int, events: list[Event]) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_scan, "BLOCK_BYTES", block_bytes)
        log = a_log(Path(directory), encode_events(events))
        assert rows_of(log) == plain_rows([log])


def test_a_plain_batch_has_null_where_kafka_writes_minus_one(tmp_path: Path) -> None:
    data = a_batch(producer_id=-1, producer_epoch=-1, base_sequence=-1, leader_epoch=-1, timestamps=-1, records=3)
    row = one_row(tmp_path, data)
    absent = ("producerId", "producerEpoch", "baseSequence", "lastSequence", "partitionLeaderEpoch", "maxTimestamp",
              "controlType", "coordinatorEpoch")  # fmt: skip
    assert {name: row[name] for name in absent} == dict.fromkeys(absent)
    assert (row["recordsCount"], row["lastOffset"]) == (3, 2)


def test_a_markers_row_shows_what_it_decided_and_has_no_sequence(tmp_path: Path) -> None:
    row = one_row(tmp_path, a_marker(commit=False, coordinator_epoch=6, producer_id=2**40, producer_epoch=3))
    assert row == {
        "topic": "payments", "partition": 0, "segment": 0, "position": 0, "sizeInBytes": 78, "magic": 2,
        "baseOffset": 0, "lastOffset": 0, "recordsCount": 1, "maxTimestamp": START_MS, "compression": "none",
        "isTransactional": True, "isControl": True, "controlType": "ABORT", "coordinatorEpoch": 6,
        "producerId": 2**40, "producerEpoch": 3, "baseSequence": None, "lastSequence": None,
        "partitionLeaderEpoch": 0,
    }  # fmt: skip


def test_a_marker_without_its_record_has_no_type(tmp_path: Path) -> None:
    row = one_row(tmp_path, encode_events([EmptyControlEvent(producer_id=7)]))
    assert (row["isControl"], row["controlType"], row["coordinatorEpoch"], row["recordsCount"]) == (True, None, None, 0)


def test_a_control_batch_of_a_quorum_has_no_type(tmp_path: Path) -> None:
    marker = a_marker(producer_id=NO_PRODUCER_ID, producer_epoch=-1)
    header = read_header(marker)
    record = bytearray(marker[61:])
    # Length, attributes, two deltas, the key's length and version stand before the type.
    record[8] = LEADER_CHANGE
    row = one_row(tmp_path, seal(header._replace(attributes=CONTROL), bytes(record)))
    assert (row["isControl"], row["controlType"], row["coordinatorEpoch"]) == (True, None, None)


def test_a_sequence_wraps_to_zero(tmp_path: Path) -> None:
    row = one_row(tmp_path, a_batch(records=3, base_sequence=MAX_SEQUENCE - 1))
    assert (row["baseSequence"], row["lastSequence"]) == (MAX_SEQUENCE - 1, 0)


def test_a_codec_that_kafka_does_not_know_is_shown_by_number(tmp_path: Path) -> None:
    header = RecordBatchHeader(
        base_offset=0, batch_length=0, partition_leader_epoch=0, magic=MAGIC_V2, crc=0, attributes=5,
        last_offset_delta=0, base_timestamp=START_MS, max_timestamp=START_MS, producer_id=NO_PRODUCER_ID,
        producer_epoch=-1, base_sequence=-1, records_count=1,
    )  # fmt: skip
    assert one_row(tmp_path, seal(header, b"?"))["compression"] == "unknown(5)"


def test_of_a_compressed_message_only_the_last_offset_is_known(tmp_path: Path) -> None:
    events = [LegacyEvent(magic=0, records=2), LegacyEvent(magic=1, records=3, compressed=True)]
    rows = rows_of(a_log(tmp_path, encode_events(events)))
    assert [(row["magic"], row["baseOffset"], row["lastOffset"], row["recordsCount"]) for row in rows] == [
        (0, 0, 0, 1), (0, 1, 1, 1), (1, None, 4, None),
    ]  # fmt: skip
    assert [(row["maxTimestamp"], row["compression"]) for row in rows] == [
        (None, "none"), (None, "none"), (START_MS, "gzip"),
    ]  # fmt: skip


def test_rows_before_damage_are_given_and_then_the_file_and_position(tmp_path: Path) -> None:
    whole = a_batch(values=[bytes(2_000_000)])
    damaged = bytearray(a_batch(offset=1))
    damaged[16] = 9
    log = a_log(tmp_path, whole + damaged)
    segment = SegmentRange(locator=str(log), base_offset=0, next_base_offset=2)
    rows = read_header_rows(LogSegment(topic=None, partition=None, size_bytes=0, range=segment))
    assert next(rows).num_rows == 1
    message = f"{log}: record batch magic at byte {len(whole) + 16}: expected 0, 1 or 2, found 9"
    with pytest.raises(FormatError) as caught:
        next(rows)
    assert str(caught.value) == message


def test_a_marker_with_a_flipped_bit_is_damage_of_its_file(tmp_path: Path) -> None:
    first, marker = a_batch(), bytearray(a_marker(offset=1))
    marker[-2] ^= 1
    log = a_log(tmp_path, first + marker)
    with pytest.raises(FormatError, match="record batch checksum") as caught:
        rows_of(log)
    assert (caught.value.file, caught.value.position) == (str(log), len(first))
