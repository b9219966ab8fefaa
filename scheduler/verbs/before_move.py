"""The job of ``check --before-move``: what partitions would lose by a move to another disk now.

A replica that is moved between two disks of its broker starts from remote storage, and then knows the producers of its
local segments alone (``docs/lost-producer-state.md``). So a move is safe once no producer whose last batch, or whose
open transaction, is below the local log start is unexpired. The newest snapshot shows them; producers that have
written since then may be safe already. A replica that has lost state before does not show all: its row says so.

Source: ``ReplicaAlterLogDirsThread``, ``TierStateMachine.buildProducerSnapshotFile``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from resnap.scheduler.cli.failures import MISSING_FOUND, OK
from resnap.scheduler.job.contract import Result, unread
from resnap.scheduler.job.reports import Identity, SummedView, count_of
from resnap.scheduler.job.wiring import reading_of
from resnap.scheduler.output.records import columns_of, instant_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.errors import ResnapError
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.words import human_count, some
from resnap.tiering.judging.lost_producer_state import state_of_replica
from resnap.tiering.selection import select, warn_unmatched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.storage.sources.files import Sources
    from resnap.tiering.selection import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Result):
    """What a move of one partition would lose.

    Attributes:
        local_start: first offset on the disk.
        at: offset of the snapshot that shows the producers; None if there is none that can be read.
        producers: those that would be lost.
        not_known: why there may be more; None if nothing shows that.
        safe_from_ms: when a move loses nothing any more; None while a transaction is open, or if it is not known.

    """

    local_start: int
    at: int | None
    producers: tuple[ProducerEntry, ...]
    not_known: str | None
    safe_from_ms: int | None

    @property
    def is_safe(self) -> bool:
        """Whether nothing would be lost."""
        return not self.producers and self.not_known is None


def run(scope: Scope, context: Context) -> Iterator[Result]:
    """Yield each partition of which a part is in remote storage alone.

    Raises:
        UsageError, LogDirError: a source is not what it should be, or nothing is in scope.

    """
    sources, settings = reading_of(context.settings).sources, context.settings
    selection = select(scope, sources)
    warn_unmatched(scope, selection, context.warn)
    yield from unread(selection)
    for selected in selection.partitions:
        partition = selected.inventory.partition
        begins = partition.segments[0].base_offset if partition.segments else 0
        if partition.local_from is not None or begins > partition.log_start_offset:
            yield _move(partition, sources, context.clock.now_ms(), settings.expiration_ms)


def _move(partition: PartitionDir, sources: Sources, now_ms: int, expiration_ms: int) -> Move:
    start = partition.segments[0].base_offset if partition.local_from is None else partition.local_from
    at, entries = _newest(partition, sources, start)
    lost_before = state_of_replica(partition, sources, expiration_ms)
    not_known = f"no snapshot from offset {start} on can be read" if at is None else None
    if lost_before is not None:
        not_known = f"the replica seems to lack state already: {lost_before.detail}"
    lost = [
        entry
        for entry in entries
        if (entry.last_offset < start or (entry.has_open_transaction and entry.current_txn_first_offset < start))
        and (entry.has_open_transaction or now_ms - entry.timestamp < expiration_ms)
    ]
    is_open = any(entry.has_open_transaction and entry.current_txn_first_offset < start for entry in lost)
    last_ms = max((entry.timestamp for entry in lost), default=now_ms - expiration_ms)
    return Move(
        topic_partition=partition.topic_partition,
        local_start=start,
        at=at,
        producers=tuple(sorted(lost)),
        not_known=not_known,
        safe_from_ms=None if is_open or not_known else max(last_ms + expiration_ms, now_ms),
    )


def _newest(partition: PartitionDir, sources: Sources, start: int) -> tuple[int | None, Sequence[ProducerEntry]]:
    """Return the newest snapshot that can be read: its offset, and its entries."""
    for snapshot in reversed(partition.snapshots):
        if snapshot.offset < start:
            break
        try:
            return snapshot.offset, tuple(read_snapshot(sources.read(snapshot.path)).values())
        except ResnapError:
            continue
    return None, ()


class MoveRow(Identity):
    """One partition that a move would cost producer state now, or of which that is not known."""

    localStartOffset: Annotated[int, "local_start", Column(title="ON DISK FROM", right=True)]
    snapshotOffset: Annotated[int | None, "at"]
    producers: Annotated[
        list[int],
        lambda move: [producer.producer_id for producer in move.producers],
        Column(title="WOULD BE LOST", right=True, show=count_of),
    ]
    openTransactions: Annotated[
        int,
        lambda move: sum(entry.has_open_transaction for entry in move.producers),
        Column(title="OPEN", right=True),
    ]
    notKnown: Annotated[str | None, Column(title="NOT KNOWN", show=lambda value: str(value or ""))]
    safeFrom: Annotated[
        str | None,
        instant_of("safe_from_ms"),
        Column(title="SAFE FROM", show=lambda value: "-" if value is None else str(value)),
    ]


class BeforeMoveView(SummedView[Result]):
    """A row per partition that a move would cost producer state now, or of which that is not known."""

    kind = "partition"
    columns = columns_of(
        MoveRow, "partition", "localStartOffset", "producers", "openTransactions", "safeFrom", "notKnown"
    )
    most_first = "producers"
    joined = ("producers",)

    def __init__(self) -> None:
        self._totals = {"partitions": 0, "safe": 0, "lossy": 0, "unknown": 0}

    @property
    def exit_code(self) -> int:
        """Whether a move now may lose state."""
        return MISSING_FOUND if self._totals["lossy"] or self._totals["unknown"] else OK

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition that is not safe, and count it."""
        if not isinstance(result, Move) or result.topic_partition is None:
            return None
        self._totals["partitions"] += 1
        self._totals["safe" if result.is_safe else "lossy" if result.producers else "unknown"] += 1
        if result.is_safe:
            return None
        return row_of(MoveRow, result)

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do."""
        counts = self._totals
        yield ""
        yield from self.summed_note()
        yield (
            f"{some(counts['partitions'], 'partition')} with a part in remote storage alone:"
            f" {human_count(counts['safe'])} safe to move between disks,"
            f" {human_count(counts['lossy'])} would lose producer state,"
            f" {human_count(counts['unknown'])} not known."
        )
        if self.exit_code:
            yield (
                "Next: wait until the time under SAFE FROM; or raise local.retention.ms and local.retention.bytes for"
                " as long as producers live, and move then; docs/lost-producer-state.md says why."
            )
