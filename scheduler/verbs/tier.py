"""The job ``tier``: ships every eligible segment with its indexes, leader epochs and aligned snapshot into a store.

Segments that were shipped before are unchanged; if their snapshots lack producers that this run would keep, these are
reported.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typing_extensions import TypedDict

from resnap.scheduler.cli.flags import (
    CLUSTER,
    ENGINE,
    MEMORY,
    PARTITIONS,
    READING,
    REMOTE,
    REPLAY,
    STORE,
    UPLOAD,
    WRITE,
)
from resnap.scheduler.disk_reads import set_io_priority
from resnap.scheduler.job.contract import (
    PartitionState,
    Reported,
    Request,
    Result,
    Unread,
    Verb,
    unread,
)
from resnap.scheduler.job.replaying import planner_of, uploading_of
from resnap.scheduler.job.reports import (
    Identity,
    RefusalRow,
    SummedView,
    count_of,
    stop_lines,
    stop_of,
)
from resnap.scheduler.output.records import row_of
from resnap.scheduler.output.rendering import PARTITION, Column
from resnap.scheduler.verbs.dry_tier import DryTierView, next_of, unsettled_lines
from resnap.scheduler.verbs.planned import PlanRow, would_replay
from resnap.storage.errors import DataError, VerificationError
from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.stores.urls import open_store
from resnap.storage.words import agreeing, counts_text, human_bytes, human_count, second, some
from resnap.tiering.judging.file_damage import damage_in_files
from resnap.tiering.judging.refusal import FAULTS, Reason
from resnap.tiering.planner import TierOrder
from resnap.tiering.selection import with_progress
from resnap.tiering.store_check import Mismatch
from resnap.tiering.tier import LeftToShip, TieredPartition, TierEnd, TierWork, left_to_ship, plans_of, tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import Place
    from resnap.storage.sources.files import Sources
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.refusal import Refusal
    from resnap.tiering.planner import Planner
    from resnap.tiering.selection import Scope, SelectedPartition
    from resnap.tiering.shipping.shipment import PartitionShipment
    from resnap.tiering.tier import TierRow


class TierRequest(Request):
    """Ship every eligible segment with its indexes, leader epochs and aligned snapshot, rebuilding what is missing.

    What is shipped already stays as it is; where its snapshots lack producers that this run would keep, they are named
    (exit code 13). Frees no local disk by itself. With --dry-run it says what requests a bucket takes, and the cost.
    """

    to: Annotated[str, typer.Option(metavar="URL", help="The store to ship to: s3://, file:/// or memory://.")]


def run(request: TierRequest, context: Context, report: Report) -> None:
    """Ship, and report each partition as it is done; with ``dry_run`` report what would be replayed.

    Raises:
        StalePlanError: what the plan was made for has changed.
        StoreError: the store cannot be listed.
        UsageError, LogDirError: a source is not what it should be.

    """
    settings = context.settings
    set_io_priority(settings.io_priority)
    work = TierWork(
        planner=planner_of(context, request.saved.rules if request.saved else None, cached=True),
        store=open_store(request.to, settings.s3()),
        now_ms=context.clock.now_ms,
        uploading=uploading_of(settings),
        progress=context.progress,
        warn=context.warn,
    )
    if settings.dry_run:
        _dry_run(request, work, context, report)
        return
    if isinstance(work.store, LocalObjectStore):
        work.store.check_writable()

    def heard(row: TierRow) -> None:
        for result in _results(row, work.planner.engine.reading.sources, context):
            report(result)

    tier(request.scope, work, heard, saved=request.saved)


def _results(row: TierRow, sources: Sources, context: Context) -> Iterator[Result]:
    """Yield the results for one report of the work, and tell the context of them."""
    match row:
        case LeftToShip():
            is_any = any(order.left.candidates.segments for order in row.orders)
            yield from _beginning(row, row.selection.starts(sources) if is_any else {}, context)
        case TierOrder():
            yield Reported(topic_partition=row.topic_partition, state=PartitionState.FAILED, what=row)
        case TieredPartition():
            yield _tiered_result(row, context)
        case TierEnd():
            yield Reported(what=row, partly_done=row.partly_done)
        case VerificationError():
            context.mismatches(Mismatch.SNAPSHOT, 1)
            yield Result(findings=(row,))


def _beginning(left: LeftToShip, starts: Mapping[Place, BrokerStart], context: Context) -> Iterator[Result]:
    """Yield what is left to ship, what prevents a broker's start, and which sources or manifests cannot be read."""
    yield Reported(what=left)
    ended_by = dict.fromkeys(start.ended_by for start in starts.values() if start.ended_by is not None)
    yield Result(warnings=tuple(stop.text for stop in ended_by))
    yield from unread(left.selection)
    for order in (order for order in left.orders if order.left.failures):
        failures = order.left.failures
        context.mismatches(Mismatch.OBJECT, sum(isinstance(one, VerificationError) for one in failures))
        yield Result(topic_partition=order.topic_partition, faults=failures, partly_done=True)


def _stops(planner: Planner, left: LeftToShip, starts: Mapping[Place, BrokerStart], context: Context) -> Iterator[str]:
    """Yield what would keep segments from being shipped, as ``scan`` and ``check`` judge it, once for each reason.

    That is without what is said before, and without what is an error.
    """
    found: dict[Reason, list[tuple[SelectedPartition, Refusal]]] = {}
    known = {order.topic_partition: order.left.candidates.high_watermark for order in left.orders}
    with context.progress("judge") as (progress,):
        for selected in with_progress([order.selected for order in left.orders], progress):
            start = starts[selected.inventory.partition.path]
            judged = planner.judge(selected, known[selected.topic_partition], start)
            blocking = () if judged.candidates.blocking is None else (judged.candidates.blocking,)
            stops = {refusal.reason: refusal for refusal in (*blocking, *judged.blockers.found)}
            for reason in (Reason.MISSING_SNAPSHOT, Reason.NO_START):  # the one is rebuilt
                stops.pop(reason, None)
            for reason, refusal in stops.items():
                if refusal not in start.refusals:
                    found.setdefault(reason, []).append((selected, refusal))
    for reason, places in found.items():
        selected, first = places[0]
        more = f" (and {some(len(places) - 1, 'more partition')})" if len(places) > 1 else ""
        yield f"{reason.value}: {selected.topic_partition}{more}: {first.detail}: {first.hint}"


def _dry_run(request: TierRequest, work: TierWork, context: Context, report: Report) -> None:
    with context.progress("look", "plan") as (looking, planning):
        left = left_to_ship(request.scope, work, request.saved, looking)
        planned = plans_of(work, left.orders, planning)
    starts = left.selection.starts(work.planner.engine.reading.sources)
    for result in chain(_beginning(left, starts, context), map(would_replay, planned)):
        report(result)
    report(Result(warnings=tuple(_stops(work.planner, left, starts, context))))
    faults: dict[TopicPartition, tuple[DataError, ...]] = {}
    others = 0
    for order in left.orders:
        to_ship = {segment.base_offset for segment in order.left.candidates.segments}
        bad = [refusal for refusal in _unfit(order, starts, work.planner) if refusal.base_offset in to_ship]
        stop = min((refusal.base_offset for refusal in bad if refusal.reason is Reason.DAMAGED), default=None)
        sound = to_ship.difference(refusal.base_offset for refusal in bad)
        gap = next((one for one in bad if one.reason is Reason.MISSING_OFFSETS), None)  # all is refused then
        others += sum(stop is None or offset < stop for offset in sound) if gap is None else 0
        if gap is not None:
            what = f"{order.topic_partition}: ships nothing: {gap.reason}: {gap.detail}: {gap.hint}"
            report(Result(warnings=(what,)))
        if found := _refusals_at_fault(order.topic_partition, (*order.left.candidates.refusals, *bad)):
            faults[order.topic_partition] = tuple(found)
    for name, errors in faults.items():
        report(Result(topic_partition=name, state=PartitionState.FAILED, faults=errors, partly_done=others > 0))
    for order in (order for order in left.orders if order.doubted):
        number = len(order.doubted)
        what = (
            f"{order.topic_partition}: {some(number, 'segment')} that the store holds, from offset"
            f" {order.doubted[0].base_offset} on, {agreeing(number, 'was', 'were')} made under narrower rules than"
            " those of this run, or from a shorter log: the run will compare them with a replay"
        )
        report(Result(warnings=(what,)))


def _unfit(order: TierOrder, starts: Mapping[Place, BrokerStart], planner: Planner) -> Iterator[Refusal]:
    """Yield what the run would not ship of the segments, as far as their files show it without their batches."""
    partition = order.selected.inventory.partition
    start = starts[partition.path]
    yield from (*start.refusals, *start.unusable)
    if order.segments:
        stops = FAULTS - {Reason.INDEX_UNUSABLE} | {Reason.MISSING_OFFSETS}  # others are rebuilt
        yield from (one for one in damage_in_files(partition, planner.engine.reading.sources) if one.reason in stops)


def _tiered_result(row: TieredPartition, context: Context) -> Reported[TieredPartition]:
    order, shipment = row
    context.mismatches(Mismatch.OBJECT, sum(isinstance(one, VerificationError) for one in shipment.failures))
    faults = (*shipment.failures, *_refusals_at_fault(order.topic_partition, shipment.eligibility.refusals))
    if not shipment.failures and shipment.eligibility.blocking is None:
        boundaries = frozenset(boundary.offset for boundary in order.selected.inventory.boundaries)
        context.made(order.selected, "shipped", order.store_url, boundaries)
    if shipment.newest_snapshot is not None:
        context.activated(shipment.newest_snapshot)
    done = PartitionState.DONE if shipment.shipped else PartitionState.NOTHING_TO_DO
    return Reported(
        topic_partition=shipment.topic_partition,
        state=PartitionState.FAILED if faults else done,
        faults=faults,
        warnings=shipment.warnings,
        partly_done=bool(shipment.shipped),
        what=row,
    )


def _refusals_at_fault(topic_partition: TopicPartition, refusals: Iterable[Refusal]) -> list[DataError]:
    """Return the first refusal for which the files are at fault, as the error that it is, or nothing."""
    wrong = [refusal for refusal in refusals if refusal.reason in FAULTS]
    if not wrong:
        return []
    what = f"{topic_partition}: {wrong[0].reason.value}: {wrong[0].detail}"
    more = f"; {some(len(wrong), 'segment')} are not shipped for such reasons" if len(wrong) > 1 else ""
    return [DataError(f"{what}{more}", hint=wrong[0].hint)]


class ShippedRow(TypedDict):
    """A segment that was shipped."""

    baseOffset: int
    nextBaseOffset: int
    bytes: Annotated[int, "size_bytes"]
    snapshot: str
    entries: int
    manifest: Annotated[str, "manifest_key"]


class ShipmentRow(Identity):
    """One partition of `resnap tier`."""

    shipped: list[ShippedRow]
    already: int
    lastStableOffset: Annotated[int | None, "eligibility.last_stable_offset"]
    refused: Annotated[list[RefusalRow], "eligibility.refusals"]
    blocking: Annotated[RefusalRow | None, "eligibility.blocking"]


class TierView(SummedView[Result]):
    """A row per partition: those with something to ship first, in the order of their names."""

    kind = "partition"
    columns = (
        PARTITION,
        Column(key="shipped", title="SHIPPED", right=True, show=count_of),
        Column(key="already", title="ALREADY", right=True),
        Column(key="shipped", title="SNAPSHOTS", show=counts_text),
        Column(key="blocking", title="STOPS", show=stop_of),
    )
    most_first = "shipped"
    joined = ("shipped",)

    def __init__(self, scope: Scope, to: str) -> None:
        self._scope, self._to = scope, to
        self._orders: Sequence[TierOrder] = ()
        self._already: dict[TopicPartition, int] = {}
        """When the run was planned, by partition; another run may ship more after that."""
        self._totals = dict.fromkeys(("shipped", "bytes", "already", "refused"), 0)
        self._stops: dict[Reason, tuple[TopicPartition, Refusal]] = {}
        """The first of each reason."""
        self._unfinished = 0
        self._is_through = False
        self._has_failed = False
        self._coming: deque[object] = deque()
        self._waiting: dict[object, Row] = {}
        """Rows that wait for those before them."""

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition, and count it."""
        match result:
            case Unread():
                return result.row
            case Reported(what=LeftToShip(orders=orders)):
                self._select(orders)
            case Reported(what=TierOrder()):
                return {"reason": "the store failed before its turn"}
            case Reported(what=TieredPartition(shipment=shipment)):
                self._count(shipment)
                return row_of(ShipmentRow, shipment)
            case Reported(what=TierEnd(unfinished=unfinished)):
                self._unfinished, self._is_through = unfinished, not self._has_failed
        return None

    def rows(self, result: Result) -> Iterator[Row]:
        """Yield rows in the order of their names: each waits for those before it."""
        row = self.row(result)
        if row is None or "shipped" not in row:
            return
        if result.topic_partition not in self._coming:
            yield row
            return
        self._waiting[result.topic_partition] = row
        while self._coming and self._coming[0] in self._waiting:
            yield self._waiting.pop(self._coming.popleft())

    def for_people(self, row: Mapping[str, Any]) -> Row:
        """Return what people see of the row, which waits for the end: a run may ship a million segments."""
        return {**row, "shipped": [intern(segment["snapshot"]) for segment in row["shipped"]], "refused": []}

    def rest(self) -> Iterator[Row]:
        """Yield the rows that still wait for others, which will not follow."""
        yield from (self._waiting[partition] for partition in self._coming if partition in self._waiting)

    def _select(self, orders: Sequence[TierOrder]) -> None:
        self._orders = orders
        self._already = {order.topic_partition: order.left.already for order in orders}
        self._totals["already"] = sum(order.left.already for order in orders)
        self._has_failed = any(order.left.failures for order in orders)
        self._coming.extend(order.topic_partition for order in orders if order.left.candidates.segments)

    def _count(self, shipment: PartitionShipment) -> None:
        self._totals["shipped"] += len(shipment.shipped)
        self._totals["bytes"] += sum(segment.size_bytes for segment in shipment.shipped)
        self._totals["already"] += max(0, shipment.already - self._already.get(shipment.topic_partition, 0))
        self._totals["refused"] += len(shipment.eligibility.refusals)
        self._has_failed = self._has_failed or bool(shipment.failures)
        blocking = shipment.eligibility.blocking
        if blocking is not None:
            self._stops.setdefault(blocking.reason, (shipment.topic_partition, blocking))

    def totals(self) -> Row:
        """Return the totals; where the run was cut short, with what is in the store of unfinished partitions."""
        return {**self._totals, "unfinished": self._unfinished} if self._unfinished else self._totals

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do about each reason for a stop."""
        yield from self.summed_note()
        yield self._sum()
        yield from unsettled_lines(self._orders)
        yield from self._unchanged_lines()
        for topic_partition, stop in self._stops.values():
            yield from stop_lines(row_of(RefusalRow, stop), topic_partition)
        shipped = self._totals["shipped"] + self._totals["already"]
        is_faulty = not shipped and not FAULTS.isdisjoint(self._stops)  # `check` reads no batches inside segments
        if self._has_failed or self._unfinished or self.is_cut_short or is_faulty:
            yield "Next: the same command again, once any errors named here are repaired; it ships the rest."
        else:
            yield from next_of(self._scope, self._to, shipped=shipped, is_explained=bool(self._stops))

    def _sum(self) -> str:
        shipped, already = self._totals["shipped"], self._totals["already"]
        if self._unfinished:
            return (
                f"{some(shipped + self._unfinished, 'segment')} shipped, each verified;"
                f" {human_count(self._unfinished)} of them are of partitions that the run did not finish."
            )
        if not shipped:
            is_through = self._is_through and not self.is_cut_short
            what = "Nothing to ship" if is_through else "Nothing was shipped"
            if is_through and self._stops and not already:
                return "Nothing to ship: no segment is eligible."
            return f"{what}: {some(already, 'segment')} {agreeing(already)} there already."
        size, were = human_bytes(self._totals["bytes"]), agreeing(already, "was", "were")
        return (
            f"{some(shipped, 'segment')} shipped ({size}), each verified, {human_count(already)} {were} there already."
        )

    def _unchanged_lines(self) -> Iterator[str]:
        """Say what was refused before, and is refused again without having been read."""
        known = [(order, order.cached) for order in self._orders if order.settled is not None and order.cached]
        if known:
            segments = sum(len(order.left.candidates.segments) for order, _ in known)
            refused = [cached.results.refused for _, cached in known]
            since = second(max(cached.made_ms for cached in refused if cached is not None))
            yield (
                f"{some(segments, 'segment')} of {some(len(known), 'partition')}"
                f" {agreeing(segments, 'waits as it did', 'wait as they did')}: nothing has changed since {since}, and"
                " nothing was read."
            )


VERB = Verb(
    takes=(PARTITIONS, REMOTE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, WRITE, UPLOAD, STORE),
    request=TierRequest,
    run=run,
    view=lambda request, context: (
        DryTierView(request.scope, request.to, uploading_of(context.settings))
        if context.settings.dry_run
        else TierView(request.scope, request.to)
    ),
    reads="log dirs",
    to="to",
    carries_out_plans=True,
    rows=(PlanRow, ShipmentRow),
)
