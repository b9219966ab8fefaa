"""Details of one scanned partition: its boundaries, a snapshot's entries, and the batches that made them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from resnap.replay.evidence import segment_spans
from resnap.scheduler.disk_reads import LONG_READ_S, DiskReads
from resnap.scheduler.job.reports import explanation_rows, producer_row
from resnap.scheduler.verbs.explain import explanations
from resnap.storage.errors import ResnapError, UsageError, in_file
from resnap.storage.log.names import TopicPartition, segment_name
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.sources.log_dirs import open_source
from resnap.tiering.selection import Scope, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resnap.replay.window import SegmentSpan
    from resnap.scheduler.runs.run import Row
    from resnap.scheduler.runs.scans import ScannedPartition, Scans
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.tiering.engine import Engine


class NoSnapshotError(ResnapError):
    """There is no snapshot at this offset that could be read."""


class ScannedBoundary(NamedTuple):
    """A boundary, the segment that ends there, and what its snapshot is worth."""

    offset: int
    base_offset: int | None
    size_bytes: int | None
    state: str
    detail: str | None
    made: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails:
    """Reads what a page or a request wants to know of one partition; changes nothing."""

    engine: Engine
    scans: Scans
    reads: DiskReads = field(default_factory=DiskReads)

    def boundaries(self, seen: ScannedPartition) -> list[ScannedBoundary]:
        """Return the boundaries as they are now, ascending.

        Raises:
            ResnapError: the source cannot be read, or has no such partition any more.

        """
        return self.reads.run(partial(self._boundaries, seen))

    def _boundaries(self, seen: ScannedPartition) -> list[ScannedBoundary]:
        selection = select(self._scope(seen), self.engine.reading.sources)
        if not selection.partitions:
            raise selection.problems[0].error
        inventory = selection.partitions[0].inventory
        ends = {above.base_offset: ended for ended, above in pairwise(inventory.partition.segments)}
        made = frozenset[int]().union(*(repair.offsets for repair in self.scans.repairs(seen)))
        return [
            ScannedBoundary(
                offset=boundary.offset,
                base_offset=None if ended is None else ended.base_offset,
                size_bytes=None if ended is None else ended.size_bytes,
                state=boundary.state.value,
                detail=boundary.detail,
                made=boundary.offset in made and not boundary.state.is_usable,
            )
            for boundary, ended in ((boundary, ends.get(boundary.offset)) for boundary in inventory.boundaries)
        ]

    def segments(self, seen: ScannedPartition) -> Sequence[SegmentSpan]:
        """Return the segments as they are now, ascending; raises as ``boundaries``."""
        return self.reads.run(lambda: segment_spans(self._partition(seen), self.engine.reading.sources))

    def snapshot(self, seen: ScannedPartition, offset: int) -> tuple[str, Mapping[int, ProducerEntry]]:
        """Return the file and entries of the snapshot at ``offset``: beside the segments, else one that a run has made.

        Raises:
            NoSnapshotError: there is neither.
            ResnapError: it is damaged, or the source cannot be read.

        """
        return self.reads.run(partial(self._snapshot, seen, offset))

    def _snapshot(self, seen: ScannedPartition, offset: int) -> tuple[str, Mapping[int, ProducerEntry]]:
        sources = self.engine.reading.sources
        found = [
            str(snapshot.path)
            for snapshot in self._partition(seen).snapshots
            if snapshot.offset == offset and snapshot.size_bytes
        ]
        name = segment_name(offset, ".snapshot")
        found += [
            f"{repair.destination.rstrip('/')}/{name_of(seen)}/{name}"
            for repair in self.scans.repairs(seen)
            if repair.how == "regenerated" and offset in repair.offsets
        ]
        for file in found:
            with in_file(file):
                return file, read_snapshot(sources.read(file))
        repairs = self.scans.repairs(seen)
        shipped = [repair for repair in repairs if repair.how == "shipped" and offset in repair.offsets]
        hint = (
            f"a run has shipped it to {shipped[0].destination}" if shipped else "a replay makes those that are missing"
        )
        raise NoSnapshotError(f"{name_of(seen)} has no snapshot at {offset} in {seen.source}", hint=hint)

    def explain(self, seen: ScannedPartition, offset: int, producer_id: int | None) -> list[Row]:
        """Return the batches that made the entries at ``offset``.

        Raises:
            ResnapError: a segment cannot be read.

        """
        return self.reads.run(partial(self._explain, seen, offset, producer_id), LONG_READ_S)

    def _explain(self, seen: ScannedPartition, offset: int, producer_id: int | None) -> list[Row]:
        name, sources = TopicPartition(seen.topic, seen.partition), self.engine.reading.sources
        found = explanations(self._scope(seen), name, offset, producer_id, sources)
        return [row for explanation in found for row in explanation_rows(explanation)]

    def _scope(self, seen: ScannedPartition) -> Scope:
        return Scope(sources=(seen.source,), partitions=(name_of(seen),))

    def _partition(self, seen: ScannedPartition) -> PartitionDir:
        wants = self._scope(seen).wants_partition
        log_dir = open_source(seen.source, self.engine.reading.sources, topics=wants)
        if not log_dir.partitions:
            raise UsageError(f"{name_of(seen)} is no longer in {seen.source}", hint="scan the source again")
        return log_dir.partitions[0]


class Difference(NamedTuple):
    """What is between two snapshots, as rows by producer id."""

    added: list[Row]
    removed: list[Row]
    changed: list[tuple[int, Row, Row]]
    same: int


def difference(before: Mapping[int, ProducerEntry], after: Mapping[int, ProducerEntry]) -> Difference:
    """Return how the entries of two snapshots differ."""
    both = sorted(before.keys() & after.keys())
    changed = [pid for pid in both if before[pid] != after[pid]]
    return Difference(
        added=[producer_row(after[pid]) for pid in sorted(after.keys() - before.keys())],
        removed=[producer_row(before[pid]) for pid in sorted(before.keys() - after.keys())],
        changed=[(pid, producer_row(before[pid]), producer_row(after[pid])) for pid in changed],
        same=len(both) - len(changed),
    )


def name_of(seen: ScannedPartition) -> str:
    """Return the name of a partition's directory."""
    return f"{seen.topic}-{seen.partition}"
