"""What a stock broker does with the files of a partition when it starts, and damage in them that it meets later.

It recovers a segment that has no offset index, and one whose transaction index has an entry that ends below it. For
that it deletes the snapshots above the base offset of the segment, also those that were just installed. It writes new
ones at the base offset and the end of each segment that it recovers, at the base offsets of the two segments below, and
at those of the last two segments of the log. An entry of another version in a transaction index ends the start of the
whole broker, and so does a ``partition.metadata`` without both its lines. Other damage of that file, or of
``leader-epoch-checkpoint``, takes the log dir offline; a broker that has no other one does not start. Observed on
brokers of 3.9.1 and 4.4.0 (``tests/kafka/test_damaged_topics.py``).

Source: ``LogLoader.loadSegmentFiles``, ``LogLoader.recoverSegment``, ``LogSegment.sanityCheck``,
``TransactionIndex.sanityCheck``, ``ProducerStateManager.truncateAndReload``.

Damage inside the files of local segments that their sizes do not show, found by one small read for most of them.

``check`` and dry runs alone read this; scheduled scans open no index. A log that ends before its offset index does, or
inside its last batch, has lost records, and so has one whose last batch ends before the next segment begins, unless it
was compacted once. So of each closed log what follows the last entry of its index is read, some 4 KiB; of a time index
something only where it has more entries than the offset index allows.

Source: ``RemoteIndexCache``, ``OffsetIndex.sanityCheck``, ``TimeIndex.sanityCheck``; ``LogSegment.append``.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, LogDirError, UsageError
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TRANSACTION_ENTRY,
    TRANSACTION_VERSION,
    read_transaction_index,
)
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import FileKind
from resnap.storage.log.partition_dir import LEADER_EPOCHS, PARTITION_METADATA
from resnap.storage.sources.files import GONE
from resnap.tiering.judging.inventory import checkpoint_damage, checkpointed_epochs, first_leader_epoch
from resnap.tiering.judging.refusal import Reason, Refusal, Stop, refusal_of, refuse, stop_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.indexes import AbortedTxn
    from resnap.storage.log.log_dir import PartitionProblem
    from resnap.storage.log.partition_dir import PartitionDir, Place, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.judging.inventory import PartitionInventory

_METADATA_LINES: Final = 2
_SNAPSHOTS_BELOW: Final = 2
"""Segments, from the last one down, at whose base a broker writes a snapshot when it replays a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStart:
    """What a broker finds wrong with the files of one partition when it starts."""

    recovered: Mapping[int, Stop] = field(default_factory=dict)
    """Why it recovers segments, by their base offsets, ascending."""
    rewritten: frozenset[int] = frozenset()
    """Offsets of the snapshots that it writes after it has recovered a segment."""
    refusals: tuple[Refusal, ...] = ()
    """Transaction indexes with which no broker starts, and those that could not be read."""
    ended_by: str | None = None
    """What of another partition of the broker ends the start; None if nothing does."""
    aborted: Mapping[str, Sequence[AbortedTxn]] = field(default_factory=dict)
    """Entries of the transaction indexes, by the paths of the segments; those of damaged ones are not there."""
    unusable: tuple[Refusal, ...] = ()
    """Transaction indexes that brokers ship as they are, or make again, and `resnap tier` does not ship."""

    def deletes(self, offset: int) -> Stop | None:
        """Return the segment for which the snapshot at ``offset`` is deleted; None if it is there after the start."""
        if offset <= next(iter(self.recovered), offset) or offset in self.rewritten:
            return None
        return next(why for base_offset, why in reversed([*self.recovered.items()]) if base_offset < offset)


NOTHING_WRONG: Final = BrokerStart()


def broker_starts(
    inventories: Collection[PartitionInventory],
    problems: Iterable[PartitionProblem],
    unwanted: Collection[Path],
    sources: Sources,
) -> dict[Place, BrokerStart]:
    """Return what one broker finds wrong with each of some of its partitions when it starts, by their paths.

    What ends its start does so for all of them, in all its log dirs. ``problems`` are partitions that cannot be judged,
    ``unwanted`` the directories of those that are not to be judged.
    """
    starts = {partition.partition.path: broker_start(partition.partition, sources) for partition in inventories}
    ends = list(_ends(inventories, starts, problems, unwanted, sources))
    return {
        path: replace(start, ended_by=next((detail for of, detail in ends if of in {None, path.parent}), None))
        if isinstance(path, Path) and not start.refusals
        else start
        for path, start in starts.items()
    }


def _ends(
    inventories: Iterable[PartitionInventory],
    starts: Mapping[Place, BrokerStart],
    problems: Iterable[PartitionProblem],
    unwanted: Iterable[Path],
    sources: Sources,
) -> Iterator[tuple[Path | None, str]]:
    """Yield each file for which a broker does not start, or does without a log dir, which is given then."""
    judged = list(starts.values())
    damages: dict[Place, str | None] = {one.partition.path: one.leader_epochs.damage for one in inventories}
    for problem in problems:
        file = problem.error.file if isinstance(problem.error, FormatError) else None
        if isinstance(problem.path, Path) and file == str(problem.path / PARTITION_METADATA):
            damages[problem.path] = str(problem.error)
    for path in unwanted:
        try:
            partition = load_partition_dir(path)
            judged.append(broker_start(partition, sources))
            damages[path] = checkpoint_damage(partition.leader_epochs, sources)
        except FormatError as error:
            damages[path] = str(error)
        except (LogDirError, UsageError):
            continue  # it cannot be read, or is gone
    for start in judged:
        yield from ((None, refusal.detail) for refusal in start.refusals if refusal.reason is Reason.INDEX_UNUSABLE)
    for place, damage in damages.items():
        if damage is None or not isinstance(place, Path):
            continue
        if _is_metadata_cut(place, sources):
            yield None, f"{damage}: a broker does not start with it, with any topic"
        else:
            yield place.parent, f"{damage}: a broker takes the log dir offline, and does not start without another one"


def _is_metadata_cut(path: Path, sources: Sources) -> bool:
    """Whether ``partition.metadata`` has not both its lines, as after a loss of power: to a broker that is a bug.

    Source: ``PartitionMetadataReadBuffer.read``, which ends with a NullPointerException.
    """
    with suppress(LogDirError, *GONE):
        return len(sources.read(str(path / PARTITION_METADATA)).splitlines()) < _METADATA_LINES
    return False


def broker_start(partition: PartitionDir, sources: Sources) -> BrokerStart:
    """Return what a broker finds wrong with the segments of ``partition`` when it starts.

    Only the transaction indexes are read, which exist where transactions were aborted.
    """
    recovered: dict[int, Stop] = {}
    refusals: list[Refusal] = []
    aborted: dict[str, Sequence[AbortedTxn]] = {}
    unusable: list[Refusal] = []
    if not isinstance(partition.path, Path):
        return NOTHING_WRONG
    for segment in partition.segments:
        if not partition.is_local(segment.base_offset):
            continue
        if segment.index_bytes is None and _has_no_index(segment, sources):
            detail = f"the segment at offset {segment.base_offset} has no offset index"
            recovered[segment.base_offset] = stop_for(Reason.INDEX_MISSING, detail)
        if segment.txnindex_bytes:
            found = _of_transaction_index(segment, sources, aborted)
            if isinstance(found, Refusal):
                refusals.append(found)
                continue
            if found is not None:
                recovered.setdefault(segment.base_offset, found)
                unusable.append(refusal_of(segment, found))
            elif segment.txnindex_bytes % TRANSACTION_ENTRY.size:
                detail = f"{segment.sibling(FileKind.TXNINDEX)} has {segment.txnindex_bytes} bytes"
                whole = f"which is not a multiple of {TRANSACTION_ENTRY.size}"
                unusable.append(refuse(segment, Reason.INDEX_UNUSABLE, f"{detail}, {whole}"))
    rewritten = _rewritten(partition, recovered)
    return BrokerStart(
        recovered=recovered,
        rewritten=rewritten,
        refusals=tuple(refusals),
        aborted=aborted,
        unusable=tuple(unusable),
    )


def _rewritten(partition: PartitionDir, recovered: Collection[int]) -> frozenset[int]:
    bases = [segment.base_offset for segment in partition.segments]
    offsets = set(bases[-_SNAPSHOTS_BELOW:])
    for number, base_offset in enumerate(bases):
        if base_offset in recovered:
            offsets.update(bases[max(0, number - _SNAPSHOTS_BELOW) : number + 2])
    return frozenset(offsets)


def _has_no_index(segment: Segment, sources: Sources) -> bool:
    """Whether the segment is still there without its offset index: retention deletes both, one after the other."""
    try:
        sources.facts(segment.path)
    except (LogDirError, *GONE):
        return False
    try:
        sources.facts(segment.sibling(FileKind.INDEX))
    except GONE:
        return True
    except LogDirError:
        pass
    return False


def _of_transaction_index(
    segment: Segment, sources: Sources, aborted: dict[str, Sequence[AbortedTxn]]
) -> Stop | Refusal | None:
    """Return what a broker does about the first bad entry; it ignores a part of an entry at the end.

    ``aborted`` gets the entries.
    """
    path = segment.sibling(FileKind.TXNINDEX)
    try:
        content = sources.read(path)
    except GONE:
        return None
    except LogDirError as error:
        return refuse(segment, Reason.UNREADABLE, str(error), hint=error.hint)
    with suppress(FormatError):
        aborted[segment.path] = read_transaction_index(content)
    for at in range(0, len(content) - TRANSACTION_ENTRY.size + 1, TRANSACTION_ENTRY.size):
        version, _, _, last_offset, _ = TRANSACTION_ENTRY.unpack_from(content, at)
        if version != TRANSACTION_VERSION:  # to brokers before 4.4 it is the first byte alone, and may be negative
            detail = f"{path} has an entry of version {version} at byte {at}, known is {TRANSACTION_VERSION}"
            return refuse(segment, Reason.INDEX_UNUSABLE, f"{detail}: a broker does not start with it, with any topic")
        if last_offset < segment.base_offset:
            detail = f"{path} has an entry at byte {at} that ends at offset {last_offset}, below its segment"
            return stop_for(Reason.INDEX_UNUSABLE, detail)
    return None


_BATCH_START: Final = struct.Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, checksum, attributes and last offset delta of a batch."""
_LOG_OVERHEAD: Final = 12
_FIRST_MAGIC_WITH_HEADER: Final = 2
_MOST_BLOCKS: Final = 100
"""Blocks of headers that are read at the end of a log: more follow no entry of an index."""
_BLOCK_BYTES: Final = 8_192
"""As many bytes as batches without an entry of an index have, and one more batch."""
_LOST: Final = "records are lost here, and brokers ship it all the same"


def damage_in_files(partition: PartitionDir, sources: Sources) -> Iterator[Refusal]:
    """Yield what is wrong inside the files of the local segments, including the active one."""
    if not isinstance(partition.path, Path):
        return
    yield from _by_leader_epochs(partition, sources)
    for segment in partition.segments:
        end = segment.next_base_offset
        if partition.is_local(segment.base_offset) and (end is None or end > partition.log_start_offset):
            try:
                yield from _by_offset_index(segment, sources, may_have_gaps=partition.cleaner_offset is not None)
                yield from _by_time_index(segment, sources)
            except GONE:
                continue
            except LogDirError as error:
                yield refuse(segment, Reason.UNREADABLE, str(error), hint=error.hint)


def _by_leader_epochs(partition: PartitionDir, sources: Sources) -> Iterator[Refusal]:
    """Yield the closed segments whose first batch is of another leader epoch than the checkpoint says.

    Both rise with the offsets: of the segments between two entries of the checkpoint the first and the last one show
    whether all are right.
    """
    try:
        said = checkpointed_epochs(partition.leader_epochs, sources)
    except LogDirError:
        said = ()  # it is reported where it is needed
    if not said:
        return
    judged = (
        segment
        for segment in partition.segments
        if segment.next_base_offset is not None
        and segment.next_base_offset > partition.log_start_offset
        and partition.is_local(segment.base_offset)
        and segment.base_offset >= said[0].start_offset
    )
    for stated, segments in groupby(judged, lambda one: epochs_in(said, one.base_offset, one.base_offset + 1)[0].epoch):
        alike = list(segments)
        if any(first_leader_epoch(one, sources) not in {None, -1, stated} for one in (alike[0], *alike[1:][-1:])):
            for segment in alike:
                epoch = first_leader_epoch(segment, sources)
                if epoch not in {None, -1, stated}:
                    found = f"at offset {segment.base_offset} a batch is of leader epoch {epoch}"
                    detail = f"{segment.path}: {found}, {LEADER_EPOCHS} says {stated}: brokers ship it all the same"
                    yield refuse(segment, Reason.LEADER_EPOCHS_WRONG, detail)


def _by_offset_index(segment: Segment, sources: Sources, *, may_have_gaps: bool) -> Iterator[Refusal]:
    """Judge a segment by the last entry of its offset index; one that is filled up with zeros shows nothing."""
    index, size_bytes = segment.sibling("index"), segment.index_bytes
    if size_bytes is None or size_bytes % OFFSET_ENTRY.size:
        return
    last = sources.read_range(index, size_bytes - OFFSET_ENTRY.size, size_bytes) if size_bytes else b""
    relative_offset, position = OFFSET_ENTRY.unpack(last) if len(last) == OFFSET_ENTRY.size else (0, 0)
    if relative_offset < 0 or position < 0:
        yield _unusable(segment, f"{index} ends with an entry of offset {relative_offset} and position {position}")
    elif position >= segment.size_bytes and position:
        now_bytes = sources.facts(segment.path).size_bytes  # a broker may have appended to it since it was listed
        is_named = not now_bytes and segment.next_base_offset is not None  # its size shows closed ones without a byte
        if now_bytes <= position and not is_named:
            detail = f"{segment.path} ends at byte {now_bytes}, and the last batch of its offset index begins at"
            yield refuse(segment, Reason.DAMAGED, f"{detail} {position}: {_LOST}")
    elif segment.next_base_offset is not None and (position or not size_bytes):
        found = _by_last_batch(segment, relative_offset, position, segment.next_base_offset, sources)
        if found is not None and (found.reason is Reason.DAMAGED or not may_have_gaps):
            yield found


def _by_last_batch(
    segment: Segment, relative_offset: int, position: int, next_base_offset: int, sources: Sources
) -> Refusal | None:
    """Return what the last batch of a closed segment, at or after ``position``, shows to be missing; None if nothing.

    That is the end of the batch itself, or the offsets between it and the next segment. At ``position`` is the batch of
    ``relative_offset``.
    """
    end, begins = segment.base_offset + relative_offset, None
    for _ in range(_MOST_BLOCKS):
        at, block = position, sources.read_range(segment.path, position, position + _BLOCK_BYTES)
        while len(head := block[position - at : position - at + _BATCH_START.size]) == _BATCH_START.size and any(head):
            base_offset, length, _, magic, _, _, last_offset_delta = _BATCH_START.unpack(head)
            is_one = magic == _FIRST_MAGIC_WITH_HEADER and segment.base_offset <= base_offset < next_base_offset
            is_risen = begins is None or base_offset >= end
            if not is_one or length <= 0 or not is_risen:
                is_damage = begins is not None and magic >= _FIRST_MAGIC_WITH_HEADER
                return _without_batch(segment, position) if is_damage else None
            begins, position = position, position + _LOG_OVERHEAD + length
            if position > segment.size_bytes:
                return _cut_inside(segment, begins)
            end = base_offset + last_offset_delta + 1
        rest = block[position - at :]
        if at + len(block) >= segment.size_bytes or (rest and not any(rest)):  # as of a file that was made too large
            break
    else:
        return None
    if any(block[position - at :]):
        return _cut_inside(segment, position)
    if end >= next_base_offset:
        return None
    detail = f"offsets {end} to {next_base_offset - 1} are missing after {segment.path}, lost or compacted away"
    both = "brokers tier the segments around them, and `resnap tier` refuses the partition"
    return refuse(segment, Reason.MISSING_OFFSETS, f"{detail}: {both}")


def _without_batch(segment: Segment, position: int) -> Refusal:
    detail = f"{segment.path} goes on at byte {position} with what is no batch of its offsets"
    return refuse(segment, Reason.DAMAGED, f"{detail}: brokers ship it all the same")


def _cut_inside(segment: Segment, position: int) -> Refusal:
    detail = f"{segment.path} ends at byte {segment.size_bytes}, inside the batch that begins at byte {position}"
    return refuse(segment, Reason.DAMAGED, f"{detail}: {_LOST}")


def _by_time_index(segment: Segment, sources: Sources) -> Iterator[Refusal]:
    """Judge a time index as brokers do that load a copy of it, where it has more entries than brokers append."""
    size_bytes = segment.timeindex_bytes or 0
    usual = (segment.index_bytes or 0) // OFFSET_ENTRY.size + 1
    if segment.is_active or size_bytes % TIME_ENTRY.size or size_bytes <= usual * TIME_ENTRY.size:
        return
    path = segment.sibling("timeindex")
    first = sources.read_range(path, 0, TIME_ENTRY.size)
    last = sources.read_range(path, size_bytes - TIME_ENTRY.size, size_bytes)
    if len(first) == len(last) == TIME_ENTRY.size:
        (first_ms, _), (last_ms, relative_offset) = TIME_ENTRY.unpack(first), TIME_ENTRY.unpack(last)
        if last_ms < first_ms or relative_offset < 0:
            yield _unusable(segment, f"{path} begins with timestamp {first_ms} and ends with {last_ms}")


def _unusable(segment: Segment, what: str) -> Refusal:
    shipped = "brokers ship it as it is, and the segment cannot be read from remote storage"
    return refuse(segment, Reason.INDEX_UNUSABLE, f"{what}: {shipped}")
