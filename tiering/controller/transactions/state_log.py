"""What ``__transaction_state`` in a log dir says of transactional ids, and so who holds a producer id.

A transactional id is in one partition of the topic, by its hash; a broker has those partitions that it is a replica of.
The last record of an id counts, whatever segment it is in, so compaction takes nothing away that counts.

Source: ``TransactionStateManager.loadTransactionMetadata``, ``TransactionLog.readTxnRecordKey``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.storage.errors import ResnapError, in_file
from resnap.storage.log.internal_topic import partitions_of, read_partition
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.record_batch import NO_PRODUCER_ID
from resnap.tiering.controller.transactions.state_records import TRANSACTION_TOPIC, decode_record, transaction_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resnap.storage.log.partition_dir import PartitionDir, Place
    from resnap.tiering.controller.transactions.metadata import TransactionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionStates:
    """Transactional ids, as their coordinators know them."""

    transactions: Mapping[str, TransactionMetadata] = field(default_factory=dict)
    unknown: int = 0
    """Records of versions that came after this release, which are passed over."""

    def by_producer_id(self) -> dict[int, TransactionMetadata]:
        """Return the transaction of each producer id; one that was just given up, or is to come, counts too."""
        found: dict[int, TransactionMetadata] = {}
        for one in self.transactions.values():
            for producer_id in (one.previous_producer_id, one.next_producer_id):
                if producer_id != NO_PRODUCER_ID:
                    found.setdefault(producer_id, one)
        return found | {one.producer_id: one for one in self.transactions.values()}


def read_transaction_states(log_dirs: Iterable[Path]) -> TransactionStates:
    """Return what the partitions of ``__transaction_state`` in ``log_dirs`` say; nothing where there are none.

    Raises:
        UsageError: a partition lies in two of them, or one is not a directory.
        FormatError, LogDirError: one cannot be read.

    """
    listed = [load_log_dir(path, topics=lambda one: one.topic == TRANSACTION_TOPIC) for path in log_dirs]
    found: dict[str, TransactionMetadata] = {}
    unknown = 0
    for partition in partitions_of(TRANSACTION_TOPIC, listed).values():
        unknown += _fold(partition, found)
    return TransactionStates(transactions=found, unknown=unknown)


def transactional_ids(log_dir: Place) -> dict[int, str]:
    """Return the transactional id of each producer id, as far as ``__transaction_state`` beside a partition has them.

    Nothing where it is not there or cannot be read, or the log dir lies in a store: it is about names alone.
    """
    if not isinstance(log_dir, Path):
        return {}
    with suppress(ResnapError):
        states = read_transaction_states([log_dir])
        return {number: one.transactional_id for number, one in states.by_producer_id().items()}
    return {}


def _fold(partition: PartitionDir, into: dict[str, TransactionMetadata]) -> int:
    """Take over the last record of each transactional id, and return how many could not be understood."""
    unknown = 0
    with in_file(str(partition.path)):
        for placed in read_partition(partition):
            record, at = placed.record, placed.position
            decoded = decode_record(
                record.key, record.value, key_at=at + record.key_position, value_at=at + record.value_position
            )
            if decoded.is_unknown or decoded.transactional_id is None:
                unknown += 1
            elif decoded.value is None:
                into.pop(decoded.transactional_id, None)
            else:
                into[decoded.transactional_id] = transaction_of(decoded.transactional_id, decoded.value)
    return unknown
