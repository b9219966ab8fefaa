"""Why an entry of a snapshot is what it is: the batches that made it."""

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from resnap.replay.explain import Role
from resnap.scheduler.api.auth import Serving, Viewer
from resnap.scheduler.api.partitions import Number, Offset, ProducerId, Topic, explained, seen_in
from resnap.scheduler.job.reports import producer_row
from resnap.scheduler.runs.looking import NoSnapshotError, name_of
from resnap.scheduler.runs.sightings import SeenPartition
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command, Shell
from resnap.scheduler.web.pages import api_command, link, page, partition_path

router = APIRouter(include_in_schema=False)
MEANS: Final = {
    Role.FIRST_SEEN: ("first seen", "the producer's first batch that was read; it gives the entry nothing"),
    Role.TRANSACTION_START: ("opened the transaction", "gives the offset from which a transaction is open"),
    Role.LAST_BATCH: ("last batch", "gives the sequences and the last offset"),
    Role.LAST_MARKER: (
        "last marker",
        "ended a transaction; gives the coordinator's epoch",
    ),
}
"""What each batch is to an entry, and what the entry has from it; in the order of a log."""


@router.get("/partitions/{topic}/{partition}/explain/{offset}")
def show_explanation(
    request: Request,
    services: Serving,
    who: Viewer,
    topic: Topic,
    partition: Number,
    offset: Offset,
    producer_id: ProducerId,
    source: Annotated[str, Query(max_length=4096)] = "",
) -> Response:
    """Show the batches that made the entry of a producer at an offset, and the entry; reads segments."""
    seen = seen_in(services, topic, partition, source or None)
    batches = explained(services, who, seen, offset, producer_id)
    path = partition_path(seen)
    values = {
        "seen": seen,
        "offset": offset,
        "producer_id": producer_id,
        "batches": sorted(batches, key=lambda row: int(str(row["baseOffset"]))),
        "means": {role.value: words for role, words in MEANS.items()},
        "entry": _entry(services, seen, offset, producer_id),
        "partition_url": link(path, source=source),
        "snapshot_url": link(f"{path}/snapshots/{offset}", source=source),
        "commands": _commands(request, services, seen, offset, producer_id),
    }
    return page(request, services, who, "explain.html", values)


def _entry(services: Services, seen: SeenPartition, offset: int, producer_id: int) -> Mapping[str, object] | None:
    """Return what the snapshot there has of the producer; None if there is no snapshot, or no entry in it."""
    try:
        entries = services.looking.snapshot(seen, offset).entries
    except NoSnapshotError:
        return None
    return producer_row(entries[producer_id]) if producer_id in entries else None


def _commands(
    request: Request, services: Services, seen: SeenPartition, offset: int, producer_id: int
) -> list[Command]:
    words = (str(seen.row["path"]), name_of(seen), str(offset), "--producer-id", str(producer_id))
    url = link(f"/v1{partition_path(seen)}/explain/{offset}", producerId=producer_id, source=seen.source)
    return [
        Command(says="the same in a shell", line=Shell.of(services).line("explain", *words)),
        api_command(request, services, url, "the same from the API"),
    ]
