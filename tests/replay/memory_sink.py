"""A destination in memory for rebuilt snapshots that a test compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resnap.replay.staging import digest_of
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, SnapshotDigest, snapshot_array_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.replay.kernel.summary import Array
    from resnap.storage.log.names import TopicPartition


class MemorySink:
    """Snapshots as values in this process."""

    def __init__(self) -> None:
        self.snapshots: dict[tuple[TopicPartition, int], Array] = {}

    def write(self, topic_partition: TopicPartition, offset: int, entries: Array) -> SnapshotDigest:
        """Keep a copy of the entries."""
        self.snapshots[topic_partition, offset] = np.array(entries, dtype=ENTRY_DTYPE)
        return digest_of(*snapshot_array_parts(entries))

    def write_parts(
        self, topic_partition: TopicPartition, offset: int, parts: Iterable[Array], count: int
    ) -> SnapshotDigest:
        """Keep the entries of all parts together."""
        entries = np.concatenate([np.zeros(0, dtype=ENTRY_DTYPE), *parts]).astype(ENTRY_DTYPE)
        if len(entries) != count:
            raise AssertionError(f"{len(entries)} entries came, {count} were announced")
        return self.write(topic_partition, offset, entries)
