"""Partitions of ``__consumer_offsets``, written as a test wants them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka.record.default_records import DefaultRecordBatchBuilder

from resnap.storage.log.record import write_marker_batch
from resnap.storage.messages.schema import write_message
from resnap.tiering.cluster_state.group_offsets import (
    OFFSETS_TOPIC,
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.cluster_state.group_offsets import CommittedOffset

NOW_MS = 1_700_000_000_000


def key_of(group: str, partition: TopicPartition, version: int = 1) -> bytes:
    """Return the key of a committed offset."""
    key = OffsetCommitKey(group=group, topic=partition.topic, partition=partition.partition)
    return version.to_bytes(2, "big") + write_message(key, version)


def value_of(committed: CommittedOffset, version: int = 3) -> bytes:
    """Return the value of a committed offset, without what ``version`` does not have."""
    epoch = committed.leader_epoch if version > 1 + 1 else -1
    value = OffsetCommitValue(
        offset=committed.offset, leader_epoch=epoch, metadata=committed.metadata, commit_timestamp=NOW_MS,
        expire_timestamp=NOW_MS if version == 1 else -1,
    )  # fmt: skip
    return version.to_bytes(2, "big") + write_message(value, version)


@dataclass
class OffsetsLog:
    """A segment in the making."""

    offset: int = 0
    data: bytearray = field(default_factory=bytearray)

    def records(self, *records: tuple[bytes, bytes | None], producer: int | None = None, codec: int = 0) -> None:
        """Append a batch, of a transaction if it has a producer."""
        transactional = producer is not None
        builder = DefaultRecordBatchBuilder(
            2, codec, transactional, producer if producer is not None else -1, 0 if transactional else -1,
            0 if transactional else -1, 1 << 20,
        )  # fmt: skip
        for number, (key, value) in enumerate(records):
            builder.append(number, NOW_MS, key, value, [])
        self.data += self.offset.to_bytes(8, "big") + bytes(builder.build())[8:]
        self.offset += len(records)

    def marker(self, producer: int, *, commit: bool) -> None:
        """Append the end of a transaction."""
        self.data += write_marker_batch(
            offset=self.offset, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS,
            commit=commit,
        )  # fmt: skip
        self.offset += 1

    def write(self, log_dir: Path, number: int = 0, base_offset: int = 0) -> Path:
        """Write the segment and return its path."""
        path = log_dir / f"{OFFSETS_TOPIC}-{number}" / f"{base_offset:020d}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path
