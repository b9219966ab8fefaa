"""Checks the demonstration's result: compares the store's snapshot at each boundary with the broker's.

Snapshots are compared as maps, entry by entry, since a broker writes entries in the order of a hash table. Entries that
a broker would drop on loading do not count: a replay as of now leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.reports import identity
from resnap.scheduler.output.rendering import PARTITION, Column
from resnap.scheduler.verbs.demo.log import surviving
from resnap.storage.log.names import FileKind, segment_name
from resnap.storage.log.producer_snapshot import load_snapshot, read_snapshot
from resnap.storage.words import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.verbs.demo.log import DemoPartition
    from resnap.storage.layouts.manifest import ManifestFacts
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.verifying.verification import VerifiedSegment


class Outcome(StrEnum):
    """What the store has for a boundary in the end."""

    EQUAL = "equal"
    """A snapshot that equals the broker's own."""
    WAITING = "waiting"
    """Nothing, rightly: a transaction is open below it."""
    DIFFERENT = "different"
    ABSENT = "absent"
    """Nothing, without a reason."""
    TOO_EARLY = "too-early"
    """A segment, though a transaction is open below its end."""


TIMELINE: Final = (PARTITION, Column(key="before", title="LOG DIR"), Column(key="after", title="STORE"))
MARKS: Final = {
    Outcome.EQUAL: "#",
    Outcome.WAITING: "~",
    Outcome.DIFFERENT: "!",
    Outcome.ABSENT: "!",
    Outcome.TOO_EARLY: "!",
}
"""How a timeline shows a boundary in the store."""
LOST: Final = "."
LEGEND: Final = "# a right snapshot   . none   ~ waits for a transaction to end   ! wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryProof:
    """One boundary, and the outcome for its snapshot."""

    offset: int
    was_lost: bool
    outcome: Outcome
    entries: int = 0
    """In the store."""
    expired: int = 0
    """In the broker's own snapshot beside these: producers silent for so long that a broker drops them on loading."""
    different: tuple[int, ...] = ()
    """Producer ids, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProof:
    """One partition, boundary by boundary."""

    partition: DemoPartition
    boundaries: tuple[BoundaryProof, ...]

    @property
    def row(self) -> Row:
        """What the store has for each boundary of the partition."""
        return {
            **identity(self.partition.topic_partition),
            "boundaries": [
                {
                    "offset": boundary.offset,
                    "wasLost": boundary.was_lost,
                    "fate": boundary.outcome.value,
                    "entries": boundary.entries,
                    "expired": boundary.expired,
                    "different": list(boundary.different),
                }
                for boundary in self.boundaries
            ],
        }

    @property
    def timeline(self) -> Row:
        """A mark per boundary, in offset order, before and after."""
        return {
            **identity(self.partition.topic_partition),
            "before": "".join(LOST if boundary.was_lost else MARKS[Outcome.EQUAL] for boundary in self.boundaries),
            "after": "".join(MARKS[boundary.outcome] for boundary in self.boundaries),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All of it: every object in the store read back, and every snapshot compared."""

    segments: tuple[VerifiedSegment, ...]
    partitions: tuple[PartitionProof, ...]

    @property
    def objects(self) -> int:
        """How many objects the manifests name."""
        return sum(segment.objects_read for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Size of all of them."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def unlike_manifest(self) -> tuple[str, ...]:
        """What is not as its manifest says."""
        return tuple(problem for segment in self.segments for problem in segment.problems)

    @property
    def boundaries(self) -> tuple[BoundaryProof, ...]:
        """Boundaries of all partitions."""
        return tuple(boundary for one in self.partitions for boundary in one.boundaries)

    @property
    def regenerated(self) -> tuple[BoundaryProof, ...]:
        """Boundaries whose snapshots were lost, but for those that have to wait."""
        return tuple(
            boundary for boundary in self.boundaries if boundary.was_lost and boundary.outcome != Outcome.WAITING
        )

    @property
    def equal(self) -> tuple[BoundaryProof, ...]:
        """Those of ``regenerated`` that equal the lost ones."""
        return tuple(boundary for boundary in self.regenerated if boundary.outcome == Outcome.EQUAL)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is not as it should be; empty if all is well."""
        problems = (_problem(one.partition, boundary) for one in self.partitions for boundary in one.boundaries)
        return (*(problem for problem in problems if problem is not None), *self.unlike_manifest)


def prove(
    partitions: Iterable[DemoPartition],
    lost: Path,
    segments: Iterable[VerifiedSegment],
    store: ObjectStore,
    *,
    at_ms: int,
) -> Proof:
    """Compare the snapshots that ``segments`` of ``store`` were shipped with to the broker's own.

    Args:
        partitions: as they were written.
        lost: where the lost snapshots are, as ``<topic>-<partition>/<N>.snapshot``.
        segments: as the store was read back.
        store: to take the snapshots from.
        at_ms: T, by which expiry is judged.

    Raises:
        FormatError: a snapshot is damaged.
        StoreError: the store failed.

    """
    read = tuple(segments)
    manifests = {
        (manifest.topic, manifest.partition, manifest.next_base_offset): manifest
        for manifest in (segment.manifest for segment in read)
        if manifest is not None
    }
    proofs = []
    for partition in partitions:
        boundaries = (
            _prove(partition, offset, lost, _shipped(store, manifests.get((*partition.topic_partition, offset))), at_ms)
            for offset in partition.boundaries
        )
        proofs.append(PartitionProof(partition=partition, boundaries=tuple(boundaries)))
    return Proof(segments=read, partitions=tuple(proofs))


def _shipped(store: ObjectStore, manifest: ManifestFacts | None) -> dict[int, ProducerEntry] | None:
    return None if manifest is None else read_snapshot(store.get(manifest.snapshot_key))


def _prove(
    partition: DemoPartition, offset: int, lost: Path, shipped: Mapping[int, ProducerEntry] | None, at_ms: int
) -> BoundaryProof:
    was_lost = offset in partition.lost
    must_wait = offset > partition.last_stable_offset
    if shipped is None or must_wait:
        outcomes = {(True, True): Outcome.WAITING, (True, False): Outcome.ABSENT, (False, True): Outcome.TOO_EARLY}
        return BoundaryProof(offset=offset, was_lost=was_lost, outcome=outcomes[shipped is None, must_wait])
    directory = lost / str(partition.topic_partition) if was_lost else partition.directory
    own = load_snapshot(directory / segment_name(offset, FileKind.SNAPSHOT))
    expected = surviving(own, at_ms)
    different = sorted(pid for pid in expected.keys() | shipped.keys() if expected.get(pid) != shipped.get(pid))
    return BoundaryProof(
        offset=offset,
        was_lost=was_lost,
        outcome=Outcome.DIFFERENT if different else Outcome.EQUAL,
        entries=len(shipped),
        expired=len(own) - len(expected),
        different=tuple(different),
    )


def _problem(partition: DemoPartition, boundary: BoundaryProof) -> str | None:
    where = f"{partition.topic_partition}: the snapshot at {boundary.offset}"
    match boundary.outcome:
        case Outcome.EQUAL | Outcome.WAITING:
            return None
        case Outcome.DIFFERENT:
            ids = ", ".join(map(str, boundary.different[:5]))
            return f"{where} differs from the broker's own, for {some(len(boundary.different), 'producer')}: {ids}"
        case Outcome.ABSENT:
            return f"{where} is not in the store"
        case Outcome.TOO_EARLY:
            since = partition.last_stable_offset
            return f"{where} is in the store, though a transaction has been open since offset {since}"
