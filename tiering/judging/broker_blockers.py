"""Where a stock broker's (3.6 or later) own tiering stops, judged by the directory and without a replay.

A broker checks little before it copies a segment: it requires leader epochs, then the producer snapshot, and stops at
the last stable offset. It copies any other damage unchanged. If the copy cannot be read, and the broker then deletes
its local segment, tiering is as good as stopped, so that is a blocker, too: an offset or time index whose size is not a
multiple of its entries, and a segment that has lost records: it is empty, ends before its offset index does or inside
its last batch, or is missing although its index exists. What a broker does before it tiers anything is in
``broker_start``. The rules were observed on brokers of 3.9.1 and 4.4.0 (``tests/kafka/test_check.py``,
``tests/kafka/test_damaged_topics.py``).

Source: ``RemoteLogManager.RLMCopyTask``, ``RemoteIndexCache``; KAFKA-15195.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.storage.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from resnap.storage.log.names import FileKind, FileState, parse_file_name
from resnap.storage.log.producer_snapshot import NO_OPEN_TRANSACTION, read_snapshot, read_snapshot_array
from resnap.storage.sources.files import UNREADABLE
from resnap.tiering.controller.transactions.open_transaction import Ending, OpenTransaction
from resnap.tiering.controller.transactions.state_log import known_states
from resnap.tiering.judging.broker_start import NOTHING_WRONG
from resnap.tiering.judging.inventory import Compaction, CompactionOrigin, SnapshotState
from resnap.tiering.judging.refusal import HINTS, Reason, Refusal, refusal_of, refuse, stop_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.inventory import BoundaryStatus, PartitionInventory
    from resnap.tiering.judging.refusal import Stop

_COMPACTED_BY: Final = {
    CompactionOrigin.INTERNAL_TOPIC: "it belongs to an internal topic that is always compacted",
    CompactionOrigin.TOPIC_CONFIGURATION: "cleanup.policy of the topic contains compact",
    CompactionOrigin.CLEANER_CHECKPOINT: "cleaner-offset-checkpoint lists the partition: it was compacted, and its "
    "current cleanup.policy is not known",
}
_COMPACTED_ONCE: Final = (
    "if cleanup.policy of the topic no longer contains compact, give --metadata-log or --bootstrap-server to show it; "
    "else there is nothing to do: Kafka does not tier compacted topics"
)
"""What to do where the cleaner has been there, and the topic may have another policy by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBlockers:
    """How far a stock broker tiers a partition, and which of its copies cannot be loaded."""

    found: tuple[Refusal, ...]
    """The first segment of each reason for which tiering stops, ascending."""
    shipped_as_is: tuple[Refusal, ...]
    """What it ships without checking it, if it gets that far.

    Unusable snapshots, transaction indexes that cannot be right, and segments with offsets missing.
    """
    damaged: frozenset[int] = frozenset()
    """Base offsets of all segments that have lost records."""

    @property
    def stop(self) -> Refusal | None:
        """The first segment at which copying stops for good; None if it reaches the log end."""
        return self.found[0] if self.found else None

    @property
    def decisive(self) -> Refusal | None:
        """The first refusal that is known to stop tiering; else that of the first unreadable segment."""
        return next((refusal for refusal in self.found if refusal.reason is not Reason.UNREADABLE), self.stop)


Hanging: TypeAlias = "tuple[int, Stop]"
"""The first offset of a transaction that has been open for longer than any may be, which nothing will end; and why."""


def broker_blockers(
    inventory: PartitionInventory,
    *,
    high_watermark: int | None = None,
    hanging: Hanging | None = None,
    start: BrokerStart = NOTHING_WRONG,
    remote_end_offset: int | None = None,
    in_files: Iterable[Refusal] = (),
) -> BrokerBlockers:
    """Return the segments at which a stock broker's tiering stops for good, and those it ships but cannot load.

    It checks only segments that a broker would copy, above the log start and what is tiered already: the high watermark
    will pass them all, but a transaction above it may be open without hanging.

    Args:
        inventory: of the partition.
        high_watermark: overrides the checkpoint; None to use the checkpoint.
        hanging: the first hanging transaction of the partition, if there is one.
        start: what a broker finds wrong when it starts.
        remote_end_offset: where what brokers have tiered already ends; None if nothing is known to be tiered.
        in_files: findings inside the segments' files that sizes do not show (``file_damage``).

    """
    if high_watermark is None:
        high_watermark = inventory.partition.high_watermark
    tried = [boundary for boundary in inventory.boundaries if _is_tried(boundary, inventory, remote_end_offset or 0)]
    if inventory.compaction is Compaction.COMPACTED:
        compacted = why_compacted(inventory)
        return BrokerBlockers(
            found=tuple(refusal_of(boundary.segment, compacted) for boundary in tried[:1]), shipped_as_is=()
        )
    if not inventory.partition.segments:
        return BrokerBlockers(found=(_without_segments(inventory.partition),), shipped_as_is=())
    in_files = tuple(in_files)
    refusals = [*start.refusals, *_above_log_end(inventory)]
    refusals += [refusal for refusal in in_files if refusal.reason is not Reason.MISSING_OFFSETS]
    if inventory.partition.stray is not None:
        stray = why_stray(inventory.partition.stray)
        refusals.append(refuse(inventory.partition.segments[0], Reason.STRAY, stray))
    if start.ended_by is not None:
        refusals.append(
            refuse(inventory.partition.segments[0], Reason.NO_START, start.ended_by.detail, hint=start.ended_by.hint)
        )
    unread = inventory.leader_epochs.unread
    if unread is not None and tried:
        refusals.append(refuse(tried[0].segment, Reason.UNREADABLE, str(unread), hint=unread.hint))
    for boundary in tried:
        is_committed = high_watermark is None or boundary.offset <= high_watermark
        refusals += _refusals(boundary, inventory, hanging if is_committed else None, start)
    refusals += lost_records(inventory, remote_end_offset or 0)
    shipped = {boundary.segment.base_offset for boundary in tried}
    first: dict[Reason, Refusal] = {}
    for refusal in sorted(refusals, key=attrgetter("base_offset")):
        first.setdefault(refusal.reason, refusal)
    return BrokerBlockers(
        found=tuple(first.values()),
        shipped_as_is=(
            *(one for one in start.unusable if one.base_offset in shipped and one.base_offset not in start.recovered),
            *(refusal for refusal in in_files if refusal.reason is Reason.MISSING_OFFSETS),
            *(
                _with_useless_snapshot(boundary)
                for boundary in tried
                if boundary.state in {SnapshotState.CORRUPT, SnapshotState.ZERO_BYTE}
            ),
        ),
        damaged=frozenset(refusal.base_offset for refusal in refusals if refusal.reason is Reason.DAMAGED),
    )


def hanging_transaction(
    inventory: PartitionInventory,
    sources: Sources,
    *,
    transaction_max_timeout_ms: int,
    last_stable_offset: int | None = None,
    now_ms: int = 0,
) -> Hanging | None:
    """Return the first hanging transaction of the partition; None if there is none.

    A coordinator ends every transaction that it knows after ``transaction.max.timeout.ms``. A transaction in the newest
    snapshot hangs if another producer's batches are later by more than that, unless the leader's ``last_stable_offset``
    shows that it has ended since. The ``last_stable_offset`` alone shows one if a segment above it was closed that long
    ago.

    Raises:
        StoreError: the store that the partition is in failed.

    """
    found = _in_newest_snapshot(inventory, sources, transaction_max_timeout_ms)
    if last_stable_offset is None:
        return found
    if found is not None and found[0] >= last_stable_offset:
        return found
    closed_before_ns = (now_ms - transaction_max_timeout_ms) * 1_000_000
    for boundary in inventory.boundaries:
        if boundary.offset > last_stable_offset:
            if boundary.segment.mtime_ns > closed_before_ns:
                return None
            detail = f"the last stable offset is {last_stable_offset}, and a segment above was closed more than"
            return last_stable_offset, stop_for(
                Reason.ABOVE_LAST_STABLE_OFFSET,
                f"{detail} transaction.max.timeout.ms ({transaction_max_timeout_ms}) ago",
            )
    return None


def _in_newest_snapshot(
    inventory: PartitionInventory, sources: Sources, transaction_max_timeout_ms: int
) -> Hanging | None:
    ended = [boundary.path for boundary in inventory.boundaries if boundary.entries and boundary.path is not None]
    newest = inventory.log_end.path if inventory.log_end is not None else next(reversed(ended), None)
    if newest is None:
        return None
    try:
        content = sources.read(newest)
        array = read_snapshot_array(content)
        open_ms = array["timestamp"][array["current_txn_first_offset"] != NO_OPEN_TRANSACTION]
        if not len(open_ms) or int(array["timestamp"].max()) - int(open_ms.min()) <= transaction_max_timeout_ms:
            return None
        entries = read_snapshot(content).values()
    except UNREADABLE:
        return None
    last_ms = max(entry.timestamp for entry in entries)
    hanging = [
        entry
        for entry in entries
        if entry.has_open_transaction and last_ms - entry.timestamp > transaction_max_timeout_ms
    ]
    if not hanging:
        return None
    first = min(hanging, key=attrgetter("current_txn_first_offset"))
    states = known_states(inventory.partition.path.parent, [first.producer_id])
    one = OpenTransaction.of_entry(inventory.partition.topic_partition, first, states)
    held = "" if one.transactional_id is None else f" (transactional id {one.transactional_id!r})"
    is_committed = one.ending is Ending.COMMITTED
    committed = "; its coordinator has committed it, and its marker is missing here" if is_committed else ""
    return first.current_txn_first_offset, stop_for(
        Reason.ABOVE_LAST_STABLE_OFFSET,
        f"a transaction of producer {first.producer_id}{held} has been open since offset"
        f" {first.current_txn_first_offset}: other producers wrote for another {last_ms - first.timestamp} ms, and "
        f"transaction.max.timeout.ms is {transaction_max_timeout_ms}{committed}",
        hint=one.advice() if is_committed else None,
    )


def why_compacted(inventory: PartitionInventory) -> Stop:
    """Return why a partition that is compacted is not tiered."""
    origin = inventory.compaction_origin
    hint = _COMPACTED_ONCE if origin is CompactionOrigin.CLEANER_CHECKPOINT else None
    return stop_for(Reason.COMPACTED, _COMPACTED_BY[origin], hint=hint)


def why_stray(why: str) -> str:
    """Return the message for a partition that is a stray one, and ``why``."""
    return f"{why}: a broker of KRaft renames the directory to -stray when it starts, and the partition begins empty"


def no_epoch(segment: Segment, inventory: PartitionInventory) -> str:
    """Return the refusal of a segment whose leader epochs are unknown."""
    begins = inventory.leader_epochs.checkpointed_from
    damage = inventory.leader_epochs.damage
    said = f"is damaged ({damage})" if damage else "has none" if begins is None else f"begins at offset {begins}"
    start = max(segment.base_offset, inventory.partition.log_start_offset)
    return f"no leader epoch is known at offset {start}: leader-epoch-checkpoint {said}"


def _is_tried(boundary: BoundaryStatus, inventory: PartitionInventory, remote_end_offset: int) -> bool:
    is_local = inventory.partition.is_local(boundary.segment.base_offset)
    return is_local and boundary.offset > max(inventory.partition.log_start_offset, remote_end_offset)


def _refusals(
    boundary: BoundaryStatus, inventory: PartitionInventory, hanging: Hanging | None, start: BrokerStart
) -> Iterator[Refusal]:
    """Yield everything that stops a broker at a segment, in the order of the broker's checks, copied damage last."""
    segment, epochs = boundary.segment, inventory.leader_epochs
    if hanging is not None and hanging[0] < boundary.offset:
        yield refusal_of(segment, hanging[1])
    has_no_epoch = epochs.checkpointed_from is None or boundary.offset <= epochs.checkpointed_from
    if has_no_epoch:
        detail = f"{no_epoch(segment, inventory)}: brokers from 3.6 on stop here with an IllegalArgumentException"
        hint = None
        if segment.base_offset >= epochs.unknown_below:
            hint = "`resnap tier` ships the segment with the leader epochs that its batches carry"
        yield refuse(segment, Reason.LEADER_EPOCHS_UNKNOWN, detail, hint=hint)
    deleted = start.deletes(boundary.offset)
    if deleted is not None:
        detail = (
            f"{deleted.detail}: a broker recovers that segment when it starts, and deletes the snapshots above it, the"
            f" one for offset {boundary.offset} too"
        )
        yield refusal_of(segment, replace(deleted, detail=detail, hint=HINTS[Reason.INDEX_MISSING]))
    # With the leader epochs nothing helps but retention, which would delete the snapshot with its segment.
    awaits_retention = has_no_epoch and segment.base_offset < epochs.unknown_below and not epochs.damage
    if boundary.state is SnapshotState.MISSING and not awaits_retention:
        what = f"no producer snapshot for offset {boundary.offset}: brokers from 3.6 on stop here with a"
        yield refuse(segment, Reason.MISSING_SNAPSHOT, f"{what} NullPointerException")
    swapped = next(_swapped_in(inventory.partition, segment.base_offset, boundary.offset), None)
    if swapped is not None:
        detail = (
            f"a broker that starts puts {swapped} in the place of the segment, and deletes the snapshot at its base"
        )
        yield refuse(segment, Reason.DIRECTORY_BUSY, detail)
    yield from _damage(segment)


def _swapped_in(partition: PartitionDir, above: int, end: int) -> Iterator[str]:
    """Yield the unfinished segments whose base is above the first offset, and not above the second one."""
    for name in partition.unfinished:
        file = parse_file_name(name)
        if (
            file is not None
            and (file.kind, file.state) == (FileKind.LOG, FileState.SWAP)
            and above < file.offset <= end
        ):
            yield name


def _above_log_end(inventory: PartitionInventory) -> Iterator[Refusal]:
    """Yield the first segment if the log is said to start above the end that a clean stop left."""
    partition, log_end = inventory.partition, inventory.log_end
    if log_end is not None and partition.segments and log_end.offset < partition.log_start_offset:
        detail = (
            f"the log ends at offset {log_end.offset}, and starts at {partition.log_start_offset} by its checkpoint"
        )
        yield refuse(partition.segments[0], Reason.DAMAGED, f"{detail}: a broker that starts deletes all its segments")


def lost_records(inventory: PartitionInventory, remote_end_offset: int = 0) -> Iterator[Refusal]:
    """Yield the segments, by base offset, whose records are not here though the files around them are.

    A log has no byte, or is missing, where its index is; leader epochs show whether the log began with the first one.
    Where a cleaner leaves no byte, the index has none. Nothing is looked for below the log start and
    ``remote_end_offset``.
    """
    partition, known_from = inventory.partition, inventory.leader_epochs.checkpointed_from
    if not partition.segments:
        return
    read_from = max(partition.log_start_offset, remote_end_offset)
    first, last = partition.segments[0].base_offset, partition.segments[-1].base_offset
    gone = [base_offset for base_offset in partition.without_log if partition.is_local(base_offset)]
    if gone and gone[0] < first and known_from is not None and known_from <= gone[0]:
        yield _has_gone(inventory, gone[0], first)
    for segment in partition.segments:
        end = segment.next_base_offset
        if end is None or end <= read_from or not partition.is_local(segment.base_offset):
            continue
        if segment.size_bytes == 0 and segment.index_bytes:
            lost = "the records of its offsets are lost here, and brokers ship it all the same"
            yield refuse(segment, Reason.DAMAGED, f"{segment.path} is empty: {lost}")
        between = next((base_offset for base_offset in gone if segment.base_offset < base_offset < end), None)
        if between is not None:
            yield replace(_has_gone(inventory, between, end), base_offset=segment.base_offset)
    if gone and gone[-1] > last:
        yield _has_gone(inventory, gone[-1], None)


def _has_gone(inventory: PartitionInventory, offset: int, next_base_offset: int | None) -> Refusal:
    detail = f"the log of the segment at offset {offset} is missing from {inventory.partition.path}, where its index is"
    return Refusal(
        base_offset=offset,
        next_base_offset=next_base_offset,
        reason=Reason.DAMAGED,
        detail=f"{detail}: its records are lost here",
        hint=HINTS[Reason.DAMAGED],
    )


def _without_segments(partition: PartitionDir) -> Refusal:
    return Refusal(
        base_offset=partition.log_start_offset,
        next_base_offset=None,
        reason=Reason.UNREADABLE,
        detail=f"{partition.path} has no segment",
        hint="run again if the partition has only just been made; else take it from the log dir of another replica",
    )


def _damage(segment: Segment) -> Iterator[Refusal]:
    """Yield the damage that the sizes of a segment's indexes show."""
    for suffix, size_bytes, entry in (
        ("index", segment.index_bytes, OFFSET_ENTRY.size),
        ("timeindex", segment.timeindex_bytes, TIME_ENTRY.size),
    ):
        if size_bytes is not None and size_bytes % entry:
            detail = f"{segment.sibling(suffix)} has {size_bytes} bytes, which is not a multiple of {entry}"
            yield refuse(
                segment,
                Reason.INDEX_UNUSABLE,
                f"{detail}: brokers ship it as it is, and the segment cannot be read from remote storage",
            )
            break


def _with_useless_snapshot(boundary: BoundaryStatus) -> Refusal:
    wrong = f"is corrupt ({boundary.detail})" if boundary.detail else "has no byte"
    return refuse(
        boundary.segment,
        Reason.UNUSABLE_SNAPSHOT,
        f"the producer snapshot for offset {boundary.offset} {wrong}: brokers ship it without reading it",
    )
