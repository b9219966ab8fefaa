"""Shows planned replays, for ``plan`` and the dry runs of other jobs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final

from typing_extensions import TypedDict

from resnap.scheduler.job.contract import PartitionState, Reported, Unread, View
from resnap.scheduler.job.reports import CostRow, Identity, SummedView, bytes_of
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import Column
from resnap.storage.errors import DataError
from resnap.storage.words import exact_duration, first_of, human_bytes, second, some
from resnap.tiering.judging.broker_blockers import lost_records
from resnap.tiering.judging.lost_producer_state import lost_state
from resnap.tiering.judging.planning import can_be_tiered
from resnap.tiering.planner import Planned, cost_of
from resnap.tiering.selection import warn_of_gaps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.replay.window import ReplayRules
    from resnap.scheduler.job.contract import Context
    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.selection import Scope, Selection

AND_DO_IT: Final = "Next: the same command without --dry-run."
_MOST_NAMED: Final = 3
"""Most partitions that a line names."""


def would_replay(planned: Planned) -> Reported[Planned]:
    """Return the result of a dry run for one partition, which is planned even where records are lost."""
    faults = tuple(faults_of_files(planned))
    return Reported(
        topic_partition=planned.selected.topic_partition,
        state=PartitionState.PLANNED,
        faults=faults,
        partly_done=bool(faults),
        what=planned,
    )


def faults_of_files(planned: Planned) -> Iterator[DataError]:
    """Yield what the names and sizes of a partition's files show to be lost: no replay of the rest knows of it."""
    inventory = planned.selected.inventory
    lost = next(lost_records(inventory), None)
    if lost is not None and can_be_tiered(inventory):
        what = f"{inventory.partition.topic_partition}: {lost.reason.value}: {lost.detail}"
        yield DataError(what, hint=lost.hint)


def note_selection(scope: Scope, selection: Selection, context: Context, saved: SavedPlan | None = None) -> None:
    """Say what of a selection needs to be known before it is replayed.

    That is: names that match nothing, how many partitions are compacted, which replicas look as if they lost state.
    Of a ``saved`` plan it is said of its partitions alone.
    """
    warn_of_gaps(scope, selection, context.warn)
    partitions = [one for one in selection.partitions if saved is None or one.topic_partition in saved.boundaries]
    compacted = sum(not can_be_tiered(selected.inventory) for selected in partitions)
    if compacted:
        context.note(f"never: {some(compacted, 'compacted partition')}, which Kafka does not tier")
    alone = (partition.inventory.partition for partition in partitions if partition.log_dir.remote is None)
    marked = [(partition.topic_partition, lost) for partition in alone if (lost := lost_state(partition)) is not None]
    for topic_partition, lost in marked[:_MOST_NAMED]:
        context.warn(
            f"{topic_partition}: this replica seems to have lost its producer state: {lost.detail}: give --remote URL, "
            "the store that brokers tier to, since the log below is not on this disk"
        )
    if len(marked) > _MOST_NAMED:
        context.warn(f"{some(len(marked) - _MOST_NAMED, 'more replica')} with the same signs")


class PlannedBoundary(TypedDict):
    """A boundary for which a snapshot would be made."""

    offset: int
    coverage: str


class RunRow(TypedDict):
    """A stretch of segments that would be read."""

    baseOffset: int
    nextBaseOffset: int | None
    segments: int
    anchor: int | None


class PlanRow(Identity):
    """One partition of `resnap plan`."""

    boundaries: list[PlannedBoundary]
    knownFromOffset: Annotated[int, lambda plan: plan.known_from()]
    snapshots: Annotated[int, lambda plan: len(plan.boundaries), Column(title="SNAPSHOTS", right=True)]
    read: Annotated[
        CostRow, lambda plan: row_of(CostRow, cost_of([plan])), Column(title="READ", right=True, show=bytes_of)
    ]
    runs: Annotated[list[RunRow], _runs, Column(title="OFFSETS READ", show=_offsets_read)]
    segments: Annotated[int, lambda plan: len(plan.segments), Column(title="SEGMENTS", right=True, extra=True)]


def _runs(plan: PartitionPlan) -> list[RunRow]:
    return [
        {
            "baseOffset": plan.segments[run.start].base_offset,
            "nextBaseOffset": plan.segments[run.end - 1].next_base_offset,
            "segments": run.end - run.start,
            "anchor": run.anchor.offset if run.anchor is not None else None,
        }
        for run in plan.runs
    ]


def totals_of(planned: Iterable[Planned]) -> dict[str, int]:
    """Return the totals of a plan."""
    plans = [plan.plan for plan in planned]
    cost = cost_of(plans)
    return {
        "partitions": len(plans),
        "snapshots": sum(len(plan.boundaries) for plan in plans),
        "segmentsToRead": cost.segments,
        "bytesToRead": cost.size_bytes,
    }


class DryRunView(View[Any]):
    """What a run would read and make, in all: of other results it takes no notice."""

    def __init__(self, what: str = "") -> None:
        self._what = what
        self.planned: list[Planned] = []

    def row(self, result: Any) -> Row | None:  # noqa: ANN401 - whatever a job yields
        """Return the row of a planned partition."""
        if isinstance(result, Unread):
            return result.row
        if not isinstance(result, Reported) or not isinstance(result.what, Planned):
            return None
        self.planned.append(result.what)
        return row_of(PlanRow, result.what.plan)

    def table_head(self) -> Row:
        """Return the same in words."""
        total = totals_of(self.planned)
        read = f"{some(total['segmentsToRead'], 'segment')}, {human_bytes(total['bytesToRead'])}"
        return {"partitions": total["partitions"], "snapshots": total["snapshots"], "to read": read}

    def totals(self) -> Row:
        """Return what would be read."""
        return {"dryRun": True, **totals_of(self.planned)}

    def closing(self) -> Iterable[str]:
        """Return what would be written, and how to have that done."""
        return [f"would write {self._what}. Nothing was written.", AND_DO_IT]


def _offsets_read(runs: list[RunRow] | None) -> str:
    return ", ".join(
        f"[{run['baseOffset']}, {'end' if run['nextBaseOffset'] is None else run['nextBaseOffset']})"
        for run in runs or ()
    )


class PlanView(SummedView[Any], DryRunView):
    """A row per partition."""

    kind = "partition"
    columns = columns_of(PlanRow, "partition", "snapshots", "segments", "read", "runs")
    most_first = "snapshots"

    def __init__(self, scope: Scope, rules: ReplayRules, settings: Settings, saved: Path | None) -> None:
        super().__init__()
        self._scope, self._rules, self._settings, self._saved = scope, rules, settings, saved

    def head(self) -> Row:
        """Return the rules of the plan."""
        return {
            "asOf": str(self._rules.as_of),
            "producerIdExpirationMs": self._rules.expiry.expiration_ms,
            "producerIdExpirationFrom": self._settings.expiration_origin,
        }

    def table_head(self) -> Row:
        """Return the same in words."""
        as_of, expiry = self._rules.as_of, self._rules.expiry
        return {
            "as of": "roll" if as_of.roll else second(as_of.now_ms),
            "producers expire after": f"{exact_duration(expiry.expiration_ms)} ({self._settings.expiration_origin})",
        }

    def for_people(self, row: Row) -> Row | None:
        """Return the row of a partition of which something is to be made."""
        return row if row["snapshots"] else None

    def totals(self) -> Row:
        """Return the totals of the plan."""
        return totals_of(self.planned)

    def closing(self) -> Iterable[str]:
        """Yield the totals in words, which logs begin above offset 0, and how to carry the plan out."""
        total = totals_of(self.planned)
        yield (
            f"would make {some(total['snapshots'], 'snapshot')} from the headers of"
            f" {some(total['segmentsToRead'], 'segment')} ({human_bytes(total['bytesToRead'])})."
            " Nothing was written."
        )
        yield from self.summed_note()
        yield from beginnings_gone({plan.selected.topic_partition: plan.plan.known_from() for plan in self.planned})
        if total["snapshots"]:
            made_of = self._scope.typed
            if self._saved is not None:
                made_of = f"--plan {shlex.quote(str(self._saved))}"
            boundaries = " --boundaries all" if self._settings.boundaries == "all" and self._saved is None else ""
            regenerate = f"`resnap regenerate {made_of}{boundaries} --into DIR`"
            yield f"Next: {regenerate}, or `resnap tier {made_of} --to URL`."
        else:
            yield f"Next: `resnap check {self._scope.typed}` says which topics can be tiered."


def beginnings_gone(known_from: Mapping[TopicPartition, int]) -> Iterator[str]:
    """Say which logs begin above offset 0, so that nothing proves who lives on from below."""
    gone = [f"{topic_partition} begins at {offset}" for topic_partition, offset in known_from.items() if offset]
    if gone:
        yield (
            f"As far as it may be read, the log of {first_of(gone)}: producers whose last batch lies"
            " below are known only where a snapshot has them."
        )
