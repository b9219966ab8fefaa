"""One partition's directory from its stored segments, in any layout: files, their checks, and the facts around them.

If manifests have digests, each file must match its digest. If they have none, the written files are checked against
each other, as ``verify URL`` does with stored objects: every batch with its checksum, the indexes with the batches,
snapshots and leader epochs by their format. Decryption has already verified every byte of encrypted files.

The facts are log start, open transactions, highest producer id and last leader epoch. A segment is shipped with the
records that DeleteRecords has deleted from it. The leader epoch checkpoint that is shipped with each segment shows the
deletion: a broker truncates it at the log start offset, and a log start inside a segment has no other cause. A log
start at the beginning of a segment is usually due to retention, after which a store intentionally holds more than the
broker. A transaction whose marker was not shipped stays open for ever: the marker will not be written again.

Source: ``UnifiedLog.maybeIncrementLogStartOffset``, ``LeaderEpochFileCache.truncateFromStart``.
"""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.disk import is_there, reading
from resnap.storage.errors import VerificationError
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import SegmentFiles
from resnap.storage.log.checkpoints import read_leader_epochs
from resnap.storage.log.names import FileKind, segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.log.producer_snapshot import load_snapshot, read_snapshot
from resnap.storage.log.record_batch import LOG_OVERHEAD, MAGIC_V2
from resnap.storage.readers import translate_read_errors
from resnap.storage.sources.files import PLAIN, STREAM_BYTES, UNREADABLE
from resnap.storage.threads import each
from resnap.storage.whole_file import open_regular
from resnap.tiering.shipping.segment_indexes import TransactionHistory
from resnap.tiering.verifying.content_verification import PartitionSeen, judge, read_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from resnap.storage.disk import FileDigest
    from resnap.storage.layouts.segments import ManifestRecords
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.storage.sources.files import Sources

HINT: Final = "see `resnap verify URL`; restore from another copy, or exclude the topic (--exclude-topic)"


class ShippedFile(NamedTuple):
    """A file of a partition directory, and the source of its bytes."""

    name: str
    source: str
    """Key or locator, for messages."""
    size_bytes: int
    open: Callable[[], AbstractContextManager[Iterator[bytes]]]
    digest: FileDigest | None
    """Its facts in the manifest; None if no manifest has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """One partition to restore from shipped segments."""

    topic_partition: TopicPartition
    topic_id: str | None
    start_offset: int
    end_offset: int
    """The log end."""
    segments: int
    files: tuple[ShippedFile, ...]
    """All that come from the store; the leader epochs are those of the last segment, with all."""
    cluster_id: str | None
    """The cluster that it was shipped from; None if unknown."""
    passed_over: tuple[int, ...]
    """Base offsets of segments that are beside the others, and that no manifest names."""
    log_start: int | None
    """Where the log starts, if that is inside one of the segments."""
    open_transactions: tuple[ProducerEntry, ...]
    """Transactions whose markers were not shipped."""
    check: Callable[[Path], None] | None
    """Judges the directory of all files before it gets its name; raises an error of ours."""

    @property
    def size_bytes(self) -> int:
        """Total size of the files from the store."""
        return sum(file.size_bytes for file in self.files)


class Replaced(NamedTuple):
    """The replacement of a snapshot that is not restored."""

    path: str | None
    """The path of the file; None for nothing."""
    why: VerificationError


def restoration_of(
    partition: PartitionDir,
    facts: ManifestRecords,
    sources: Sources,
    topic_id: str | None,
    replaced: Mapping[str, Replaced],
    *,
    cluster_id: str | None,
) -> Restoration:
    """Return the restoration of ``partition``, which has at least one segment, and was shipped from ``cluster_id``.

    ``topic_id`` is the topic's current id; None to use the manifests. ``replaced`` has the snapshots that are replaced
    when restored, by locator.

    Raises:
        ConfigurationError: the segments are encrypted, and their key is missing.
        StoreError: the store failed.

    """
    end_offset = partition.boundaries[-1]
    newest = next((found.path for found in partition.snapshots if found.offset == end_offset), None)
    instead = replaced.get(newest or "")
    return Restoration(
        topic_partition=partition.topic_partition,
        topic_id=topic_id or partition.topic_id,
        start_offset=partition.segments[0].base_offset,
        end_offset=end_offset,
        segments=len(partition.segments),
        files=tuple(_files(partition, facts, sources, replaced)),
        cluster_id=cluster_id,
        passed_over=facts.passed_over,
        log_start=_kept_log_start(partition, facts.leader_epochs, sources),
        open_transactions=_open_at_end(newest if instead is None else instead.path, sources),
        check=None if facts.digests else partial(_check, partition),
    )


def _files(
    partition: PartitionDir, facts: ManifestRecords, sources: Sources, replaced: Mapping[str, Replaced]
) -> Iterator[ShippedFile]:
    def shipped(name: str, locator: str, size_bytes: int) -> ShippedFile:
        return ShippedFile(
            name, locator, size_bytes, partial(_open_chunks, sources, locator), facts.digests.get(locator)
        )

    for segment in partition.segments:
        sizes = {
            ObjectKind.LOG: segment.size_bytes,
            ObjectKind.INDEX: segment.index_bytes,
            ObjectKind.TIME_INDEX: segment.timeindex_bytes,
            ObjectKind.TXN_INDEX: segment.txnindex_bytes,
        }
        for kind, size in sizes.items():
            if size is not None:
                yield shipped(segment_name(segment.base_offset, kind), segment.sibling(kind), size)
    for snapshot in partition.snapshots:
        name, instead = segment_name(snapshot.offset, ObjectKind.SNAPSHOT), replaced.get(snapshot.path)
        if instead is None:
            yield shipped(name, snapshot.path, snapshot.size_bytes)
        elif instead.path is not None:
            yield shipped(name, instead.path, sources.facts(instead.path).size_bytes)
    if partition.leader_epochs is not None:
        size = sources.facts(partition.leader_epochs).size_bytes
        yield shipped(LEADER_EPOCHS, partition.leader_epochs, size)


@contextmanager
def _open_chunks(sources: Sources, locator: str) -> Iterator[Iterator[bytes]]:
    with translate_read_errors(locator):
        opened = sources.open_body(locator)
    with opened as body:
        yield iter(partial(body.read, STREAM_BYTES), b"")


def _check(partition: PartitionDir, folder: Path) -> None:
    """Check the files of ``partition`` that were written into ``folder``.

    Raises:
        VerificationError: one of them is damaged.

    """
    seen = PartitionSeen(TransactionHistory())
    for segment in partition.segments:
        files = _files_of(segment, folder)
        for problem in judge(files, read_content(files, PLAIN), seen).problems:
            stored = segment.path.rpartition("#")[0] or segment.path
            raise VerificationError(f"{stored}: {problem.replace(f'{folder}/', '')}", hint=HINT)


def _files_of(segment: Segment, folder: Path) -> SegmentFiles:
    """Return the written files of ``segment``; the leader epochs are one file for all segments."""
    end = segment.next_base_offset or 0  # closed, as all that is shipped
    snapshot = folder / segment_name(end, ObjectKind.SNAPSHOT)
    return SegmentFiles(
        segment=replace(segment, path=str(folder / segment_name(segment.base_offset, ObjectKind.LOG))),
        snapshot=str(snapshot) if is_there(snapshot) else None,  # else it was left out
        leader_epochs=str(folder / LEADER_EPOCHS),
    )


_HEAD: Final = struct.Struct(">8xi4xb26xq10x")
"""Length, magic and producer id of a batch; of older formats the first two."""


def _kept_log_start(partition: PartitionDir, checkpoints: Sequence[str], sources: Sources) -> int | None:
    """Return the log start offset inside a stored segment of ``partition``; None if it is not inside one.

    ``checkpoints`` are the locators of the leader epochs of all its segments. They are all read only if the last one
    begins above the first segment.

    Raises:
        StoreError: the store they are in failed.

    """
    bases = {segment.base_offset for segment in partition.segments}
    last = _begins_at(sources, checkpoints[-1]) if checkpoints else None
    if last is None or last <= min(bases):
        return None
    begins = each(partial(_begins_at, sources), checkpoints, remote=True)
    inside = [start for start in begins if start is not None and start > min(bases) and start not in bases]
    return max(inside, default=None)


def _begins_at(sources: Sources, checkpoint: str) -> int | None:
    try:
        epochs = read_leader_epochs(sources.read(checkpoint))
    except UNREADABLE:
        return None
    return epochs[0].start_offset if epochs else None


def _open_at_end(snapshot: str | None, sources: Sources) -> tuple[ProducerEntry, ...]:
    """Return the entries with an open transaction in the last snapshot of a log, by their first offsets.

    Raises:
        StoreError: the store it is in failed.

    """
    if snapshot is None:
        return ()
    try:
        entries = read_snapshot(sources.read(snapshot)).values()
    except UNREADABLE:
        return ()
    found = [entry for entry in entries if entry.has_open_transaction]
    return tuple(sorted(found, key=lambda entry: entry.current_txn_first_offset))


def highest_producer_id(folder: Path) -> int:
    """Return the highest producer id in the batches and snapshots of a partition's directory; -1 for none.

    Raises:
        LogDirError, FormatError: a file cannot be read.

    """
    highest = -1
    with reading(folder):
        for path in folder.iterdir():
            if path.suffix == f".{FileKind.LOG}":
                highest = max(highest, max(_producer_ids(path), default=-1))
            elif path.suffix == f".{FileKind.SNAPSHOT}":
                highest = max(highest, max(load_snapshot(path), default=-1))
    return highest


def _producer_ids(log: Path) -> Iterator[int]:
    """Yield the producer id of each batch of a segment; -1 for one without, and for messages of older formats."""
    position, (descriptor, _) = 0, open_regular(log)
    try:
        while len(head := os.pread(descriptor, _HEAD.size, position)) == _HEAD.size:
            length, magic, producer_id = _HEAD.unpack(head)
            if length <= 0:  # zeros: the room that a killed broker had reserved
                return
            yield producer_id if magic == MAGIC_V2 else -1
            position += LOG_OVERHEAD + length
    finally:
        os.close(descriptor)


def highest_in_snapshots(restoration: Restoration) -> int:
    """Return the highest producer id in the snapshots to restore; -1 if there is none.

    Raises:
        StoreError: the store failed.
        ResnapError: one of them is damaged.

    """
    snapshots = [file for file in restoration.files if file.name.endswith(f".{FileKind.SNAPSHOT}")]
    contents = each(_content, snapshots, remote=True)
    return max((max(read_snapshot(content), default=-1) for content in contents), default=-1)


def last_leader_epoch(restoration: Restoration) -> int:
    """Return the last leader epoch of what is restored, 0 if it has none; raises as above."""
    content = next((_content(file) for file in restoration.files if file.name == LEADER_EPOCHS), None)
    return max((epoch.epoch for epoch in read_leader_epochs(content)), default=0) if content is not None else 0


def _content(file: ShippedFile) -> bytes:
    with file.open() as chunks:
        return b"".join(chunks)


def passed_over(one: Restoration) -> VerificationError:
    """Return the error of segments that are beside those of a partition, and are not restored."""
    which = f"{len(one.passed_over)}, the first at offset {one.passed_over[0]}"
    return VerificationError(
        f"{one.topic_partition}: segments that a broker tiered itself lie beside those that Resnap has shipped:"
        f" {which}; no manifest names them, so they are not restored, and the log ends at {one.end_offset}",
        hint="`resnap remote status LOG_DIR --store URL` shows what brokers know of them; a broker with the cluster's"
        " metadata serves them where they lie",
    )
