"""Rebuilds producer snapshots as files, ``<topic>-<partition>/<offset, 20 digits>.snapshot``.

What is read is planned before (``Planner.plan``), and ``sink_of`` says where the files go. The replay writes them; then
come transaction indexes, and last the fingerprint of the log, by which ``install`` checks that the log is unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FileGoneError, LogDirError, ResnapError, StoreError, UsageError
from resnap.storage.stores.urls import open_store
from resnap.tiering.installing.staging_area import ComparedFile, StagingArea, depended_on, print_segment, prints_of
from resnap.tiering.lost_leader import right_indexes
from resnap.tiering.staged import is_beside_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resnap.replay.watching import Progress
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.sources.files import Sources
    from resnap.tiering.engine import Engine
    from resnap.tiering.installing.staging_area import SegmentPrint, StagedIndex, StagedPrint
    from resnap.tiering.planner import Planned, Planner, Replayed
    from resnap.tiering.selection import Selection

_MOST_NAMED: Final = 20
"""Aborted transactions of one segment that a warning names."""
REPLANS: Final = 3
"""So often a partition is planned again in one run because retention deleted what was to be read."""


class RegeneratedPartition(NamedTuple):
    """One partition whose snapshots are staged."""

    replayed: Replayed
    wrong_indexes: int
    """Transaction indexes that were staged because the batches contradict those that are there, or are not."""


def sink_of(planner: Planner, planned: Iterable[Planned], selection: Selection, into: str) -> str:
    """Return the URL of ``into``, where snapshots are staged.

    Raises:
        StoreError: no such bucket, or no access to it.
        UsageError: a snapshot that a broker could load is there, beside the segments; or ``into`` is no such place.

    """
    sink_url = planner.sink_url(into, selection)
    for plan in planned:
        if is_beside_segments(sink_url, plan.selected):
            there = next((boundary.existing for boundary in plan.plan.boundaries if boundary.existing), None)
            if there is not None:
                hint = "omit --boundaries all, or choose another place"
                raise UsageError(f"{there} would be replaced", hint=hint)
    return sink_url


def regenerate(
    planner: Planner,
    planned: list[Planned],
    sink_url: str,
    progress: Progress,
    report: Callable[[RegeneratedPartition], None],
    *,
    warn: Callable[[str], None] = lambda _: None,
) -> None:
    """Replay what is planned, and stage its snapshots; ``report`` is called with each partition as soon as it is done.

    Raises:
        ResnapError: the replay failed.

    """
    area, prints = StagingArea(open_store(sink_url, planner.engine.s3)), _Prints(planner.engine)
    for replayed in _past_retention(planner, planned, sink_url, progress, together=prints.take):
        one, result = replayed.planned, replayed.result
        partition = one.selected.inventory.partition
        made, unchanged = (prints_of(partition, found) for found in (result.boundaries, one.still_valid))
        indexes = _indexes(planner, area, partition, [*made, *unchanged], warn)
        compared = {
            found.offset: ComparedFile(
                offset=found.offset, sha256=found.comparison.sha256, is_wrong=result.proves_wrong(found)
            )
            for found in result.boundaries
            if found.comparison is not None
        }
        area.put_fingerprint(partition, made, unchanged, prints.of, indexes, compared=compared)
        unread = prints.take_error()
        if planner.run_cache is not None and one.cached is not None:
            planner.run_cache.keep(one.cached, result)
        done = replace(replayed, result=replace(result, error=result.error or unread))
        report(RegeneratedPartition(done, len(indexes)))


def _indexes(
    planner: Planner,
    area: StagingArea,
    partition: PartitionDir,
    staged: Iterable[StagedPrint],
    warn: Callable[[str], None],
) -> list[StagedIndex]:
    """Stage the transaction indexes that are wrong, of a log that begins in remote storage, and return them."""
    if partition.local_from is None:
        return []
    topic_partition = partition.topic_partition
    whole = {one.offset: b"".join(area.chunks(topic_partition, one.offset)) for one in staged if not one.left_out}
    staged_indexes = []
    for segment, body, not_there in right_indexes(partition, whole, planner.sources):
        staged_indexes.append(area.put_index(topic_partition, segment.base_offset, body))
        for txn in not_there[:_MOST_NAMED]:
            warn(
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
        self._known: dict[str, SegmentPrint | ResnapError | None] = {}
        """What was replayed last, by path."""
        self._error: ResnapError | None = None

    def take(self, wave: Sequence[Replayed]) -> None:
        """Read the attributes of the segments that the snapshots of ``wave`` depend on."""
        needed = []
        for replayed in wave:
            partition = replayed.planned.selected.inventory.partition
            snapshots = sorted(prints_of(partition, replayed.result.boundaries), key=lambda snapshot: snapshot.offset)
            needed += depended_on(partition, snapshots)
        self._known = dict(zip((segment.path for segment in needed), self._ask(needed), strict=True))

    def of(self, segments: Sequence[Segment]) -> list[SegmentPrint | None]:
        """Return what ``segments`` are known by; None also for those that cannot be read (``take_error``)."""
        left = [segment for segment in segments if segment.path not in self._known]
        known = self._known | dict(zip((segment.path for segment in left), self._ask(left), strict=True))
        found: list[SegmentPrint | None] = []
        for one in (known[segment.path] for segment in segments):
            if isinstance(one, ResnapError):
                self._error = self._error or one
            found.append(None if isinstance(one, ResnapError) else one)
        return found

    def take_error(self) -> ResnapError | None:
        """Return why the first segment could not be read, since this was called last; None if all could be."""
        error, self._error = self._error, None
        return error

    def _ask(self, segments: Sequence[Segment]) -> list[SegmentPrint | ResnapError | None]:
        return self._engine.each(partial(_print_or_error, sources=self._engine.reading.sources), segments)


def _print_or_error(segment: Segment, sources: Sources) -> SegmentPrint | ResnapError | None:
    """Return the print of a segment, or why it cannot be read, which is a fault of its partition alone."""
    try:
        return print_segment(segment, sources)
    except (LogDirError, StoreError) as error:
        return error
