"""The job ``scan``: finds boundaries without a usable snapshot, what blocks each partition, and the cost of a replay.

It reads file names, sizes and the small files beside the segments; of segments that the leader-epoch checkpoint does
not cover, the first batch header of a few.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.cli.failures import MISSING_FOUND, OK
from resnap.scheduler.cli.flags import CLUSTER, PARTITIONS, REMOTE, RULES, STORE
from resnap.scheduler.job.contract import Door, PartitionState, Reported, Request, Unread, Verb
from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.job.reports import (
    CostRow,
    Identity,
    RefusalRow,
    SizesRow,
    SummedView,
    bytes_of,
    most_urgent,
    stop_of,
)
from resnap.scheduler.job.wiring import rules_of
from resnap.scheduler.output.answer import KnownFaultRow
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, Column
from resnap.storage.errors import CancelledError, ResnapError
from resnap.storage.log.log_dir import most_of_a_broker
from resnap.storage.log.producer_snapshot import entries_in
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import human_count, some
from resnap.tiering.broker_releases import faults_of
from resnap.tiering.judging.inventory import Compaction, SnapshotState
from resnap.tiering.judging.readiness import Verdict, VerdictFacts, judge, never_tiered
from resnap.tiering.judging.refusal import HINTS, Reason, Stop, UnblockedBy
from resnap.tiering.lost_leader import heal_commands, log_dirs_of
from resnap.tiering.planner import PartitionScan, Planner
from resnap.tiering.remote_log.waiting import waiting_segments
from resnap.tiering.selection import (
    NothingInScopeError,
    Scope,
    high_watermark_of,
    joined_once,
    select,
    warn_of_gaps,
    with_progress,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resnap.replay.watching import Progress
    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.judging.known_faults import MetFault
    from resnap.tiering.judging.refusal import Refusal
    from resnap.tiering.remote_log.waiting import Waiting
    from resnap.tiering.selection import SelectedPartition, Selection

    _FaultsOf = Callable[[SelectedPartition], tuple[MetFault, ...] | None]

_MOST_NAMED: Final = 20
"""Lost producers that a row names."""


class ScanRequest(Request):
    """Show which closed segments have no usable producer snapshot at their end, and what blocks each partition.

    Also what a replay would read: READ NOW for brokers that load the snapshots now, READ ROLL with `--as-of roll`.

    Reads file names, sizes and the small files beside the segments; of segments that the leader-epoch checkpoint does
    not cover, the first batch header of a few. It opens no offset index, and no other log: that a log ends before its
    index does, or that leader-epoch-checkpoint contradicts the batches, shows in `resnap check` alone.
    """

    exit_code: Annotated[
        bool, typer.Option(help="Exit with 4 if snapshots are missing, or producer state is lost.")
    ] = False


def run(request: ScanRequest, context: Context, report: Report) -> None:
    """Report what each partition in scope lacks.

    Raises:
        UsageError, LogDirError: a source is not what it should be, unless each is scanned for itself.

    """
    states = LargeStates(context.settings, context.warn)
    planner = Planner(rules_of(context.settings, context.clock), context.engine(), on_state=states.look)
    sources, expiration_ms = planner.engine.reading.sources, planner.rules.expiry.expiration_ms
    to_know = partial(faults_of, releases=lambda: states.releases, sources=sources, expiration_ms=expiration_ms)
    if request.separately:
        faults = partial(to_know, log_dirs=len(request.scope.sources))
        _scan_separately(request.scope, planner, context, faults, report)
        return
    selection = select(request.scope, sources)
    warn_of_gaps(request.scope, selection, context.warn)
    faults = partial(to_know, log_dirs=most_of_a_broker(selection.log_dirs))
    high_watermark = high_watermark_of(request.scope, selection, sources, context.warn)
    with context.progress("scan") as (progress,):
        for result in scan_partitions(selection, high_watermark, planner, faults, progress):
            report(result)


def scan_partitions(
    selection: Selection,
    high_watermark: int | None,
    planner: Planner,
    faults: _FaultsOf = lambda _: (),
    progress: Progress | None = None,
) -> Iterator[Reported[PartitionScan] | Unread]:
    """Return what each selected partition lacks, then what could not be read."""
    starts = selection.starts(planner.engine.reading.sources)
    return chain(
        (
            Reported(
                state=PartitionState.DONE,
                what=replace(
                    _scan(selected, high_watermark, planner, starts.pop(selected.inventory.partition.path)),
                    known_faults=faults(selected),
                ),
            )
            for selected in with_progress(selection.partitions, progress)
        ),
        (Unread(faults=(problem.error,), partly_done=True) for problem in selection.problems),
    )


def _scan_separately(scope: Scope, planner: Planner, context: Context, faults: _FaultsOf, report: Report) -> None:
    several = scope
    for source in scope.sources:
        found: list[Reported[PartitionScan] | Unread] = []
        try:
            several = several if several.joining else joined_once(scope, planner.engine.reading.sources)
            selection = select(
                replace(several, sources=(source,), beside=scope.sources), planner.engine.reading.sources
            )
            high_watermark = high_watermark_of(scope, selection, planner.engine.reading.sources, context.warn)
            for result in scan_partitions(selection, high_watermark, planner, faults):
                found.append(result)
                context.check()
        except CancelledError:
            raise
        except NothingInScopeError:
            pass  # no fault of the source, as a new disk of a broker: what was seen in it before is gone
        except ResnapError as error:
            context.not_scanned(source, error)
            report(Unread(faults=(error,), partly_done=True))
            continue
        unread = [fault for result in found if isinstance(result, Unread) for fault in result.faults]
        scans = [result.what for result in found if isinstance(result, Reported)]
        what = f"{some(len(unread), 'partition')} could not be read: {unread[0]}" if unread else None
        context.scanned(source, scans, what)
        for result in found:
            report(result)
    context.scanned_all()


def _scan(
    selected: SelectedPartition, high_watermark: int | None, planner: Planner, start: BrokerStart
) -> PartitionScan:
    cost_now, cost_roll = planner.scan_costs(selected.inventory, start)
    judged = planner.judge(selected, high_watermark, start)
    for snapshot in selected.inventory.partition.snapshots[-1:]:
        planner.on_state(selected.topic_partition, snapshot.offset, entries_in(snapshot.size_bytes), snapshot.path)
    return PartitionScan(
        selected=selected,
        judged=judged,
        cost_now=cost_now,
        cost_roll=cost_roll,
        sizes=judged.sizes(),
        waiting=_waiting(selected),
    )


def _waiting(selected: SelectedPartition) -> Waiting | None:
    """Return what waits to be copied; a leader whose copying is paused may not know what is remote already."""
    topic, facts = selected.live, selected.live_facts
    if topic is None or not topic.is_tiered or facts is None or facts.remote_end_offset is None:
        return None
    if topic.is_copying_paused and not facts.remote_end_offset:
        return None
    return waiting_segments(selected.inventory.partition, max(facts.remote_end_offset, facts.local_start_offset or 0))


class LostBoundary(TypedDict):
    """A boundary without a usable snapshot."""

    offset: int
    state: str
    detail: str | None


class LostStateRow(TypedDict):
    """What shows that a replica has lost its producer state."""

    offset: int
    reason: Annotated[str, lambda _: Reason.LOST_PRODUCER_STATE.value]
    isProven: bool
    producers: Annotated[list[int], lambda lost: list(lost.producers[:_MOST_NAMED])]
    producersCount: Annotated[int, lambda lost: len(lost.producers)]
    detail: str
    hint: Annotated[str, lambda _: HINTS[Reason.LOST_PRODUCER_STATE]]


class LiveRow(TypedDict):
    """What the running cluster says of a partition."""

    leader: Annotated[int | None, "live_facts.leader"]
    logStartOffset: Annotated[int | None, "live_facts.log_start_offset"]
    localStartOffset: Annotated[int | None, "live_facts.local_start_offset"]
    highWatermark: Annotated[int | None, "live_facts.high_watermark"]
    lastStableOffset: Annotated[int | None, "live_facts.last_stable_offset"]
    remoteStorageEnable: Annotated[bool, "live.is_tiered"]
    remoteLogCopyDisable: Annotated[bool, "live.is_copying_paused"]


class WaitingRow(TypedDict):
    """Closed segments of a tiered topic that are not in remote storage; the oldest was closed at `sinceMs`."""

    offset: int
    sinceMs: int
    segments: int
    bytes: Annotated[int, "size_bytes"]


class _LogRow(Identity):
    """The log of a partition."""

    path: Annotated[str, "selected.inventory.partition.path"]
    topicId: Annotated[str | None, "selected.inventory.partition.topic_id"]
    segments: Annotated[
        int,
        lambda scan: len(scan.selected.inventory.partition.segments),
        Column(title="SEGMENTS", right=True, extra=True),
    ]
    bytes: Annotated[
        int,
        lambda scan: sum(segment.size_bytes for segment in scan.selected.inventory.partition.segments),
        replace(BYTES, extra=True),
    ]


class ScanRow(_LogRow, SizesRow):
    """One partition of `resnap scan`."""

    verdict: Annotated[Verdict, lambda scan: judge(scan.judged.facts, ()).verdict]
    logStartOffset: Annotated[int, "selected.inventory.partition.log_start_offset"]
    highWatermark: Annotated[int | None, "judged.candidates.high_watermark"]
    live: Annotated[LiveRow | None, lambda scan: row_of(LiveRow, scan.selected) if scan.selected.live_facts else None]
    boundaries: Annotated[int, lambda scan: len(scan.selected.inventory.boundaries)]
    lost: Annotated[int, "selected.inventory.lost", Column(title="MISSING", right=True)]
    states: Annotated[dict[str, int], lambda scan: _states(scan.selected.inventory)]
    lostBoundaries: Annotated[list[LostBoundary], "selected.inventory.unusable"]
    strays: Annotated[list[int], lambda scan: [stray.offset for stray in scan.selected.inventory.strays]]
    compaction: Annotated[str, "selected.inventory.compaction"]
    compactionOrigin: Annotated[str, "selected.inventory.compaction_origin"]
    replayNow: Annotated[CostRow, "cost_now", Column(title="READ NOW", right=True, show=bytes_of, extra=True)]
    replayRoll: Annotated[CostRow, "cost_roll", Column(title="READ ROLL", right=True, show=bytes_of, extra=True)]
    blocking: Annotated[RefusalRow | None, "judged.candidates.blocking", Column(title="RESNAP STOPS", show=stop_of)]
    brokerStops: Annotated[RefusalRow | None, "judged.blockers.decisive", Column(title="BROKER STOPS", show=stop_of)]
    lostProducerState: Annotated[LostStateRow | None, "judged.lost_state"]
    waiting: WaitingRow | None
    brokerShipsUnread: Annotated[list[RefusalRow], "judged.blockers.shipped_as_is"]
    knownFaults: list[KnownFaultRow] | None


def _states(inventory: PartitionInventory) -> dict[str, int]:
    """Return how many boundaries are in each state."""
    return {state.value: sum(boundary.state is state for boundary in inventory.boundaries) for state in SnapshotState}


def facts_in(row: Mapping[str, Any]) -> VerdictFacts:
    """Return the facts of a row of ``scan``, as it is kept."""
    blocking, path = _stop_in(row["blocking"]), row["path"]
    return VerdictFacts(
        never=never_tiered(row["topic"], blocking, is_compacted=row["compaction"] == "compacted"),
        lost=frozenset(boundary["offset"] for boundary in row["lostBoundaries"]),
        broker_stop=_stop_in(row["brokerStops"]),
        blocking=blocking,
        lost_state=_stop_in(row.get("lostProducerState")),
        log_dir="LOG_DIR" if is_store_url(path) else shlex.quote(str(PurePath(path).parent)),
    )


def _stop_in(refusal: Mapping[str, Any] | None) -> Stop | None:
    """Return the refusal in a stored row; rows of older versions do not have what unblocks it."""
    if refusal is None:
        return None
    reason = refusal["reason"]
    by = UnblockedBy.REBUILD if reason == Reason.MISSING_SNAPSHOT else UnblockedBy.OTHER
    return Stop(
        reason=reason,
        detail=refusal["detail"],
        hint=refusal["hint"],
        unblocked_by=UnblockedBy(refusal.get("unblockedBy", by)),
        until_ms=refusal.get("untilMs"),
    )


class ScanView(SummedView["Reported[PartitionScan] | Unread"]):
    """A row per partition; people see those with something to do, and the number of the others."""

    kind = "partition"
    columns = columns_of(
        ScanRow, "partition", "segments", "bytes", "lost", "replayNow", "replayRoll", "brokerStops", "blocking"
    )
    most_first = "lost"

    def __init__(self, request: ScanRequest) -> None:
        self._request = request
        self._totals = dict.fromkeys(("partitions", "segments", "boundaries", "lost", "compacted", "problems"), 0)
        self._stops: dict[str, tuple[SelectedPartition, Refusal]] = {}
        """The first of each reason."""
        self._lost_state: list[PartitionScan] = []

    @property
    def exit_code(self) -> int:
        """What ``--exit-code`` calls for where snapshots are missing, or a replica seems to have lost its state."""
        return MISSING_FOUND if self._request.exit_code and (self._totals["lost"] or self._lost_state) else OK

    def row(self, result: Reported[PartitionScan] | Unread) -> Row | None:
        """Return the row of a partition, and count it."""
        if isinstance(result, Unread):
            self._totals["problems"] += 1
            return None
        selected = result.what.selected
        self._totals["partitions"] += 1
        if selected.inventory.compaction is Compaction.COMPACTED:
            self._totals["compacted"] += 1
        else:
            self._totals["segments"] += len(selected.inventory.partition.segments)
            self._totals["boundaries"] += len(selected.inventory.boundaries)
            self._totals["lost"] += selected.inventory.lost
            if (stop := result.what.judged.blockers.stop) is not None:
                self._stops.setdefault(stop.reason, (selected, stop))
        if result.what.judged.lost_state is not None:
            self._lost_state.append(result.what)
        return row_of(ScanRow, result.what)

    def for_people(self, row: Row) -> Row | None:
        """Return the row of a partition that lacks something, or where something stops that is not compaction."""
        told = ("lost", "brokerStops", "blocking", "lostProducerState", "strays")
        return row if row["compaction"] != "compacted" and any(row[key] for key in told) else None

    def closing(self) -> Iterable[str]:
        """Yield the totals in words, and what to do next."""
        lost, partitions = (
            self._totals["lost"],
            some(self._totals["partitions"] - self._totals["compacted"], "partition"),
        )
        yield ""
        what = f"{human_count(lost)} of {some(self._totals['boundaries'], 'closed segment')} in {partitions}"
        have, their = ("has", "its") if lost == 1 else ("have", "their")
        yield f"{what} {have} no usable producer snapshot at {their} end."
        yield from self.summed_note()
        if in_order := self._totals["partitions"] - self._totals["compacted"] - len(self._held):
            yield f"Not shown: {some(in_order, 'partition')} in which nothing is missing and nothing stops."
        if self._totals["compacted"]:
            yield f"Never: {some(self._totals['compacted'], 'compacted partition')}, which Kafka does not tier."
        urgent = most_urgent(self._stops)
        if urgent is not None:
            selected, stop = self._stops[urgent]
            yield f"A broker's own tiering stops at {selected.topic_partition}: {stop.detail}."
            there = self._request.scope.typed
            replay = f"`resnap plan {there}` to see what a replay reads, then `resnap regenerate {there} --into DIR`"
            yield f"Next: {replay if lost and stop.reason is Reason.MISSING_SNAPSHOT else stop.hint}."
        elif not self._lost_state:
            yield f"Next: `resnap check {self._request.scope.typed}` says which topics can be tiered."
        yield from self._without_state()

    def _without_state(self) -> Iterator[str]:
        """Say which replicas have lost their producer state, and what to do about it."""
        if self._lost_state:
            first = self._lost_state[0]
            lost = first.judged.lost_state
            why = "" if lost is None else lost.detail
            yield (
                f"Replicas that lost their producer state, or seem to have lost it: "
                f"{human_count(len(self._lost_state))}, the"
                f" first of them {first.selected.topic_partition}: {why}."
            )
            yield "Next: keep it from leading, stop its broker, and restore its state:"
            yield from (f"  {one}" for one in heal_commands(log_dirs_of(scan.selected for scan in self._lost_state)))


VERB = Verb(
    takes=(PARTITIONS, REMOTE, CLUSTER, RULES, STORE),
    request=ScanRequest,
    run=run,
    view=lambda request, _: ScanView(request),
    reads="log dirs",
    is_short=True,
    door=Door(
        path="/v1/scans",
        summary="Scan now",
        does="Scan log dirs now, as a schedule would; the response has the address of the run.",
        body="What to scan.",
        asks=("topics", "exclude_topics", "sources"),
    ),
)
