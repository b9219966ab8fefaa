"""The command that applies a retention to what was shipped: retain."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import STORE, TOPIC
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from resnap.scheduler.use_cases.retaining import Retaining
    from resnap.tiering.keeping.retention import Limits, PartitionRetention


@with_settings(TOPIC, STORE)
def retain(
    run: Invocation,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, or a part of it.")
    ],
    *,
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention", metavar="DURATION", help="Keep segments that have a record younger than this, such as 90d."
        ),
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option("--retention-bytes", metavar="SIZE", help="Keep at least this much of each partition's log."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete; without it nothing is changed.")] = False,
) -> int:
    """Apply a retention to what was shipped, oldest segments first, as Kafka does; a dry run unless --delete is given.

    Give no less than the topic's own retention: a segment that a broker still has would be shipped again.
    """
    from resnap.scheduler.use_cases.retaining import Retaining
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.sources.files import Sources
    from resnap.storage.sources.log_dirs import shipped_part

    limits = _limits(retention, retention_bytes)
    scope = Scope(sources=(url,), topics=run.settings.topics)
    store, within = shipped_part(url, Sources(s3=run.settings.s3()))
    retaining = Retaining(store=store, scope=scope, within=within, now_ms=run.clock.now_ms())
    with run.progress("retain") as (progress,):
        found = retaining.look(limits)
        _answer(run, retaining, retaining.delete(found, progress) if delete else iter(found), is_dry=not delete)
    return OK


def _limits(retention: str | None, retention_bytes: str | None) -> "Limits":
    from datetime import timedelta

    from resnap.scheduler.settings.values import parse_duration, parse_size
    from resnap.storage.errors import UsageError
    from resnap.tiering.keeping.retention import Limits

    if retention is None and retention_bytes is None:
        raise UsageError("no retention is given", hint="give --retention DURATION, --retention-bytes SIZE, or both")
    try:
        return Limits(
            age_ms=None if retention is None else parse_duration(retention) // timedelta(milliseconds=1),
            log_bytes=None if retention_bytes is None else parse_size(retention_bytes),
        )
    except ValueError as error:
        raise UsageError(f"retention: {error}") from error


def _answer(run: Invocation, retaining: "Retaining", found: "Iterator[PartitionRetention]", *, is_dry: bool) -> None:
    total = {"dryRun": is_dry, "deleted": 0, "kept": 0, "bytes": 0}

    def rows() -> Iterator[Row]:
        for one in found:
            total["deleted"] += len(one.beyond)
            total["kept"] += one.kept
            total["bytes"] += one.size_bytes
            run.partly_done = run.partly_done or (bool(one.beyond) and not is_dry)
            yield _row(one)

    run.answer(
        Answer(
            name="partitions",
            kind="partition",
            rows=rows(),
            columns=[
                Column(key="topic", title="TOPIC"),
                Column(key="partition", title="PARTITION", right=True),
                Column(key="topicId", title="TOPIC ID"),
                Column(key="deleted", title="BEYOND", right=True),
                Column(key="kept", title="KEPT", right=True),
                Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
                Column(key="newStartOffset", title="NEW START", right=True),
            ],
            tail=lambda: total,
            closing=lambda: [_closing(total)],
        )
    )
    for problem in retaining.problems:
        run.error(problem)


def _row(one: "PartitionRetention") -> Row:
    from resnap.scheduler.answers.reports import identity

    return {
        **identity(one.topic_partition),
        "clusterId": one.cluster_id,
        "topicId": one.topic_id,
        "deleted": len(one.beyond),
        "kept": one.kept,
        "bytes": one.size_bytes,
        "newStartOffset": one.new_start_offset,
        "manifests": [shipped.key for shipped in one.beyond],
    }


def _closing(total: dict[str, int]) -> str:
    counts = f"{human_count(total['deleted'])} segments ({human_bytes(total['bytes'])})"
    if total["dryRun"]:
        return (
            f"{counts} are beyond retention, {human_count(total['kept'])} are not. Nothing was deleted: give --delete."
        )
    return f"{counts} deleted, {human_count(total['kept'])} kept."
