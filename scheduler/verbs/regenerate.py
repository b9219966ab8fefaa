"""The job ``regenerate``: rebuilds producer snapshots as files, ``<topic>-<partition>/<offset, 20 digits>.snapshot``.

It also writes the fingerprint of the log, so that `resnap install` can check that the log is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import snapshot_key
from resnap.scheduler.cli.flags import CLUSTER, ENGINE, MEMORY, READING, REPLAY, SOURCE, STORE, WRITE
from resnap.scheduler.job.contract import Reported, Request, Unread, Verb, View, unread
from resnap.scheduler.job.replaying import planner_of
from resnap.scheduler.verbs.planned import DryRunView, PlanRow, note_selection, would_replay
from resnap.scheduler.verbs.replayed import Rebuilt, ReplayView, SnapshotsRow
from resnap.storage.errors import FileGoneError, UsageError
from resnap.storage.stores.urls import open_store
from resnap.tiering.installing.staging_area import ComparedFile, StagingArea, depended_on, print_segment, prints_of
from resnap.tiering.lost_leader import right_indexes
from resnap.tiering.staged import is_beside_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.watching import Progress
    from resnap.scheduler.job.contract import Context
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources as Storage
    from resnap.tiering.engine import Engine
    from resnap.tiering.installing.staging_area import SegmentPrint, StagedIndex, StagedPrint
    from resnap.tiering.planner import Planned, Planner, Replayed

_MOST_NAMED: Final = 20
"""Aborted transactions of one segment that a warning names."""
REPLANS: Final = 3
"""So often a partition is planned again in one run because retention deleted what was to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegenerateRequest(Request):
    """Rebuild producer snapshots, and write them as DIR/<topic>-<partition>/<offset, 20 digits>.snapshot.

    Safe beside a live broker: nothing is written into a log dir, and nothing in it is changed.
    """

    into: Annotated[str, typer.Option("--into", metavar="DIR|URL", help="Where to write the snapshots.")]


def run(request: RegenerateRequest, context: Context) -> Iterator[Unread | Reported[Planned] | Rebuilt]:
    """Return what was rebuilt of each partition; with ``dry_run`` what would be.

    Raises:
        StalePlanError: what the plan was made for has changed.
        StoreError: no such bucket, or no access to it.
        UsageError: a snapshot that is beside the segments would be replaced.
        UsageError, LogDirError: a source is not what it should be.

    """
    planner = planner_of(context, request.saved.rules if request.saved else None, cached=True)
    boundaries = context.settings.boundaries
    with context.progress("plan") as (progress,):
        planned, selection = planner.plan(
            request.scope,
            boundaries=boundaries,
            saved=request.saved,
            into=request.into,
            warn=context.warn,
            progress=progress,
        )
    note_selection(request.scope, selection, context, request.saved)
    if context.settings.dry_run:
        return chain(unread(selection), map(would_replay, planned))
    sink_url = planner.sink_url(request.into, selection)
    _refuse_replacing(planned, sink_url)
    return chain(unread(selection), _regenerate(planner, planned, request.into, sink_url, context))


def view_of(request: RegenerateRequest, context: Context) -> View[Any]:
    """Return how the results of this run are shown."""
    if context.settings.dry_run:
        return DryRunView(f"snapshots into {request.into}")
    return ReplayView(request.scope, request.into)


def _refuse_replacing(planned: Iterable[Planned], sink_url: str) -> None:
    """Refuse to put a snapshot into the place of one that a broker could load."""
    for plan in planned:
        if is_beside_segments(sink_url, plan.selected):
            there = next((boundary.existing for boundary in plan.plan.boundaries if boundary.existing), None)
            if there is not None:
                raise UsageError(f"{there} would be replaced",
                                 hint="omit --boundaries all, or choose another place")  # fmt: skip


def _regenerate(
    planner: Planner, planned: list[Planned], into: str, sink_url: str, context: Context
) -> Iterator[Rebuilt]:
    area, prints = StagingArea(open_store(sink_url, planner.engine.s3)), _Prints(planner.engine)
    with context.progress("replay") as (progress,):
        for replayed in _past_retention(planner, planned, sink_url, progress, together=prints.take):
            one = replayed.planned
            partition = one.selected.inventory.partition
            result = replayed.result
            made, unchanged = (prints_of(partition, found) for found in (result.boundaries, one.still_valid))
            indexes = _indexes(area, partition, [*made, *unchanged], planner.engine.reading.sources, context)
            compared = {
                found.offset: ComparedFile(
                    offset=found.offset, sha256=found.comparison.sha256, is_wrong=result.proves_wrong(found)
                )
                for found in result.boundaries
                if found.comparison is not None
            }
            area.leave(partition, made, unchanged, prints.of, indexes, compared=compared)
            if planner.run_cache is not None and one.cached is not None:
                planner.run_cache.keep(one.cached, replayed.result)
            _notify(replayed, into, sink_url, context)
            yield replace(Rebuilt.of(replayed), wrong_indexes=len(indexes))


def _indexes(
    area: StagingArea, partition: PartitionDir, staged: Iterable[StagedPrint], sources: Storage, context: Context
) -> list[StagedIndex]:
    """Stage the transaction indexes that are wrong, of a log that begins in remote storage, and return them."""
    if partition.local_from is None:
        return []
    topic_partition = partition.topic_partition
    whole = {one.offset: b"".join(area.chunks(topic_partition, one.offset)) for one in staged if not one.left_out}
    staged_indexes = []
    for segment, body, not_there in right_indexes(partition, whole, sources):
        staged_indexes.append(area.put_index(topic_partition, segment.base_offset, body))
        for txn in not_there[:_MOST_NAMED]:
            context.warn(
                f"{topic_partition}: the transaction of producer {txn.producer_id} that began at offset"
                f" {txn.first_offset} and was aborted at {txn.last_offset} is not in the transaction index:"
                " if this replica has led, its records were served as committed"
            )
    return staged_indexes


def _past_retention(
    planner: Planner,
    planned: list[Planned],
    sink_url: str,
    progress: Progress,
    *,
    together: Callable[[Sequence[Replayed]], None],
    replans: int = REPLANS,
) -> Iterator[Replayed]:
    """Replay what is planned; where retention was faster, plan the partition again and replay what is left."""
    overtaken: list[Planned] = []
    for replayed in planner.replay(planned, sink_url, progress, together):
        is_gone = replans and isinstance(replayed.result.error, FileGoneError)
        again = planner.past_retention(replayed.planned, sink_url) if is_gone else None
        if again is None:
            yield replayed
        else:
            overtaken.append(again)
    if overtaken:
        yield from _past_retention(planner, overtaken, sink_url, progress, together=together, replans=replans - 1)


class _Prints:
    """What segments are known by; of all that were replayed at once, executors are asked at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, SegmentPrint | None] = {}
        """By path, of what was replayed last."""

    def take(self, wave: Sequence[Replayed]) -> None:
        """Read the attributes of the segments that the snapshots of ``wave`` depend on."""
        needed = []
        for replayed in wave:
            partition = replayed.planned.selected.inventory.partition
            snapshots = sorted(prints_of(partition, replayed.result.boundaries), key=lambda snapshot: snapshot.offset)
            needed += depended_on(partition, snapshots)
        self._known = dict(zip((segment.path for segment in needed), self._ask(needed), strict=True))

    def of(self, segments: Sequence[Segment]) -> list[SegmentPrint | None]:
        """Return what ``segments`` are known by."""
        left = [segment for segment in segments if segment.path not in self._known]
        found = self._known | dict(zip((segment.path for segment in left), self._ask(left), strict=True))
        return [found[segment.path] for segment in segments]

    def _ask(self, segments: Sequence[Segment]) -> list[SegmentPrint | None]:
        return self._engine.each(partial(print_segment, sources=self._engine.reading.sources), segments)


def _notify(replayed: Replayed, into: str, sink_url: str, context: Context) -> None:
    """Have what was made of a partition counted, and charged to the principal that asked for it."""
    selected, result = replayed.planned.selected, replayed.result
    made = [boundary.offset for boundary in result.boundaries if boundary.outcome is BoundaryOutcome.REBUILT]
    unchanged = [known.offset for known in replayed.planned.still_valid]
    context.observer.made(selected, "regenerated", into, frozenset([*made, *unchanged]))
    context.observer.snapshots(
        selected.log_dir.cluster_id,
        made=len(made),
        failed=len(result.boundaries) - len(made),
        unchanged=len(unchanged),
    )
    if made:
        context.observer.activated(f"{sink_url}/{snapshot_key(result.topic_partition, max(made))}")


VERB = Verb(
    takes=(SOURCE, CLUSTER, REPLAY, ENGINE, READING, MEMORY, WRITE, STORE),
    request=RegenerateRequest,
    run=run,
    view=view_of,
    to="into",
    to_url=False,
    carries_out_plans=True,
    rows=(PlanRow, SnapshotsRow),
)
