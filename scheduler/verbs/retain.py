"""`resnap retain`: applies retention to shipped segments."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.cli.flags import S3, TOPIC
from resnap.scheduler.job.contract import Reported, Request, Result, Verb
from resnap.scheduler.job.reports import Identity, SummedView
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, Column, or_dash
from resnap.scheduler.settings.values import parse_duration, parse_size
from resnap.storage.errors import UsageError
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import tiered_part
from resnap.storage.words import human_bytes, human_count, some
from resnap.tiering.retain import Limits, PartitionRetention, retain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.job.contract import Context, Report
    from resnap.scheduler.output.rendering import Row


class RetainRequest(Request):
    """Apply a retention to what was shipped, oldest segments first, as Kafka does; a dry run unless --delete is given.

    Give no less than the topic's own retention: a segment that a broker still has would be shipped again.
    """

    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or a part of it.")
    ]
    retention: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Keep segments that have a record younger than this, such as 90d."),
    ] = None
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep at least this much of each partition's log.")
    ] = None
    delete: Annotated[bool, typer.Option(help="Delete; without it nothing is changed.")] = False


def run(request: RetainRequest, context: Context, report: Report) -> None:
    """Apply the limits to each partition, and report it.

    Raises:
        UsageError: there is no limit, or the URL is of no store.
        StoreError: the store failed.

    """
    limits = _limits(request.retention, request.retention_bytes)
    part = tiered_part(request.url, Sources(s3=context.settings.s3()))

    def heard(partition: PartitionRetention) -> None:
        report(Reported(what=partition, partly_done=request.delete and bool(partition.beyond)))

    with context.progress("retain") if request.delete else nullcontext([None]) as (deleting,):
        faults = retain(part, request.scope, limits, context.clock.now_ms(), heard, deleting=deleting)
    report(Result(faults=tuple(faults)))


class RetainedRow(Identity):
    """One partition of `resnap retain`."""

    clusterId: str | None
    topicId: Annotated[str | None, Column(title="TOPIC ID", extra=True, show=or_dash)]
    deleted: Annotated[int, lambda retention: len(retention.beyond), Column(title="BEYOND", right=True)]
    kept: Annotated[int, Column(title="KEPT", right=True)]
    bytes: Annotated[int, "size_bytes", BYTES]
    newStartOffset: Annotated[int | None, Column(title="NEW START", right=True)]
    manifests: Annotated[list[str], lambda retention: [shipped.key for shipped in retention.beyond]]


class RetainView(SummedView[Result]):
    """A row per partition."""

    kind = "partition"
    columns = columns_of(RetainedRow, "partition", "deleted", "kept", "bytes", "newStartOffset", "topicId")
    most_first = "deleted"

    def __init__(self, url: str, *, dry_run: bool) -> None:
        self._url = shlex.quote(url)
        self._totals = {"dryRun": dry_run, "deleted": 0, "kept": 0, "bytes": 0}

    def row(self, result: Result) -> Row | None:
        """Return the row of a partition, and count it."""
        if not isinstance(result, Reported):
            return None
        row = row_of(RetainedRow, result.what)
        for key in ("deleted", "kept", "bytes"):
            self._totals[key] += row[key]
        return row

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do next."""
        yield from self.summed_note()
        deleted = f"{some(self._totals['deleted'], 'segment')} ({human_bytes(self._totals['bytes'])})"
        kept = human_count(self._totals["kept"])
        if self._totals["dryRun"]:
            yield f"beyond retention: {deleted}; not beyond it: {kept}. Nothing was deleted."
        else:
            yield f"{deleted} deleted, {kept} kept."
        if self.has_faults or self.is_cut_short:
            yield "Next: the same command again, once the errors named here are repaired."
        elif self._totals["dryRun"] and self._totals["deleted"]:
            yield "Next: the same command with --delete."
        elif self._totals["deleted"]:
            yield f"Next: `resnap verify {self._url}` reads back what is left."
        else:
            yield "Next: nothing is left to do, until more is beyond the retention."


def _limits(retention: str | None, retention_bytes: str | None) -> Limits:
    if retention is None and retention_bytes is None:
        raise UsageError("no retention is given", hint="give --retention DURATION, --retention-bytes SIZE, or both")
    try:
        return Limits(
            age_ms=None if retention is None else parse_duration(retention) // timedelta(milliseconds=1),
            log_bytes=None if retention_bytes is None else parse_size(retention_bytes),
        )
    except ValueError as error:
        given = " ".join(filter(None, (retention, retention_bytes)))
        hint = "--retention takes a duration such as 7d, --retention-bytes a size such as 100GiB"
        raise UsageError(f"retention {given}: {error}", hint=hint) from error


VERB = Verb(
    takes=(TOPIC, S3),
    request=RetainRequest,
    run=run,
    view=lambda request, _: RetainView(request.url, dry_run=not request.delete),
)
