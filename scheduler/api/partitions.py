"""Routes of partitions: whether tiering can be turned on, their boundaries, and the content of snapshots."""

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Path, Query

from resnap.scheduler.access.roles import Principal
from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.paging import PAGE, Limit, Paging, TaggedRoute
from resnap.scheduler.api.problems import HttpError, problems
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
from resnap.scheduler.runs.partition_details import difference, name_of
from resnap.scheduler.runs.run import Row
from resnap.scheduler.runs.scans import PartitionFilter, ScannedPartition
from resnap.scheduler.service.services import Services
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy

router = APIRouter(prefix="/v1", tags=["partitions"], route_class=TaggedRoute)
_one = APIRouter(prefix="/partitions/{topic}/{partition}", route_class=TaggedRoute)
"""The details of one partition."""
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


def seen_in(services: Serving, _: Viewer, topic: Topic, partition: Number, source: Source = None) -> ScannedPartition:
    """Return the one partition that an address is of.

    Raises:
        HttpError: no scan has seen it, or not in ``source``; or several sources have it, and none is named.

    """
    found = services.scans.find(topic, partition, source)
    if not found:
        where = "" if source is None else f" in {source or 'a source without a name'}"
        hint = "scan its source, then try again; GET /v1/sources lists what is scanned"
        raise HttpError("not-found", f"no scan has seen {topic}-{partition}{where}", hint=hint)
    if len(found) > 1:
        places = ", ".join(partition.source for partition in found)
        raise HttpError("conflict", f"{topic}-{partition} is in {places}", hint="say which one is meant: ?source=")
    return found[0]


Seen: TypeAlias = Annotated[ScannedPartition, Depends(seen_in)]


def _partition_names(seen: ScannedPartition) -> dict[str, Any]:
    """Return what names a partition in every answer about it."""
    return {"source": seen.source, "topic": seen.topic, "partition": seen.partition}


@router.get("/sources", summary="What is scanned")
def list_sources(services: Serving, _: Viewer) -> SourcesAnswer:
    """Return every source, and when it was scanned."""
    return SourcesAnswer(sources=[SourceAnswer.model_validate(source) for source in services.scans.sources()])


async def wanted_partitions(
    topic: Annotated[str | None, Query(max_length=260, description="A glob.")] = None,
    verdict: Annotated[list[Verdict] | None, Query(description="May be given several times.")] = None,
    unblocked_by: Annotated[
        list[UnblockedBy] | None, Query(alias="unblockedBy", description="Only those that this unblocks.")
    ] = None,
    source: Source = None,
) -> PartitionFilter:
    """Return which partitions are asked for; immediate, and so without a thread of its own."""
    return PartitionFilter(
        topic=topic, verdict=tuple(verdict or ()), unblocked_by=tuple(unblocked_by or ()), source=source
    )


Wanted: TypeAlias = Annotated[PartitionFilter, Depends(wanted_partitions)]


@router.get("/partitions", summary="Can tiering be turned on yet?")
def list_partitions(services: Serving, _: Viewer, wanted: Wanted, paging: Paging) -> PartitionsAnswer:
    """Return a page of partitions by topic and number, as the last scan saw them, with what was made since."""
    seen = services.scans.page(wanted, limit=paging.most, after=paging.after(str, int, str))
    page, following = paging.cut(seen, lambda partition: (partition.topic, partition.partition, partition.source))
    answers = [PartitionAnswer.model_validate(partition).model_copy(update={"row": None}) for partition in page]
    return PartitionsAnswer(partitions=answers, counts=services.scans.counts(wanted), next_cursor=following)


@_one.get("", summary="One partition", responses=problems("not-found", "conflict"))
def get_partition(seen: Seen) -> PartitionAnswer:
    """Return a partition with all that the scan has of it."""
    return PartitionAnswer.model_validate(seen)


@_one.get("/boundaries", summary="Its boundaries", responses=_READ)
def list_boundaries(services: Serving, seen: Seen, paging: Paging) -> BoundariesAnswer:
    """Return a page of boundaries as they are now, by offset."""
    page, following = paging.cut_whole(services.partition_details.boundaries(seen), lambda one: one.offset, int)
    return BoundariesAnswer(
        **_partition_names(seen),
        boundaries=[BoundaryAnswer.model_validate(boundary) for boundary in page],
        next_cursor=following,
    )


@_one.get("/snapshots/{offset}", summary="What a snapshot holds", responses=_READ)
def get_snapshot(services: Serving, seen: Seen, offset: Offset, paging: Paging) -> SnapshotAnswer:
    """Return entries by producer id: of the snapshot beside the segments, else of the one that a run has made."""
    file, entries = services.partition_details.snapshot(seen, offset)
    page, following = paging.cut_whole(sorted(entries), lambda pid: pid, int)
    return SnapshotAnswer(
        **_partition_names(seen),
        offset=offset,
        file=file,
        entries=[producer_row(entries[pid]) for pid in page],
        count=len(entries),
        next_cursor=following,
    )


@_one.get("/snapshots/{offset}/difference", summary="What lies between two snapshots", responses=_READ)
def compare_snapshots(
    services: Serving,
    seen: Seen,
    offset: Offset,
    to: Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="Offset of the other snapshot.")],
    limit: Limit = PAGE,
) -> DifferenceAnswer:
    """Return the producers that came, went, and went on between two boundaries."""
    before, after = (services.partition_details.snapshot(seen, boundary)[1] for boundary in (offset, to))
    found = difference(before, after)
    return DifferenceAnswer(
        **_partition_names(seen),
        from_offset=offset,
        to_offset=to,
        added=found.added[:limit],
        removed=found.removed[:limit],
        changed=[ChangedEntry(producer_id=pid, before=a, after=b) for pid, a, b in found.changed[:limit]],
        same=found.same,
        is_cut=max(len(found.added), len(found.removed), len(found.changed)) > limit,
    )


@_one.get("/explain/{offset}", summary="Why an entry is what it is", responses={**_READ, **problems("quota-exceeded")})
def explain_entry(
    services: Serving, who: Viewer, seen: Seen, offset: Offset, producer_id: ProducerId
) -> ExplanationAnswer:
    """Return the batches that made the entry of a producer in the snapshot at an offset; reads segments."""
    return ExplanationAnswer(batches=explain_rows(services, who, seen, offset, producer_id))


def explain_rows(
    services: Services, who: Principal, seen: ScannedPartition, offset: int, producer_id: int
) -> list[Row]:
    """Return the batches that made an entry, a row per role; it is charged to ``who``, since it reads segments.

    Raises:
        QuotaExceededError: they are to wait.
        ResnapError: a segment cannot be read.

    """
    services.admission.charge(who.name, [f"{seen.source} {name_of(seen)}"])
    return services.partition_details.explain(seen, offset, producer_id)


router.include_router(_one)
