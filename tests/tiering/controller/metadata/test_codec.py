from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.messages.wire import write_unsigned_varint
from resnap.tiering.controller.metadata.batches import LoggedRecord, decode_record, encode_record
from resnap.tiering.controller.metadata.records import (
    TYPES_BY_KEY,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    TopicRecord,
    UnknownRecord,
)
from tests.cases import each
from tests.tiering.controller.metadata.record_strategies import records_in_a_version

TOPIC_ID = "YMc4MP1-R6O2oJbmBbBiPg"
SMALLEST_MESSAGE = bytes([0])
"""No fields, and no tagged ones."""


def frame(api_key: int, version: int, message: bytes = SMALLEST_MESSAGE, frame_version: int = 1) -> bytes:
    return b"".join(map(write_unsigned_varint, (frame_version, api_key, version))) + message


@given(records_in_a_version())
def test_what_is_written_is_read(given_record: tuple[MetadataRecord, int]) -> None:
    record, version = given_record
    assert decode_record(encode_record(record, version)) == LoggedRecord(offset=0, message=record, version=version)


@given(records_in_a_version(), st.data())
def test_no_front_of_a_record_is_a_record(given_record: tuple[MetadataRecord, int], data: st.DataObject) -> None:
    whole = encode_record(*given_record)
    front = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(FormatError):
        decode_record(front)


def test_the_bytes_are_those_that_a_broker_wrote() -> None:
    record = ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=1000)
    assert encode_record(record).hex(" ", 4) == "010f0000 00000100 00000000 00000600 00000000 0003e800"


def test_a_tagged_field_is_written_only_where_it_says_something() -> None:
    silent = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6)
    fenced = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6, fenced=-1)
    tag_size_and_value = 3
    assert len(encode_record(fenced, 0)) - len(encode_record(silent, 0)) == tag_size_and_value


def test_null_and_empty_are_different() -> None:
    removed = ConfigRecord(resource_type=4, resource_name="", name="a", value=None)
    emptied = ConfigRecord(resource_type=4, resource_name="", name="a", value="")
    assert decode_record(encode_record(removed)).message == removed
    assert decode_record(encode_record(emptied)).message == emptied


@pytest.mark.parametrize(("api_key", "version"), [(6, 0), (30, 0), (2, 1), (32767, 32767)])
def test_a_type_or_version_that_is_not_known_is_passed_over(api_key: int, version: int) -> None:
    value = frame(api_key, version, b"whatever it is")
    unknown = UnknownRecord(api_key=api_key, version=version, size_bytes=len(value))
    assert decode_record(value).message == unknown


def test_a_tagged_field_that_is_not_known_is_passed_over_and_noted() -> None:
    record = ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=1000)
    value = encode_record(record)[:-1] + bytes([1, 77, 2, 0xAB, 0xCD])
    assert decode_record(value) == LoggedRecord(offset=0, message=record, version=0, unknown_tags=(77,))


def test_a_tagged_field_of_another_size_than_it_says_is_damage() -> None:
    change = PartitionChangeRecord(topic_id=TOPIC_ID, leader=3)
    good = encode_record(change, 0)
    wrong = good.replace(bytes([1, 1, 4]), bytes([1, 1, 3]))
    assert wrong != good
    with pytest.raises(FormatError, match=r"tagged field 1 of PartitionChangeRecord at byte 30: expected an end after"):
        decode_record(wrong)


@each(
    ("value", "complaint"),
    [
        (frame(15, 0, frame_version=0), r"metadata record frame version at byte 0: expected 1, found 0"),
        (frame(32768, 0), r"metadata record type at byte 4: expected at most 32767, found 32768"),
        (frame(20, 0, b"\0\0"), r"end of NoOpRecord at byte 4: expected no more bytes, found 1"),
        (frame(2, 0, b"\0"), r"length of a string at byte 4: expected 0 to 32767, found null"),
        (frame(2, 0, b"\x03\xff\xff"), r"string at byte 6: expected UTF-8"),
        (frame(2, 0, b"\x7fab"), r"string at byte 4: expected 126 bytes, found 2 left"),
        (frame(14, 0, b"\xff\xff\xff\xff\x0f"), r"length of a array at byte 8"),
        (frame(1, 0, b"\0"), r"number at byte 3: expected 4 bytes, found 1 left"),
    ],
)
def test_bad_bytes_are_reported_with_their_position(value: bytes, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        decode_record(value)


def test_a_field_that_a_version_lacks_cannot_be_written_in_it() -> None:
    shutting_down = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6, in_controlled_shutdown=1)
    assert decode_record(encode_record(shutting_down, 1)).message == shutting_down
    with pytest.raises(ValueError, match="BrokerRegistrationChangeRecord of version 0 has no inControlledShutdown"):
        encode_record(shutting_down, 0)


@pytest.mark.parametrize(
    "record",
    [
        ProducerIdsRecord(broker_id=2**31, next_producer_id=0),
        TopicRecord(name="x" * 40_000, topic_id=TOPIC_ID),
        TopicRecord(name="x", topic_id="too-short"),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(record: MetadataRecord) -> None:
    with pytest.raises(ValueError, match=r"does not fit|bytes; at most|is not a uuid"):
        encode_record(record)


def test_a_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="TOPIC_RECORD has versions 0 to 0, not 1"):
        encode_record(TopicRecord(name="x", topic_id=TOPIC_ID), 1)


def test_every_type_has_a_key_and_a_name_of_its_own() -> None:
    assert len(TYPES_BY_KEY) == len({one.name for one in TYPES_BY_KEY.values()}) == 27
