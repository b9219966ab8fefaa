"""Writes the snapshot of a boundary, and compares an existing snapshot with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from resnap.replay.boundary_state import BoundaryState, harmful, idle_state
from resnap.replay.comparison import IdleSince, compare
from resnap.replay.explain import batches_of
from resnap.replay.results import BoundaryResult, Outcome
from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError
from resnap.storage.log.producer_snapshot import ENTRY_DTYPE, snapshot_arrays
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.replay.explain import Batch
    from resnap.replay.kernel.summary import Array, IntArray
    from resnap.replay.plan import Boundary, PartitionPlan
    from resnap.replay.ranges import IdRange
    from resnap.replay.results import SnapshotSink
    from resnap.storage.sources.files import Sources


IdleTimes: TypeAlias = dict[tuple[int, int, int], tuple[int, int]]
"""Since when producers were idle (``IdleSince``), by id, last offset and timestamp of their entries."""
NEVER: Final = np.iinfo(np.int64).max


def make_snapshot(
    plan: PartitionPlan,
    boundary: Boundary,
    found: BoundaryState,
    sink: SnapshotSink,
    *,
    as_of_ms: int,
    seen: IntArray,
    window_start_offset: int | None,
    known_from_offset: int,
    ids: IdRange | None = None,
    sources: Sources = PLAIN,
    lacks_records: bool = False,
    idle_times: IdleTimes | None = None,
) -> BoundaryResult:
    """Write the snapshot of ``boundary``, and compare the existing one with it, within ``ids``.

    ``idle_times`` has what was read of the batches for boundaries below, and gets what is read for this one.
    """
    digest = sink.write(plan.topic_partition, boundary.offset, found.entries)
    existing = None if boundary.existing is None else _existing(boundary.existing, ids, sources)
    comparison = None
    if existing is not None:
        comparison = compare(
            existing.entries,
            found.entries,
            kept_after_ms=plan.rules.kept_after_ms(as_of_ms),
            written_ms=existing.written_ms,
            expiration_ms=plan.rules.written_under.expiration_ms,
            seen=seen,
            # Where nothing was read, nothing is known of any batch.
            read_from=boundary.offset if window_start_offset is None else window_start_offset,
            begins=plan.known_from(),
            left_out=[producer.producer_id for producer in harmful(found.left_out)],
            is_empty=existing.is_empty,
            lacks_records=lacks_records,
            idle_since=partial(_idle_since, plan, boundary, sources, {} if idle_times is None else idle_times),
        )
        comparison = replace(comparison, sha256=existing.sha256)
    return BoundaryResult(
        boundary=boundary,
        outcome=Outcome.REBUILT,
        as_of_ms=as_of_ms,
        window_start_offset=window_start_offset,
        known_from_offset=known_from_offset,
        entries=len(found.entries),
        digest=digest,
        left_out=found.left_out,
        comparison=comparison,
    )


def _idle_since(
    plan: PartitionPlan, boundary: Boundary, sources: Sources, known: IdleTimes, entries: Array
) -> IdleSince:
    """Return since when each entry was idle before its last marker or data; that is read again from the batches.

    An entry with an open transaction does not expire: the timestamp of a transactional batch does not count.
    """
    keys = list(zip(*(entries[name].tolist() for name in ("producer_id", "last_offset", "timestamp")), strict=True))
    unknown = {key[0]: key for key in keys if key not in known}
    batches: dict[int, list[Batch]] = {producer_id: [] for producer_id in unknown}
    left = set(unknown)
    try:
        for segment in reversed(plan.segments[: boundary.segment_index + 1]):
            if not left:
                break
            here: dict[int, list[Batch]] = {}
            for producer_id, batch in batches_of(segment, left, sources):
                here.setdefault(producer_id, []).append(batch)
            for producer_id, found in here.items():
                batches[producer_id][:0] = found
                if len({batch.is_marker for batch in batches[producer_id]}) == len((True, False)):
                    left.remove(producer_id)
    except (LogDirError, ObjectNotFoundError, FormatError):
        batches = {}  # it has gone since it was read: nothing explains these entries
    for producer_id, key in unknown.items():
        known[key] = _idle_times(batches.get(producer_id, []))
    return IdleSince(*(np.array([known[key][which] for key in keys], dtype=np.int64) for which in range(2)))


def _idle_times(batches: Iterable[Batch]) -> tuple[int, int]:
    """Return since when the entry of a producer with ``batches`` was idle, before its last marker and data."""
    since_data: list[int] = []
    since_marker: list[int] = []
    before_marker, before_data = NEVER, 0
    for batch in batches:
        if batch.is_marker:
            before_marker = min(since_data, default=NEVER)
            since_data.append(batch.timestamp)
            since_marker, before_data = [batch.timestamp], NEVER
        else:
            before_data = min(since_marker, default=before_data)
            since_data = [] if batch.is_transactional else [batch.timestamp]
            since_marker += [] if batch.is_transactional else [batch.timestamp]
    return before_marker, before_data


class _Existing(NamedTuple):
    """An existing snapshot, or the part of it that a task compares."""

    entries: Array
    is_empty: bool
    """Whether it has no entry."""
    sha256: str
    written_ms: int


def _existing(locator: str, ids: IdRange | None, sources: Sources) -> _Existing | None:
    """Read a snapshot, and keep the entries of ``ids``: all entries of a large run may exceed a task's memory."""
    digest = hashlib.sha256()

    def read(position: int, length: int) -> bytes:
        data = reader.read(position, length)
        digest.update(data)
        return data

    try:
        with sources.open(locator) as reader:
            parts = snapshot_arrays(read, reader.size_bytes)
            kept = [entries if ids is None else ids.of(entries).copy() for entries in parts]
        written_ms = sources.facts(locator).mtime_ns // 1_000_000
    except (LogDirError, ObjectNotFoundError, FormatError):
        return None  # the inventory has called it corrupt already, or it went away meanwhile
    # Joining turns numbers into the machine's own byte order.
    entries = np.concatenate(kept).astype(ENTRY_DTYPE) if kept else np.zeros(0, dtype=ENTRY_DTYPE)
    return _Existing(entries, is_empty=not kept, sha256=digest.hexdigest(), written_ms=written_ms)


def make_idle(plan: PartitionPlan, sink: SnapshotSink, sources: Sources = PLAIN) -> list[BoundaryResult]:
    """Write the snapshots that need no reading."""
    made = []
    for boundary in plan.idle:
        found = idle_state(boundary)
        made.append(
            make_snapshot(
                plan, boundary, found, sink, as_of_ms=plan.rules.as_of.now_ms, seen=found.entries["producer_id"],
                window_start_offset=None, known_from_offset=plan.known_from(), sources=sources,
            )
        )  # fmt: skip
    return made
