"""What is shipped for one segment: its log, its indexes, its leader epochs and the aligned snapshot, each with digests.

A broker that reads from remote storage trusts these files blindly, so they are checked before they travel: indexes must
be trimmed and sane, or are rebuilt from the batch headers as ``LogSegment.recover`` does; leader epochs come from the
checkpoint, or from the headers where it is lost. The digests are of the bytes as they are read here. The segment must
stand still meanwhile: a file that changed since the log directory was listed is left for the next run.

Source: ``RemoteLogManager.copyLogSegment``, ``LogSegmentData``; KIP-405.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from replay.header_scan import ScanFacts, SegmentRange, read_headers
from storage.crc32c import crc32c
from storage.errors import FormatError, LogDirError, in_file
from storage.log.checkpoints import (
    LeaderEpoch,
    leader_epochs_up_to,
    read_leader_epochs,
    segment_leader_epochs,
    write_leader_epochs,
)
from storage.log.indexes import (
    OffsetIndexEntry,
    TimeIndexEntry,
    check_offset_index,
    read_offset_index,
    read_time_index,
    read_transaction_index,
    write_offset_index,
    write_time_index,
)
from storage.remote.manifest import ObjectKind
from storage.source import open_reader

if TYPE_CHECKING:
    from storage.log.partition_dir import PartitionDir, Segment
    from storage.remote.object_store import BodyOpener

INDEX_INTERVAL_BYTES: Final = 4096
"""``index.interval.bytes`` by default: how densely a rebuilt index is filled."""
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePart:
    """One object of a bundle."""

    kind: ObjectKind
    open_body: BodyOpener
    size_bytes: int
    crc32c: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBundle:
    """Everything that is shipped for one segment, the log first."""

    segment: Segment
    next_base_offset: int
    parts: tuple[BundlePart, ...]
    leader_epochs: tuple[LeaderEpoch, ...]
    """Those of the segment alone, clamped to it."""
    last_offset: int
    """Of the last batch, inclusive; ``base_offset - 1`` if there is none."""
    max_timestamp_ms: int


class SegmentChangedError(LogDirError):
    """The segment is not what it was when the log directory was listed; the next run will see what it is now."""


class LeaderEpochsUnknownError(LogDirError):
    """Neither the checkpoint nor the batches tell the leader epochs of the segment."""


class IndexUnusableError(LogDirError):
    """An index is damaged and cannot be made anew from the segment alone."""


def make_bundle(partition: PartitionDir, segment: Segment, snapshot: bytes) -> SegmentBundle:
    """Read what belongs to the closed ``segment`` and return it, ready to be shipped.

    Raises:
        SegmentChangedError, LeaderEpochsUnknownError, IndexUnusableError: it cannot be shipped now.
        FormatError: the segment itself is damaged.
        LogDirError: a file cannot be read.

    """
    if segment.next_base_offset is None:
        raise AssertionError("the active segment has no end yet")
    facts = _scan(segment)
    epochs = leader_epochs(partition, segment)
    clamped = segment_leader_epochs(epochs, segment.base_offset, segment.next_base_offset)
    history = write_leader_epochs(leader_epochs_up_to(epochs, segment.next_base_offset))
    index, timeindex, max_timestamp_ms = _indexes(segment)
    parts = [
        _file_part(ObjectKind.LOG, Path(segment.path)),
        _bytes_part(ObjectKind.INDEX, index),
        _bytes_part(ObjectKind.TIME_INDEX, timeindex),
        *(_bytes_part(ObjectKind.TXN_INDEX, body) for body in _transaction_index(segment)),
        _bytes_part(ObjectKind.LEADER_EPOCH_CHECKPOINT, history),
        _bytes_part(ObjectKind.SNAPSHOT, snapshot),
    ]
    check_unchanged(segment)
    return SegmentBundle(
        segment=segment,
        next_base_offset=segment.next_base_offset,
        parts=tuple(parts),
        leader_epochs=tuple(clamped),
        last_offset=facts.end_offset - 1,
        max_timestamp_ms=max_timestamp_ms,
    )


def _scan(segment: Segment) -> ScanFacts:
    """Hop through the segment once: segments older than the window were not replayed, and may be damaged."""
    facts = ScanFacts()
    with open_reader(segment.path) as reader:
        for _ in read_headers(reader, _whole(segment), facts):
            pass
    return facts


def check_unchanged(segment: Segment) -> None:
    """Compare the log file with what was listed.

    Raises:
        SegmentChangedError: it is gone, or another file, or of another size or time.

    """
    try:
        now = Path(segment.path).stat()
    except OSError as error:
        raise SegmentChangedError(f"{segment.path}: gone since the log directory was listed") from error
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (segment.size_bytes, segment.mtime_ns, segment.inode):
        raise SegmentChangedError(f"{segment.path}: changed since the log directory was listed")


def leader_epochs(partition: PartitionDir, segment: Segment) -> tuple[LeaderEpoch, ...]:
    """Return the leader epochs up to the end of ``segment``, from the checkpoint or else from the batch headers.

    Raises:
        LeaderEpochsUnknownError: none is known at the start of the segment.

    """
    epochs = _checkpointed(partition) if partition.has_leader_epochs else ()
    if not epochs:
        epochs = _from_headers(partition, segment)
    if not epochs or epochs[0].start_offset > segment.base_offset:
        since = f"known from offset {epochs[0].start_offset} on" if epochs else "none is known"
        raise LeaderEpochsUnknownError(
            f"no leader epoch at offset {segment.base_offset}: {since}",
            hint="written before 0.11, or with an older message format: no broker can tier it; retention will take it",
        )
    return epochs


def _checkpointed(partition: PartitionDir) -> tuple[LeaderEpoch, ...]:
    path = partition.path / "leader-epoch-checkpoint"
    try:
        with in_file(path):
            return read_leader_epochs(path.read_bytes())
    except (FormatError, OSError):
        return ()


def _from_headers(partition: PartitionDir, last: Segment) -> tuple[LeaderEpoch, ...]:
    """Do as recovery does: an epoch begins where a batch has a higher one than all before."""
    found: list[LeaderEpoch] = []
    for segment in partition.segments:
        if segment.base_offset > last.base_offset:
            break
        newest = found[-1].epoch if found else -1
        found += [LeaderEpoch(epoch, offset) for epoch, offset in _scan(segment).leader_epochs if epoch > newest]
    return tuple(found)


def _whole(segment: Segment) -> SegmentRange:
    return SegmentRange(
        locator=segment.path, base_offset=segment.base_offset, next_base_offset=segment.next_base_offset
    )


def _indexes(segment: Segment) -> tuple[bytes, bytes, int]:
    """Return the offset index, the time index and the largest timestamp, made anew where a file is missing or unfit."""
    try:
        offsets = read_offset_index(segment.sibling("index").read_bytes())
        check_offset_index(offsets, segment.size_bytes)
        times = read_time_index(segment.sibling("timeindex").read_bytes())
    except (FormatError, OSError):
        offsets, times = rebuild_indexes(segment)
    largest = times[-1].timestamp if times else segment.mtime_ns // 1_000_000
    return write_offset_index(offsets), write_time_index(times), largest


def rebuild_indexes(
    segment: Segment, interval_bytes: int = INDEX_INTERVAL_BYTES
) -> tuple[list[OffsetIndexEntry], list[TimeIndexEntry]]:
    """Return both indexes as recovery would write them: an entry each time ``interval_bytes`` have gone by."""
    offsets: list[OffsetIndexEntry] = []
    times: list[TimeIndexEntry] = []
    since, largest, largest_at, last = 0, -1, 0, -1
    with open_reader(segment.path) as reader:
        for headers, positions in read_headers(reader, _whole(segment), ScanFacts()):
            for header, position in zip(headers, positions.tolist(), strict=True):
                last = int(header["base_offset"]) + int(header["last_offset_delta"]) - segment.base_offset
                if header["max_timestamp"] > largest:
                    largest, largest_at = int(header["max_timestamp"]), last
                if since > interval_bytes:
                    offsets.append(OffsetIndexEntry(last, position))
                    _append_time(times, largest, largest_at)
                    since = 0
                since += int(header["batch_length"]) + 12
    _append_time(times, largest, largest_at)
    return offsets, times


def _append_time(times: list[TimeIndexEntry], timestamp: int, relative_offset: int) -> None:
    if timestamp >= 0 and (not times or timestamp > times[-1].timestamp):
        times.append(TimeIndexEntry(timestamp, relative_offset))


def _transaction_index(segment: Segment) -> list[bytes]:
    """Return the transaction index as a list of none or one; an empty one is not shipped, since absent means empty."""
    path = segment.sibling("txnindex")
    try:
        body = path.read_bytes()
        with in_file(path):
            aborted = read_transaction_index(body)
    except FileNotFoundError:
        return []
    except FormatError as error:
        # Never advise to delete it: a broker that then recovers the segment deletes the snapshots above it.
        raise IndexUnusableError(str(error), hint="take the partition from the log dir of another replica") from error
    return [body] if aborted else []


def _file_part(kind: ObjectKind, path: Path) -> BundlePart:
    checksum, sha256, size_bytes = 0, hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                checksum = crc32c(block, checksum)
                sha256.update(block)
                size_bytes += len(block)
    except OSError as error:
        raise LogDirError(f"{path}: cannot be read: {error.strerror}", hint="check the disk") from error

    def open_body() -> BinaryIO:
        return path.open("rb")

    return BundlePart(kind=kind, open_body=open_body, size_bytes=size_bytes, crc32c=checksum, sha256=sha256.hexdigest())


def _bytes_part(kind: ObjectKind, body: bytes) -> BundlePart:
    return BundlePart(
        kind=kind,
        open_body=lambda: io.BytesIO(body),
        size_bytes=len(body),
        crc32c=crc32c(body),
        sha256=hashlib.sha256(body).hexdigest(),
    )
