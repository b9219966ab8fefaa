"""What runs of all kinds have in common: what they report, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from resnap.scheduler.answers.reports import plan_row
from resnap.scheduler.job import PartitionState
from resnap.scheduler.runs.readiness import Mending
from resnap.scheduler.runs.run import BY_API, PartitionOutcome
from resnap.scheduler.use_cases.sources import is_of
from resnap.scheduler.wiring import with_memory
from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.names import parse_partition_dir_name
from resnap.storage.log.producer_snapshot import read_snapshot_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.job import Mismatch
    from resnap.scheduler.runs.reporting import RunReport
    from resnap.scheduler.runs.run import Row, Run
    from resnap.scheduler.runs.sightings import Sightings
    from resnap.scheduler.settings.settings import Settings
    from resnap.scheduler.use_cases.engines import Engine
    from resnap.scheduler.use_cases.service import Service
    from resnap.scheduler.use_cases.sources import Scope, Sight, Sighted
    from resnap.scheduler.use_cases.work_items import Planned
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.planning import SavedPlan


class WorkObserver(Protocol):
    """Hears of the work itself, for the metrics and the log."""

    def warn(self, text: str) -> None:
        """Hear of what may lead to trouble."""
        ...

    def scanned(self, cluster: str, log_dir: str, *, segments: int, missing: int) -> None:
        """Hear what a look at one source showed."""
        ...

    def snapshots(self, cluster: str, *, made: int, failed: int, skipped: int) -> None:
        """Hear what became of the snapshots of one partition."""
        ...

    def mismatch(self, kind: Mismatch) -> None:
        """Hear of something that a store holds otherwise than it should."""
        ...


class Admission(Protocol):
    """Takes what replays cost."""

    def activated(self, principal: str, producer_ids: Iterable[int]) -> None:
        """Charge the producer ids that a replay has activated."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all runs share.

    Attributes:
        engine: with Spark once it runs; for one run after the other.
        observer: hears of what is seen and made, and of what may lead to trouble.
        admission: takes what replays cost those who asked for them.

    """

    engine: Engine
    clock: Clock
    sightings: Sightings
    observer: WorkObserver
    admission: Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One run at work; a class for each kind."""

    run: Run
    report: RunReport
    settings: Settings
    service: Service
    scope: Scope
    saved: SavedPlan | None
    around: Surroundings

    def do(self) -> Row:
        """Do what the run asks for, and return what it came to; raises as ``Execution.carry_out`` does."""
        raise NotImplementedError

    @property
    def destination(self) -> str:
        """Where the run writes to, or what it reads back; raises UsageError where the request names nothing."""
        if self.run.request.destination is None:
            raise UsageError(f"a run of kind {self.run.kind} needs a destination", hint="give `destination`, a URL")
        return self.run.request.destination

    def remembering(self) -> Service:
        """Return the use cases with what earlier runs have found out."""
        return with_memory(self.service, self.settings, self.around.observer.warn)

    def problems(self, sight: Sight) -> None:
        """Report what could not be read, by partition where it is one, so that it can be retried; the rest goes on."""
        told = {sighted.topic_partition for sighted in sight.partitions}
        for problem in sight.problems:
            found = parse_partition_dir_name(problem.path.name)
            if found is None or found.topic_partition in told:
                self.failed(problem.error)
                continue
            told.add(found.topic_partition)
            self.report.error(problem.error)
            self.tell(found.topic_partition, PartitionState.FAILED, {"reason": str(problem.error)})

    def failed(self, error: ResnapError) -> None:
        """Report something that is part of no partition's outcome."""
        self.report.failure(error)

    def tell(self, topic_partition: TopicPartition, state: PartitionState, row: Row) -> None:
        """Report what became of a partition."""
        outcome = PartitionOutcome(
            topic=topic_partition.topic, partition=topic_partition.partition, state=state, row=row
        )
        self.report.partition(outcome)

    def tell_planned(self, planned: list[Planned]) -> Row:
        """Report what would be made of each partition, and return what all of it comes to."""
        for one in planned:
            self.tell(one.sighted.topic_partition, PartitionState.PLANNED, plan_row(one))
        return dry_totals(planned)

    def activated(self, snapshot: bytes) -> None:
        """Charge who asked for the run with the producers of a snapshot; a schedule pays nothing."""
        if self.run.origin == BY_API:
            ids = read_snapshot_array(snapshot)["producer_id"]
            self.around.admission.activated(self.run.principal, ids.tolist())

    def mended(self, sighted: Sighted, mending: Mending) -> None:
        """Keep what was made for a partition beside what was seen of it."""
        topic_partition = sighted.topic_partition
        for source in self.scope.sources:
            if is_of(sighted, source):
                self.around.sightings.mended(source, topic_partition.topic, topic_partition.partition, mending)

    def mending(self, how: Literal["regenerated", "shipped"], offsets: frozenset[int]) -> Mending:
        """Return that this run made boundaries at ``offsets`` whole."""
        return Mending(
            how=how,
            destination=self.destination,
            offsets=offsets,
            run_id=self.run.id,
            at_ms=self.around.clock.now_ms(),
        )


def dry_totals(planned: list[Planned]) -> Row:
    """Return what a plan comes to."""
    return {
        "dryRun": True,
        "partitions": len(planned),
        "snapshots": sum(len(one.plan.boundaries) for one in planned),
        "segmentsToRead": sum(one.cost.segments for one in planned),
        "bytesToRead": sum(one.cost.size_bytes for one in planned),
    }
