"""The records of ``__transaction_state``: one per step of a transactional id, which is the key.

Version 1 of the value is a flexible message, and is written from ``transaction.version`` 1 on, with 4.0. Version 0, and
the key, are from before those (KIP-482). A record without a value forgets the id.

Source: ``TransactionLog``; ``TransactionLogKey.json`` and ``TransactionLogValue.json``; tagged fields since 4.0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from resnap.storage.log.names import TopicPartition
from resnap.storage.log.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from resnap.storage.messages.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    Tag,
    message_json,
    read_message,
    write_message,
)
from resnap.storage.messages.wire import Cursor
from resnap.tiering.controller.transactions.metadata import TransactionMetadata, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.crc32c import Buffer

TRANSACTION_TOPIC: Final = "__transaction_state"
NEWEST_VERSION: Final = 1
"""Of the value; the key has none but 0."""
_VERSION: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">qhib")
_TIMES: Final = struct.Struct(">qq")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsSchema:
    """The partitions of one topic that take part in a transaction."""

    topic: String
    partition_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """What a transactional id has come to."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: tuple[PartitionsSchema, ...] | None
    """None where no transaction is open."""
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    previous_producer_id: Annotated[Int64, Since(1), Tag(0)] = NO_PRODUCER_ID
    next_producer_id: Annotated[Int64, Since(1), Tag(1)] = NO_PRODUCER_ID
    client_transaction_version: Annotated[Int16, Since(1), Tag(2)] = 0
    next_producer_epoch: Annotated[Int16, Since(1), Tag(3)] = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """One record, decoded."""

    transactional_id: str | None
    """None for a key of a version that is not known, which brokers pass over."""
    value: TransactionLogValue | None = None
    """None where the id is forgotten, and where the value is of a version that is not known."""
    version: int | None = None
    """Of the value; None without one."""

    @property
    def is_unknown(self) -> bool:
        """Whether key or value is of a version from after this release."""
        return self.transactional_id is None or (self.version is not None and self.value is None)

    def json(self) -> dict[str, object] | None:
        """Return the value as Kafka's tools show it."""
        return None if self.value is None or self.version is None else message_json(self.value, self.version)


def decode_record(key: Buffer | None, value: Buffer | None, *, key_at: int = 0, value_at: int = 0) -> StateRecord:
    """Return the record of ``key`` and ``value``; ``key_at`` and ``value_at`` are their file positions.

    Raises:
        FormatError: what is of a known version does not fit its schema to the last byte.

    """
    transactional_id = _decode_key(Cursor(b"" if key is None else key, at=key_at))
    if transactional_id is None or value is None:
        return StateRecord(transactional_id=transactional_id)
    cursor = Cursor(value, at=value_at)
    (version,) = _VERSION.unpack(cursor.take(_VERSION.size, "version of a transaction state"))
    if not 0 <= version <= NEWEST_VERSION:
        return StateRecord(transactional_id=transactional_id, version=version)
    read = _read_plain_value if version == 0 else _read_flexible_value
    found = read(cursor)
    if found.transaction_status not in set(TransactionState):
        raise cursor.wrong("transaction state", "0 to 7", found.transaction_status)
    _check_end(cursor)
    return StateRecord(transactional_id=transactional_id, value=found, version=version)


def encode_record(transactional_id: str, value: TransactionLogValue | None, version: int) -> tuple[bytes, bytes | None]:
    """Return key and value of the log record; ``value`` is None to forget the id.

    Raises:
        ValueError: there is no such version; version 0 leaves out what it does not have, as Kafka does.

    """
    key = _VERSION.pack(0) + _text(transactional_id)
    if value is None:
        return key, None
    if not 0 <= version <= NEWEST_VERSION:
        raise ValueError(f"a transaction state has versions 0 to {NEWEST_VERSION}, not {version}")
    written = _write_plain_value(value) if version == 0 else write_message(value, version)
    return key, _VERSION.pack(version) + written


def transaction_of(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    """Return what a coordinator knows of a transactional id after it has read ``value``."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.transaction_status),
        partitions=frozenset(
            TopicPartition(topic.topic, number)
            for topic in value.transaction_partitions or ()
            for number in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        client_v2=value.client_transaction_version > 1,
    )


def _decode_key(cursor: Cursor) -> str | None:
    (version,) = _VERSION.unpack(cursor.take(_VERSION.size, "version of a transaction state's key"))
    if version != 0:
        return None
    found = _read_text(cursor, "transactional id")
    _check_end(cursor)
    return found


def _read_flexible_value(cursor: Cursor) -> TransactionLogValue:
    return read_message(TransactionLogValue, cursor, NEWEST_VERSION)


def _read_plain_value(cursor: Cursor) -> TransactionLogValue:
    producer_id, epoch, timeout_ms, status = _HEAD.unpack(cursor.take(_HEAD.size, "transaction state"))
    partitions = _read_array(cursor, "topics of a transaction", _read_topic)
    update_ms, start_ms = _TIMES.unpack(cursor.take(_TIMES.size, "times of a transaction"))
    return TransactionLogValue(
        producer_id=producer_id, producer_epoch=epoch, transaction_timeout_ms=timeout_ms, transaction_status=status,
        transaction_partitions=partitions, transaction_last_update_timestamp_ms=update_ms,
        transaction_start_timestamp_ms=start_ms,
    )  # fmt: skip


def _read_topic(cursor: Cursor) -> PartitionsSchema:
    topic = _read_text(cursor, "topic of a transaction")
    numbers = _read_array(cursor, "partitions of a transaction", _read_int32)
    if numbers is None:
        raise cursor.wrong("partitions of a transaction", "an array", None)
    return PartitionsSchema(topic=topic, partition_ids=numbers)


def _read_int32(cursor: Cursor) -> int:
    return int(_LENGTH.unpack(cursor.take(_LENGTH.size, "partition"))[0])


def _read_array(cursor: Cursor, what: str, item: Callable[[Cursor], _Item]) -> tuple[_Item, ...] | None:
    """Return the items that come next; None for null."""
    (count,) = _LENGTH.unpack(cursor.take(_LENGTH.size, what))
    if not -1 <= count <= cursor.remaining:
        raise cursor.wrong(what, f"-1 to {cursor.remaining}", count)
    return None if count < 0 else tuple(item(cursor) for _ in range(count))


def _read_text(cursor: Cursor, what: str) -> str:
    (length,) = _VERSION.unpack(cursor.take(_VERSION.size, what))
    if length < 0:
        raise cursor.wrong(what, "a length", length)
    data = bytes(cursor.take(length, what))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise cursor.wrong(what, "UTF-8", data) from error


def _write_plain_value(value: TransactionLogValue) -> bytes:
    head = _HEAD.pack(value.producer_id, value.producer_epoch, value.transaction_timeout_ms, value.transaction_status)
    times = _TIMES.pack(value.transaction_last_update_timestamp_ms, value.transaction_start_timestamp_ms)
    if value.transaction_partitions is None:
        return head + _LENGTH.pack(-1) + times
    topics = (
        _text(one.topic) + _LENGTH.pack(len(one.partition_ids)) + b"".join(map(_LENGTH.pack, one.partition_ids))
        for one in value.transaction_partitions
    )
    return head + _LENGTH.pack(len(value.transaction_partitions)) + b"".join(topics) + times


def _text(text: str) -> bytes:
    data = text.encode()
    return _VERSION.pack(len(data)) + data


def _check_end(cursor: Cursor) -> None:
    if cursor.remaining:
        raise cursor.wrong("end of a transaction state", "no more bytes", cursor.remaining)
