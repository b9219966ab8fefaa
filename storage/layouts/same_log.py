"""Decides whether two logs are the same log, by comparing a batch that both must have.

Replicas copy batches byte by byte, and logs with the same batch at an offset are the same up to that offset. A topic
that was deleted and created again has the name, the offsets and often the leader epochs of the old one, but other
batches.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FileGoneError, LogDirError, ObjectNotFoundError
from resnap.storage.log.record_batch import HEADER, LOG_OVERHEAD
from resnap.storage.stores.ranged_reader import ranged_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from resnap.storage.readers import RangeReader
    from resnap.storage.stores.protocol import ObjectStore

_OFFSET_BYTES: Final = 8
_RANGE_BYTES: Final = 1 << 20
"""Of a stored log whose headers are read one after the other, which is rare: enough for many of them."""


class Piece(NamedTuple):
    """A segment of a log, with the means to open it."""

    base_offset: int
    next_base_offset: int | None
    """None for the active segment."""
    open: Callable[[int], AbstractContextManager[RangeReader]]
    """Takes how many bytes a request is to bring."""


def stored_piece(store: ObjectStore, key: str, base_offset: int, next_base_offset: int) -> Piece:
    """Return the segment [``base_offset``, ``next_base_offset``) whose log is the object ``key``."""

    def opened(range_bytes: int) -> AbstractContextManager[RangeReader]:
        return ranged_reader(store, key, range_bytes=range_bytes, ranges_in_flight=1)

    return Piece(base_offset, next_base_offset, opened)


class SharedBatch(NamedTuple):
    """The first batch that could be compared."""

    offset: int
    there: Piece
    """The segment of the second log that has it."""
    is_same: bool


def shared_batch(here: Sequence[Piece], there: Sequence[Piece]) -> SharedBatch | None:
    """Return the first batch that could be compared; None if there is none, or none can be read.

    Both ascend. A segment that was deleted is skipped: reading it reports that.

    Raises:
        LogDirError: no batch could be compared, and a file could not be read.
        StoreError: the store failed.

    """
    unread: LogDirError | None = None
    for ours, theirs in _pairs(here, there):
        try:
            offset = max(ours.base_offset, theirs.base_offset)
            first, second = (first_batch(piece, offset)[1] for piece in (ours, theirs))
            if first and second:
                return SharedBatch(offset, theirs, first == second)
        except (FileGoneError, ObjectNotFoundError):
            continue
        except LogDirError as error:
            unread = unread or error
    if unread is not None:
        raise unread
    return None


def _pairs(here: Sequence[Piece], there: Sequence[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield segments that share offsets, first those with the same base offset: they cost one header each."""
    bases = [piece.base_offset for piece in here]
    overlapping = []
    for one in reversed(there):
        index = len(bases) if one.next_base_offset is None else bisect_right(bases, one.next_base_offset - 1)
        end = here[index - 1].next_base_offset if index else one.base_offset
        if end is not None and end <= one.base_offset:
            continue
        at = bisect_right(bases, one.base_offset) - 1
        if at >= 0 and bases[at] == one.base_offset:
            yield here[at], one
        else:
            overlapping.append((here[max(at, 0)], one))
    yield from overlapping


def first_batch(piece: Piece, offset: int) -> tuple[int, bytes]:
    """Return position and header of the first batch at ``offset`` or above; size and no header if there is none.

    Raises:
        LogDirError, StoreError: the segment cannot be read.

    """
    position = 0
    with piece.open(HEADER.size if offset == piece.base_offset else _RANGE_BYTES) as reader:
        while len(header := reader.read(position, HEADER.size)) >= LOG_OVERHEAD:
            if int.from_bytes(header[:_OFFSET_BYTES], "big", signed=True) >= offset:
                return position, header
            length = int.from_bytes(header[_OFFSET_BYTES:LOG_OVERHEAD], "big", signed=True)
            position += LOG_OVERHEAD + max(length, 0)
    return position, b""
