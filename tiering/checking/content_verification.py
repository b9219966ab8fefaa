"""Reads segments back whose manifests have no digests: whether a broker, and a replica that restores, could use them.

Their manifests carry no digests. So what is stored is held against itself: every chunk and every index is turned back
into what it was, which for encrypted ones proves each byte; every batch against its checksum; indexes, leader epochs
and what the manifest says of the segment against the batches; the snapshot against its own form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError, in_file
from resnap.storage.log.checkpoints import read_leader_epochs, segment_leader_epochs
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.tiering.shipping.leader_epoch_check import EpochsSeen
from resnap.tiering.shipping.segment_indexes import load_indexes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resnap.storage.layouts.segments import SegmentFiles
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.segment_indexes import SegmentIndexes
    from resnap.tiering.shipping.transaction_history import TransactionHistory


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """What was seen of the segments of a partition that were judged so far, upwards."""

    transactions: TransactionHistory
    epochs: EpochsSeen = field(default_factory=EpochsSeen)


class Findings(NamedTuple):
    """What was found in the files of a segment."""

    problems: tuple[str, ...]
    undecided: tuple[str, ...]
    """What may be wrong or right, since what it depends on was not read."""


def findings_of(files: SegmentFiles, seen: PartitionSeen, sources: Sources) -> Findings:
    """Return what is wrong with a segment's files, each of which is judged by itself.

    ``seen`` is of its partition, whose segments come in ascending order.

    Raises:
        ConfigurationError: they are encrypted, and their key is not at hand.
        StoreError: the store failed.

    """
    segment = files.segment
    problems: list[str] = []
    undecided: list[str] = []
    looks: tuple[tuple[str, Callable[[], object]], ...] = (
        (segment.path, partial(_read_log, segment, sources)),
        (segment.sibling("index"), lambda: undecided.extend(_check_indexes(files, seen, sources, problems))),
        *_snapshot_look(files.snapshot, sources),
        (files.leader_epochs, lambda: read_leader_epochs(sources.read(files.leader_epochs))),
    )
    for locator, look in looks:
        try:
            with in_file(locator):
                look()
        except (FormatError, LogDirError, ObjectNotFoundError) as error:
            problems.append(str(error))
    return Findings(tuple(dict.fromkeys(problems)), tuple(undecided))  # a damaged manifest damages every file


def _snapshot_look(snapshot: str | None, sources: Sources) -> Iterator[tuple[str, Callable[[], object]]]:
    if snapshot is not None:
        yield snapshot, lambda: read_snapshot_array(sources.read(snapshot))


def _read_log(segment: Segment, sources: Sources) -> None:
    whole = SegmentRange(
        locator=segment.path,
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset,
        verify_crc=True,
    )
    with sources.open(segment.path) as reader:
        for _ in read_blocks(reader, whole, ScanFacts()):
            pass


def _check_indexes(files: SegmentFiles, seen: PartitionSeen, sources: Sources, problems: list[str]) -> tuple[str, ...]:
    """Make sure that the indexes are of the batches: what would be made again on the way to a store is not.

    Return what cannot be decided, and add to ``problems`` what else is said otherwise than the batches have it.
    """
    segment = files.segment
    good = load_indexes(segment, sources)
    problems += _said_otherwise(files, good, seen, sources)
    for suffix, content in {"index": good.offset, "timeindex": good.time}.items():
        if sources.read(segment.sibling(suffix)) != content:
            raise FormatError(f"{suffix} of the segment", position=0, expected="entries that its batches bear out",
                              found="others")  # fmt: skip
    return seen.transactions.check(segment, good)


def _said_otherwise(files: SegmentFiles, good: SegmentIndexes, seen: PartitionSeen, sources: Sources) -> Iterator[str]:
    """Yield what the checkpoint of leader epochs, or the manifest, says that the batches contradict."""
    segment, said = files.segment, files.said
    try:
        checkpoint = read_leader_epochs(sources.read(files.leader_epochs))
    except (FormatError, LogDirError, ObjectNotFoundError):
        return  # judged by itself
    end = segment.next_base_offset or good.facts.end_offset
    found = seen.epochs.check(segment, good, checkpoint)
    if found is not None:
        yield f"{files.leader_epochs}: {found.format('it')}"
    if said is None:
        return
    if checkpoint and checkpoint[-1].start_offset >= end:
        last = checkpoint[-1]
        yield f"{files.leader_epochs}: leader epoch {last.epoch} from {last.start_offset} on, past the segment"
    expected = segment_leader_epochs(checkpoint, segment.base_offset, end)
    if found is None and said.leader_epochs != expected:
        yield (f"{segment.path}: its manifest says leader epochs {_shown(said.leader_epochs)}, the checkpoint"
               f" {_shown(expected)}")  # fmt: skip
    if good.facts.max_timestamp_ms not in {-1, said.max_timestamp_ms}:
        yield (f"{segment.path}: its manifest says the largest timestamp {said.max_timestamp_ms}, the batches"
               f" {good.facts.max_timestamp_ms}")  # fmt: skip


def _shown(epochs: Iterable[LeaderEpoch]) -> str:
    return ", ".join(f"{one.epoch} from {one.start_offset}" for one in epochs) or "none"
