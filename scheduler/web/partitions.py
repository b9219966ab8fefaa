"""The pages of one partition: whether tiering can be turned on and why not, its boundaries, snapshots and entries."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from resnap.replay.explain import Role
from resnap.scheduler.api.paging import Paging
from resnap.scheduler.api.partitions import Number, Offset, ProducerId, Seen, Topic, explained, seen_in
from resnap.scheduler.job.reports import producer_row
from resnap.scheduler.runs.partition_details import NoSnapshotError, ScannedBoundary, difference, name_of
from resnap.scheduler.runs.scans import ScannedPartition
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, resnap
from resnap.scheduler.web.pages import Context, PageContext, link, partition_path, turned
from resnap.scheduler.web.partition_pictures import (
    BOUNDARIES,
    SegmentsPicture,
    cells,
    segments_picture,
    spread_of,
    state_of,
)
from resnap.scheduler.web.words import VERDICTS, waits_for
from resnap.storage.errors import ResnapError

router = APIRouter(prefix="/partitions/{topic}/{partition}", include_in_schema=False)
Source = Annotated[str, Query(max_length=4096)]
_USABLE = ("empty", "present")
MEANS: Final = {
    Role.FIRST_SEEN: ("first seen", "the producer's first batch that was read; it gives the entry nothing"),
    Role.TRANSACTION_START: ("opened the transaction", "gives the offset from which a transaction is open"),
    Role.LAST_BATCH: ("last batch", "gives the sequences and the last offset"),
    Role.LAST_MARKER: ("last marker", "ended a transaction; gives the coordinator's epoch"),
}
"""What each batch is to an entry, and what the entry has from it; in the order of a log."""


@router.get("")
def show_partition(context: Context, topic: Topic, partition: Number, paging: Paging, source: Source = "") -> Response:
    """Show why, what to do, and a page of boundaries as they are now."""
    services = context.services
    places = services.scans.find(topic, partition, source or None)
    if len(places) > 1:
        several = {"places": places, "kinds": VERDICTS, "path": partition_path(places[0])}
        return context.page("places.html", several)
    seen = seen_in(services, context.who, topic, partition, source or None)
    boundaries, error = _boundaries(services, seen)
    shown, following = paging.cut_whole(boundaries, lambda boundary: boundary.offset, int)
    path, repairs = partition_path(seen), services.scans.repairs(seen)
    staged = frozenset[int]().union(*(repair.offsets for repair in repairs if repair.how == "regenerated"))
    values: dict[str, object] = {
        "seen": seen,
        "word": VERDICTS[seen.judgement.verdict],
        "waits_for": waits_for(seen.judgement),
        "error": error,
        "cells": cells(boundaries),
        "spread": spread_of(boundaries),
        "segments": None if error else _segments(services, seen, boundaries),
        "boundaries": [
            (boundary, BOUNDARIES[state_of(boundary)], state_of(boundary) in _USABLE or boundary.offset in staged)
            for boundary in shown
        ],
        "has_details": any(boundary.detail for boundary in shown),
        "count": len(boundaries),
        "legend": BOUNDARIES,
        "repairs": repairs,
        "path": path,
        **turned(path, paging, following, source=source),
        "commands": _commands(context, seen),
    }
    return context.page("partition.html", values)


@router.get("/snapshots/{offset}")
def show_snapshot(
    context: Context,
    seen: Seen,
    offset: Offset,
    paging: Paging,
    to: Annotated[str, Query(max_length=19, pattern="^[0-9]*$")] = "",
    source: Source = "",
) -> Response:
    """Show the producers at an offset, and what is between them and those at another."""
    details = context.services.partition_details
    loaded = details.snapshot(seen, offset)
    shown, following = paging.cut_whole(sorted(loaded.entries), lambda pid: pid, int)
    between = difference(loaded.entries, details.snapshot(seen, int(to)).entries) if to else None
    path, words = f"{partition_path(seen)}/snapshots/{offset}", (seen.row["path"], name_of(seen), str(offset))
    values = {
        "seen": seen,
        "offset": offset,
        "to": int(to) if to else None,
        "file": loaded.file,
        "rows": [producer_row(loaded.entries[pid]) for pid in shown],
        "count": len(loaded.entries),
        "between": between,
        "changes": [] if between is None else [_change(*changed) for changed in between.changed[: paging.limit]],
        "limit": paging.limit,
        "path": path,
        "explain_path": f"{partition_path(seen)}/explain/{offset}",
        "source": source,
        "partition_url": link(partition_path(seen), source=source),
        **turned(path, paging, following, source=source, to=to),
        "commands": [
            Command("the same in a shell", resnap("inspect", loaded.file)),
            Command("which batches made these entries", context.shell.line("explain", *words)),
            context.api(link(f"/v1{path}", source=seen.source), "the same from the API"),
        ],
    }
    return context.page("snapshot.html", values)


@router.get("/explain/{offset}")
def show_explanation(
    context: Context, seen: Seen, offset: Offset, producer_id: ProducerId, source: Source = ""
) -> Response:
    """Show the batches that made the entry of a producer at an offset, and the entry; reads segments."""
    batches = explained(context.services, context.who, seen, offset, producer_id)
    path = partition_path(seen)
    values = {
        "seen": seen,
        "offset": offset,
        "producer_id": producer_id,
        "batches": sorted(batches, key=lambda row: row["baseOffset"]),
        "means": {role.value: words for role, words in MEANS.items()},
        "entry": _entry(context.services, seen, offset, producer_id),
        "partition_url": link(path, source=source),
        "snapshot_url": link(f"{path}/snapshots/{offset}", source=source),
        "commands": _explanation_commands(context, seen, offset, producer_id),
    }
    return context.page("explain.html", values)


def _boundaries(services: Services, seen: ScannedPartition) -> tuple[list[ScannedBoundary], ResnapError | None]:
    """Return the boundaries as they are now, or why they cannot be read; what was seen is shown all the same."""
    try:
        return services.partition_details.boundaries(seen), None
    except ResnapError as error:
        return [], error


def _segments(services: Services, seen: ScannedPartition, boundaries: list[ScannedBoundary]) -> SegmentsPicture | None:
    """Return the picture of the segments as they are now; None where they cannot be read."""
    try:
        segments = services.partition_details.segments(seen)
    except ResnapError:
        return None
    repairs = services.scans.repairs(seen)
    shipped = frozenset[int]().union(*(repair.offsets for repair in repairs if repair.how == "shipped"))
    live = seen.row.get("live") or {}
    offsets = {
        "log start": seen.row["logStartOffset"],
        "last stable offset": live.get("lastStableOffset"),
        "high watermark": seen.row["highWatermark"],
    }
    marks = {name: offset for name, offset in offsets.items() if isinstance(offset, int)}
    return segments_picture(segments, boundaries, shipped, marks)


def _change(producer_id: int, before: Any, after: Any) -> tuple[int, list[tuple[str, object, object]]]:  # noqa: ANN401
    """Return the fields that differ between two entries of a producer."""
    return producer_id, [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _commands(context: PageContext, seen: ScannedPartition) -> list[Command]:
    body = {
        "kind": "regenerate",
        "sources": [seen.source],
        "partitions": [name_of(seen)],
        "destination": context.destination,
    }
    return [
        *context.shell.partition(seen, context.services.scans.repairs(seen)),
        context.api("/v1/replays", "let this service make them", body),
        context.api(link(f"/v1{partition_path(seen)}", source=seen.source), "this partition from the API"),
    ]


def _entry(services: Services, seen: ScannedPartition, offset: int, producer_id: int) -> Mapping[str, object] | None:
    """Return what the snapshot there has of the producer; None if there is no snapshot, or no entry in it."""
    try:
        entries = services.partition_details.snapshot(seen, offset).entries
    except NoSnapshotError:
        return None
    return producer_row(entries[producer_id]) if producer_id in entries else None


def _explanation_commands(context: PageContext, seen: ScannedPartition, offset: int, producer_id: int) -> list[Command]:
    words = (seen.row["path"], name_of(seen), str(offset), "--producer-id", str(producer_id))
    url = link(f"/v1{partition_path(seen)}/explain/{offset}", producerId=producer_id, source=seen.source)
    return [
        Command("the same in a shell", context.shell.line("explain", *words)),
        context.api(url, "the same from the API"),
    ]
