"""Builds one partition's directory from its stored segments, in any layout, and checks the files.

If manifests have digests, each file must match its digest. If they have none, the written files are checked against
each other, as ``verify URL`` does with stored objects: every batch with its checksum, the indexes with the batches,
snapshots and leader epochs by their format. Decryption has already verified every byte of encrypted files.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.disk import is_there
from resnap.storage.errors import VerificationError
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import SegmentFiles
from resnap.storage.log.names import segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.readers import readable
from resnap.storage.sources.files import PLAIN, STREAM_BYTES
from resnap.tiering.shipping.transaction_history import TransactionHistory
from resnap.tiering.verifying.content_verification import PartitionSeen, findings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from resnap.storage.disk import FileDigest
    from resnap.storage.layouts.segments import Vouched
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
    cluster_id: str | None = None
    """The cluster that it was shipped from; None if unknown."""
    passed_over: tuple[int, ...] = ()
    """Base offsets of segments that lie beside the others, and that no manifest names."""
    log_start: int | None = None
    """Where the log starts, if that is inside one of the segments."""
    open_transactions: tuple[ProducerEntry, ...] = ()
    """Transactions whose markers were not shipped."""
    check: Callable[[Path], None] | None = None
    """Judges the directory of all files before it gets its name; raises an error of ours."""

    @property
    def size_bytes(self) -> int:
        """Total size of the files from the store."""
        return sum(file.size_bytes for file in self.files)


class Replaced(NamedTuple):
    """The replacement of a snapshot that is not restored."""

    path: str | None
    """Of the file; None for nothing."""
    why: VerificationError


def restoration_of(
    partition: PartitionDir,
    vouched: Vouched,
    sources: Sources,
    topic_id: str | None,
    replaced: Mapping[str, Replaced],
) -> Restoration:
    """Return the restoration of ``partition``, which has at least one segment.

    ``topic_id`` is the topic's current id; None to use the manifests. ``replaced`` has the snapshots that are replaced
    when restored, by locator.

    Raises:
        ConfigurationError: the segments are encrypted, and their key is missing.
        StoreError: the store failed.

    """
    return Restoration(
        topic_partition=partition.topic_partition,
        topic_id=topic_id or partition.topic_id,
        start_offset=partition.segments[0].base_offset,
        end_offset=partition.boundaries[-1],
        segments=len(partition.segments),
        files=tuple(_files(partition, vouched, sources, replaced)),
        passed_over=vouched.passed_over,
        check=None if vouched.digests else partial(_check, partition),
    )


def _files(
    partition: PartitionDir, vouched: Vouched, sources: Sources, replaced: Mapping[str, Replaced]
) -> Iterator[ShippedFile]:
    def shipped(name: str, locator: str, size_bytes: int) -> ShippedFile:
        return ShippedFile(name, locator, size_bytes, partial(_opened, sources, locator), vouched.digests.get(locator))

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
def _opened(sources: Sources, locator: str) -> Iterator[Iterator[bytes]]:
    with readable(locator):
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
        for problem in findings_of(_written(segment, folder), seen, PLAIN).problems:
            stored = segment.path.rpartition("#")[0] or segment.path
            raise VerificationError(f"{stored}: {problem.replace(f'{folder}/', '')}", hint=HINT)


def _written(segment: Segment, folder: Path) -> SegmentFiles:
    """Return the written files of ``segment``; the leader epochs are one file for all segments."""
    end = segment.next_base_offset or 0  # closed, as all that is shipped
    snapshot = folder / segment_name(end, ObjectKind.SNAPSHOT)
    return SegmentFiles(
        segment=replace(segment, path=str(folder / segment_name(segment.base_offset, ObjectKind.LOG))),
        snapshot=str(snapshot) if is_there(snapshot) else None,  # else it was left out
        leader_epochs=str(folder / LEADER_EPOCHS),
    )
