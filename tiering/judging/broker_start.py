"""Says what a stock broker does with the files of a partition when it starts.

It recovers a segment that has no offset index, and one whose transaction index has an entry that ends below it. For
that it deletes the snapshots above the base offset of the segment, also those that were just installed. It writes new
ones at the base offset and the end of each segment that it recovers, at the base offsets of the two segments below, and
at those of the last two segments of the log. An entry of another version in a transaction index ends the start of the
whole broker, and so does a ``partition.metadata`` without both its lines. Other damage of that file, or of
``leader-epoch-checkpoint``, takes the log dir offline; a broker that has no other one does not start. Nor does any with
a directory in its log dir whose name is not that of a partition, such as ``lost+found``, or with a ``copy.log`` in a
partition directory. Observed on brokers of 3.9.1 and 4.4.0 (``tests/kafka/test_damaged_topics.py``).

Source: ``LogLoader.loadSegmentFiles``, ``LogLoader.recoverSegment``, ``LogSegment.sanityCheck``,
``TransactionIndex.sanityCheck``, ``ProducerStateManager.truncateAndReload``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, LogDirError, UsageError
from resnap.storage.log.indexes import (
    TRANSACTION_ENTRY,
    TRANSACTION_VERSION,
    read_transaction_index,
)
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import FileKind
from resnap.storage.log.partition_dir import PARTITION_METADATA
from resnap.storage.sources.files import GONE
from resnap.storage.words import agreeing, first_of
from resnap.tiering.judging.inventory import checkpoint_damage
from resnap.tiering.judging.refusal import Reason, Refusal, Stop, refuse, stop_for

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
    ended_by: Stop | None = None
    """What of another partition of the broker, or of no partition, ends the start; None if nothing does."""
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
    unknown: Iterable[Path],
    sources: Sources,
) -> dict[Place, BrokerStart]:
    """Return what one broker finds wrong with each of some of its partitions when it starts, by their paths.

    What ends its start does so for all of them, in all its log dirs. ``problems`` are partitions that cannot be judged,
    ``unwanted`` the directories of those that are not to be judged, ``unknown`` what else has no name of Kafka's.
    """
    starts = {partition.partition.path: broker_start(partition.partition, sources) for partition in inventories}
    ends: list[tuple[Path | None, Stop]] = []
    if named := list(unknown):
        ends.append((None, unknown_names(named)))
    ends += _ends(inventories, starts, problems, unwanted, sources)
    return {
        path: replace(start, ended_by=next((stop for of, stop in ends if of in {None, path.parent}), None))
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
) -> Iterator[tuple[Path | None, Stop]]:
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
            if partition.unknown:
                yield None, unknown_names([path / name for name in partition.unknown])
            judged.append(broker_start(partition, sources))
            damages[path] = checkpoint_damage(partition.leader_epochs, sources)
        except FormatError as error:
            damages[path] = str(error)
        except (LogDirError, UsageError):
            continue  # it cannot be read, or is gone
    for start in judged:
        ending = (refusal.detail for refusal in start.refusals if refusal.reason is Reason.INDEX_UNUSABLE)
        yield from ((None, stop_for(Reason.NO_START, detail)) for detail in ending)
    for place, damage in damages.items():
        if damage is not None and isinstance(place, Path):
            yield _end_by_damage(place, damage, sources)


def _end_by_damage(path: Path, damage: str, sources: Sources) -> tuple[Path | None, Stop]:
    """Return why a broker does not start for a damaged file of a partition, or does without its log dir, given then."""
    if _is_metadata_cut(path, sources):
        return None, stop_for(Reason.NO_START, f"{damage}: a broker does not start with it, with any topic")
    offline = "a broker takes the log dir offline, and does not start without another one"
    return path.parent, stop_for(Reason.NO_START, f"{damage}: {offline}")


def unknown_names(paths: Sequence[Path]) -> Stop:
    """Return why a broker does not start with directories or files of the names that ``paths`` have."""
    named, are, them = first_of(paths), agreeing(len(paths)), agreeing(len(paths), "it", "them")
    detail = (
        f"{named} {are} not named as Kafka names what is there: a broker does not start with {them}, with any topic"
    )
    return stop_for(
        Reason.NO_START, detail, hint=f"before the broker starts, move {named} to a place outside the log dir"
    )


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
            found = _of_transaction_index(segment, sources, aborted, unusable)
            if isinstance(found, Refusal):
                refusals.append(found)
            elif found is not None:
                recovered.setdefault(segment.base_offset, found)
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
    segment: Segment, sources: Sources, aborted: dict[str, Sequence[AbortedTxn]], unusable: list[Refusal]
) -> Stop | Refusal | None:
    """Return what a broker does about the first bad entry; it ignores a part of an entry at the end, and other faults.

    ``aborted`` gets the entries, ``unusable`` the segment if one of them cannot be right. Whether one is missing, or
    names another producer, only the batches show.
    """
    path = segment.sibling(FileKind.TXNINDEX)
    try:
        content = sources.read(path)
    except GONE:
        return None
    except LogDirError as error:
        return refuse(segment, Reason.UNREADABLE, str(error), hint=error.hint)
    wrong = None
    try:
        entries = aborted[segment.path] = read_transaction_index(content)
    except FormatError as error:
        wrong = str(error)
    else:
        end = segment.next_base_offset
        if entries and end is not None and entries[-1].last_offset >= end:
            wrong = f"its last entry ends at offset {entries[-1].last_offset}, and the next segment begins at {end}"
    for at in range(0, len(content) - TRANSACTION_ENTRY.size + 1, TRANSACTION_ENTRY.size):
        version, _, _, last_offset, _ = TRANSACTION_ENTRY.unpack_from(content, at)
        if version != TRANSACTION_VERSION:  # to brokers before 4.4 it is the first byte alone, and may be negative
            detail = f"{path} has an entry of version {version} at byte {at}, known is {TRANSACTION_VERSION}"
            return refuse(segment, Reason.INDEX_UNUSABLE, f"{detail}: a broker does not start with it, with any topic")
        if last_offset < segment.base_offset:
            detail = f"{path} has an entry at byte {at} that ends at offset {last_offset}, below its segment"
            unusable.append(refuse(segment, Reason.INDEX_UNUSABLE, detail))
            return stop_for(Reason.INDEX_UNUSABLE, detail)
    if wrong is not None:
        detail = f"{path}: {wrong}: brokers ship it as it is, and `resnap tier` does not ship the segment"
        unusable.append(refuse(segment, Reason.INDEX_UNUSABLE, detail))
    return None
