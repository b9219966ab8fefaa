"""Carries out what a run asks for, by the use cases that the shell command calls.

One class per kind of run. Each reports its partitions as they are done and returns what it came to; what it raises
ends the run. The engine, with Spark once it runs, belongs to the service and serves all runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from replay.results import Outcome
from replay.staging import snapshot_key
from scheduler.answers.faults import (
    Mismatch,
    chain_gaps,
    chain_overlaps,
    nothing_shipped,
    replay_faults,
    segment_faults,
    shipping_faults,
)
from scheduler.answers.reports import (
    boundary_row,
    known_row,
    plan_row,
    refusal_row,
    replay_tail,
    scan_row,
    shipment_row,
)
from scheduler.io_priority import set_io_priority
from scheduler.runs.readiness import Mending
from scheduler.runs.run import BY_API, PartitionOutcome, PartitionState, RunKind
from scheduler.use_cases.sources import is_of
from scheduler.wiring import journal_of, scope_of, service_of, with_memory
from storage.errors import ResnapError, UsageError, VerificationError
from storage.log.names import parse_partition_dir_name
from storage.log.producer_snapshot import read_snapshot_array
from storage.remote.urls import open_store
from tiering.planning import read_saved_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scheduler.clock import Clock
    from scheduler.runs.configuration import Configuration
    from scheduler.runs.reporting import RunReport
    from scheduler.runs.run import Row, Run, RunRequest
    from scheduler.runs.sightings import Sightings
    from scheduler.settings.settings import Settings
    from scheduler.use_cases.engines import Engine
    from scheduler.use_cases.service import Service
    from scheduler.use_cases.sources import Scope, Sight, Sighted
    from scheduler.use_cases.work_items import Planned, Replayed, TierOrder
    from storage.log.names import TopicPartition
    from tiering.planning import SavedPlan
    from tiering.shipping.shipment import PartitionShipment


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
class Execution:
    """What runs need.

    Attributes:
        engine: shared by all runs, one after the other.
        saved_plan: gives the text of a kept plan by its id, or None if there is none.
        observer: hears of what is seen and made, and of what may lead to trouble.
        admission: takes what replays cost those who asked for them.

    """

    configuration: Configuration
    engine: Engine
    clock: Clock
    sightings: Sightings
    saved_plan: Callable[[str], str | None]
    observer: WorkObserver
    admission: Admission

    def carry_out(self, run: Run, report: RunReport) -> Row:
        """Do what ``run`` asks for, and return what it came to.

        Raises:
            ResnapError: it could not be done, or not to its end; ``CancelledError`` where it was told to end.

        """
        work: Mapping[RunKind, type[_Work]] = {
            RunKind.SCAN: _Scan,
            RunKind.REGENERATE: _Regeneration,
            RunKind.TIER: _Tiering,
            RunKind.VERIFY: _Verification,
        }
        settings = self.configuration.of(run.request)
        for warning in settings.metadata_warnings:
            self.observer.warn(warning)
        saved = self._saved(run)
        service = service_of(settings, self.clock, saved.rules if saved else None, engine=self.engine)
        return work[run.kind](
            run=run,
            report=report,
            settings=settings,
            service=service,
            scope=scope_for(settings, run.request, saved),
            saved=saved,
            context=self,
        ).do()

    def _saved(self, run: Run) -> SavedPlan | None:
        if run.request.plan is None:
            return None
        text = self.saved_plan(run.request.plan)
        if text is None:
            raise UsageError(f"there is no plan {run.request.plan}", hint="make it again: POST /v1/plans")
        return read_saved_plan(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    run: Run
    report: RunReport
    settings: Settings
    service: Service
    scope: Scope
    saved: SavedPlan | None
    context: Execution

    def do(self) -> Row:
        raise NotImplementedError

    @property
    def destination(self) -> str:
        if self.run.request.destination is None:
            raise UsageError(f"a run of kind {self.run.kind} needs a destination", hint="give `destination`, a URL")
        return self.run.request.destination

    def remembering(self) -> Service:
        return with_memory(self.service, self.settings, self.context.observer.warn)

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
        outcome = PartitionOutcome(
            topic=topic_partition.topic, partition=topic_partition.partition, state=state, row=row
        )
        self.report.partition(outcome)

    def activated(self, snapshot: bytes) -> None:
        """Charge who asked for the run with the producers of a snapshot; a schedule pays nothing."""
        if self.run.origin == BY_API:
            ids = read_snapshot_array(snapshot)["producer_id"]
            self.context.admission.activated(self.run.principal, ids.tolist())

    def mended(self, sighted: Sighted, mending: Mending) -> None:
        topic_partition = sighted.topic_partition
        for source in self.scope.sources:
            if is_of(sighted, source):
                self.context.sightings.mended(source, topic_partition.topic, topic_partition.partition, mending)

    def mending(self, how: Literal["regenerated", "shipped"], offsets: frozenset[int]) -> Mending:
        return Mending(
            how=how,
            destination=self.destination,
            offsets=offsets,
            run_id=self.run.id,
            at_ms=self.context.clock.now_ms(),
        )


class _Scan(_Work):
    """A look at every source; what is seen of each is kept together."""

    def do(self) -> Row:
        totals: Counter[str] = Counter(partitions=0, segments=0, boundaries=0, lost=0, problems=0)
        for source in self.scope.sources:
            try:
                self._look(source, totals)
            except ResnapError as error:
                self.context.sightings.could_not_see(source, str(error))
                self.failed(error)
        return dict(totals)

    def _look(self, source: str, totals: Counter[str]) -> None:
        scans, problems = self.service.scan(replace(self.scope, sources=(source,)))
        rows, cluster = [], "unknown"
        for scanned in scans:
            row, cluster = scan_row(scanned), scanned.sighted.log_dir.cluster_id or cluster
            rows.append(row)
            totals["partitions"] += 1
            if row["compaction"] != "compacted":
                totals.update({key: int(str(row[key])) for key in ("segments", "boundaries", "lost")})
            self.report.check()
        self.report.done += len(rows)
        for problem in problems:
            self.failed(problem.error)
        totals["problems"] += len(problems)
        unread = f"{len(problems)} partitions could not be read: {problems[0].error}" if problems else None
        self.context.sightings.saw(source, rows, self.scope.wants_partition, unread=unread)
        lost, segments = (sum(int(str(row[key])) for row in rows if row["compaction"] != "compacted")
                          for key in ("lost", "segments"))  # fmt: skip
        self.context.observer.scanned(cluster, source, segments=segments, missing=lost)


class _Regeneration(_Work):
    """Snapshots as files."""

    def do(self) -> Row:
        service = self.remembering()
        planned, sight = service.plan(
            self.scope, boundaries=self.settings.boundaries, saved=self.saved, into=self.destination
        )
        sink_url = service.sink_url(self.destination, sight)
        self.problems(sight)
        if self.settings.dry_run:
            return self._dry(planned)
        results = []
        for replayed in service.regenerate(planned, sink_url, self.report.progress("replay")):
            results.append(replayed.result)
            self._tell(replayed, sink_url)
        return replay_tail(results)

    def _dry(self, planned: list[Planned]) -> Row:
        for one in planned:
            self.tell(one.sighted.topic_partition, PartitionState.PLANNED, plan_row(one))
        return dry_totals(planned)

    def _tell(self, replayed: Replayed, sink_url: str) -> None:
        topic_partition = replayed.planned.sighted.topic_partition
        made = [one.boundary.offset for one in replayed.result.boundaries if one.outcome is Outcome.REBUILT]
        standing = [known.offset for known in replayed.planned.standing]
        failed = len(made) < len(replayed.result.boundaries) or replayed.result.error is not None
        for fault in replay_faults(replayed.result):
            self.report.error(fault)
        state = PartitionState.DONE if made else PartitionState.NOTHING_TO_DO
        row = {
            "boundaries": [
                *(known_row(topic_partition, known) for known in replayed.planned.standing),
                *(boundary_row(topic_partition, found) for found in replayed.result.boundaries),
            ]
        }
        sighted = replayed.planned.sighted
        self.mended(sighted, self.mending("regenerated", frozenset([*made, *standing])))
        self.context.observer.snapshots(
            sighted.log_dir.cluster_id or "unknown",
            made=len(made),
            failed=len(replayed.result.boundaries) - len(made),
            skipped=len(standing),
        )
        if made:
            self._charge(f"{sink_url}/{snapshot_key(topic_partition, max(made))}")
        self.tell(topic_partition, PartitionState.FAILED if failed else state, row)

    def _charge(self, file: str) -> None:
        """Charge the producers of the newest snapshot, which are those that the replay has brought to life."""
        try:
            data = self.context.engine.reading.sources.read(file)
        except ResnapError as error:
            self.context.observer.warn(f"{file} is not charged to {self.run.principal}: {error}")
        else:
            self.activated(data)


class _Tiering(_Work):
    """Segments into a store."""

    def do(self) -> Row:
        set_io_priority(self.settings.io_priority)
        service = self.remembering()
        store = open_store(self.destination, self.settings.s3())
        orders, sight = service.tier_orders(self.scope, store, self.saved)
        self.problems(sight)
        for order in orders:
            self._failures(order.failures)
        planned = service.plan_orders(orders)
        if self.settings.dry_run:
            return self._dry(orders, planned)
        totals: Counter[str] = Counter(shipped=0, bytes=0, refused=0)
        waiting = {order.sighted.topic_partition: order for order in orders}
        shipments = service.tier(
            orders, planned, store, replaying=self.report.progress("replay"), shipping=self.report.progress("ship")
        )
        for shipment in shipments:
            self._tell(waiting.pop(shipment.topic_partition), shipment)
            totals.update(
                shipped=len(shipment.shipped),
                bytes=sum(segment.size_bytes for segment in shipment.shipped),
                refused=len(shipment.eligibility.refusals),
            )
        halted = bool(self.report.failed) and any(order.candidates.segments for order in waiting.values())
        for order in waiting.values():
            self._tell_unreached(order) if halted and order.candidates.segments else self._tell_nothing_left(order)
        return {**totals, "already": sum(order.already for order in orders)}

    def _dry(self, orders: list[TierOrder], planned: list[Planned]) -> Row:
        left = [segment for order in orders for segment in order.candidates.segments]
        for one in planned:
            self.tell(one.sighted.topic_partition, PartitionState.PLANNED, plan_row(one))
        size_bytes = sum(segment.size_bytes for segment in left)
        return {**dry_totals(planned), "segmentsToShip": len(left), "bytesToShip": size_bytes}

    def _failures(self, failures: Iterable[ResnapError]) -> None:
        for failure in failures:
            if isinstance(failure, VerificationError):
                self.context.observer.mismatch(Mismatch.OBJECT)
            self.report.error(failure)

    def _tell(self, order: TierOrder, shipment: PartitionShipment) -> None:
        self._failures(shipment.failures)
        faults = shipping_faults(shipment.topic_partition, shipment.eligibility.refusals)
        for fault in faults:
            self.report.error(fault)
        if not shipment.failures and shipment.eligibility.blocking is None:
            self._all_shipped(order)
        if shipment.newest_snapshot is not None:
            self.activated(shipment.newest_snapshot)
        state = PartitionState.DONE if shipment.shipped else PartitionState.NOTHING_TO_DO
        failed = bool(shipment.failures or faults)
        self.tell(shipment.topic_partition, PartitionState.FAILED if failed else state, shipment_row(shipment))

    def _tell_nothing_left(self, order: TierOrder) -> None:
        if order.candidates.blocking is None and not order.candidates.segments:
            self._all_shipped(order)
        row = {
            "shipped": [],
            "already": order.already,
            "refused": [refusal_row(refusal) for refusal in order.candidates.refusals],
            "blocking": refusal_row(order.candidates.blocking),
        }
        topic_partition = order.sighted.topic_partition
        faults = shipping_faults(topic_partition, order.candidates.refusals)
        for fault in faults:
            self.report.error(fault)
        self.tell(topic_partition, PartitionState.FAILED if faults else PartitionState.NOTHING_TO_DO, row)

    def _tell_unreached(self, order: TierOrder) -> None:
        self.tell(order.sighted.topic_partition, PartitionState.FAILED, {"reason": "the store failed before its turn"})

    def _all_shipped(self, order: TierOrder) -> None:
        boundaries = order.sighted.inventory.boundaries
        mending = self.mending("shipped", frozenset(boundary.offset for boundary in boundaries))
        self.mended(order.sighted, mending)


class _Verification(_Work):
    """What lies in a store, read back."""

    def do(self) -> Row:
        store = open_store(self.destination, self.settings.s3())
        journal = journal_of(self.settings, self.context.clock, store.url, self.context.observer.warn)
        scope = replace(self.scope, sources=(self.destination,))
        check = self.service.check_store(scope, store, journal, None)
        totals: Counter[str] = Counter(segments=0, bytes=0, different=0, snapshotsReplayed=0, snapshotsDifferent=0)
        for verified in check.segments(self.report.progress("verify")):
            totals.update(segments=int(verified.was_read), bytes=verified.size_bytes)
            totals["different"] += bool(verified.problems)
            self._differs(Mismatch.OBJECT, segment_faults(verified.problems, check.layout.remedy))
            self.report.done += not verified.problems
        if not check.manifests and not totals["segments"]:
            raise nothing_shipped(self.destination)
        for chain in check.chains():
            self._differs(Mismatch.GAP, chain_gaps(chain))
            self._differs(Mismatch.OVERLAP, chain_overlaps(chain))
        for found in check.snapshots(self.report.progress("replay")):
            totals["snapshotsReplayed"] += 1
            if found.problem is not None:
                totals["snapshotsDifferent"] += 1
                self._differs(Mismatch.SNAPSHOT, [found.problem])
        journal.end()
        return dict(totals)

    def _differs(self, kind: Mismatch, faults: Iterable[ResnapError]) -> None:
        for fault in faults:
            self.context.observer.mismatch(kind)
            self.failed(fault)


def scope_for(settings: Settings, request: RunRequest, saved: SavedPlan | None = None) -> Scope:
    """Return what a request points at, or else a saved plan, or else ``log.dirs``.

    Raises:
        UsageError: none of them names anything.

    """
    scope = scope_of(settings, (saved.sources if saved else request.sources) or None)
    return replace(scope, partitions=request.partitions or scope.partitions)


def dry_totals(planned: list[Planned]) -> dict[str, object]:
    """Return what a plan comes to."""
    return {
        "dryRun": True,
        "partitions": len(planned),
        "snapshots": sum(len(one.plan.boundaries) for one in planned),
        "segmentsToRead": sum(one.cost.segments for one in planned),
        "bytesToRead": sum(one.cost.size_bytes for one in planned),
    }
