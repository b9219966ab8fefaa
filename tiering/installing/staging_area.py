"""The staging area of rebuilt snapshots: ``<topic>-<partition>/<N>.snapshot``, and their fingerprint.

The fingerprint has the closed segments that the snapshots depend on, and is written after them. If a run was killed
before that, there is an old fingerprint or none, and its snapshots are not installed, because their bytes do not match.

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
from dataclasses import astuple, dataclass, field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from resnap.replay.boundary_state import harmful
from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.json_values import parsing, typed
from resnap.storage.log.names import (
    DirKind,
    FileKind,
    FileState,
    parse_file_name,
    parse_partition_dir_name,
    segment_name,
)
from resnap.storage.sources.files import GONE, PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.replay.results import BoundaryResult
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.run_cache.results import CachedBoundary

    PrintSegments = Callable[[Sequence[Segment]], Iterable["SegmentPrint | None"]]

FINGERPRINT_FILE: Final = "fingerprint.json"
"""Its name beside the snapshots of a partition."""
VERSION: Final = 1
_T = TypeVar("_T")
_TYPES: Final[dict[str, type]] = {"int": int, "str": str, "bool": bool}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFile:
    """A snapshot of the log dir, and whether the replay has proven it wrong."""

    offset: int
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
        return next((index for index in self.indexes if index.base_offset == base_offset), None)

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
        is_unchanged = sources.is_unchanged(segment)
        head = sources.read_range(segment.path, 0, min(END_BYTES, size))
        tail = sources.read_range(segment.path, max(0, size - END_BYTES), size)
    except GONE:
        return None
    if not is_unchanged:
        return None
    return SegmentPrint(
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        size_bytes=size,
        digest=hashlib.sha256(head + tail).hexdigest(),
    )


def join_fingerprints(earlier: Fingerprint | None, later: Fingerprint) -> Fingerprint:
    """Return ``later`` with the snapshots of ``earlier`` that it neither replaces nor contradicts."""
    if earlier is None:
        return later
    made = {snapshot.offset for snapshot in later.snapshots}
    now = {segment.base_offset: segment for segment in later.segments}
    fits = {s.base_offset: s for s in earlier.segments if now.get(s.base_offset, s) == s}
    changed = sorted({segment.base_offset for segment in earlier.segments} - fits.keys())
    unmade = (snapshot for snapshot in earlier.snapshots if snapshot.offset not in made)
    kept = [staged for staged in unmade if _first_in(changed, staged.depends_from, staged.offset) is None]
    indexes = {index.base_offset: index for index in earlier.indexes if index.base_offset not in changed}
    indexes |= {index.base_offset: index for index in later.indexes}
    return Fingerprint(
        segments=tuple(sorted((fits | now).values(), key=lambda segment: segment.base_offset)),
        snapshots=tuple(sorted([*kept, *later.snapshots], key=lambda snapshot: snapshot.offset)),
        indexes=tuple(indexes[base] for base in sorted(indexes)),
        compared={file.offset: earlier.compared[file.offset] for file in kept if file.offset in earlier.compared}
        | {**later.compared},
    )


def _first_in(offsets: list[int], start: int, end: int) -> int | None:
    """Return the first of ``offsets``, which ascend, in [``start``, ``end``); None if there is none."""
    index = bisect_left(offsets, start)
    return offsets[index] if index < len(offsets) and offsets[index] < end else None


def write_fingerprint(fingerprint: Fingerprint) -> bytes:
    """Return ``fingerprint`` as JSON, a line for each segment and snapshot."""
    segments, snapshots = _lines(fingerprint.segments), _lines(fingerprint.snapshots)
    members = [f'"version": {VERSION}', f'"segments": {segments}', f'"snapshots": {snapshots}']
    if fingerprint.indexes:
        members.append(f'"transactionIndexes": {_lines(fingerprint.indexes)}')
    if fingerprint.compared:
        members.append(f'"compared": {_lines([file for _, file in sorted(fingerprint.compared.items())])}')
    return ("{" + ",\n".join(members) + "}\n").encode()


def read_fingerprint(text: bytes) -> Fingerprint:
    """Return the fingerprint that ``write_fingerprint`` wrote.

    Raises:
        FormatError: it is not a fingerprint, or has another version.

    """
    hint = "`resnap regenerate` writes it again"
    with parsing("fingerprint", expected="what `resnap regenerate` leaves beside snapshots", hint=hint):
        content: dict[str, Any] = json.loads(text)
        if typed(int, content["version"]) != VERSION:
            raise FormatError("version of the fingerprint", position=0, expected=VERSION, found=content["version"],
                              hint=hint)  # fmt: skip
        segments = [_row(SegmentPrint, item) for item in typed(list, content["segments"])]
        snapshots = [_row(StagedPrint, item) for item in typed(list, content["snapshots"])]
        indexes = [_row(StagedIndex, item) for item in typed(list, content.get("transactionIndexes", []))]
        compared = [_row(ComparedFile, item) for item in typed(list, content.get("compared", []))]
    return Fingerprint(
        segments=tuple(sorted(segments, key=attrgetter("base_offset"))),
        snapshots=tuple(sorted(snapshots, key=attrgetter("offset"))),
        indexes=tuple(sorted(indexes, key=attrgetter("base_offset"))),
        compared={file.offset: file for file in compared},
    )


def _lines(items: Sequence[Any]) -> str:
    return "[" + ",".join(f"\n  {json.dumps(astuple(item))}" for item in items) + "]"


def _row(kind: type[_T], item: object) -> _T:
    """Return the value whose fields, in their order, a line of the fingerprint has."""
    named = zip(fields(kind), typed(list, item), strict=True)  # type: ignore[arg-type]
    return kind(**{declared.name: typed(_TYPES[str(declared.type)], value) for declared, value in named})


class StagingArea:
    """The place given to ``resnap regenerate --into``."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """The URL of the place."""
        return self._store.url

    def offsets(self) -> dict[TopicPartition, list[int]]:
        """Return the offsets of each partition's snapshots, ascending, including those in its fingerprint.

        Raises:
            StoreError: the place cannot be listed.

        """
        found: dict[TopicPartition, set[int]] = {}
        for info in self._store.list():
            folder, _, name = info.key.rpartition("/")
            directory, file = parse_partition_dir_name(folder), parse_file_name(name)
            if directory is None or directory.kind is not DirKind.LIVE:
                continue
            offsets = found.setdefault(directory.topic_partition, set())
            if name == FINGERPRINT_FILE:
                fingerprint = self._earlier(directory.topic_partition)
                offsets |= {snapshot.offset for snapshot in fingerprint.snapshots} if fingerprint is not None else set()
            elif file is not None and file.kind is FileKind.SNAPSHOT and file.state is FileState.LIVE:
                offsets.add(file.offset)
        return {key: sorted(offsets) for key, offsets in sorted(found.items()) if offsets}

    def fingerprint(self, topic_partition: TopicPartition) -> Fingerprint | None:
        """Return the fingerprint of a partition's snapshots; None if there is none.

        Raises:
            FormatError: the file is damaged.
            StoreError: it cannot be read.

        """
        key = _fingerprint_key(topic_partition)
        try:
            text = self._store.get(key)
        except ObjectNotFoundError:
            return None
        with in_file(f"{self.url}/{key}"):
            return read_fingerprint(text)

    def put_fingerprint(
        self,
        partition: PartitionDir,
        made: Iterable[StagedPrint],
        unchanged: Iterable[StagedPrint],
        print_segments: PrintSegments,
        indexes: Sequence[StagedIndex] = (),
        *,
        compared: Mapping[int, ComparedFile] | None = None,
    ) -> None:
        """Write the fingerprint of snapshots, joined with that of others in the staging area.

        Args:
            partition: the listing that the replay was planned from.
            made: the snapshots that the replay has just written here.
            unchanged: those that an earlier run has written; nothing is read for them if that run left a complete
                fingerprint.
            print_segments: ``print_segment`` of each, run where segments are read.
            indexes: the transaction indexes that it has written here.
            compared: as in ``Fingerprint``; for ``unchanged`` snapshots the results of the earlier run count.

        Raises:
            LogDirError, StoreError: a segment cannot be read, or the fingerprint not be written.

        """
        made, unchanged = [*made], [*unchanged]
        if not made and not unchanged:
            return  # the place may not even have come into being
        earlier = self._earlier(partition.topic_partition)
        unknown = [staged for staged in unchanged if earlier is None or earlier.at(staged.offset) != staged]
        is_known = earlier is not None and all(earlier.index_at(index.base_offset) == index for index in indexes)
        described = [*made, *(unknown if is_known else unchanged)]
        if described:
            snapshots = sorted(described, key=lambda snapshot: snapshot.offset)
            found = fingerprint_of(partition, snapshots, print_segments)
            before = {} if earlier is None else earlier.compared
            known = {staged.offset: before[staged.offset] for staged in unchanged if staged.offset in before}
            compared = known | dict(compared or {})
            whole = join_fingerprints(earlier, replace(found, indexes=tuple(indexes), compared=compared))
            self._store.put(_fingerprint_key(partition.topic_partition), write_fingerprint(whole))

    def put_index(self, topic_partition: TopicPartition, base_offset: int, body: bytes) -> StagedIndex:
        """Write the transaction index of a segment, and return its fingerprint entry.

        Raises:
            StoreError: it cannot be written.

        """
        self._store.put(_key(topic_partition, base_offset, FileKind.TXNINDEX), body)
        return StagedIndex(base_offset=base_offset, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())

    def locator(self, topic_partition: TopicPartition, offset: int, kind: FileKind = FileKind.SNAPSHOT) -> str:
        """Return the name of a staged file in messages."""
        return f"{self.url}/{_key(topic_partition, offset, kind)}"

    def read(self, topic_partition: TopicPartition, offset: int, kind: FileKind = FileKind.SNAPSHOT) -> bytes | None:
        """Return the content of a staged file; None if it does not exist.

        Raises:
            StoreError: it cannot be read.

        """
        try:
            return b"".join(self.chunks(topic_partition, offset, kind))
        except ObjectNotFoundError:
            return None

    def chunks(
        self, topic_partition: TopicPartition, offset: int, kind: FileKind = FileKind.SNAPSHOT
    ) -> Iterator[bytes]:
        """Yield the bytes of a staged file.

        Raises:
            StoreError: it cannot be read.

        """
        with self._store.open(_key(topic_partition, offset, kind)) as chunks:
            yield from chunks

    def _earlier(self, topic_partition: TopicPartition) -> Fingerprint | None:
        try:
            return self.fingerprint(topic_partition)
        except FormatError:
            return None  # it says nothing that could be kept


def prints_of(partition: PartitionDir, found: Iterable[BoundaryResult | CachedBoundary]) -> list[StagedPrint]:
    """Return the prints of the snapshots from replays of ``partition``."""
    base_of = {segment.next_base_offset: segment.base_offset for segment in partition.segments}
    prints = []
    for boundary in found:
        if boundary.digest is not None:
            base, read_from = base_of[boundary.offset], boundary.window_start_offset
            prints.append(
                StagedPrint(
                    offset=boundary.offset,
                    depends_from=base if read_from is None else min(base, read_from),
                    size_bytes=boundary.digest.size_bytes,
                    sha256=boundary.digest.sha256,
                    left_out=len(harmful(boundary.left_out)),
                )
            )
    return prints


def fingerprint_of(
    partition: PartitionDir, snapshots: Sequence[StagedPrint], print_segments: PrintSegments
) -> Fingerprint:
    """Return the fingerprint of ``snapshots``, ascending.

    A segment that has changed since ``partition`` was listed gets no print, and snapshots that depend on it cannot be
    installed.

    Raises:
        LogDirError, StoreError: a segment cannot be read.

    """
    segments = tuple(segment for segment in print_segments(depended_on(partition, snapshots)) if segment is not None)
    return Fingerprint(segments=segments, snapshots=tuple(snapshots))


def depended_on(partition: PartitionDir, snapshots: Sequence[StagedPrint]) -> list[Segment]:
    """Return the segments that ``snapshots``, ascending, depend on."""
    if not snapshots:
        return []
    start, end = min(snapshot.depends_from for snapshot in snapshots), snapshots[-1].offset
    return [s for s in partition.segments if start <= s.base_offset < end and not s.is_active]


def _key(topic_partition: TopicPartition, offset: int, kind: FileKind) -> str:
    return f"{topic_partition}/{segment_name(offset, kind.value)}"


def _fingerprint_key(topic_partition: TopicPartition) -> str:
    return f"{topic_partition}/{FINGERPRINT_FILE}"
