"""Partitions: whether tiering can be turned on for them, their boundaries, and what snapshots hold."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from resnap.scheduler.access.roles import Principal
from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.etags import validated
from resnap.scheduler.api.paging import PAGE, Cursor, Limit, cut, decoded, encoded
from resnap.scheduler.api.problem_kinds import ConflictError, NotFoundError
from resnap.scheduler.api.problems import problems
from resnap.scheduler.api.responses import (
    BoundariesAnswer,
    BoundaryAnswer,
    ChangedEntry,
    DifferenceAnswer,
    ExplanationAnswer,
    PartitionAnswer,
    PartitionsAnswer,
    SnapshotAnswer,
    SourceAnswer,
    SourcesAnswer,
)
from resnap.scheduler.job.reports import producer_row
from resnap.scheduler.runs.looking import difference, name_of
from resnap.scheduler.runs.run import Row
from resnap.scheduler.runs.sightings import SeenFilter, SeenPartition
from resnap.scheduler.service.services import Services
from resnap.tiering.readiness import Readiness

router = APIRouter(prefix="/v1", tags=["partitions"])
Topic = Annotated[str, Path(max_length=249)]
Number = Annotated[int, Path(ge=0, le=(1 << 31) - 1)]
Offset = Annotated[int, Path(ge=0, le=(1 << 63) - 1)]
ProducerId = Annotated[
    int, Query(alias="producerId", ge=0, le=(1 << 63) - 1, description="The producer whose entry it is.")
]
Source = Annotated[str | None, Query(max_length=4096, description="Which source, where several have the partition.")]
_READ = problems(
    "not-found", "conflict", "unusable-request", "unusable-data", "log-dir-unusable", "file-gone", "object-not-found",
    "store-failed", "store-denied", "store-unavailable", "object-changed",
)  # fmt: skip


@router.get("/sources", response_model=SourcesAnswer, summary="What is looked at", responses={304: {}})
def list_sources(request: Request, services: Serving, _: Viewer) -> Response:
    """Return every source, and when it was looked at."""
    return validated(request, SourcesAnswer(sources=[SourceAnswer.of(one) for one in services.sightings.sources()]))


@router.get(
    "/partitions",
    response_model=PartitionsAnswer,
    summary="Can tiering be turned on yet?",
    responses={304: {}},
)
def list_partitions(
    request: Request,
    services: Serving,
    _: Viewer,
    topic: Annotated[str | None, Query(max_length=260, description="A glob.")] = None,
    readiness: Annotated[list[Readiness] | None, Query(description="May be given several times.")] = None,
    source: Source = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return a page of partitions by topic and number, as the last scan saw them, with what was made since."""
    wanted = SeenFilter(topic=topic, readiness=tuple(readiness or ()), source=source)
    after = decoded(cursor, str, int, str)
    seen = services.sightings.page(
        wanted, limit=limit + 1, after=None if after is None else (after[0], after[1], after[2])
    )
    page, following = cut(seen, limit, lambda one: encoded(one.topic, one.partition, one.source))
    answer = PartitionsAnswer(
        partitions=[PartitionAnswer.of(one, row=False) for one in page],
        counts=services.sightings.counts(wanted),
        next_cursor=following,
    )
    return validated(request, answer)


@router.get(
    "/partitions/{topic}/{partition}",
    response_model=PartitionAnswer,
    summary="One partition",
    responses={304: {}, **problems("not-found", "conflict")},
)
def get_partition(
    request: Request, services: Serving, _: Viewer, topic: Topic, partition: Number, source: Source = None
) -> Response:
    """Return a partition with all that the scan has of it."""
    return validated(request, PartitionAnswer.of(seen_in(services, topic, partition, source), row=True))


@router.get(
    "/partitions/{topic}/{partition}/boundaries",
    response_model=BoundariesAnswer,
    summary="Its boundaries",
    responses={304: {}, **_READ},
)
def list_boundaries(
    request: Request,
    services: Serving,
    _: Viewer,
    topic: Topic,
    partition: Number,
    source: Source = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return a page of boundaries as they are now, by offset."""
    seen, after = seen_in(services, topic, partition, source), decoded(cursor, int)
    found = [one for one in services.looking.boundaries(seen) if after is None or one.offset > after[0]]
    page, following = cut(found, limit, lambda one: encoded(one.offset))
    answer = BoundariesAnswer(
        source=seen.source,
        topic=topic,
        partition=partition,
        boundaries=[BoundaryAnswer(**one._asdict()) for one in page],
        next_cursor=following,
    )
    return validated(request, answer)


@router.get(
    "/partitions/{topic}/{partition}/snapshots/{offset}",
    response_model=SnapshotAnswer,
    summary="What a snapshot holds",
    responses={304: {}, **_READ},
)
def get_snapshot(
    request: Request,
    services: Serving,
    _: Viewer,
    topic: Topic,
    partition: Number,
    offset: Offset,
    source: Source = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return entries by producer id: of the snapshot beside the segments, else of the one that a run has made."""
    seen, after = seen_in(services, topic, partition, source), decoded(cursor, int)
    loaded = services.looking.snapshot(seen, offset)
    ids = [pid for pid in sorted(loaded.entries) if after is None or pid > after[0]][: limit + 1]
    page, following = cut(ids, limit, encoded)
    answer = SnapshotAnswer(
        source=seen.source,
        topic=topic,
        partition=partition,
        offset=offset,
        file=loaded.file,
        entries=[producer_row(loaded.entries[pid]) for pid in page],
        count=len(loaded.entries),
        next_cursor=following,
    )
    return validated(request, answer)


@router.get(
    "/partitions/{topic}/{partition}/snapshots/{offset}/difference",
    response_model=DifferenceAnswer,
    summary="What lies between two snapshots",
    responses={304: {}, **_READ},
)
def compare_snapshots(
    request: Request,
    services: Serving,
    _: Viewer,
    topic: Topic,
    partition: Number,
    offset: Offset,
    to: Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="Offset of the other snapshot.")],
    source: Source = None,
    limit: Limit = PAGE,
) -> Response:
    """Return the producers that came, went, and went on between two boundaries."""
    seen = seen_in(services, topic, partition, source)
    found = difference(services.looking.snapshot(seen, offset).entries, services.looking.snapshot(seen, to).entries)
    changed = [ChangedEntry(producer_id=pid, before=dict(a), after=dict(b)) for pid, a, b in found.changed[:limit]]
    answer = DifferenceAnswer(
        source=seen.source,
        topic=topic,
        partition=partition,
        from_offset=offset,
        to_offset=to,
        added=[dict(row) for row in found.added[:limit]],
        removed=[dict(row) for row in found.removed[:limit]],
        changed=changed,
        same=found.same,
        is_cut=max(len(found.added), len(found.removed), len(found.changed)) > limit,
    )
    return validated(request, answer)


@router.get(
    "/partitions/{topic}/{partition}/explain/{offset}",
    response_model=ExplanationAnswer,
    summary="Why an entry is what it is",
    responses={304: {}, **_READ, **problems("quota-exceeded")},
)
def explain_entry(
    request: Request,
    services: Serving,
    who: Viewer,
    topic: Topic,
    partition: Number,
    offset: Offset,
    producer_id: ProducerId,
    source: Source = None,
) -> Response:
    """Return the batches that made the entry of a producer in the snapshot at an offset; reads segments."""
    seen = seen_in(services, topic, partition, source)
    batches = [dict(row) for row in explained(services, who, seen, offset, producer_id)]
    return validated(request, ExplanationAnswer(batches=batches))


def explained(services: Services, who: Principal, seen: SeenPartition, offset: int, producer_id: int) -> Sequence[Row]:
    """Return the batches that made an entry, a row per role; it is charged to ``who``, since it reads segments.

    Raises:
        QuotaExceededError: they are to wait.
        ResnapError: a segment cannot be read.

    """
    services.admission.charge(who.name, [f"{seen.source} {name_of(seen)}"])
    return services.looking.explain(seen, offset, producer_id)


def seen_in(services: Services, topic: str, partition: int, source: str | None) -> SeenPartition:
    """Return the one partition that is meant.

    Raises:
        NotFoundError: no scan has seen it.
        ConflictError: several sources have it, and none is named.

    """
    found = services.sightings.find(topic, partition, source)
    if not found:
        raise NotFoundError(f"no scan has seen {topic}-{partition}", hint="have its source scanned, then ask again")
    if len(found) > 1:
        places = ", ".join(one.source for one in found)
        raise ConflictError(f"{topic}-{partition} is in {places}", hint="say which one is meant: ?source=")
    return found[0]
