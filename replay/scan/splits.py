"""Splits, the units of scanning: where segments are cut, and what a scan returns and keeps.

A split is a whole segment, or a part of a large one, cut at batch boundaries that its offset index names.
Its result is summaries, one per producer, and the facts of the segment: never a batch. If the high watermark is inside
a split, the summaries come in pieces below and above it, so that the state there is known, too. Parts are joined again
before they are combined (``replay.rebuild``).

Finds where a large segment can be cut: at a batch in its offset index, at or after a wanted byte.

Only the position of an index entry is used: an append began there, so a batch starts there. The entry's offset is the
last one of that append, and does not give the position of the next batch. The task that scans a part looks up the
entry, so the driver reads no index, and the same byte leads every task to the same batch.

An index may be missing, damaged, or filled with zeros ahead of time. None of these is an error here: an entry that is
not found means the end of the file, and ``replay.rebuild`` checks whether the parts fit once they were read.

Anchors, and the files that hold their summary rows.

A file is written whole or not at all, under a name derived from its content: two runs that write the same state write
the same file. It holds the layout of its rows and a checksum, so that a file of another version, or a truncated or
changed one, is detected; the reader then works without it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from resnap.replay.kernel.summary import SUMMARY_DTYPE
from resnap.replay.scan import HEADER_READ_BYTES, LEAST_PART_BYTES, PRODUCERS_PER_TASK, SPLIT_BYTES
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, LogDirError, StoreError, in_file
from resnap.storage.log.indexes import OFFSET_ENTRY
from resnap.storage.sources.files import Sources
from resnap.storage.whole_file import open_file, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from resnap.replay.kernel.summary import Array
    from resnap.replay.scan.header_scan import ScanFacts, SegmentRange
    from resnap.storage.errors import ResnapError
    from resnap.storage.readers import RangeReader

MAGIC: Final = b"RSNPSTAT"
LAYOUT: Final = crc32c(repr(SUMMARY_DTYPE.descr).encode())
HEADER: Final = struct.Struct("<8sIIQ")
"""Magic, layout of the rows, CRC-32C of the rows, their number."""
_FIELDS: Final = [np.arange(at, at + kind.itemsize) for kind, at, *_ in (SUMMARY_DTYPE.fields or {}).values()]
_BETWEEN_FIELDS: Final = np.setdiff1d(np.arange(SUMMARY_DTYPE.itemsize), np.concatenate(_FIELDS))
MAX_BYTES: Final = 512 << 20
"""Larger states are not kept: reading the log again is then the lesser evil."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file of rows: its facts, as its writer recorded them."""

    path: str
    rows: int
    crc32c: int
    """CRC-32C of the rows."""

    @property
    def size_bytes(self) -> int:
        """Length of the whole file."""
        return HEADER.size + self.rows * SUMMARY_DTYPE.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The state of everything in [``read_from``, ``offset``), and how it was obtained."""

    offset: int
    read_from: int
    """Where the run began that this state is of, or the first of a chain of runs that anchored in each other."""
    known_from: int
    """First available offset of the log for the run that began there."""
    seen_since_ms: int | None
    """As in ``plan.SegmentRun``, of the run that began there; so are the next two."""
    touched_until_ms: int | None
    cut_through: frozenset[int]
    oldest_clock_ms: int | None
    """Oldest server clock in what was read."""
    clock_ms: int
    """Newest server clock; -1 if there was none."""
    last_clock_ms: int
    """Last server clock, which counts for the time of a roll; -1 if there was none."""
    lacks_records: bool
    """Records are missing inside what was read, as only a cleaner, or a loss, leaves it."""
    certain_silence_ms: int
    """Under which rebirth was judged (``producer_state.Expiry``)."""
    pruned_ms: int | None
    """Idle producers up to this timestamp may have been pruned; None: none was."""
    states: tuple[StateFile, ...]
    """The rows; several files where several tasks combined the run, each of other producers."""


def write_state(directory: str, name: str, rows: Array) -> StateFile | None:
    """Write ``rows`` into ``directory`` under a name that begins with ``name``; None if that is not possible.

    If a state cannot be written, for lack of space or permissions, the replay does not fail.
    """
    if rows.nbytes > MAX_BYTES:
        return None
    body = _bytes_of(rows)
    checksum = crc32c(body)
    head = HEADER.pack(MAGIC, LAYOUT, checksum, len(rows))
    digest = hashlib.sha256(head)
    digest.update(body)
    path = Path(directory) / f"{name}.{digest.hexdigest()[:16]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (head, body))
    except OSError:
        return None
    return StateFile(path=str(path), rows=len(rows), crc32c=checksum)


def _bytes_of(rows: Array) -> memoryview:
    """Return ``rows`` as bytes, with zeros in the padding, which may hold arbitrary memory."""
    lines = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), SUMMARY_DTYPE.itemsize).copy()
    lines[:, _BETWEEN_FIELDS] = 0
    return lines.reshape(-1).data


def read_state(state: StateFile) -> Array:
    """Return the rows of ``state``.

    Raises:
        FormatError: the file has changed since it was written.
        LogDirError: it cannot be read.

    """
    hint = "the next run writes it again; --fresh does not need it"
    try:
        with open_file(state.path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size == state.size_bytes else b""
    except OSError as error:
        raise LogDirError(f"{state.path}: cannot be read: {error.strerror}", hint=hint) from error
    with in_file(state.path):
        if size != state.size_bytes:
            raise FormatError("length of the state", position=0, expected=state.size_bytes, found=size, hint=hint)
        found = HEADER.unpack_from(data)
        computed = crc32c(memoryview(data)[HEADER.size :])
        if found != (MAGIC, LAYOUT, state.crc32c, state.rows) or computed != state.crc32c:
            raise FormatError("state", position=0, expected="what was written", found="something else", hint=hint)
    return np.frombuffer(data, dtype=SUMMARY_DTYPE, offset=HEADER.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How segments are opened and read: of effect on time and cost, never on the result.

    A plain value, so that it can be sent to executors.
    """

    sources: Sources = field(default_factory=Sources)
    kernel: bool = True
    """Scan by machine code, where that can be made."""
    header_read_bytes: int = HEADER_READ_BYTES
    split_bytes: int = SPLIT_BYTES
    """Segments larger than this are cut into parts of about this size, where several are scanned at once."""
    least_part_bytes: int = LEAST_PART_BYTES
    """No segment is cut into parts smaller than this."""
    threads: int = 1
    """Segments, or parts of them, scanned at once by the engine without Spark."""
    producers_per_task: int = PRODUCERS_PER_TASK
    """A run with more producers is combined by several tasks, each with its range of producer ids."""


TASKS_PER_SLOT: Final = 3
"""Enough to even out splits of different sizes; each task costs Spark some 10 ms."""
SCAN_TASK_BYTES: Final = 4 << 30
"""Segments of a task have at most as many, but for one split, however few slots there are: slots may come later."""
TASK_SPLITS: Final = 512
"""The largest number of splits in one task."""
BLOCK_ENTRIES: Final = 1024
"""Entries of an index read at a time, 8 KiB: mostly one read is enough."""
_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The unit of one scan: a range of the segment at ``segment_index``, its ``part``-th one."""

    segment_index: int
    part: int
    range: SegmentRange
    size_bytes: int
    ends_segment: bool = True
    """Whether no other part of the segment follows."""
    high_watermark: int | None = None
    """Set where it falls inside the segment: the summaries are given apart below and from it on."""
    segment_bytes: int = 0
    """Size of the whole segment when the run was planned; 0 where it is not known."""
    start_target: int = 0
    """The part starts at the first batch that the index names at or after this byte."""
    end_target: int | None = None
    """The target where the next one starts, and this one ends; None for the end of the file."""
    anchor: Anchor | None = None
    """Set in the split that comes before the first segment, and whose summary is the state kept there."""

    @property
    def is_part(self) -> bool:
        """Whether the segment has other splits."""
        return self.start_target > 0 or self.end_target is not None


class PartStart(NamedTuple):
    """The first batch of a part."""

    position: int
    offset: int
    is_v2: bool
    """Whether it says its first offset; a legacy message may be the last of several."""


class Piece(NamedTuple):
    """The summary of a run of batches, and its newest server clock (-1: none)."""

    rows: Array
    clock_ms: int
    above: bool = False
    """Whether the batches are at or above the high watermark, in a split that it falls into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """The result of one scan.

    ``pieces`` are in offset order, those below the high watermark first if it divides the split; there are none if
    ``error``, damage or an unreadable file, stopped the scan. They can be read once.
    """

    segment_index: int
    part: int
    facts: ScanFacts
    pieces: Iterable[Piece]
    ends_segment: bool = True
    error: ResnapError | None = None
    start: PartStart | None = None
    """Where a part that is not empty began."""


ANCHOR_PART: Final = -1
"""Number of the split that is not a part of its segment, but the state below it."""


def locate(part: Split, sources: Sources) -> SegmentRange | None:
    """Return the range of its segment that ``part`` means; None if no batch begins in it."""
    try:
        with open_index(f"{part.range.locator.removesuffix('.log')}.index", sources) as index:
            start = position_at(index, part.start_target, part.segment_bytes) if part.start_target else 0
            end = None if part.end_target is None else position_at(index, part.end_target, part.segment_bytes)
    except (LogDirError, StoreError):
        # Every part of the segment fails the same way, so that the first part becomes the whole segment.
        start, end = (None if part.start_target else 0), None
    return None if start is None or start == end else replace(part.range, start=start, end=end)


def open_index(locator: str, sources: Sources) -> AbstractContextManager[RangeReader]:
    """Open an offset index for ``read_entries``: a store is asked for one block at a time, and nothing ahead."""
    return replace(sources, range_bytes=BLOCK_ENTRIES * OFFSET_ENTRY.size).open(locator, end=0)


def read_entries(index: RangeReader, first: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return ``count`` entries (``relative_offset``, ``position``) from number ``first`` on; fewer at the end."""
    data = index.read(first * OFFSET_ENTRY.size, count * OFFSET_ENTRY.size)
    return np.frombuffer(data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size], dtype=_ENTRY)


def position_at(index: RangeReader, target: int, log_bytes: int) -> int | None:
    """Return the first position in ``index`` at or above ``target``, in a log of ``log_bytes``; None if there is none.

    Positions rise almost evenly with their entries, so the search begins at the expected entry, and continues by
    bisection.
    """
    count = index.size_bytes // OFFSET_ENTRY.size
    low, high, found = 0, count, None
    guess = min(count * target // max(log_bytes, 1), count)
    while low < high:
        first = max(low, min(guess - BLOCK_ENTRIES // 2, high - BLOCK_ENTRIES))
        positions = read_entries(index, first, min(BLOCK_ENTRIES, high - first))["position"]
        # Zeros fill what an active segment's index has not used yet.
        reached = np.flatnonzero((positions >= target) | (positions <= 0))
        if not len(reached):
            low = first + len(positions) if len(positions) else high
        else:
            at = int(reached[0])
            found, high = int(positions[at]), first + at
            if at:
                break
        guess = (low + high) // 2
    return found if found is not None and target <= found < log_bytes else None
