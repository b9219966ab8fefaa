"""The demonstration's output for a partition: what was written, and a timeline of its boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.reports import identity
from resnap.scheduler.jobs.demo.proof import Outcome
from resnap.scheduler.output.rendering import BYTES, PARTITION, Column, human_count

if TYPE_CHECKING:
    from resnap.scheduler.jobs.demo.log import DemoPartition
    from resnap.scheduler.jobs.demo.proof import PartitionProof, Proof
    from resnap.scheduler.output.rendering import Row

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


def excluded_lines(proof: Proof) -> list[str]:
    """Return how many entries were excluded; nothing for none."""
    expired = sum(boundary.expired for boundary in proof.boundaries)
    what = "entries of producers silent for over 7 days are excluded: a broker that loads them drops them."
    return [f"{expired} {what}"] if expired else []


def partition_row(partition: DemoPartition) -> Row:
    """Return what was written into a partition."""
    return {
        **identity(partition.topic_partition),
        "segments": len(partition.bases),
        "boundaries": len(partition.boundaries),
        "bytes": partition.size_bytes,
        "batches": partition.batches,
        "markers": partition.markers,
        "logEndOffset": partition.log_end_offset,
        "lastStableOffset": partition.last_stable_offset,
    }


def proof_row(proof: PartitionProof) -> Row:
    """Return what the store has for each boundary of a partition."""
    return {
        **identity(proof.partition.topic_partition),
        "boundaries": [
            {
                "offset": boundary.offset,
                "wasLost": boundary.was_lost,
                "fate": boundary.outcome.value,
                "entries": boundary.entries,
                "expired": boundary.expired,
                "different": list(boundary.different),
            }
            for boundary in proof.boundaries
        ],
    }


def timeline_row(proof: PartitionProof) -> Row:
    """Return a mark per boundary, in offset order, before and after."""
    return {
        **identity(proof.partition.topic_partition),
        "before": "".join(LOST if boundary.was_lost else MARKS[Outcome.EQUAL] for boundary in proof.boundaries),
        "after": "".join(MARKS[boundary.outcome] for boundary in proof.boundaries),
    }


def _count(value: object) -> str:
    return human_count(int(str(value)))


WRITTEN: Final = (
    PARTITION,
    Column(key="segments", title="SEGMENTS", right=True, show=_count),
    BYTES,
    Column(key="batches", title="BATCHES", right=True, show=_count),
    Column(key="markers", title="COMMITS, ABORTS", right=True, show=_count),
)
TIMELINE: Final = (PARTITION, Column(key="before", title="LOG DIR"), Column(key="after", title="STORE"))
