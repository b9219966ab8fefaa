from __future__ import annotations

import pytest

from resnap.storage.log.message_set import check_legacy_crc, read_legacy_message
from resnap.storage.log.record import read_control_record
from resnap.storage.log.record_batch import NO_TIMESTAMP, check_crc, read_header
from resnap.storage.messages.wire import read_varint, read_varlong
from tests.builders import a_batch
from tests.logs.batch_builder import write_data_batch, write_emptied_batch, write_message_set
from tests.logs.stored_frames import GZIP, ZSTD
from tests.storage.log import golden


def read_records(batch: bytes) -> list[tuple[int, int, bytes]]:
    """Timestamp delta, offset delta and value of each record; keys are null."""
    records, position = [], 61
    while position < len(batch):
        length, position = read_varint(batch, position)
        end = position + length
        timestamp_delta, position = read_varlong(batch, position + 1)
        offset_delta, position = read_varint(batch, position)
        key_length, position = read_varint(batch, position)
        value_length, position = read_varint(batch, position)
        assert (key_length, batch[position + value_length : end]) == (-1, b"\0")
        records.append((timestamp_delta, offset_delta, batch[position : position + value_length]))
        position = end
    return records


def test_records_carry_their_deltas_and_values() -> None:
    batch = a_batch(values=[b"a", b"", b"c" * 200], timestamps=[1000, 1500, 900])
    assert read_records(batch) == [(0, 0, b"a"), (500, 1, b""), (-100, 2, b"c" * 200)]


def test_the_header_says_what_the_records_are() -> None:
    batch = a_batch(offset=40, values=[b"a", b"b"], timestamps=[1000, 900], base_sequence=3, producer_epoch=2,
                    transactional=True, compression=ZSTD, leader_epoch=5)  # fmt: skip
    header = read_header(batch)
    check_crc(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.records_count) == (40, 41, 2)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 3, 4)
    assert (header.is_transactional, header.is_control, header.compression) == (True, False, "zstd")
    assert header.partition_leader_epoch == 5


def test_the_clock_of_the_broker_overrules_that_of_the_client() -> None:
    header = read_header(a_batch(timestamps=[1000, 900], records=2, append_time=5000))
    assert (header.is_log_append_time, header.base_timestamp, header.max_timestamp) == (True, 1000, 5000)


def test_a_batch_without_producer_has_no_sequence() -> None:
    header = read_header(write_data_batch(offset=0, values=[b"v"], timestamps=1))
    assert (header.has_producer, header.producer_epoch, header.base_sequence) == (False, -1, -1)


def test_an_emptied_batch_is_what_kafka_leaves_of_one() -> None:
    batch = write_emptied_batch(offset=100, records=5, timestamp=golden.NOON, producer_id=4242, producer_epoch=3,
                                base_sequence=9, leader_epoch=7)  # fmt: skip
    assert batch == golden.COMPACTED_BATCH


def test_an_emptied_marker_is_a_control_batch_without_record() -> None:
    batch = write_emptied_batch(offset=3, records=1, timestamp=1, producer_id=7, producer_epoch=0, transactional=True,
                                control=True)  # fmt: skip
    assert read_control_record(batch, read_header(batch)) is None


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_side_by_side_have_consecutive_offsets(magic: int) -> None:
    data = write_message_set(offset=10, magic=magic, values=[b"a", b"bb", b"ccc"], timestamp=77)
    position, offsets = 0, []
    while position < len(data):
        message = read_legacy_message(data, position)
        check_legacy_crc(data[position : position + message.size_bytes])
        assert message.timestamp == (77 if magic else NO_TIMESTAMP)
        offsets.append(message.offset)
        position += message.size_bytes
    assert offsets == [10, 11, 12]


@pytest.mark.parametrize(("magic", "first_inner_offset"), [(0, 10), (1, 0)])
def test_a_wrapper_has_the_last_offset_and_inner_messages_those_of_their_magic(
    magic: int, first_inner_offset: int
) -> None:
    wrapper = write_message_set(offset=10, magic=magic, values=[b"a", b"b"], timestamp=77, compression=GZIP)
    message = read_legacy_message(wrapper)
    check_legacy_crc(wrapper)
    assert (message.offset, message.is_compressed, message.size_bytes) == (11, True, len(wrapper))
    inner = write_message_set(offset=first_inner_offset, magic=magic, values=[b"a", b"b"], timestamp=77)
    # Stored gzip has the bytes as they are, so the inner set can be found in it.
    assert inner in wrapper
