"""Partitions of ``__transaction_state``, written as a test wants them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from resnap.storage.messages.schema import schema_of, write_message
from resnap.tiering.controller.transactions.metadata import TransactionState
from resnap.tiering.controller.transactions.state_log import (
    TRANSACTION_TOPIC,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from resnap.storage.log.names import TopicPartition

NOW_MS = 1_700_000_000_000


def step(
    producer_id: int, state: TransactionState = TransactionState.ONGOING, *partitions: TopicPartition, **more: Any
) -> TransactionLogValue:
    """Return the value of one step."""
    topics = tuple(PartitionsSchema(topic=one.topic, partition_ids=(one.partition,)) for one in partitions)
    facts: dict[str, Any] = {
        "producer_epoch": 0,
        "transaction_timeout_ms": 60_000,
        "transaction_partitions": topics or None,
        "transaction_last_update_timestamp_ms": NOW_MS,
        "transaction_start_timestamp_ms": NOW_MS,
    }
    return TransactionLogValue(producer_id=producer_id, transaction_status=state, **(facts | more))


def encode_record(transactional_id: str, value: TransactionLogValue | None, version: int) -> tuple[bytes, bytes | None]:
    """Return key and value of a log record, without what ``version`` does not have; ``value`` is None to forget."""
    key = b"\0\0" + write_message(TransactionLogKey(transactional_id=transactional_id), 0)
    if value is None:
        return key, None
    if version == 0:
        value = replace(value, **{one.name: one.default for one in schema_of(TransactionLogValue) if one.since})
    return key, version.to_bytes(2, "big") + write_message(value, version)


def write_segment(
    log_dir: Path,
    base_offset: int,
    records: Iterable[tuple[int, str, TransactionLogValue | None]],
    *,
    number: int = 0,
    version: int = 1,
) -> Path:
    """Write a segment with a batch for each of ``records``: offset, transactional id, value."""
    encoded = [(offset, *encode_record(name, value, version)) for offset, name, value in records]
    return write_raw_segment(log_dir, base_offset, encoded, number=number)


def write_raw_segment(
    log_dir: Path, base_offset: int, records: Iterable[tuple[int, bytes, bytes | None]], *, number: int = 0
) -> Path:
    """Write a segment with a batch for each of ``records``: offset, key, value."""
    path = log_dir / f"{TRANSACTION_TOPIC}-{number}" / f"{base_offset:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = bytearray()
    for offset, key, value in records:
        batch = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        batch.append(0, NOW_MS, key, value, [])
        data += offset.to_bytes(8, "big") + bytes(batch.build())[8:]
    path.write_bytes(data)
    return path
