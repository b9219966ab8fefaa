"""The staging area of rebuilt snapshots: ``<topic>-<partition>/<N>.snapshot``, and their fingerprint.

The fingerprint is written after the snapshots. If a run was killed before that, there is an old fingerprint or none,
and its snapshots are not installed, because their bytes do not match.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from resnap.replay.boundary_state import harmful
from resnap.replay.results import BoundaryResult
from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.log.names import (
    DirKind,
    FileKind,
    FileState,
    parse_file_name,
    parse_partition_dir_name,
    segment_name,
)
from resnap.tiering.installing.fingerprint import (
    FINGERPRINT_FILE,
    Fingerprint,
    StagedIndex,
    StagedPrint,
    joined,
    read_fingerprint,
    write_fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.installing.fingerprint import ComparedFile, SegmentPrint
    from resnap.tiering.run_cache.results import CachedBoundary

    PrintSegments = Callable[[Sequence[Segment]], Iterable[SegmentPrint | None]]


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
                offsets |= {one.offset for one in fingerprint.snapshots} if fingerprint is not None else set()
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

    def leave(
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
            print_segments: ``fingerprint.print_segment`` of each, run where segments are read.
            indexes: the transaction indexes that it has written here.
            compared: as in ``Fingerprint``; for ``unchanged`` snapshots the results of the earlier run count.

        Raises:
            LogDirError, StoreError: a segment cannot be read, or the fingerprint not be written.

        """
        made, unchanged = [*made], [*unchanged]
        if not made and not unchanged:
            return  # the place may not even have come into being
        earlier = self._earlier(partition.topic_partition)
        unknown = [one for one in unchanged if earlier is None or earlier.at(one.offset) != one]
        is_known = earlier is not None and all(earlier.index_at(one.base_offset) == one for one in indexes)
        described = [*made, *(unknown if is_known else unchanged)]
        if described:
            snapshots = sorted(described, key=lambda snapshot: snapshot.offset)
            found = fingerprint_of(partition, snapshots, print_segments)
            before = {} if earlier is None else earlier.compared
            known = {one.offset: before[one.offset] for one in unchanged if one.offset in before}
            compared = known | dict(compared or {})
            whole = joined(earlier, replace(found, indexes=tuple(indexes), compared=compared))
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
    for one in found:
        offset = one.boundary.offset if isinstance(one, BoundaryResult) else one.offset
        if one.digest is not None:
            read_from = base_of[offset] if one.window_start_offset is None else one.window_start_offset
            prints.append(
                StagedPrint(
                    offset=offset,
                    depends_from=min(read_from, base_of[offset]),
                    size_bytes=one.digest.size_bytes,
                    sha256=one.digest.sha256,
                    left_out=len(harmful(one.left_out)),
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
    segments = tuple(one for one in print_segments(depended_on(partition, snapshots)) if one is not None)
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
