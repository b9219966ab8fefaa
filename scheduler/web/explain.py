"""The page that explains a snapshot entry: the batches that made it."""

from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from resnap.replay.explain import Role
from resnap.scheduler.api.partitions import Offset, ProducerId, Seen, explained
from resnap.scheduler.job.reports import producer_row
from resnap.scheduler.runs.partition_details import NoSnapshotError, name_of
from resnap.scheduler.runs.scans import ScannedPartition
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Command
from resnap.scheduler.web.pages import Context, PageContext, link, partition_path

router = APIRouter(prefix="/partitions/{topic}/{partition}", include_in_schema=False)
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


@router.get("/explain/{offset}")
def show_explanation(
    context: Context,
    seen: Seen,
    offset: Offset,
    producer_id: ProducerId,
    source: Annotated[str, Query(max_length=4096)] = "",
) -> Response:
    """Show the batches that made the entry of a producer at an offset, and the entry; reads segments."""
    batches = explained(context.services, context.who, seen, offset, producer_id)
    path = partition_path(seen)
    values = {
        "seen": seen,
        "offset": offset,
        "producer_id": producer_id,
        "batches": sorted(batches, key=lambda row: int(str(row["baseOffset"]))),
        "means": {role.value: words for role, words in MEANS.items()},
        "entry": _entry(context.services, seen, offset, producer_id),
        "partition_url": link(path, source=source),
        "snapshot_url": link(f"{path}/snapshots/{offset}", source=source),
        "commands": _commands(context, seen, offset, producer_id),
    }
    return context.page("explain.html", values)


def _entry(services: Services, seen: ScannedPartition, offset: int, producer_id: int) -> Mapping[str, object] | None:
    """Return what the snapshot there has of the producer; None if there is no snapshot, or no entry in it."""
    try:
        entries = services.partition_details.snapshot(seen, offset).entries
    except NoSnapshotError:
        return None
    return producer_row(entries[producer_id]) if producer_id in entries else None


def _commands(context: PageContext, seen: ScannedPartition, offset: int, producer_id: int) -> list[Command]:
    words = (str(seen.row["path"]), name_of(seen), str(offset), "--producer-id", str(producer_id))
    url = link(f"/v1{partition_path(seen)}/explain/{offset}", producerId=producer_id, source=seen.source)
    return [
        Command(says="the same in a shell", line=context.shell.line("explain", *words)),
        context.api(url, "the same from the API"),
    ]
