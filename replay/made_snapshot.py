"""What is written at a boundary: its snapshot, and how one that lies there already compares with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from replay.boundary_state import BoundaryState, idle_state
from replay.comparison import Comparison, compare
from replay.results import BoundaryResult, Outcome
from storage.errors import FormatError, LogDirError, ObjectNotFoundError
from storage.log.producer_snapshot import read_snapshot_array
from storage.source import PLAIN

if TYPE_CHECKING:
    from replay.partial_state import IntArray
    from replay.plan import Boundary, PartitionPlan
    from replay.ranges import IdRange
    from replay.results import SnapshotSink
    from storage.source import Sources


def make_snapshot(
    plan: PartitionPlan,
    boundary: Boundary,
    found: BoundaryState,
    sink: SnapshotSink,
    *,
    as_of_ms: int,
    seen: IntArray,
    window_start_offset: int | None,
    ids: IdRange | None = None,
    sources: Sources = PLAIN,
) -> BoundaryResult:
    """Write the snapshot of ``boundary``, and compare the one that is there with it, as far as ``ids`` go."""
    return BoundaryResult(
        boundary=boundary,
        outcome=Outcome.REBUILT,
        as_of_ms=as_of_ms,
        window_start_offset=window_start_offset,
        entries=len(found.entries),
        digest=sink.write(plan.topic_partition, boundary.offset, found.entries),
        left_out=found.left_out,
        comparison=_compare_existing(
            plan,
            boundary,
            found,
            as_of_ms,
            seen=seen,
            window_start_offset=window_start_offset,
            ids=ids,
            sources=sources,
        ),
    )


def _compare_existing(
    plan: PartitionPlan,
    boundary: Boundary,
    found: BoundaryState,
    as_of_ms: int,
    *,
    seen: IntArray,
    window_start_offset: int | None,
    ids: IdRange | None,
    sources: Sources,
) -> Comparison | None:
    if boundary.existing is None:
        return None
    try:
        data, facts = sources.read(boundary.existing), sources.look(boundary.existing)
        existing = read_snapshot_array(data)
    except (LogDirError, ObjectNotFoundError, FormatError):
        return None  # the inventory has called it corrupt already, or it went away meanwhile
    # What was left out is no contradiction to a snapshot that has it.
    known = np.setdiff1d(seen, [producer.producer_id for producer in found.left_out])
    comparison = compare(
        existing if ids is None else ids.of(existing),
        found.entries,
        kept_after_ms=plan.rules.kept_after_ms(as_of_ms),
        written_ms=facts.mtime_ns // 1_000_000,
        expiration_ms=plan.rules.written_under.expiration_ms,
        seen=known,
        read_from=window_start_offset or 0,
        is_empty=not len(existing),
    )
    return replace(comparison, sha256=hashlib.sha256(data).hexdigest())


def make_idle(plan: PartitionPlan, sink: SnapshotSink, sources: Sources = PLAIN) -> list[BoundaryResult]:
    """Write the snapshots for which nothing need be read."""
    made = []
    for boundary in plan.idle:
        found = idle_state(boundary)
        made.append(
            make_snapshot(
                plan, boundary, found, sink, as_of_ms=plan.rules.as_of.now_ms, seen=found.entries["producer_id"],
                window_start_offset=None, sources=sources,
            )
        )  # fmt: skip
    return made
