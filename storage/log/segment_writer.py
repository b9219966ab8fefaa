"""Writes one segment: the log, and the indexes that go with it.

Indexes are sparse. An entry for a batch is made once more than ``index_interval_bytes`` lie between it and the last one
that got an entry, and it stands for that batch alone; timestamps are entered then too, and once more at the end.

Source: ``LogSegment.append`` and ``onBecomeInactiveSegment``, ``TimeIndex.maybeAppend``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.log.indexes import (
    AbortedTxn,
    OffsetIndexEntry,
    TimeIndexEntry,
    write_offset_index,
    write_time_index,
    write_transaction_index,
)
from resnap.storage.log.names import segment_name
from resnap.storage.log.record_batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from pathlib import Path


class SegmentWriter:
    """The segment that is being appended to: an open ``.log``, and its indexes in memory.

    Attributes:
        base_offset: offset that names the segment.
        size_bytes: of the log so far.
        aborted: transactions whose abort marker lies in the segment, for the one who appends to add to.

    """

    def __init__(self, directory: Path, base_offset: int, index_interval_bytes: int) -> None:
        """Begin the segment ``base_offset`` in ``directory``; ``index_interval_bytes`` as of the topic."""
        self.base_offset = base_offset
        self.size_bytes = 0
        self.aborted: list[AbortedTxn] = []
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_last_entry = 0
        self._latest = TimeIndexEntry(NO_TIMESTAMP, 0)
        self._offsets: list[OffsetIndexEntry] = []
        self._times: list[TimeIndexEntry] = []
        self._log = (directory / segment_name(base_offset, "log")).open("wb")

    def append(self, data: bytes, last_offset: int, max_timestamp: int) -> None:
        """Append ``data`` as one unit, whose last record has ``last_offset``; ``max_timestamp`` is in milliseconds."""
        relative_offset = last_offset - self.base_offset
        if max_timestamp > self._latest.timestamp:
            self._latest = TimeIndexEntry(max_timestamp, relative_offset)
        if self._bytes_since_last_entry > self._index_interval_bytes:
            self._offsets.append(OffsetIndexEntry(relative_offset, self.size_bytes))
            self._maybe_append_time()
            self._bytes_since_last_entry = 0
        self._log.write(data)
        self.size_bytes += len(data)
        self._bytes_since_last_entry += len(data)

    def close(self) -> None:
        """Write the indexes, trimmed, the time index with its final entry; a transaction index only if needed."""
        self._log.close()
        self._maybe_append_time()
        self._write("index", write_offset_index(self._offsets))
        self._write("timeindex", write_time_index(self._times))
        if self.aborted:
            self._write("txnindex", write_transaction_index(self.aborted))

    def _maybe_append_time(self) -> None:
        newest = self._times[-1].timestamp if self._times else NO_TIMESTAMP
        if self._latest.timestamp > newest:
            self._times.append(self._latest)

    def _write(self, suffix: str, content: bytes) -> None:
        (self._directory / segment_name(self.base_offset, suffix)).write_bytes(content)
