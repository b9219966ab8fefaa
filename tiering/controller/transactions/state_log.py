"""Reads ``__transaction_state`` in a log dir: the state of transactional ids, and who uses a producer id.

A transactional id is in one partition of the topic, by its hash; a broker has the partitions that it is a replica of.
The last record of an id counts, in any segment, so compaction removes nothing that counts.

There is one record per step of a transactional id, which is the key. Version 1 of the value is a flexible message, and
is written from ``transaction.version`` 1 on, with 4.0. Version 0, and the key, are older than flexible messages
(KIP-482). A record without a value removes the id.

Source: ``TransactionStateManager.loadTransactionMetadata``, ``TransactionLog.readTxnRecordKey``;
``TransactionLogKey.json`` and ``TransactionLogValue.json``; tagged fields since 4.0.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from resnap.storage.errors import ResnapError, in_file
from resnap.storage.log.internal_topic import partitions_of, read_partition
from resnap.storage.log.log_dir import load_topic
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
    read_whole,
)
from resnap.storage.messages.wire import Cursor
from resnap.tiering.controller.transactions.metadata import PREPARED, TransactionMetadata, TransactionState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from resnap.storage.crc32c import Buffer
    from resnap.storage.log.partition_dir import PartitionDir, Place

TRANSACTION_TOPIC: Final = "__transaction_state"
NEWEST_VERSION: Final = 1
"""The newest version of the value; the key has none but 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogKey:
    """The transactional id of a record."""

    flexible_since: ClassVar[int] = 1
    transactional_id: String


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsSchema:
    """The partitions of one topic in a transaction."""

    flexible_since: ClassVar[int] = 1
    topic: String
    partition_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    """The state of a transactional id."""

    flexible_since: ClassVar[int] = 1
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
    """None for a key of a version that is not known, which brokers skip."""
    value: TransactionLogValue | None = None
    """None where the id is forgotten, and where the value is of a version that is not known."""
    version: int | None = None
    """The version of the value; None without one."""

    @property
    def is_unknown(self) -> bool:
        """Whether key or value has a version newer than this release."""
        return self.transactional_id is None or (self.version is not None and self.value is None)

    def json(self) -> dict[str, object] | None:
        """Return the value as Kafka's tools show it."""
        return None if self.value is None or self.version is None else message_json(self.value, self.version)


def decode_record(key: Buffer | None, value: Buffer | None, *, key_at: int = 0, value_at: int = 0) -> StateRecord:
    """Return the record of ``key`` and ``value``; ``key_at`` and ``value_at`` are their file positions.

    Raises:
        FormatError: a known version does not fit its schema to the last byte.

    """
    transactional_id = _decode_key(Cursor(b"" if key is None else key, at=key_at))
    if transactional_id is None or value is None:
        return StateRecord(transactional_id=transactional_id)
    cursor = Cursor(value, at=value_at)
    version = cursor.version("version of a transaction state")
    if not 0 <= version <= NEWEST_VERSION:
        return StateRecord(transactional_id=transactional_id, version=version)
    found = read_whole(TransactionLogValue, cursor, version)
    if found.transaction_status not in set(TransactionState):
        raise cursor.wrong("transaction state", "0 to 7", found.transaction_status)
    return StateRecord(transactional_id=transactional_id, value=found, version=version)


def transaction_of(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    """Return a coordinator's state of a transactional id after it has read ``value``."""
    state = TransactionState(value.transaction_status)
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        awaits_markers=state in PREPARED,
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
    version = cursor.version("version of a transaction state's key")
    if version != 0:
        return None
    return read_whole(TransactionLogKey, cursor, version).transactional_id


@dataclass(slots=True, kw_only=True)
class StateHistory:
    """The steps of a transactional id, without a gap up to the last."""

    steps: list[TransactionMetadata] = field(default_factory=list)
    is_whole: bool = True
    """Whether they are all that there were: compaction has removed nothing below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStates:
    """The state of all transactional ids, as their coordinators know it."""

    transactions: Mapping[str, TransactionMetadata] = field(default_factory=dict)
    unknown: int = 0
    """Records of versions that came after this release, which are skipped."""
    histories: Mapping[str, StateHistory] = field(default_factory=dict)
    """The records that are left of each transactional id whose steps were asked for."""

    def by_producer_id(self) -> dict[int, TransactionMetadata]:
        """Return the transaction of each producer id, including a previous and a next id."""
        found: dict[int, TransactionMetadata] = {}
        for transaction in self.transactions.values():
            for producer_id in (transaction.previous_producer_id, transaction.next_producer_id):
                if producer_id != NO_PRODUCER_ID:
                    found.setdefault(producer_id, transaction)
        return found | {transaction.producer_id: transaction for transaction in self.transactions.values()}

    def history_of(self, producer_id: int) -> StateHistory:
        """Return the steps of the transactional id that has a producer id; none if they were not asked for."""
        owner = self.by_producer_id().get(producer_id)
        return self.histories.get("" if owner is None else owner.transactional_id, StateHistory(is_whole=False))


def read_transaction_states(log_dirs: Iterable[Path], *, steps_of: Collection[int] = ()) -> TransactionStates:
    """Return the content of the partitions of ``__transaction_state`` in ``log_dirs``; empty if there are none.

    With the steps of the transactional ids that have one of the producer ids ``steps_of``.

    Raises:
        UsageError: a partition is in two of them, or one is not a directory.
        FormatError, LogDirError: one cannot be read.

    """
    listed = [load_topic(path, TRANSACTION_TOPIC) for path in log_dirs]
    found: dict[str, TransactionMetadata] = {}
    histories: dict[str, StateHistory] = {}
    unknown = 0
    for partition in partitions_of(TRANSACTION_TOPIC, listed).values():
        unknown += _fold(partition, found, histories, steps_of)
    return TransactionStates(transactions=found, unknown=unknown, histories=histories)


def known_states(log_dir: Place, steps_of: Collection[int] = ()) -> TransactionStates:
    """Return what ``__transaction_state`` beside a partition has; nothing if it does not exist or cannot be read."""
    with suppress(ResnapError):
        return read_transaction_states([log_dir] if isinstance(log_dir, Path) else [], steps_of=steps_of)
    return TransactionStates()


def transactional_ids(log_dir: Place) -> dict[int, str]:
    """Return the transactional id of each producer id, if ``__transaction_state`` beside the partition has it."""
    return {number: state.transactional_id for number, state in known_states(log_dir).by_producer_id().items()}


def _fold(
    partition: PartitionDir,
    into: dict[str, TransactionMetadata],
    histories: dict[str, StateHistory],
    steps_of: Collection[int],
) -> int:
    """Apply the last record of each transactional id, and return how many could not be parsed."""
    unknown = next_offset = 0
    here: dict[str, StateHistory] = {}
    is_whole = True
    with in_file(str(partition.path)):
        for placed in read_partition(partition):
            record, at = placed.record, placed.position
            decoded = decode_record(
                record.key, record.value, key_at=at + record.key_position, value_at=at + record.value_position
            )
            if placed.offset != next_offset or decoded.is_unknown:  # any id may have had a step there
                is_whole = False
                here.clear()
            next_offset = placed.offset + 1
            if decoded.is_unknown or decoded.transactional_id is None:
                unknown += 1
            elif decoded.value is None:
                into.pop(decoded.transactional_id, None)
            else:
                step = transaction_of(decoded.transactional_id, decoded.value)
                into[decoded.transactional_id] = step
                if not {step.producer_id, step.previous_producer_id, step.next_producer_id}.isdisjoint(steps_of):
                    here.setdefault(decoded.transactional_id, StateHistory(is_whole=is_whole)).steps.append(step)
    histories |= here
    return unknown
