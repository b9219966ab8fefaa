"""Logs of real brokers as tests of a replay: which sets, by which rules, and what a rebuilt snapshot may differ in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.replay.evidence import load_evidence, segment_spans
from resnap.replay.plan import plan_partition
from resnap.replay.producer_state import NO_COORDINATOR_EPOCH, Expiry
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.producer_snapshot import load_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.results import BoundaryResult
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from tests.fixture_sets import FixtureSet

TEN_YEARS_MS: Final = 10 * 365 * 86_400_000
LATER_MS: Final = 2_000_000_000_000
"""Later than anything in the sets: the time of the run."""
DEFAULT_INTERVAL_MS: Final = 600_000
NEVER: Final = Expiry(TEN_YEARS_MS, DEFAULT_INTERVAL_MS)
"""Longer than the sets are old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One set, the expiry that its broker had, and how many boundaries it has to show."""

    name: str
    boundaries: int
    expiry: Expiry = NEVER
    exact: bool = True
    """Whether the broker's own sweep left no trace in the snapshots that a replay cannot know of."""

    def plans(self, fixture: FixtureSet, *, now_ms: int = LATER_MS, roll: bool = True) -> list[PartitionPlan]:
        """Plan every boundary of every partition that is not compacted."""
        rules = ReplayRules(as_of=AsOf(now_ms=now_ms, roll=roll), expiry=self.expiry)
        return [
            plan_partition(
                partition.topic_partition,
                segment_spans(partition),
                partition.boundaries,
                rules,
                evidence=load_evidence(partition),
            )
            for partition in partitions_of(fixture)
        ]


TRUTHS: Final = (
    Truth(name="kafka-2.7.2", boundaries=44),
    Truth(name="kafka-2.7.2-nine-days", boundaries=45, expiry=Expiry(172_800_000, DEFAULT_INTERVAL_MS)),
    Truth(name="kafka-2.7.2-no-producers", boundaries=2),
    Truth(
        name="kafka-2.7.2-odd-timestamps", boundaries=19, expiry=Expiry(604_800_000, DEFAULT_INTERVAL_MS), exact=False
    ),
    Truth(name="kafka-2.7.2-then-3.9.1", boundaries=48),
    Truth(name="kafka-3.9.1-kraft", boundaries=17),
    Truth(name="kafka-3.9.1-steady", boundaries=19, expiry=Expiry(4_000, 1_000), exact=False),
    Truth(name="kafka-3.9.1-tiered", boundaries=8),
    Truth(name="kafka-4.1.1-kraft", boundaries=16),
    Truth(name="kafka-4.4.0-kraft", boundaries=18),
    Truth(name="kafka-4.4.0-tiered", boundaries=9),
)


def partitions_of(fixture: FixtureSet) -> Iterator[PartitionDir]:
    """Yield the partitions of ``fixture`` that hold a log of user data which no cleaner has touched."""
    for partition in load_log_dir(fixture.data).partitions:
        topic = partition.topic_partition.topic
        if partition.segments and topic != "compacted" and not topic.startswith("__"):
            yield partition


def written_by_the_broker(fixture: FixtureSet, result: BoundaryResult, partition: str) -> dict[int, ProducerEntry]:
    """Return the broker's own snapshot at the boundary of ``result``."""
    return load_snapshot(snapshot_path(fixture.expected, partition, result))


def snapshot_path(root: Path, partition: str, result: BoundaryResult) -> Path:
    """Return where the snapshot at the boundary of ``result`` lies below ``root``."""
    return root / partition / f"{result.offset:020d}.snapshot"


def unexplained(
    rebuilt: Mapping[int, ProducerEntry], broker: Mapping[int, ProducerEntry], expiry: Expiry, as_of_ms: int
) -> list[tuple[ProducerEntry | None, ProducerEntry | None]]:
    """Return what differs, as (rebuilt, broker's), beyond what the broker's own sweep explains.

    A missing entry is explained if the broker would drop it on loading; one too many, if its producer had been silent
    for the expiration; a coordinator epoch, if the broker has lost it by expiry. Nothing the other way round is.
    """
    pairs = [(rebuilt.get(pid), broker.get(pid)) for pid in sorted(rebuilt.keys() | broker.keys())]
    return [(ours, theirs) for ours, theirs in pairs if not _is_explained(ours, theirs, expiry, as_of_ms)]


def _is_explained(ours: ProducerEntry | None, theirs: ProducerEntry | None, expiry: Expiry, as_of_ms: int) -> bool:
    if ours is None or theirs is None:
        entry = ours or theirs
        return entry is not None and expiry.is_expired(entry, as_of_ms)
    return ours == theirs or (
        theirs.coordinator_epoch == NO_COORDINATOR_EPOCH
        and ours._replace(coordinator_epoch=NO_COORDINATOR_EPOCH) == theirs
    )
