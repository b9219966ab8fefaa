"""What a store is told of topics and of their retention: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest

from resnap.storage.errors import FormatError
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.shipping.notes import (
    UNKNOWN,
    RetentionNote,
    TopicSettings,
    keep_topic,
    read_retained,
    read_topic,
    write_retained,
)

SETTINGS = TopicSettings(partitions=12, config={"retention.ms": "604800000", "note": "\x1f"})
RETAINED = RetentionNote(log_start_offset=1_000, last_base_offset=900, last_log_bytes=4_096)
OLD_SETTINGS = b'{"config": {"retention.ms": "604800000", "note": "\\u001f"}, "partitions": 12}'
OLD_RETAINED = b'{"log_start_offset": 1000, "last_base_offset": 900, "last_log_bytes": 4096}'


@pytest.fixture
def store(tmp_path: object) -> MemoryObjectStore:
    return MemoryObjectStore(f"notes-{tmp_path}")


def test_what_is_written_is_read_and_a_changed_bit_is_named_until_it_is_written_again(store: MemoryObjectStore) -> None:
    keep_topic(store, "topic", SETTINGS)
    write_retained(store, "retained", RETAINED)
    assert (read_topic(store, "topic"), read_retained(store, "retained")) == (SETTINGS, RETAINED)
    for key, read in (("topic", read_topic), ("retained", read_retained)):
        data = store.get(key)
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            store.put(key, flipped)
            with pytest.raises(
                FormatError, match=f"{store.url}/{key}: note '{key}' .*checksum covers, found"
            ) as raised:
                read(store, key)
            assert raised.value.hint
    keep_topic(store, "topic", SETTINGS)
    write_retained(store, "retained", RETAINED)
    assert (read_topic(store, "topic"), read_retained(store, "retained")) == (SETTINGS, RETAINED)


def test_what_was_written_without_checksum_is_read(store: MemoryObjectStore) -> None:
    store.put("topic", OLD_SETTINGS)
    store.put("retained", OLD_RETAINED)
    assert (read_topic(store, "topic"), read_retained(store, "retained")) == (SETTINGS, RETAINED)


@pytest.mark.parametrize("data", [b"", b"[]", b'"topic"', b"7", b'{"topic": {}}', b'{"retained": {}, "crc32c": ""}'])
def test_what_is_no_note_is_an_error_and_none_is_none(store: MemoryObjectStore, data: bytes) -> None:
    assert (read_topic(store, "note"), read_retained(store, "note")) == (UNKNOWN, None)
    store.put("note", data)
    for read in (read_topic, read_retained):
        with pytest.raises(FormatError):
            read(store, "note")
