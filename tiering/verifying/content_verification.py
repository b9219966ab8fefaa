"""Verifies segments whose manifests have no digests: could a broker, and a restored replica, use them?

Without digests, the stored objects are checked against each other: every chunk and every index is decoded, which for
encrypted ones proves each byte; every batch is compared with its checksum; indexes, leader epochs and the facts in the
manifest are compared with the batches; the snapshot must be in its format.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
from resnap.storage.errors import FormatError, StoreAccessError, in_file
from resnap.storage.log.checkpoints import epochs_in, read_leader_epochs
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.sources.files import UNREADABLE
from resnap.tiering.shipping.aborted_transactions import Findings
from resnap.tiering.shipping.segment_indexes import load_indexes
from resnap.tiering.shipping.segment_pass import EpochsSeen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resnap.storage.layouts.segments import SegmentFiles
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.partition_dir import Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.shipping.segment_indexes import TransactionHistory
    from resnap.tiering.shipping.segment_pass import SegmentPass

NOT_READABLE: Final = ": cannot be read: "
"""What follows the name of an object that may not be read, in a message."""


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """The facts from a partition's segments that were judged so far, in ascending order."""

    transactions: TransactionHistory
    epochs: EpochsSeen = field(default_factory=EpochsSeen)


@dataclass(slots=True, kw_only=True)
class SegmentContent:
    """The content of a segment's files, each read separately; a plain value, so that executors can read them."""

    of_log: list[str] = field(default_factory=list)
    """What is wrong with the log."""
    of_indexes: list[str] = field(default_factory=list)
    """What is wrong with offset and time index; with any where ``batches`` is None."""
    beside: list[str] = field(default_factory=list)
    """What is wrong with the snapshot and the leader epochs."""
    batches: SegmentPass | None = None
    aborted: tuple[AbortedTxn, ...] = ()
    """The entries of the transaction index."""
    checkpoint: tuple[LeaderEpoch, ...] | None = None
    """Leader epochs; None where they cannot be read."""


def read_content(
    files: SegmentFiles, sources: Sources, check_wanted: Callable[[], None] = lambda: None
) -> SegmentContent:
    """Read all files of a segment; ``check_wanted`` is called regularly, and raises to stop.

    Raises:
        ConfigurationError: they are encrypted, and their key is not at hand.
        StoreError: the store failed.

    """
    segment, content = files.segment, SegmentContent()
    with _note_problems(segment.path, content.of_log):
        _read_log(segment, sources, check_wanted)
    with _note_problems(segment.sibling("index"), content.of_indexes):
        _read_indexes(segment, sources, content)
    if files.snapshot is not None:
        with _note_problems(files.snapshot, content.beside):
            read_snapshot_array(sources.read(files.snapshot), files.segment.next_base_offset)
    with _note_problems(files.leader_epochs, content.beside):
        content.checkpoint = tuple(read_leader_epochs(sources.read(files.leader_epochs)))
    return content


def judge(files: SegmentFiles, content: SegmentContent, seen: PartitionSeen) -> Findings:
    """Return what is wrong with a segment's files, each judged separately, given their ``content``.

    ``seen`` belongs to its partition, whose segments come in ascending order: it has what was seen in those below.

    Raises:
        StoreError: the store failed.

    """
    problems, undecided, batches = list(content.of_log), tuple[str, ...](), content.batches
    if batches is not None:
        problems += _contradictions(files, batches, content.checkpoint, seen)
        if not content.of_indexes:
            with _note_problems(files.segment.sibling("index"), problems):
                undecided = seen.transactions.check(files.segment, batches.transactions, content.aborted)
    problems += (*content.of_indexes, *content.beside)
    return Findings(tuple(dict.fromkeys(problems)), undecided)  # a damaged manifest damages every file


@contextmanager
def _note_problems(locator: str, problems: list[str]) -> Iterator[None]:
    """Add what is wrong with a file to ``problems``, and continue."""
    try:
        with in_file(locator):
            yield
    except StoreAccessError as error:
        problems.append(not_readable(locator, error))
    except UNREADABLE as error:
        problems.append(str(error))


def not_readable(where: str, error: StoreAccessError) -> str:
    """Return the message for an object that the store refuses to return; it need not be damaged."""
    return f"{where}{NOT_READABLE}{error}"


def _read_indexes(segment: Segment, sources: Sources, content: SegmentContent) -> None:
    """Check that the indexes match the batches: an index that would be rebuilt for shipping does not."""
    good = load_indexes(segment, sources)
    content.batches, content.aborted = good.seen, good.aborted
    for suffix, body in {"index": good.offset, "timeindex": good.time}.items():
        if sources.read(segment.sibling(suffix)) != body:
            raise FormatError(f"{suffix} of the segment", position=0, expected="entries that match its batches",
                              found="others")  # fmt: skip


def _read_log(segment: Segment, sources: Sources, check_wanted: Callable[[], None]) -> None:
    whole = SegmentRange.whole(segment, verify_crc=True)
    with sources.open(segment.path) as reader:
        for _ in read_blocks(reader, whole, ScanFacts()):
            check_wanted()


def _contradictions(
    files: SegmentFiles, batches: SegmentPass, checkpoint: tuple[LeaderEpoch, ...] | None, seen: PartitionSeen
) -> Iterator[str]:
    """Yield what the leader epoch checkpoint, or the manifest, has that the batches contradict."""
    segment, said = files.segment, files.said
    if checkpoint is None:
        return  # judged by itself
    end = segment.next_base_offset or batches.end_offset
    found = None if batches.has_legacy else seen.epochs.check(segment, batches.epochs, checkpoint)
    expected = epochs_in(checkpoint, segment.base_offset, end)
    if found is not None:
        yield f"{files.leader_epochs}: {found.format('it')}"
    elif not expected:
        yield f"{files.leader_epochs}: no leader epoch of the segment"
    if said is None:
        return
    if checkpoint and checkpoint[-1].start_offset >= end:
        last = checkpoint[-1]
        yield f"{files.leader_epochs}: leader epoch {last.epoch} from {last.start_offset} on, past the segment"
    if found is None and said.leader_epochs != expected:
        yield (f"{segment.path}: its manifest says leader epochs {_epochs_text(said.leader_epochs)}, the checkpoint"
               f" {_epochs_text(expected)}")  # fmt: skip
    if batches.max_timestamp_ms not in {-1, said.max_timestamp_ms}:
        yield (f"{segment.path}: its manifest says the largest timestamp {said.max_timestamp_ms}, the batches"
               f" {batches.max_timestamp_ms}")  # fmt: skip


def _epochs_text(epochs: Iterable[LeaderEpoch]) -> str:
    return ", ".join(f"{epoch.epoch} from {epoch.start_offset}" for epoch in epochs) or "none"
