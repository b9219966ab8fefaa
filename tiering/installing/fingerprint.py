"""The fingerprint of staged snapshots: the closed segments that they depend on, stored beside them.

A snapshot is valid only for the log it was made from. Before it is installed a live broker may append, roll and delete:
that does not change the remaining closed segments. So each of those is identified by its offsets, its length and a
digest of its ends; times and inodes do not count, because a copy of the log is the same log.

The digest covers the first and the last bytes, which contain batch headers with the checksums of their batches. A log
is only appended to or truncated: if two of the same length differ at all, they differ up to the end.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.storage.errors import FormatError, parser_says
from resnap.storage.json_values import typed
from resnap.storage.readers import FileFacts
from resnap.storage.sources.files import GONE, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources

FINGERPRINT_FILE: Final = "fingerprint.json"
"""Its name beside the snapshots of a partition."""
VERSION: Final = 1
END_BYTES: Final = 4096
"""Read at either end of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPrint:
    """The identity of a closed segment."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    digest: str
    """SHA-256 of its first and last ``END_BYTES`` bytes, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPrint:
    """One staged snapshot, and the offset from which segments were read for it."""

    offset: int
    depends_from: int
    """Base offset of the first segment that it depends on; the last is the one that ends at ``offset``."""
    size_bytes: int
    sha256: str
    left_out: int
    """Producers that it lacks, since their past was not in what could be read."""


class ComparedFile(NamedTuple):
    """A snapshot of the log dir, and whether the replay has proven it wrong."""

    sha256: str
    is_wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedIndex:
    """The staged transaction index of one segment."""

    base_offset: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The segments that the staged files of one partition depend on."""

    segments: tuple[SegmentPrint, ...]
    """Ascending."""
    snapshots: tuple[StagedPrint, ...]
    """Ascending."""
    indexes: tuple[StagedIndex, ...] = ()
    """Transaction indexes, ascending; each depends on its own segment, and on the snapshot where that begins."""
    compared: Mapping[int, ComparedFile] = field(default_factory=dict)
    """The snapshots of the log dir that the replay was compared with, by offset."""

    def index_at(self, base_offset: int) -> StagedIndex | None:
        """Return the staged transaction index of the segment at ``base_offset``."""
        return next((one for one in self.indexes if one.base_offset == base_offset), None)

    def at(self, offset: int) -> StagedPrint | None:
        """Return the print of the snapshot at ``offset``."""
        index = bisect_left(self.snapshots, offset, key=lambda snapshot: snapshot.offset)
        found = self.snapshots[index] if index < len(self.snapshots) else None
        return found if found is not None and found.offset == offset else None


class Staleness:
    """Which staged snapshots no longer match the log, given its current closed segments.

    Segments below the first existing one were deleted by retention, which does not invalidate snapshots above them.
    """

    def __init__(self, fingerprint: Fingerprint, present: Iterable[SegmentPrint], first_base_offset: int) -> None:
        """``present`` are those from the lowest ``depends_from`` on; ``first_base_offset`` is the log's current one."""
        self._begins = first_base_offset
        there = {segment.base_offset: segment for segment in present}
        known = {s.base_offset: s for s in fingerprint.segments if s.base_offset >= first_base_offset}
        self._changed = sorted(base for base in there.keys() | known.keys() if there.get(base) != known.get(base))

    def of(self, snapshot: StagedPrint) -> int | None:
        """Return the base offset of the first changed segment that ``snapshot`` depends on; None if there is none."""
        return _first_in(self._changed, snapshot.depends_from, max(snapshot.offset, self._begins + 1))

    def of_index(self, index: StagedIndex) -> int | None:
        """Return the base offset of the segment of ``index`` if it has changed; else None."""
        return index.base_offset if index.base_offset in self._changed else None


def print_segment(segment: Segment, sources: Sources = PLAIN) -> SegmentPrint | None:
    """Return the print of the closed ``segment``; None if it was deleted, or has changed since it was listed.

    Raises:
        LogDirError, StoreError: it cannot be read.

    """
    if segment.next_base_offset is None:
        raise AssertionError("the active segment is known by nothing yet")
    size = segment.size_bytes
    try:
        facts = sources.facts(segment.path)
        head = sources.read_range(segment.path, 0, min(END_BYTES, size))
        tail = sources.read_range(segment.path, max(0, size - END_BYTES), size)
    except GONE:
        return None
    if not facts.is_same(FileFacts(size, segment.mtime_ns, segment.inode)):
        return None
    return SegmentPrint(
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        size_bytes=size,
        digest=hashlib.sha256(head + tail).hexdigest(),
    )


def joined(earlier: Fingerprint | None, later: Fingerprint) -> Fingerprint:
    """Return ``later`` with the snapshots of ``earlier`` that it neither replaces nor contradicts."""
    if earlier is None:
        return later
    made = {snapshot.offset for snapshot in later.snapshots}
    now = {segment.base_offset: segment for segment in later.segments}
    fits = {s.base_offset: s for s in earlier.segments if now.get(s.base_offset, s) == s}
    changed = sorted({segment.base_offset for segment in earlier.segments} - fits.keys())
    unmade = (snapshot for snapshot in earlier.snapshots if snapshot.offset not in made)
    kept = [one for one in unmade if _first_in(changed, one.depends_from, one.offset) is None]
    indexes = {one.base_offset: one for one in earlier.indexes if one.base_offset not in changed}
    indexes |= {one.base_offset: one for one in later.indexes}
    return Fingerprint(
        segments=tuple(sorted((fits | now).values(), key=lambda segment: segment.base_offset)),
        snapshots=tuple(sorted([*kept, *later.snapshots], key=lambda snapshot: snapshot.offset)),
        indexes=tuple(indexes[base] for base in sorted(indexes)),
        compared={one.offset: earlier.compared[one.offset] for one in kept if one.offset in earlier.compared}
        | {**later.compared},
    )


def _first_in(offsets: list[int], start: int, end: int) -> int | None:
    """Return the first of ``offsets``, which ascend, in [``start``, ``end``); None if there is none."""
    index = bisect_left(offsets, start)
    return offsets[index] if index < len(offsets) and offsets[index] < end else None


def write_fingerprint(fingerprint: Fingerprint) -> bytes:
    """Return ``fingerprint`` as JSON, a line for each segment and snapshot."""
    segments = [[s.base_offset, s.next_base_offset, s.size_bytes, s.digest] for s in fingerprint.segments]
    snapshots = [[s.offset, s.depends_from, s.size_bytes, s.sha256, s.left_out] for s in fingerprint.snapshots]
    members = [f'"version": {VERSION}', f'"segments": {_lines(segments)}', f'"snapshots": {_lines(snapshots)}']
    if fingerprint.indexes:
        indexes: list[list[object]] = [[one.base_offset, one.size_bytes, one.sha256] for one in fingerprint.indexes]
        members.append(f'"transactionIndexes": {_lines(indexes)}')
    if fingerprint.compared:
        members.append(
            f'"compared": {_lines([[offset, *one] for offset, one in sorted(fingerprint.compared.items())])}'
        )
    return ("{" + ",\n".join(members) + "}\n").encode()


def read_fingerprint(text: bytes) -> Fingerprint:
    """Return the fingerprint that ``write_fingerprint`` wrote.

    Raises:
        FormatError: it is not a fingerprint, or has another version.

    """
    hint = "`resnap regenerate` writes it again"
    try:
        content: dict[str, Any] = json.loads(text)
        if typed(int, content["version"]) != VERSION:
            raise FormatError("version of the fingerprint", position=0, expected=VERSION, found=content["version"],
                              hint=hint)  # fmt: skip
        segments = tuple(_segment(item) for item in typed(list, content["segments"]))
        snapshots = tuple(_snapshot(item) for item in typed(list, content["snapshots"]))
        indexes = tuple(_index(item) for item in typed(list, content.get("transactionIndexes", [])))
        compared = dict(map(_compared, typed(list, content.get("compared", []))))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        found = parser_says(error)
        raise FormatError("fingerprint", position=0, expected="what `resnap regenerate` leaves beside snapshots",
                          found=found, hint=hint) from error  # fmt: skip
    return Fingerprint(
        segments=tuple(sorted(segments, key=lambda segment: segment.base_offset)),
        snapshots=tuple(sorted(snapshots, key=lambda snapshot: snapshot.offset)),
        indexes=tuple(sorted(indexes, key=lambda index: index.base_offset)),
        compared=compared,
    )


def _lines(items: list[list[object]]) -> str:
    return "[" + ",".join(f"\n  {json.dumps(item)}" for item in items) + "]"


def _segment(item: object) -> SegmentPrint:
    base_offset, next_base_offset, size_bytes, digest = typed(list, item)
    return SegmentPrint(
        base_offset=typed(int, base_offset),
        next_base_offset=typed(int, next_base_offset),
        size_bytes=typed(int, size_bytes),
        digest=typed(str, digest),
    )


def _snapshot(item: object) -> StagedPrint:
    offset, depends_from, size_bytes, sha256, left_out = typed(list, item)
    return StagedPrint(
        offset=typed(int, offset),
        depends_from=typed(int, depends_from),
        size_bytes=typed(int, size_bytes),
        sha256=typed(str, sha256),
        left_out=typed(int, left_out),
    )


def _compared(item: object) -> tuple[int, ComparedFile]:
    offset, sha256, is_wrong = typed(list, item)
    return typed(int, offset), ComparedFile(typed(str, sha256), typed(bool, is_wrong))


def _index(item: object) -> StagedIndex:
    base_offset, size_bytes, sha256 = typed(list, item)
    return StagedIndex(
        base_offset=typed(int, base_offset), size_bytes=typed(int, size_bytes), sha256=typed(str, sha256)
    )
