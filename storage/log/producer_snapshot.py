"""Producer snapshots: a broker's state of each producer at a segment boundary, ``<offset, 20 digits>.snapshot``.

Ten bytes of header and 46 per entry, the same from Kafka 0.11 on. ``N.snapshot`` covers everything below offset N. A
broker writes entries in the order of a hash table; we write them by producer id, so that equal states are equal bytes.
A file may hold tens of millions of entries, so there are a plain codec and one for numpy arrays, and both stream.

Source: KIP-98; ``ProducerStateManager.readSnapshot`` and ``writeSnapshot`` in Kafka's storage module.
"""

from __future__ import annotations

import hashlib
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise, starmap
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from resnap.storage.crc32c import Buffer, crc32c
from resnap.storage.errors import FormatError, in_file
from resnap.storage.whole_file import MOST_BYTES, read_whole, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

VERSION: Final = 1
HEADER: Final = struct.Struct(">hIi")
"""Big endian, 10 bytes: version, CRC-32C of all that follows it, number of entries."""
ENTRY: Final = struct.Struct(">qhiqiqiq")
"""Big endian, 46 bytes: the fields of ``ProducerEntry`` in order."""
CRC_POSITION: Final = 2
COUNT_POSITION: Final = 6
"""The checksum covers everything from here on, so bytes after the last entry spoil it."""

NO_LAST_OFFSET: Final = -1
"""No data batch is known at the producer's epoch; ``last_sequence`` is -1 then, and ``offset_delta`` 0."""
NO_OPEN_TRANSACTION: Final = -1

CHUNK_ENTRIES: Final = 16_384
"""Entries on their way to a file at a time."""
READ_BLOCK_BYTES: Final = 1 << 20


class ProducerEntry(NamedTuple):
    """One producer as stored on disk, where -1 means none. A ``NamedTuple`` because there may be millions."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """Last sequence of the last data batch at this epoch, or -1."""
    last_offset: int
    """Last offset of the same batch, or ``NO_LAST_OFFSET``."""
    offset_delta: int
    """Last minus first offset of the same batch; 0 without one."""
    timestamp: int
    """Milliseconds: largest of the last data batch, or that of a marker that came later."""
    coordinator_epoch: int
    """Coordinator epoch of the last marker, or -1."""
    current_txn_first_offset: int
    """First offset of the open transaction, or ``NO_OPEN_TRANSACTION``."""

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction has no marker yet; such an entry never expires."""
        return self.current_txn_first_offset != NO_OPEN_TRANSACTION


class LeftOut(NamedTuple):
    """A producer that should have an entry but has none, or not a whole one, because it would be a guess."""

    producer_id: int
    reason: str
    """A code."""


ENTRY_DTYPE: Final = np.dtype([
    ("producer_id", ">i8"),
    ("producer_epoch", ">i2"),
    ("last_sequence", ">i4"),
    ("last_offset", ">i8"),
    ("offset_delta", ">i4"),
    ("timestamp", ">i8"),
    ("coordinator_epoch", ">i4"),
    ("current_txn_first_offset", ">i8"),
])  # fmt: skip
"""``ENTRY`` for numpy: big-endian and packed, so that a file's bytes are an array without conversion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDigest:
    """Length and digests that identify a stored snapshot file."""

    size_bytes: int
    crc32c: int
    """CRC-32C of the whole file, as an object store sees it: not the one in the header."""
    sha256: str
    """SHA-256 of the whole file, in hexadecimal."""


def read_snapshot(buffer: Buffer, offset: int | None = None) -> dict[int, ProducerEntry]:
    """Return the entries of a whole snapshot file by producer id, in the order of the file.

    If a producer id occurs twice, the later entry wins, as it does when a broker loads the file.

    Raises:
        FormatError: as ``read_snapshot_array``.

    """
    read_snapshot_array(buffer, offset)
    entries = map(ProducerEntry._make, ENTRY.iter_unpack(memoryview(buffer)[HEADER.size :]))
    return {entry.producer_id: entry for entry in entries}


def entries_in(size_bytes: int) -> int:
    """Return how many entries a snapshot file of that size has."""
    return max(size_bytes - HEADER.size, 0) // ENTRY.size


def read_snapshot_array(buffer: Buffer, offset: int | None = None) -> npt.NDArray[np.void]:
    """Return the entries of a whole snapshot file as an array of ``ENTRY_DTYPE`` over ``buffer`` itself.

    Nothing is copied or reordered, and a producer id that occurs twice has two entries. If ``offset``, of which the
    file is the snapshot, is given, its entries must be of what is below: a broker may have written it with the state
    of a log that it then truncated (KAFKA-6683).

    Raises:
        FormatError: another version, length or checksum than a broker would accept, or entries from above ``offset``.

    """
    _check(buffer)
    entries = np.frombuffer(buffer, dtype=ENTRY_DTYPE, offset=HEADER.size)
    if offset is not None:
        highest = np.maximum(entries["last_offset"], entries["current_txn_first_offset"])
        above = np.flatnonzero(highest >= offset)
        if len(above):
            raise FormatError(f"entry of producer {entries['producer_id'][above[0]]} in the snapshot at {offset}",
                              position=HEADER.size + int(above[0]) * ENTRY.size, expected=f"offsets below {offset}",
                              found=int(highest[above[0]]))  # fmt: skip
    return entries


def snapshot_arrays(read: Callable[[int, int], bytes], size_bytes: int) -> Iterator[npt.NDArray[np.void]]:
    """Yield the entries of a snapshot file, ``CHUNK_ENTRIES`` at a time, as ``read_snapshot_array`` gives them.

    ``read`` returns the requested number of bytes from a position; each of ``size_bytes`` bytes is requested once, in
    order.

    Raises:
        FormatError: as ``read_snapshot``; for a wrong checksum only after the last entry.

    """
    head = read(0, HEADER.size)
    _check_head(head, size_bytes)
    checksum, step = crc32c(head[COUNT_POSITION:]), CHUNK_ENTRIES * ENTRY.size
    for position in range(HEADER.size, size_bytes, step):
        length = min(step, size_bytes - position)
        data = read(position, length)
        if len(data) != length:
            raise FormatError("producer snapshot length", position=position + len(data),
                              expected=f"{size_bytes} bytes", found="an end")  # fmt: skip
        checksum = crc32c(data, checksum)
        yield np.frombuffer(data, dtype=ENTRY_DTYPE)
    _check_sum(head, checksum)


def snapshot_bytes(entries: Iterable[ProducerEntry]) -> bytes:
    """Return a whole snapshot file in canonical order: by producer id, without duplicates."""
    ordered = sorted(entries)
    for before, after in pairwise(ordered):
        if before.producer_id == after.producer_id:
            raise AssertionError(f"producer id {after.producer_id} is listed twice")
    covered = struct.pack(">i", len(ordered)) + b"".join(starmap(ENTRY.pack, ordered))
    return struct.pack(">hI", VERSION, crc32c(covered)) + covered


def snapshot_array_parts(entries: npt.NDArray[np.void]) -> tuple[bytes, memoryview]:
    """Return a whole snapshot file of ``entries``, an array of ``ENTRY_DTYPE`` by ascending producer id.

    It comes in two parts, header and entries; contiguous entries are not copied.
    """
    for _ in _checked_order([entries]):
        pass
    body = np.ascontiguousarray(entries).view(np.uint8).data
    count = struct.pack(">i", len(entries))
    return struct.pack(">hI", VERSION, crc32c(body, crc32c(count))) + count, body


def load_snapshot(path: Path) -> dict[int, ProducerEntry]:
    """Return the entries of the snapshot file at ``path`` by producer id.

    Raises:
        FormatError: as ``read_snapshot``, with the name of the file.
        OSError: the file cannot be read.

    """
    data = read_whole(path, MOST_BYTES)
    with in_file(path):
        return read_snapshot(data)


def store_snapshot(path: Path, entries: Iterable[ProducerEntry], count: int) -> SnapshotDigest:
    """Write ``count`` entries, by ascending producer id, to ``path``: all of them, durably, or nothing.

    A few thousand entries are held at a time. They go to ``<path>.tmp``, which a crash may leave behind and which
    brokers ignore; the rename comes after the data is on disk.

    Raises:
        AssertionError: the entries are out of order, or not ``count``.
        OSError: the file cannot be written; no temporary file remains. ``path`` is unchanged, but for a failure of the
            last sync, as with ``write_file``.

    """
    return store_snapshot_arrays(path, _arrays(entries), count)


def store_snapshot_arrays(
    path: Path, arrays: Iterable[npt.NDArray[np.void]], count: int, *, attempt: str = ""
) -> SnapshotDigest:
    """Write entries as ``store_snapshot`` does, from arrays of ``ENTRY_DTYPE`` of any lengths.

    Concurrent writers of the same file give an ``attempt`` each, which names their temporary files.
    """
    temporary = path.with_name(f"{path.name}{attempt}.tmp")
    try:
        with temporary.open("w+b") as file:
            _write(file, arrays, count)
            digest = _digest(file)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)
    return digest


def _check(buffer: Buffer) -> None:
    # The length is checked first: missing or extra bytes are a better message than a wrong checksum.
    _check_head(buffer, len(buffer))
    _check_sum(buffer, crc32c(memoryview(buffer)[COUNT_POSITION:]))


def _check_head(head: Buffer, size: int) -> None:
    if size < HEADER.size or len(head) < HEADER.size:
        raise FormatError("producer snapshot header cut short", position=min(size, len(head)),
                          expected=f"{HEADER.size} bytes", found=f"{min(size, len(head))} bytes")  # fmt: skip
    version, _, count = HEADER.unpack_from(head)
    if version != VERSION:
        raise FormatError("producer snapshot version", position=0, expected=VERSION, found=version)
    if count < 0:
        raise FormatError("producer snapshot entry count", position=COUNT_POSITION, expected="0 or more", found=count)
    whole = HEADER.size + count * ENTRY.size
    if size != whole:
        entries = "1 entry" if count == 1 else f"{count} entries"
        raise FormatError("producer snapshot length", position=min(size, whole),
                          expected=f"{whole} bytes for {entries}", found=f"{size} bytes")  # fmt: skip


def _check_sum(head: Buffer, computed: int) -> None:
    _, carried, _ = HEADER.unpack_from(head)
    if carried != computed:
        raise FormatError("producer snapshot checksum (CRC-32C)", position=CRC_POSITION, expected=f"{carried:08x}",
                          found=f"{computed:08x}")  # fmt: skip


def _arrays(entries: Iterable[ProducerEntry]) -> Iterator[npt.NDArray[np.void]]:
    remaining = iter(entries)
    while chunk := list(islice(remaining, CHUNK_ENTRIES)):
        yield np.array(chunk, dtype=ENTRY_DTYPE)


def _write(file: BinaryIO, arrays: Iterable[npt.NDArray[np.void]], count: int) -> None:
    """Write header and entries; the checksum, known last, is written back into the header."""
    unsealed = HEADER.pack(VERSION, 0, count)
    file.write(unsealed)
    checksum = crc32c(unsealed[COUNT_POSITION:])
    written = 0
    for array in _checked_order(arrays):
        data = array.tobytes()
        checksum = crc32c(data, checksum)
        file.write(data)
        written += len(array)
    if written != count:
        raise AssertionError(f"{written} entries were given, {count} were announced")
    file.seek(CRC_POSITION)
    file.write(checksum.to_bytes(COUNT_POSITION - CRC_POSITION, "big"))
    file.flush()
    os.fsync(file.fileno())


def _checked_order(arrays: Iterable[npt.NDArray[np.void]]) -> Iterator[npt.NDArray[np.void]]:
    last: int | None = None
    for array in arrays:
        if array.dtype != ENTRY_DTYPE:
            raise AssertionError(f"entries of {array.dtype} instead of {ENTRY_DTYPE}")
        if not len(array):
            continue
        producer_ids = array["producer_id"].astype(np.int64)  # in this machine's byte order, in one piece
        if np.any(producer_ids[1:] <= producer_ids[:-1]) or (last is not None and producer_ids[0] <= last):
            raise AssertionError("entries are not in ascending order of producer id")
        last = int(producer_ids[-1])
        yield array


def _digest(file: BinaryIO) -> SnapshotDigest:
    # Read once more, because the patched checksum precedes everything that was already written.
    file.seek(0)
    checksum, sha256, size_bytes = 0, hashlib.sha256(), 0
    while block := file.read(READ_BLOCK_BYTES):
        checksum = crc32c(block, checksum)
        sha256.update(block)
        size_bytes += len(block)
    return SnapshotDigest(size_bytes=size_bytes, crc32c=checksum, sha256=sha256.hexdigest())
