"""From a partition's directory to rebuilt snapshots, as a run does it; whatever a test does not name is plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.replay.evidence import load_evidence, segment_spans
from resnap.replay.plan import plan_partition
from resnap.replay.producer_state import Expiry
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.scan.splits import Reading
from resnap.replay.watching import Progress
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.log.log_dir import load_partition_dir
from tests.replay.memory_sink import MemorySink
from tests.replay.specification import as_entries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.storage.log.producer_snapshot import ProducerEntry

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
EXPIRY: Final = Expiry(DAY_MS, 600_000)


class Done(Progress):
    """Sums up the segments and bytes that are done."""

    def __init__(self) -> None:
        self.sums = [0, 0]

    def advance(self, segments: int, size_bytes: int) -> None:
        """Add to the sums."""
        self.sums = [self.sums[0] + segments, self.sums[1] + size_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay gave, and the snapshots that it wrote."""

    result: PartitionResult
    snapshots: dict[int, dict[int, ProducerEntry]]
    """Entries by boundary and producer id."""

    def at(self, offset: int) -> BoundaryResult:
        """Return the outcome of the boundary at ``offset``."""
        return next(made for made in self.result.boundaries if made.offset == offset)


def planned(
    directory: Path,
    *,
    now_ms: int,
    roll: bool = False,
    wanted: Sequence[int] | None = None,
    high_watermark: int | None = None,
    to_end: bool = False,
    compared: bool = False,
    expiry: Expiry = EXPIRY,
    max_reach_back_ms: int | None = None,
    full: bool = False,
) -> PartitionPlan:
    """Plan the partition in ``directory``; ``compared`` asks for a verdict on the snapshots that are there."""
    partition = load_partition_dir(directory)
    rules = ReplayRules(
        as_of=AsOf(now_ms=now_ms, roll=roll), expiry=expiry, max_reach_back_ms=max_reach_back_ms, full=full
    )
    return plan_partition(
        partition.topic_partition,
        segment_spans(partition),
        partition.boundaries if wanted is None else wanted,
        rules,
        evidence=load_evidence(partition),
        high_watermark=high_watermark,
        existing={snapshot.offset: snapshot.path for snapshot in partition.snapshots} if compared else None,
        to_end=to_end,
    )


def replayed(plan: PartitionPlan, reading: Reading | None = None) -> Replayed:
    """Carry ``plan`` out in this process."""
    sink = MemorySink()
    (result,) = rebuild_locally([plan], sink, reading=reading or Reading())
    return Replayed(
        result=result, snapshots={offset: as_entries(entries) for (_, offset), entries in sink.snapshots.items()}
    )
