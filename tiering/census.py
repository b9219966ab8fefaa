"""Counts the producers of partitions, by their newest producer snapshots, or by a replay where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import scratch_directory, snapshot_key
from resnap.storage.errors import DataError, ResnapError, in_file
from resnap.storage.log.producer_snapshot import entries_in, snapshot_arrays
from resnap.tiering.controller.transactions.state_log import transactional_ids
from resnap.tiering.quota.producer_census import Census, Owners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.watching import Progress
    from resnap.storage.log.partition_dir import Place
    from resnap.tiering.planner import Planner
    from resnap.tiering.quota.producer_census import Ints, PrincipalMap
    from resnap.tiering.selection import SelectedPartition


class CountedPartition(NamedTuple):
    """The producers of one partition."""

    selected: SelectedPartition
    census: Census
    """Whom the snapshot names."""
    origin: Literal["snapshot", "replay", "none"]
    """Whether a snapshot on disk was counted, or one that was replayed; ``none`` where there is neither."""
    offset: int | None
    """The offset of the snapshot."""
    unread_bytes: int
    """Size of the segments from there on, whose producers are not counted."""
    reason: str | None = None
    """Why there was a replay."""
    error: ResnapError | None = None
    """Why there is neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounter:
    """Counts producers, partition by partition."""

    planner: Planner
    now_ms: int
    edges: Ints
    principals: PrincipalMap | None
    owners: dict[str, Owners] = field(default_factory=dict)
    """The owners of producer ids by log dir, each read once."""

    def count(
        self,
        partitions: Iterable[SelectedPartition],
        progress: Callable[..., AbstractContextManager[Sequence[Progress]]],
        report: Callable[[CountedPartition], None],
    ) -> None:
        """Report what the newest snapshots show, then what replays show of partitions that lack one."""
        lacking = []
        for selected in partitions:
            found = self._of_snapshot(selected)
            if isinstance(found, CountedPartition):
                report(found)
            else:
                lacking.append((selected, found))
        if lacking:
            with progress("replay") as (replaying,):
                for found in self._of_replays(lacking, replaying):
                    report(found)

    def _of_snapshot(self, selected: SelectedPartition) -> CountedPartition | str:
        """Return what the newest snapshot shows, or why it has to be made first."""
        partition = selected.inventory.partition
        newest = max((snapshot.offset for snapshot in partition.snapshots), default=None)
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
            last = partition.snapshots[-1]
            self.planner.on_state(selected.topic_partition, newest, entries_in(last.size_bytes), last.path)
        return self._result(selected, census, "snapshot", newest)

    def _of_replays(
        self, lacking: list[tuple[SelectedPartition, str]], progress: Progress
    ) -> Iterator[CountedPartition]:
        """Replay the newest boundaries, here: what executors write, this process may not see."""
        engine = self.planner.engine
        planner = replace(self.planner, engine=replace(engine, kind="local")) if engine.is_remote else self.planner
        why = {selected.topic_partition: (selected, text) for selected, text in lacking}
        with scratch_directory("census") as scratch:
            planned = [
                planner.plan_boundaries(selected, selected.inventory.partition.boundaries[-1:], None, None)
                for selected, _ in lacking
            ]
            for replayed in planner.replay(planned, scratch.as_uri(), progress):
                result = replayed.result
                selected, text = why[result.topic_partition]
                (found,) = result.boundaries
                if found.outcome is not BoundaryOutcome.REBUILT:
                    error = result.error or DataError(f"{result.topic_partition}: {found.reason}")
                    yield self._result(selected, error=error)
                    continue
                made = scratch / snapshot_key(result.topic_partition, found.offset)
                census = self._read(selected, str(made))
                made.unlink()
                yield self._result(selected, census, "replay", found.offset)._replace(reason=text)

    def _read(self, selected: SelectedPartition, locator: str) -> Census:
        """Count a snapshot, a few thousand entries at a time; nothing counts of one whose checksum is wrong."""
        census, owners = Census.empty(self.edges), self._owners(selected.log_dir.path)
        with in_file(locator), self.planner.sources.open(locator) as file:
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

    def _result(
        self,
        selected: SelectedPartition,
        census: Census | None = None,
        origin: Literal["snapshot", "replay", "none"] = "none",
        offset: int | None = None,
        error: ResnapError | None = None,
    ) -> CountedPartition:
        segments = selected.inventory.partition.segments
        return CountedPartition(
            selected=selected,
            census=Census.empty(self.edges) if census is None else census,
            origin=origin,
            offset=offset,
            unread_bytes=sum(one.size_bytes for one in segments if offset is None or one.base_offset >= offset),
            error=error,
        )
