"""Writes large partitions fast: segments, indexes and snapshots for ``traffic``, some hundred megabytes a second.

What ``log_writer`` does batch by batch is done here by columns, for logs as large as an operator's. Batches of one size
share their records, so that only headers are built for each. Written *sparse*, a log has its headers and markers only;
the records are holes of the file, which are read as zeros and have the checksum of zeros. So a log may be larger than
the disk it lies on, as long as no reader decodes a record.

Source: as ``log_writer`` and ``segment_writer``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from resnap.storage.crc32c import crc32c
from resnap.storage.log.checkpoints import LeaderEpoch, write_leader_epochs
from resnap.storage.log.indexes import AbortedTxn, write_transaction_index
from resnap.storage.log.names import segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.producer_snapshot import snapshot_array_parts
from resnap.storage.log.record import ABORT, COMMIT, write_marker_batch
from resnap.storage.log.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_NAMES,
    CONTROL,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_V2,
    TRANSACTIONAL,
)
from tests.logs.batch_builder import write_data_batch
from tests.logs.batch_checksums import Bytes, checksums, followed_by, zeros_checksum
from tests.logs.log_writer import Payloads
from tests.logs.stored_frames import compressed
from tests.logs.traffic import TurnSource
from tests.logs.traffic_state import TrafficState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.logs.traffic import Ints, Traffic, Turns
    from tests.logs.traffic_state import Batches

DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
SIZE_SPREAD: Final = (0.75, 0.85, 0.95, 1.05, 1.15, 1.25)
"""Sizes of data batches, as shares of the mean."""
BLOCK_BYTES: Final = 64 << 20
BLOCK_BATCHES: Final = 1 << 18
HEADER_DTYPE: Final = np.dtype([
    ("base_offset", ">i8"), ("batch_length", ">i4"), ("partition_leader_epoch", ">i4"), ("magic", "i1"),
    ("crc", ">u4"), ("attributes", ">i2"), ("last_offset_delta", ">i4"), ("base_timestamp", ">i8"),
    ("max_timestamp", ">i8"), ("producer_id", ">i8"), ("producer_epoch", ">i2"), ("base_sequence", ">i4"),
    ("records_count", ">i4"),
])  # fmt: skip
"""``record_batch.HEADER`` for numpy: big endian and packed."""
OFFSET_INDEX_DTYPE: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_INDEX_DTYPE: Final = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])

_MARKER_RECORD: Final = write_marker_batch(
    offset=0, producer_id=0, producer_epoch=0, coordinator_epoch=0, timestamp=0, commit=True
)[HEADER.size :]  # fmt: skip
# Length, attributes, two deltas and the key's length before the key's version and type; then, after the value's length
# and version, the coordinator epoch.
_TYPE_IN_RECORD: Final = slice(7, 9)
_COORDINATOR_EPOCH_IN_RECORD: Final = slice(12, 16)


class _Records(NamedTuple):
    """What follows the header of a data batch of one size; in a sparse log nothing is written of it."""

    length: int
    crc32c: int
    content: bytes


class BulkPartitionWriter:
    """One partition directory in the making; ``close`` it to have it whole.

    Attributes:
        next_offset: the log end offset.
        last_timestamp: of the newest batch, in milliseconds.
        batches: how many there are, markers included.

    """

    def __init__(
        self,
        directory: Path,
        traffic: Traffic,
        *,
        batch_bytes: int,
        seed: int = 0,
        sparse: bool = False,
        codec: str = "none",
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    ) -> None:
        """Begin the partition at ``directory``, made if missing.

        Args:
            directory: of the partition, ``<topic>-<number>``.
            traffic: what is written.
            batch_bytes: mean size of a data batch; one with room for its records.
            seed: of the traffic and the records.
            sparse: whether to leave out the records.
            codec: by which records are compressed, to about half: their values repeat themselves then.
            index_interval_bytes: ``index.interval.bytes``.

        """
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.last_timestamp = traffic.start_ms
        self.batches = 0
        self._traffic = traffic
        self._sparse = sparse
        self._index_interval_bytes = index_interval_bytes
        self._records = _records(traffic.records, batch_bytes, seed, sparse=sparse, codec=codec)
        self._codec = COMPRESSION_NAMES.index(codec)
        sizes = [HEADER.size + records.length for records in self._records]
        self._turns = TurnSource(traffic, sizes, HEADER.size + len(_MARKER_RECORD), seed=seed)
        self._state = TrafficState(traffic)
        self._leader_epochs: list[LeaderEpoch] = []

    @property
    def next_offset(self) -> int:
        """Offset of the record to be appended next."""
        return self._state.next_offset

    def write_segment(self, segment_bytes: int) -> int:
        """Append a segment of at most ``segment_bytes`` with its indexes; return how many bytes it has.

        Its files are as old as its newest batch.

        Raises:
            OSError: the directory cannot be written.
            ValueError: not one batch fits.

        """
        base_offset, index, position = self.next_offset, _IndexWriter(self._index_interval_bytes), 0
        at_most = BLOCK_BATCHES if self._sparse else min(BLOCK_BATCHES, BLOCK_BYTES // self._largest + 1)
        aborted: list[AbortedTxn] = []
        with (self.directory / segment_name(base_offset, "log")).open("wb", buffering=0) as file:
            while len((turns := self._turns.draw(room_bytes=segment_bytes - position, at_most=at_most)).shape):
                batches = self._state.append(turns)
                starts = position + np.cumsum(turns.size_bytes) - turns.size_bytes
                self._write(file.fileno(), turns, batches, starts)
                index.add(starts, turns, batches.base_offset + self._deltas(turns) - base_offset)
                aborted += batches.aborted
                self._note(turns, batches)
                position += int(turns.size_bytes.sum())
            if not position:
                raise ValueError(f"no batch of {self._largest} bytes fits into a segment of {segment_bytes}")
            file.truncate(position)
        self._write_indexes(base_offset, index, aborted)
        return position

    def snapshot(self) -> bytes:
        """Return the producer snapshot at the log end, of a broker that has expired no producer."""
        return b"".join(snapshot_array_parts(self._state.entries()))

    def write_snapshot(self) -> None:
        """Put the snapshot at the log end beside the segments."""
        (self.directory / segment_name(self.next_offset, "snapshot")).write_bytes(self.snapshot())

    def close(self) -> None:
        """Write the leader-epoch checkpoint."""
        (self.directory / LEADER_EPOCHS).write_bytes(write_leader_epochs(self._leader_epochs))

    @property
    def _largest(self) -> int:
        return HEADER.size + max(records.length for records in self._records)

    def _deltas(self, turns: Turns) -> Ints:
        """Return the last offset delta of each batch."""
        return np.where(turns.is_marker, 0, self._traffic.records - 1)

    def _note(self, turns: Turns, batches: Batches) -> None:
        self.last_timestamp = int(turns.timestamp[-1])
        self.batches += len(turns.shape)
        epochs, first = np.unique(turns.leader_epoch, return_index=True)
        for epoch, start in zip(epochs.tolist(), batches.base_offset[first].tolist(), strict=True):
            if not self._leader_epochs or epoch > self._leader_epochs[-1].epoch:
                self._leader_epochs.append(LeaderEpoch(epoch, start))

    def _write(self, descriptor: int, turns: Turns, batches: Batches, starts: Ints) -> None:
        headers = self._headers(turns, batches)
        rows = headers.view(np.uint8).reshape(len(headers), HEADER.size)
        markers = np.flatnonzero(turns.is_marker)
        records = _marker_records(turns, markers)
        covered = np.hstack((rows[markers, ATTRIBUTES_POSITION:], records))
        headers["crc"][markers] = checksums(covered)
        in_header = checksums(rows[:, ATTRIBUTES_POSITION:])
        for shape, (length, crc, _) in enumerate(self._records):
            mine = turns.shape == shape
            headers["crc"][mine] = followed_by(in_header[mine], length, crc)
        if self._sparse:
            _write_apart(descriptor, starts, rows)
            _write_apart(descriptor, starts[markers] + HEADER.size, records)
            return
        block = np.empty(int(turns.size_bytes.sum()), dtype=np.uint8)
        starts = starts - starts[0]
        _place(block, starts, rows)
        _place(block, starts[markers] + HEADER.size, records)
        for shape, (_, _, content) in enumerate(self._records):
            _place(block, starts[turns.shape == shape] + HEADER.size, np.frombuffer(content, dtype=np.uint8)[None, :])
        _write_all(descriptor, block)

    def _headers(self, turns: Turns, batches: Batches) -> npt.NDArray[np.void]:
        deltas = self._deltas(turns)
        headers = np.zeros(len(deltas), dtype=HEADER_DTYPE)
        transactional = np.where(batches.is_transactional, TRANSACTIONAL, 0)
        for name, column in (
            ("base_offset", batches.base_offset), ("batch_length", turns.size_bytes - LOG_OVERHEAD),
            ("partition_leader_epoch", turns.leader_epoch), ("magic", MAGIC_V2),
            ("attributes", transactional | np.where(turns.is_marker, CONTROL, self._codec)),
            ("last_offset_delta", deltas),
            ("base_timestamp", turns.timestamp), ("max_timestamp", turns.timestamp),
            ("producer_id", batches.producer_id), ("producer_epoch", batches.producer_epoch),
            ("base_sequence", batches.base_sequence), ("records_count", deltas + 1),
        ):  # fmt: skip
            headers[name] = column
        return headers

    def _write_indexes(self, base_offset: int, index: _IndexWriter, aborted: list[AbortedTxn]) -> None:
        offsets, times = index.finish()
        contents = {"index": offsets, "timeindex": times}
        if aborted:
            contents["txnindex"] = write_transaction_index(aborted)
        paths = {suffix: self.directory / segment_name(base_offset, suffix) for suffix in ("log", *contents)}
        for suffix, content in contents.items():
            paths[suffix].write_bytes(content)
        for path in paths.values():
            os.utime(path, (self.last_timestamp / 1000, self.last_timestamp / 1000))


class _IndexWriter:
    """The sparse offset and time index of one segment, by columns."""

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._last_entry = 0
        """Where the batch lies that got the last entry, or the segment begins."""
        self._newest = (-1, 0)
        """Largest timestamp so far, and the relative offset of the first batch that has it."""
        self._offsets: list[bytes] = []
        self._times: list[npt.NDArray[np.void]] = []

    def add(self, starts: Ints, turns: Turns, relative_offsets: Ints) -> None:
        """Take over batches that lie at ``starts``, of which the last offsets are given, counted from the base."""
        chosen = self._chosen(starts)
        offsets = np.zeros(len(chosen), dtype=OFFSET_INDEX_DTYPE)
        offsets["relative_offset"], offsets["position"] = relative_offsets[chosen], starts[chosen]
        self._offsets.append(offsets.tobytes())
        # Timestamps never fall here: each distinct one first appears at one batch.
        later = turns.timestamp > np.append(self._newest[0], turns.timestamp[:-1])
        carrier = np.maximum.accumulate(np.where(later, np.arange(len(later)), -1))
        own = carrier >= 0
        carried = np.where(own, relative_offsets[carrier], self._newest[1])
        self._times.append(_time_entries(turns.timestamp[chosen], carried[chosen]))
        self._newest = int(turns.timestamp[-1]), int(carried[-1])

    def finish(self) -> tuple[bytes, bytes]:
        """Return both indexes, trimmed; the time index ends with the newest timestamp."""
        last = _time_entries(np.array(self._newest[:1]), np.array(self._newest[1:]))
        # Joining records of numpy turns them into the machine's own byte order.
        times = np.concatenate((*self._times, last)).astype(TIME_INDEX_DTYPE)
        rising = np.append(True, times["timestamp"][1:] > times["timestamp"][:-1])
        return b"".join(self._offsets), times[rising].tobytes()

    def _chosen(self, starts: Ints) -> list[int]:
        """Return the batches that get an entry: those more than the interval after the last one that got one."""
        following = np.searchsorted(starts, starts + self._interval_bytes, side="right").data
        chosen = []
        at = int(np.searchsorted(starts, self._last_entry + self._interval_bytes, side="right"))
        while at < len(starts):
            chosen.append(at)
            at = following[at]
        if chosen:
            self._last_entry = int(starts[chosen[-1]])
        return chosen


def _time_entries(timestamps: Ints, relative_offsets: Ints) -> npt.NDArray[np.void]:
    entries = np.zeros(len(timestamps), dtype=TIME_INDEX_DTYPE)
    entries["timestamp"], entries["relative_offset"] = timestamps, relative_offsets
    return entries


def _records(count: int, batch_bytes: int, seed: int, *, sparse: bool, codec: str) -> Sequence[_Records]:
    """Return the records of data batches of each size, which is a little below what was asked for until compressed."""
    payloads = Payloads(seed)
    found = []
    for share in SIZE_SPREAD:
        room = int(batch_bytes * share) - HEADER.size
        values = [bytes(size) if sparse else payloads.draw(1, size)[0] for size in _value_sizes(count, room)]
        if codec != "none":
            values = [_repeating(value) for value in values]
        content = compressed(codec, write_data_batch(offset=0, values=values, timestamps=0)[HEADER.size :])
        if sparse:
            found.append(_Records(len(content), zeros_checksum(len(content)), b""))
        else:
            found.append(_Records(len(content), crc32c(content), content))
    return found


def _value_sizes(count: int, room: int) -> Iterator[int]:
    overhead_of_a_record = 10
    return (max(1, room // count - overhead_of_a_record) for _ in range(count))


def _repeating(value: bytes) -> bytes:
    """Return as many bytes, each 32 of them twice, which every codec finds."""
    return b"".join(value[start : start + 32] * 2 for start in range(0, len(value), 64))[: len(value)]


def _marker_records(turns: Turns, markers: Ints) -> Bytes:
    """Return the one record of each marker: of the same size for all."""
    records = np.tile(np.frombuffer(_MARKER_RECORD, dtype=np.uint8), (len(markers), 1))
    kinds = np.where(turns.is_commit[markers], COMMIT, ABORT)
    records[:, _TYPE_IN_RECORD] = kinds.astype(">i2")[:, None].view(np.uint8)
    records[:, _COORDINATOR_EPOCH_IN_RECORD] = turns.leader_epoch[markers].astype(">i4")[:, None].view(np.uint8)
    return records


def _place(block: Bytes, starts: Ints, rows: Bytes) -> None:
    """Copy ``rows``, one or as many as there are ``starts``, into ``block``."""
    width = rows.shape[1]
    if not len(starts) or not width:
        return
    # A view in which each byte of the block begins an item: numpy then copies whole items.
    items = np.ndarray((len(block) - width + 1,), dtype=f"V{width}", buffer=block.data, strides=(1,))
    items[starts] = np.ascontiguousarray(rows).view(f"V{width}")[:, 0]


def _write_apart(descriptor: int, starts: Ints, rows: Bytes) -> None:
    """Write each row where it belongs, and nothing in between."""
    width, content = rows.shape[1], memoryview(rows.tobytes())
    for number, start in enumerate(starts.tolist()):
        os.pwrite(descriptor, content[number * width : (number + 1) * width], start)


def _write_all(descriptor: int, block: Bytes) -> None:
    rest = memoryview(block.data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
