"""Collects and checks what is shipped for one segment: log, indexes, leader epochs, snapshot, with digests.

A broker that reads from remote storage trusts these files blindly, so they are checked before they are shipped: the
indexes by ``segment_indexes``; leader epochs come from the checkpoint, or from the batch headers if it is lost. The
digests cover the bytes as they are read here. The segment must not change during that: a file that has changed since
the log directory was listed is left for the next run.

Source: ``RemoteLogManager.copyLogSegment``, ``LogSegmentData``; KIP-405.
"""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from resnap.replay.scan.header_scan import ScanFacts
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, LogDirError, ObjectChangedError
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import NewSegment, SegmentFile
from resnap.storage.log.checkpoints import (
    LeaderEpoch,
    epochs_in,
    leader_epochs_up_to,
    read_offset_checkpoint,
    write_leader_epochs,
)
from resnap.storage.log.log_dir import LOG_START_OFFSETS
from resnap.storage.log.names import FileKind, FileState, parse_file_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.sources.files import GONE, PLAIN, UNREADABLE
from resnap.storage.stores.urls import is_store_url
from resnap.storage.whole_file import read_whole
from resnap.tiering.judging.inventory import checkpointed_epochs
from resnap.tiering.judging.refusal import HINTS, Reason
from resnap.tiering.shipping.segment_indexes import load_indexes, read_batches
from resnap.tiering.shipping.segment_pass import contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.replay.results import BoundaryResult
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.layouts.segments import Provenance
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo
    from resnap.tiering.shipping.segment_indexes import SegmentIndexes
    from resnap.tiering.shipping.segment_pass import DigestingReader


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOrder:
    """One closed segment to copy, as listed; a plain value, so that it can be sent to executors."""

    provenance: Provenance
    segment: Segment
    log_start_offset: int
    """The log start offset of the partition."""
    sources: Sources
    """How its files are reached."""
    leader_epochs: tuple[LeaderEpoch, ...]
    """The leader epochs that begin below the end of the segment, with all history."""
    rebuilt: BoundaryResult
    """What the replay gave at its end."""
    created_at_ms: int
    beside: tuple[ObjectInfo, ...] | None = None
    """As of ``NewSegment``."""

    def check_unchanged(self) -> None:
        """Compare the log with its listing; see ``check_unchanged``.

        Raises:
            SegmentChangedError: also if retention, or a deletion of records, has reached the segment since.
            StoreError: the store it is in failed.

        """
        check_unchanged(self.segment, self.sources)
        _check_log_start(self.segment, self.provenance.topic_partition, self.log_start_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSnapshot:
    """The bytes to ship, and their origin."""

    body: bytes
    origin: SnapshotOrigin


@contextmanager
def reporting_change(segment: Segment, sources: Sources) -> Iterator[None]:
    """Report a segment that looks damaged as truncated, deleted or grown, if that is the cause.

    Raises:
        SegmentChangedError: it is.

    """
    try:
        yield
    except UNREADABLE:
        check_unchanged(segment, sources)
        raise
    except ObjectChangedError as error:
        raise _changed_error(segment) from error


class SegmentChangedError(LogDirError):
    """The segment has changed since the log directory was listed; the next run will use its new state."""


class SegmentDeletedError(SegmentChangedError):
    """The log begins above the segment now: it no longer belongs to the log."""


class LeaderEpochsUnknownError(LogDirError):
    """Neither the checkpoint nor the batches have the leader epochs of the segment."""


class LeaderEpochsWrongError(LogDirError):
    """The batches have other leader epochs than the checkpoint."""


def new_segment(order: CopyOrder, snapshot: ChosenSnapshot) -> tuple[NewSegment, SegmentIndexes]:
    """Read the files of a segment, and return it, ready to be shipped with ``snapshot``, and its indexes.

    The indexes are as they were read, with what they were compared with.

    Raises:
        SegmentChangedError, LeaderEpochsWrongError, IndexUnusableError: it cannot be shipped now.
        FormatError: the segment itself is damaged.
        LogDirError, StoreError: a file cannot be read.

    """
    segment, epochs = order.segment, order.leader_epochs
    if segment.next_base_offset is None:
        raise AssertionError("the active segment has no end yet")
    with reporting_change(segment, order.sources):
        indexes = load_indexes(segment, order.sources)
        _check_epochs(segment, epochs, indexes)
        log = _log_file(indexes.log, order.sources)
    order.check_unchanged()
    bodies = {
        ObjectKind.INDEX: indexes.offset,
        ObjectKind.TIME_INDEX: indexes.time,
        ObjectKind.TXN_INDEX: indexes.transaction,
        ObjectKind.LEADER_EPOCH_CHECKPOINT: write_leader_epochs(epochs),
        ObjectKind.SNAPSHOT: snapshot.body,
    }
    new = NewSegment(
        provenance=order.provenance,
        path=segment.path,
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        last_offset=indexes.seen.end_offset - 1,
        max_timestamp_ms=indexes.max_timestamp_ms,
        leader_epochs=epochs_in(epochs, segment.base_offset, segment.next_base_offset),
        files=(log, *(_bytes_file(kind, body) for kind, body in bodies.items() if body is not None)),
        origin=snapshot.origin,
        created_at_ms=order.created_at_ms,
        beside=order.beside,
    )
    return new, indexes


def check_unchanged(segment: Segment, sources: Sources = PLAIN) -> None:
    """Compare the log file with its listing.

    Raises:
        SegmentChangedError: it was deleted or replaced, or its size or time has changed.
        SegmentDeletedError: it and all segments below it were deleted by retention, which goes upwards.
        LogDirError, StoreError: that cannot be determined.

    """
    try:
        is_unchanged = sources.is_unchanged(segment)
    except GONE as error:
        gone = SegmentDeletedError if _begins_above(segment) else SegmentChangedError
        raise gone(f"{segment.path}: gone since the log directory was listed") from error
    if not is_unchanged:
        raise _changed_error(segment)


def _begins_above(segment: Segment) -> bool:
    """Whether there are segments, all of them above ``segment``; False if that cannot be determined."""
    try:
        names = [] if is_store_url(segment.path) else os.listdir(Path(segment.path).parent)  # noqa: PTH208 - names alone
    except OSError:
        return False
    files = [file for file in map(parse_file_name, names) if file is not None]
    bases = [file.offset for file in files if file.kind is FileKind.LOG and file.state is FileState.LIVE]
    return bool(bases) and min(bases) > segment.base_offset


def _check_log_start(segment: Segment, topic_partition: TopicPartition, listed: int) -> None:
    """Check that the log start has not moved up; a checkpoint that cannot be read now is ignored."""
    if is_store_url(segment.path):
        return
    try:
        starts = read_offset_checkpoint(read_whole(Path(segment.path).parent.parent / LOG_START_OFFSETS))
    except (OSError, FormatError):
        return
    start = starts.get(topic_partition, listed)
    if start > max(listed, segment.base_offset):
        is_below = segment.next_base_offset is not None and segment.next_base_offset <= start
        moved = SegmentDeletedError if is_below else SegmentChangedError
        raise moved(f"{segment.path}: the log starts at offset {start} since the log directory was listed")


def _changed_error(segment: Segment) -> SegmentChangedError:
    return SegmentChangedError(f"{segment.path}: changed since the log directory was listed")


class EpochHistory:
    """The leader epochs of one partition, from the checkpoint, or from batch headers if that is lost.

    Headers are read only once, for all segments and all threads.
    """

    def __init__(self, partition: PartitionDir, sources: Sources = PLAIN) -> None:
        self.topic_partition = partition.topic_partition
        self.log_start_offset = partition.log_start_offset
        self._sources = sources
        self._segments = partition.segments
        self._unread: LogDirError | None = None
        """Why an existing checkpoint has no epochs."""
        self._checkpointed = self._from_checkpoint(partition.leader_epochs)
        self._found: list[LeaderEpoch] = []
        self._read = 0
        """How many of the segments ``_found`` comes from."""
        self._lock = Lock()

    @property
    def is_checkpointed(self) -> bool:
        """Whether the checkpoint has them; else all headers must be read."""
        return bool(self._checkpointed)

    def up_to(self, segment: Segment, end_offset: int | None = None) -> tuple[LeaderEpoch, ...]:
        """Return the leader epochs that begin below the end of the closed ``segment``, with all history.

        A checkpoint begins at the log start, which may be inside the segment. Its entries beyond the segment, up to
        ``end_offset``, are returned, too.

        Raises:
            LeaderEpochsUnknownError: none is known at the start of the segment, or of the log inside it.
            FormatError, LogDirError: the headers are needed, and cannot be read.

        """
        if end_offset is None:
            end_offset = segment.base_offset + 1 if segment.next_base_offset is None else segment.next_base_offset
        epochs = leader_epochs_up_to(self._checkpointed or self._from_log_start(segment), end_offset)
        start = max(segment.base_offset, self.log_start_offset)
        if not epochs or epochs[0].start_offset > start:
            if self._unread is not None:
                raise self._unread
            since = f"known from offset {epochs[0].start_offset} on" if epochs else "none is known"
            raise LeaderEpochsUnknownError(
                f"{segment.path}: no leader epoch at offset {start}: {since}",
                hint="written before 0.11, or with an older message format: no broker can tier it;"
                " retention will delete it",
            )
        return epochs

    def _from_checkpoint(self, checkpoint: str | None) -> tuple[LeaderEpoch, ...]:
        """Return the checkpoint's epochs; none if it does not exist, is damaged or cannot be read."""
        try:
            return checkpointed_epochs(checkpoint, self._sources)
        except LogDirError as error:
            self._unread = error
            return ()

    def _from_log_start(self, last: Segment) -> list[LeaderEpoch]:
        """Return the headers' epochs, truncated at the log start, as a broker truncates its checkpoint."""
        found, start = self._from_headers(last), self.log_start_offset
        below = [entry for entry in found if entry.start_offset < start]
        above = found[len(below) :]
        is_inside = bool(below) and (not above or above[0].start_offset > start)
        return [below[-1]._replace(start_offset=start), *above] if is_inside else above

    def _from_headers(self, last: Segment) -> list[LeaderEpoch]:
        """Return the epochs as recovery does: an epoch begins where a batch has a higher one than all before."""
        with self._lock:
            while self._read < len(self._segments) and self._segments[self._read].base_offset <= last.base_offset:
                newest = self._found[-1].epoch if self._found else -1
                seen = _header_epochs(self._segments[self._read], self._sources)
                self._found += [entry for entry in seen if entry.epoch > newest]
                self._read += 1
            return list(self._found)


def _check_epochs(segment: Segment, known: tuple[LeaderEpoch, ...], indexes: SegmentIndexes) -> None:
    """Check that the batches have the epochs ``known``: a crash may leave an older checkpoint.

    Raises:
        LeaderEpochsWrongError: they have others.

    """
    found = contradiction(known, indexes.seen.epochs, segment.base_offset, indexes.seen.end_offset)
    if found is not None:
        raise LeaderEpochsWrongError(
            f"{segment.path}: {found.format(LEADER_EPOCHS)}", hint=HINTS[Reason.LEADER_EPOCHS_WRONG]
        )


def _header_epochs(segment: Segment, sources: Sources) -> list[LeaderEpoch]:
    """Return each leader epoch that first appears in a batch of ``segment``; none if retention has deleted it."""
    facts = ScanFacts()
    try:
        for _ in read_batches(segment, facts, sources):
            pass
    except GONE:
        pass
    return [LeaderEpoch(epoch, offset) for epoch, offset in facts.leader_epochs]


def _log_file(log: DigestingReader, sources: Sources) -> SegmentFile:
    return SegmentFile(
        kind=ObjectKind.LOG,
        open_body=sources.body(log.locator, log.etag),
        size_bytes=log.digested_bytes,
        crc32c=log.crc32c,
        sha256=log.sha256,
    )


def _bytes_file(kind: ObjectKind, body: bytes) -> SegmentFile:
    return SegmentFile(
        kind=kind,
        open_body=lambda: io.BytesIO(body),
        size_bytes=len(body),
        crc32c=crc32c(body),
        sha256=hashlib.sha256(body).hexdigest(),
    )
