"""The three indexes of a segment: offset, time, and aborted transactions.

Offset and time index count offsets from the segment's base, and are filled with zeros to their full size ahead of time
while the segment is active: a killed broker leaves them so, and the zeros must never be shipped. They are sparse, and
can be rebuilt from the log. The transaction index has no padding, holds absolute offsets, and does not exist if no
transaction was aborted.

Source: ``OffsetIndex``, ``TimeIndex``, ``TransactionIndex`` and ``AbortedTxn`` in Kafka's storage module.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import starmap
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resnap.storage.crc32c import Buffer

OFFSET_ENTRY: Final = struct.Struct(">ii")
"""Big endian, 8 bytes."""
TIME_ENTRY: Final = struct.Struct(">qi")
"""Big endian, 12 bytes."""
TRANSACTION_ENTRY: Final = struct.Struct(">hqqqq")
"""Big endian, 34 bytes: a version, then the fields of ``AbortedTxn``."""
TRANSACTION_VERSION: Final = 0

SCAN_BLOCK_BYTES: Final = 4096 * TIME_ENTRY.size
_LAST_BYTES: Final = 2 * TIME_ENTRY.size


class OffsetIndexEntry(NamedTuple):
    """The position of a batch."""

    relative_offset: int
    """Last offset of the batch, counted from the segment's base offset."""
    position: int
    """Byte at which the batch starts."""


class TimeIndexEntry(NamedTuple):
    """The largest timestamp of a segment's records up to an offset."""

    timestamp: int
    """Milliseconds; the largest so far."""
    relative_offset: int
    """Offset of the record or batch that carries it, counted from the segment's base offset."""


class AbortedTxn(NamedTuple):
    """A transaction whose abort marker is in the segment; its first offset may be in an earlier one."""

    producer_id: int
    first_offset: int
    """Offset of its first batch; brokers before 2.8 list transactions without one, too, with the marker's offset."""
    last_offset: int
    """Offset of the marker."""
    last_stable_offset: int
    """What the last stable offset became when the marker was written."""


def trimmed_length(buffer: Buffer, entry_size: int) -> int:
    """Return the length of an offset or time index without the zero padding of an active one, in bytes.

    A single entry is kept even if it is all zeros: no broker pre-allocates a single entry, and one record with
    timestamp 0 leaves exactly that in a time index.
    """
    if len(buffer) == entry_size:
        return entry_size
    return _without_padding(buffer, entry_size)


def read_offset_index(buffer: Buffer) -> list[OffsetIndexEntry]:
    """Return the entries of a whole offset index, without padding.

    Raises:
        FormatError: a size that is not a multiple of 8, or relative offsets that do not rise; for the positions see
            ``check_offset_index``.

    """
    _check_size(len(buffer), OFFSET_ENTRY.size, "offset index size")
    used = memoryview(buffer)[: trimmed_length(buffer, OFFSET_ENTRY.size)]
    entries = list(map(OffsetIndexEntry._make, OFFSET_ENTRY.iter_unpack(used)))
    _check_rising("offset index relative offset", [entry.relative_offset for entry in entries], OFFSET_ENTRY.size)
    return entries


def write_offset_index(entries: Iterable[OffsetIndexEntry]) -> bytes:
    """Return ``entries`` as a trimmed index."""
    return b"".join(starmap(OFFSET_ENTRY.pack, entries))


def check_offset_index(entries: Sequence[OffsetIndexEntry], log_size: int) -> None:
    """Check that the positions of an offset index fit its log of ``log_size`` bytes.

    Raises:
        FormatError: a position does not rise or is past the end of the log.

    """
    positions = [entry.position for entry in entries]
    _check_rising("offset index position", positions, OFFSET_ENTRY.size, field=4)
    if positions and positions[-1] >= log_size:
        past = bisect_left(positions, log_size)
        raise FormatError("offset index position", position=past * OFFSET_ENTRY.size + 4,
                          expected=f"less than {log_size}, the size of the log", found=positions[past])  # fmt: skip


def read_time_index(buffer: Buffer) -> list[TimeIndexEntry]:
    """Return the entries of a whole time index, without padding.

    Raises:
        FormatError: a size that is not a multiple of 12, timestamps that do not rise, or relative offsets that fall.

    """
    _check_size(len(buffer), TIME_ENTRY.size, "time index size")
    used = memoryview(buffer)[: trimmed_length(buffer, TIME_ENTRY.size)]
    entries = list(map(TimeIndexEntry._make, TIME_ENTRY.iter_unpack(used)))
    _check_rising("time index timestamp", [entry.timestamp for entry in entries], TIME_ENTRY.size)
    offsets = [entry.relative_offset for entry in entries]
    _check_rising("time index relative offset", offsets, TIME_ENTRY.size, field=8, step=0)
    return entries


def write_time_index(entries: Iterable[TimeIndexEntry]) -> bytes:
    """Return ``entries`` as a trimmed index."""
    return b"".join(starmap(TIME_ENTRY.pack, entries))


def last_time_index_entries(read: Callable[[int, int], bytes], size: int) -> list[TimeIndexEntry]:
    """Return the last two entries of a time index, or the last one if it has only one, or none.

    It reads only these entries, after skipping any padding from the end, so that it is cheap for very many files. The
    last entry has the largest timestamp of the segment. None is also what a segment without timestamps has, whose age
    Kafka takes from the log's modification time. Only the last entry is judged.

    Args:
        read: gives the bytes [start, end) of the time index.
        size: its length.

    Raises:
        FormatError: a size that is not a multiple of 12, or a last timestamp or offset below 0.

    """
    _check_size(size, TIME_ENTRY.size, "time index size")
    end, length = size, min(size, _LAST_BYTES)
    while end:
        start = end - length
        block = _read_whole(read, start, end, size)
        used = size if size == TIME_ENTRY.size else _without_padding(block, TIME_ENTRY.size)
        if used:
            end = start + used
            first = max(end - _LAST_BYTES, 0)
            last = block[first - start : used] if first >= start else _read_whole(read, first, end, size)
            entries = list(map(TimeIndexEntry._make, TIME_ENTRY.iter_unpack(last)))
            _check_last(entries[-1], end - TIME_ENTRY.size)
            return entries
        # A trimmed index has shown its last entry by now; what remains is the padding of an active one.
        end, length = start, min(start, SCAN_BLOCK_BYTES)
    return []


def read_transaction_index(buffer: Buffer) -> list[AbortedTxn]:
    """Return the aborted transactions of a whole transaction index, in the order of their markers.

    Raises:
        FormatError: a size that is not a multiple of 34, another version, markers that do not rise, or offsets or
            producer ids that no transaction has.

    """
    _check_size(len(buffer), TRANSACTION_ENTRY.size, "transaction index size")
    aborted = []
    for number, (version, *fields) in enumerate(TRANSACTION_ENTRY.iter_unpack(buffer)):
        position = number * TRANSACTION_ENTRY.size
        if version != TRANSACTION_VERSION:
            raise FormatError("transaction index version", position=position, expected=TRANSACTION_VERSION,
                              found=version)  # fmt: skip
        aborted.append(AbortedTxn._make(fields))
        _check_aborted(aborted[-1], position)
    _check_rising(
        "transaction index last offset", [txn.last_offset for txn in aborted], TRANSACTION_ENTRY.size, field=18
    )
    return aborted


def write_transaction_index(aborted: Iterable[AbortedTxn]) -> bytes:
    """Return ``aborted`` as a transaction index; Kafka keeps no file where there are none."""
    return b"".join(TRANSACTION_ENTRY.pack(TRANSACTION_VERSION, *txn) for txn in aborted)


def _check_size(size: int, entry_size: int, what: str) -> None:
    if size % entry_size:
        raise FormatError(what, position=size - size % entry_size, expected=f"a multiple of {entry_size}", found=size)


def _check_rising(what: str, values: Sequence[int], entry_size: int, *, field: int = 0, step: int = 1) -> None:
    """Check that ``values`` start at 0 or above and grow by ``step`` or more; ``field`` is their place in an entry."""
    lowest = 0
    for number, value in enumerate(values):
        if value < lowest:
            raise FormatError(what, position=number * entry_size + field, expected=f"{lowest} or more", found=value)
        lowest = value + step


def _check_aborted(txn: AbortedTxn, position: int) -> None:
    # Without a batch the last stable offset is past the marker, or held below it: so zeros are not such an entry.
    is_empty = txn.first_offset == txn.last_offset != txn.last_stable_offset
    if txn.producer_id < 0 or txn.first_offset < 0 or not (txn.first_offset < txn.last_offset or is_empty):
        raise FormatError("transaction index entry", position=position, found=txn,
                          expected="producer id >= 0 and 0 <= first offset <= last offset")  # fmt: skip


def _read_whole(read: Callable[[int, int], bytes], start: int, end: int, size: int) -> bytes:
    block = read(start, end)
    if len(block) < end - start:
        raise FormatError("time index size", position=start + len(block), expected=size, found="less")
    return block


def _without_padding(buffer: Buffer, entry_size: int) -> int:
    used = len(bytes(buffer).rstrip(b"\0"))
    return -(-used // entry_size) * entry_size


def _check_last(entry: TimeIndexEntry, position: int) -> None:
    if entry.timestamp < 0 or entry.relative_offset < 0:
        raise FormatError("time index entry", position=position, expected="timestamp and offset of 0 or more",
                          found=f"{entry.timestamp} and {entry.relative_offset}")  # fmt: skip
