from __future__ import annotations

import pytest

from resnap.storage.log.message_set import check_legacy_crc, read_legacy_message
from resnap.storage.log.record import read_control_record
from resnap.storage.log.record_batch import NO_TIMESTAMP, read_header
from tests.logs.batch_builder import write_emptied_batch, write_message_set
from tests.logs.stored_frames import GZIP
from tests.storage.log import golden


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
