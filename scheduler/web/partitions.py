"""One partition: why tiering can or cannot be turned on for it, its boundaries, and what snapshots hold."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.api.partitions import Number, Offset, Topic, seen_in
from resnap.scheduler.job.reports import producer_row
from resnap.scheduler.runs.looking import SeenBoundary, difference, name_of
from resnap.scheduler.runs.sightings import SeenPartition
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, Shell, resnap
from resnap.scheduler.web.pages import api_command, destination_of, link, page, partition_path
from resnap.scheduler.web.segments import Mark, SegmentsPicture, segments_picture
from resnap.scheduler.web.timeline import BOUNDARIES, cells, spread_of, state_of
from resnap.scheduler.web.words import READINESS
from resnap.storage.errors import ResnapError

router = APIRouter(include_in_schema=False)
Source = Annotated[str, Query(max_length=4096)]
_USABLE = ("empty", "present", "made")


@router.get("/partitions/{topic}/{partition}")
def show_partition(
    request: Request,
    services: Serving,
    who: Viewer,
    topic: Topic,
    partition: Number,
    source: Source = "",
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Show why, what to do, and a page of boundaries as they are now."""
    places = services.sightings.find(topic, partition, source or None)
    if len(places) > 1:
        values = {"places": places, "kinds": READINESS, "link": link, "path": partition_path(places[0]), "commands": []}
        return page(request, services, who, "places.html", values)
    seen = seen_in(services, topic, partition, source or None)
    boundaries, error = _boundaries(services, seen)
    after = decoded(cursor, int)
    behind = [one for one in boundaries if after is None or one.offset > after[0]]
    shown, following = cut(behind, limit, lambda one: encoded(one.offset))
    path = partition_path(seen)
    values = {
        "seen": seen,
        "word": READINESS[seen.judgement.readiness],
        "error": error,
        "cells": cells(boundaries),
        "spread": spread_of(boundaries),
        "segments": None if error else _segments(services, seen, boundaries),
        "boundaries": [(one, BOUNDARIES[state_of(one)], state_of(one) in _USABLE) for one in shown],
        "has_details": any(one.detail for one in shown),
        "count": len(boundaries),
        "legend": BOUNDARIES,
        "repairs": services.sightings.repairs(seen),
        "link": link,
        "path": path,
        "first_url": link(path, source=source) if cursor else None,
        "next_url": link(path, source=source, cursor=following) if following else None,
        "commands": _commands(request, services, seen),
    }
    return page(request, services, who, "partition.html", values)


@router.get("/partitions/{topic}/{partition}/snapshots/{offset}")
def show_snapshot(
    request: Request,
    services: Serving,
    who: Viewer,
    topic: Topic,
    partition: Number,
    offset: Offset,
    to: Annotated[str, Query(max_length=19, pattern="^[0-9]*$")] = "",
    source: Source = "",
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Show the producers at an offset, and what lies between them and those at another."""
    seen, after = seen_in(services, topic, partition, source or None), decoded(cursor, int)
    loaded = services.looking.snapshot(seen, offset)
    ids = [pid for pid in sorted(loaded.entries) if after is None or pid > after[0]][: limit + 1]
    shown, following = cut(ids, limit, encoded)
    other = int(to) if to else None
    path = f"{partition_path(seen)}/snapshots/{offset}"
    between = None
    if other is not None:
        between = difference(loaded.entries, services.looking.snapshot(seen, other).entries)
    values = {
        "seen": seen,
        "offset": offset,
        "to": other,
        "file": loaded.file,
        "rows": [producer_row(loaded.entries[pid]) for pid in shown],
        "count": len(loaded.entries),
        "between": between,
        "changes": [] if between is None else [_change(*one) for one in between.changed[:limit]],
        "limit": limit,
        "link": link,
        "path": path,
        "explain_path": f"{partition_path(seen)}/explain/{offset}",
        "source": source,
        "partition_url": link(partition_path(seen), source=source),
        "first_url": link(path, source=source, to=to) if cursor else None,
        "next_url": link(path, source=source, to=to, cursor=following) if following else None,
        "commands": [
            Command(says="the same in a shell", line=resnap("inspect", loaded.file)),
            Command(
                says="which batches made these entries",
                line=Shell.of(services).line("explain", str(seen.row["path"]), name_of(seen), str(offset)),
            ),
            api_command(request, services, link(f"/v1{path}", source=seen.source), "the same from the API"),
        ],
    }
    return page(request, services, who, "snapshot.html", values)


def _boundaries(services: Services, seen: SeenPartition) -> tuple[list[SeenBoundary], ResnapError | None]:
    """Return the boundaries as they are now, or why they cannot be looked at; what was seen is shown all the same."""
    try:
        return services.looking.boundaries(seen), None
    except ResnapError as error:
        return [], error


def _segments(services: Services, seen: SeenPartition, boundaries: list[SeenBoundary]) -> SegmentsPicture | None:
    """Return the picture of the segments as they are now; None where they cannot be looked at."""
    try:
        segments = services.looking.segments(seen)
    except ResnapError:
        return None
    repairs = services.sightings.repairs(seen)
    shipped = frozenset[int]().union(*(one.offsets for one in repairs if one.how == "shipped"))
    live: Any = seen.row.get("live") or {}
    offsets = {
        "log start": seen.row["logStartOffset"],
        "last stable offset": live.get("lastStableOffset"),
        "high watermark": seen.row["highWatermark"],
    }
    marks = [Mark(name, offset) for name, offset in offsets.items() if isinstance(offset, int)]
    return segments_picture(segments, boundaries, shipped, marks)


def _change(producer_id: int, before: Any, after: Any) -> tuple[int, list[tuple[str, object, object]]]:  # noqa: ANN401
    """Return the fields that differ between two entries of a producer."""
    return producer_id, [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _commands(request: Request, services: Services, seen: SeenPartition) -> list[Command]:
    body = {
        "kind": "regenerate",
        "sources": [seen.source],
        "partitions": [name_of(seen)],
        "destination": destination_of(services),
    }
    path = link(f"/v1{partition_path(seen)}", source=seen.source)
    return [
        *Shell.of(services).partition(seen, services.sightings.repairs(seen)),
        api_command(request, services, "/v1/replays", "have this service make them", body),
        api_command(request, services, path, "this partition from the API"),
    ]
