"""A partition directory of what lies in the layout ``aiven``, whoever wrote it: brokers or Resnap.

Its manifests carry no digests. So what is written is held against itself, as ``verify --store`` does with what is
stored: every batch against its checksum, the indexes against the batches, snapshots and leader epochs against their own
forms. What was encrypted has been proven byte by byte when it was opened.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.disk import is_there
from resnap.storage.errors import VerificationError
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.names import segment_name
from resnap.storage.log.partition_dir import LEADER_EPOCHS
from resnap.storage.sources.files import PLAIN, STREAM_BYTES
from resnap.tiering.checking.content_verification import PartitionSeen, SegmentFiles, findings_of
from resnap.tiering.keeping.restorer import HINT, Restoration, ShippedFile
from resnap.tiering.shipping.transaction_history import TransactionHistory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources


class _Member(NamedTuple):
    """A file that is to be, by the locator of what it is made of."""

    name: str
    locator: str
    size_bytes: int


class Replaced(NamedTuple):
    """What takes the place of a snapshot that is not restored."""

    path: str | None
    """Of the file; None for nothing."""
    why: VerificationError


def of_copies(
    partition: PartitionDir, sources: Sources, topic_id: str | None, replaced: Mapping[str, Replaced]
) -> Restoration:
    """Return what the segments of ``partition``, of which there is one at least, make of it.

    ``topic_id`` is what the topic's id is now; None to go by the manifests. ``replaced`` tells by their locators which
    snapshots are not to be restored as they are.

    Raises:
        ConfigurationError: the segments are encrypted, and their key is not at hand.
        StoreError: the store failed.

    """
    members = _members(partition, sources, replaced)
    return Restoration(
        topic_partition=partition.topic_partition,
        topic_id=topic_id or partition.topic_id,
        start_offset=partition.segments[0].base_offset,
        end_offset=partition.boundaries[-1],
        segments=len(partition.segments),
        files=tuple(ShippedFile(*one, partial(_opened, sources, one.locator), None) for one in members),
        check=partial(_check, partition),
    )


def _members(partition: PartitionDir, sources: Sources, replaced: Mapping[str, Replaced]) -> Iterator[_Member]:
    for segment in partition.segments:
        sizes = {
            ObjectKind.LOG: segment.size_bytes,
            ObjectKind.INDEX: segment.index_bytes,
            ObjectKind.TIME_INDEX: segment.timeindex_bytes,
            ObjectKind.TXN_INDEX: segment.txnindex_bytes,
        }
        for kind, size in sizes.items():
            if size is not None:
                yield _Member(segment_name(segment.base_offset, kind), segment.sibling(kind), size)
    for snapshot in partition.snapshots:
        name, instead = segment_name(snapshot.offset, ObjectKind.SNAPSHOT), replaced.get(snapshot.path)
        if instead is None:
            yield _Member(name, snapshot.path, snapshot.size_bytes)
        elif instead.path is not None:
            yield _Member(name, instead.path, sources.facts(instead.path).size_bytes)
    if partition.leader_epochs is not None:
        size = sources.facts(partition.leader_epochs).size_bytes
        yield _Member(LEADER_EPOCHS, partition.leader_epochs, size)


@contextmanager
def _opened(sources: Sources, locator: str) -> Iterator[Iterator[bytes]]:
    with sources.open_body(locator) as body:
        yield iter(partial(body.read, STREAM_BYTES), b"")


def _check(partition: PartitionDir, folder: Path) -> None:
    """Judge the files of ``partition`` that were written into ``folder``.

    Raises:
        VerificationError: one of them is damaged.

    """
    seen = PartitionSeen(TransactionHistory())
    for segment in partition.segments:
        for problem in findings_of(_written(segment, folder), seen, PLAIN).problems:
            stored = segment.path.rpartition("#")[0]
            raise VerificationError(f"{stored}: {problem.replace(f'{folder}/', '')}", hint=HINT)


def _written(segment: Segment, folder: Path) -> SegmentFiles:
    """Return the files of ``segment`` as they were written; the leader epochs stand once, beside all segments."""
    end = segment.next_base_offset or 0  # closed, as all that is shipped
    snapshot = folder / segment_name(end, ObjectKind.SNAPSHOT)
    return SegmentFiles(
        segment=replace(segment, path=str(folder / segment_name(segment.base_offset, ObjectKind.LOG))),
        snapshot=str(snapshot) if is_there(snapshot) else None,  # else it was left out
        leader_epochs=str(folder / LEADER_EPOCHS),
    )
