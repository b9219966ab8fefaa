"""Counts the producers of partitions: from their newest snapshots, or from a replay if these cannot be used.

If the newest snapshot is missing, broken, or older than the active segment, the newest boundary is replayed, as ``plan
--as-of now`` would. The active segment is in neither, and its bytes are reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from resnap.replay.results import Outcome
from resnap.replay.staging import scratch_directory, snapshot_key
from resnap.scheduler.job.contract import PartitionState, Result
from resnap.storage.errors import DataError, ResnapError, in_file
from resnap.storage.log.producer_snapshot import entries_in, snapshot_arrays
from resnap.tiering.controller.transactions.state_log import transactional_ids
from resnap.tiering.quota.producer_census import Census, Owners

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.job.contract import Context
    from resnap.storage.log.partition_dir import Place
    from resnap.tiering.planner import Planner
    from resnap.tiering.quota.producer_census import Ints, PrincipalMap
    from resnap.tiering.selection import SelectedPartition, Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Result):
    """The producers of one partition.

    Attributes:
        selected: the partition.
        census: whom the snapshot names.
        origin: whether a snapshot on disk was counted, or one that was replayed; ``none`` where there is neither.
        offset: of the snapshot.
        reason: why there was a replay.
        unread_bytes: size of the segments from there on, whose producers are not counted.

    """

    selected: SelectedPartition
    census: Census
    origin: Literal["snapshot", "replay", "none"]
    offset: int | None
    unread_bytes: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounter:
    """Counts producers, partition by partition."""

    planner: Planner
    now_ms: int
    edges: Ints
    principals: PrincipalMap | None
    owners: dict[str, Owners] = field(default_factory=dict)
    """By log dir, each read once."""

    def counted(self, selection: Selection, context: Context) -> Iterator[Counted]:
        """Yield what the newest snapshots show, then what replays show of partitions that lack one."""
        lacking = []
        for selected in selection.partitions:
            context.check()
            found = self._of_snapshot(selected)
            if isinstance(found, Counted):
                yield found
            else:
                lacking.append((selected, found))
        if lacking:
            yield from self._of_replays(lacking, context)

    def _of_snapshot(self, selected: SelectedPartition) -> Counted | str:
        """Return what the newest snapshot shows, or why it has to be made first."""
        partition = selected.inventory.partition
        newest = max((one.offset for one in partition.snapshots), default=None)
        boundary = max(partition.boundaries, default=None)
        if newest is None and boundary is None:
            return self._result(selected)
        if newest is None or newest < (boundary or 0):
            is_there = "there is no" if newest is None else f"{newest} is the newest"
            return f"{is_there} snapshot, and offset {boundary} has none"
        try:
            census = self._read(selected, partition.snapshots[-1].path)
        except ResnapError as error:
            if boundary is None:
                return self._result(selected, error=error)
            return str(error)
        if newest is not None:
            self.planner.on_state(selected.topic_partition, newest, entries_in(partition.snapshots[-1].size_bytes))
        return self._result(selected, census, "snapshot", newest)

    def _of_replays(self, lacking: list[tuple[SelectedPartition, str]], context: Context) -> Iterator[Counted]:
        """Replay the newest boundaries, here: what executors write, this process may not see."""
        engine = self.planner.engine
        planner = replace(self.planner, engine=replace(engine, kind="local")) if engine.is_remote else self.planner
        why = {selected.topic_partition: (selected, text) for selected, text in lacking}
        with scratch_directory("census") as scratch, context.progress("replay") as (progress,):
            planned = [
                planner.boundaries(selected, selected.inventory.partition.boundaries[-1:], None, None)
                for selected, _ in lacking
            ]
            for replayed in planner.replay(planned, scratch.as_uri(), progress):
                result = replayed.result
                selected, text = why[result.topic_partition]
                (found,) = result.boundaries
                if found.outcome is not Outcome.REBUILT:
                    error = result.error or DataError(f"{result.topic_partition}: {found.reason}")
                    yield self._result(selected, error=error)
                    continue
                made = scratch / snapshot_key(result.topic_partition, found.boundary.offset)
                census = self._read(selected, str(made))
                made.unlink()
                yield replace(self._result(selected, census, "replay", found.boundary.offset), reason=text)

    def _read(self, selected: SelectedPartition, locator: str) -> Census:
        """Count a snapshot, a few thousand entries at a time; nothing counts of one whose checksum is wrong."""
        census, owners = self._empty(), self._owners(selected.log_dir.path)
        with in_file(locator), self.planner.engine.reading.sources.open(locator) as file:
            for entries in snapshot_arrays(file.read, file.size_bytes):
                census.count(selected.topic_partition.topic, entries, self.now_ms, owners)
        return census

    def _owners(self, log_dir: Place) -> Owners:
        known = self.owners.get(str(log_dir))
        if known is None:
            names = transactional_ids(log_dir)
            known = Owners(None if self.principals is None else self.principals.knowing(names), names)
            self.owners[str(log_dir)] = known
        return known

    def _empty(self) -> Census:
        return Census.empty(self.edges)

    def _result(
        self,
        selected: SelectedPartition,
        census: Census | None = None,
        origin: Literal["snapshot", "replay", "none"] = "none",
        offset: int | None = None,
        error: ResnapError | None = None,
    ) -> Counted:
        segments = selected.inventory.partition.segments
        return Counted(
            topic_partition=selected.topic_partition,
            state=PartitionState.DONE if error is None else PartitionState.FAILED,
            faults=() if error is None else (error,),
            partly_done=True,
            selected=selected,
            census=self._empty() if census is None else census,
            origin=origin,
            offset=offset,
            unread_bytes=sum(one.size_bytes for one in segments if offset is None or one.base_offset >= offset),
        )
