"""The command that makes shipped segments visible to brokers: announce."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import CLUSTER, KEY_PREFIX, STORE, TOPIC
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings

if TYPE_CHECKING:
    from resnap.tiering.remote_log.announcement import Announcement


@with_settings(TOPIC, CLUSTER, KEY_PREFIX, STORE)
def announce(
    run: Invocation,
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, and that brokers tier to."),
    ],
    *,
    publish: Annotated[
        bool, typer.Option("--publish", help="Announce to brokers; without it nothing is written.")
    ] = False,
) -> int:
    """Make segments that were shipped with --layout visible to brokers, which then delete their own copies of them.

    A dry run unless --publish is given. Asks for topics whose copying is paused, or whose leaders are down.
    """
    from resnap.scheduler.use_cases.announcing import Announcing
    from resnap.scheduler.wiring import cluster_of, scope_of
    from resnap.storage.errors import UsageError
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.urls import open_store

    with cluster_of(run.settings) as cluster, run.progress("read back") as (progress,):
        announcing = Announcing(
            store=open_store(url, run.settings.s3()),
            cluster=cluster,
            scope=scope_of(run.settings, [url]),
            sources=Sources(s3=run.settings.s3(), keys=run.settings.keys()),
            key_prefix=run.settings.key_prefix,
            now_ms=run.clock.now_ms,
        )
        found = announcing.look()
        totals = {"segments": 0, "bytes": 0, "below": 0, "published": publish}
        stops: list[Announcement] = []
        shown = announcing.publish(found, progress) if publish else iter(found)
        run.answer(
            Answer(
                name="partitions",
                kind="partition",
                rows=_rows(run, shown, totals, stops),
                columns=[
                    PARTITION,
                    Column(key="span", title="ANNOUNCED" if publish else "TO BE ANNOUNCED", of=_span),
                    Column(key="segments", title="SEGMENTS", right=True),
                    Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
                    Column(key="below", title="BELOW", right=True),
                    Column(key="stop", title="STOPS", show=_stop),
                ],
                tail=lambda: totals,
                closing=lambda: _closing(totals),
            )
        )
    for problem in announcing.problems:
        run.error(problem)
    for one in stops:
        if one.stop is not None:
            what = f"{one.partition.topic_partition}: {one.stop.reason.value}: {one.stop.detail}"
            run.error(UsageError(what, hint=one.stop.hint))
    run.partly_done = publish and totals["segments"] > 0
    return OK


def _rows(
    run: Invocation, shown: "Iterator[Announcement]", totals: dict[str, int], stops: "list[Announcement]"
) -> Iterator[Row]:
    for one in shown:
        totals["segments"] += len(one.segments)
        totals["bytes"] += _size(one)
        totals["below"] += one.below
        if one.stop is not None and not one.segments:
            stops.append(one)
        if one.expired:
            run.warn(
                f"{one.partition.topic_partition}: {one.expired} of the segments are older than retention.ms: brokers"
                " delete them, and their objects, as soon as they copy again"
            )
        yield _row(one)


def _row(one: "Announcement") -> Row:
    start = one.segments[0].base_offset if one.segments else None
    end = one.segments[-1].next_base_offset if one.segments else None
    return {
        "topic": one.partition.name,
        "partition": one.partition.partition,
        "topicId": one.partition.id,
        "startOffset": start,
        "endOffset": end,
        "segments": len(one.segments),
        "bytes": _size(one),
        "below": one.below,
        "expired": one.expired,
        "stop": None if one.stop is None else {"hurdle": one.stop.reason.value, **_where(one)},
    }


def _span(row: Row) -> str:
    return "-" if row["startOffset"] is None else f"[{row['startOffset']}, {row['endOffset']})"


def _stop(value: object) -> str:
    return f"{value['hurdle']}: {value['detail']}" if isinstance(value, dict) else "-"


def _where(one: "Announcement") -> Row:
    return {} if one.stop is None else {"offset": one.stop.offset, "detail": one.stop.detail, "hint": one.stop.hint}


def _size(one: "Announcement") -> int:
    return sum(segment.stored_bytes for segment in one.segments)


def _closing(totals: dict[str, int]) -> Iterator[str]:
    what = f"{human_count(totals['segments'])} segments ({human_bytes(totals['bytes'])})"
    if not totals["published"]:
        yield f"{what} could be announced. Nothing was written: --publish announces them to brokers."
        return
    yield f"{what} read back and announced."
    if totals["segments"]:
        yield (
            "Leaders go by them once they begin to copy anew: set remote.log.copy.disable=false, or start them."
            " Then they delete their own copies as local.retention says."
        )
