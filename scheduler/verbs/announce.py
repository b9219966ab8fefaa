"""`resnap announce`: make shipped segments visible to brokers."""

from collections.abc import Iterator
from typing import Annotated, Final

import typer
from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.cli.failures import OK, PARTIAL
from resnap.scheduler.cli.flags import CLUSTER, KEY_PREFIX, STORE, TOPIC
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Unread, Verb
from resnap.scheduler.job.reports import SummedView
from resnap.scheduler.job.wiring import cluster_of, sources_of
from resnap.scheduler.output.answer import kafka_configs
from resnap.scheduler.output.records import columns_of, row_of
from resnap.scheduler.output.rendering import BYTES, PARTITION, Column, Row, offset_span
from resnap.storage.errors import UsageError
from resnap.storage.stores.urls import open_store
from resnap.storage.words import human_bytes, some
from resnap.tiering.broker_releases import releases_of
from resnap.tiering.remote_log.announcement import Announcement
from resnap.tiering.remote_log.announcer import Announcer

_AGAIN: Final = "Next: the same command again, once what the errors and STOPS name is settled."


class AnnounceRequest(Request):
    """Make segments that were shipped with --layout visible to brokers, which then delete their own copies of them.

    A dry run unless --publish is given. Asks for topics whose copying is paused, or whose leaders are down. Brokers up
    to 4.3 delete what is within retention.bytes meanwhile (KAFKA-20732): it must be -1, or well above both copies,
    until this command says that it is done; it ends with 3 while leaders do not count what was announced.
    """

    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The store that `resnap tier --to` shipped to, and that brokers tier to."),
    ]
    brokers: Annotated[
        bool, typer.Option(help="Announce what brokers have tiered, too, after their topic with its metadata was lost.")
    ] = False
    publish: Annotated[bool, typer.Option(help="Announce to brokers; without it nothing is written.")] = False


def run(request: AnnounceRequest, context: Context, report: Report) -> None:
    """Announce the segments of each partition, or report what could be announced.

    Raises:
        UsageError: nothing was shipped there, or the cluster has no topic for the metadata.
        VerificationError: an object is not what it must be, or brokers would not use what was published.
        StoreError, ClusterError: either failed.

    """
    settings = context.settings
    with cluster_of(settings) as cluster, context.progress("read back") as (progress,):
        announcer = Announcer(
            store=open_store(request.url, settings.s3()),
            cluster=cluster,
            wants=request.scope.wants,
            sources=sources_of(settings),
            key_prefix=settings.key_prefix,
            now_ms=context.clock.now_ms,
            releases=releases_of(settings.kafka_version, settings.metadata, cluster).of_all,
            kafka_configs=kafka_configs(settings),
            brokers=request.brokers,
        )
        found = announcer.judged()
        if request.publish:
            progress.expect(sum(len(announcement.segments) for announcement in found), sum(map(_stored_bytes, found)))
        for one in found:
            report(_result(announcer.publish(one, progress.advance) if request.publish else one, request))
        report(Unread(faults=tuple(announcer.problems)))


def _result(one: Announcement, request: AnnounceRequest) -> Reported[Announcement]:
    name, stop = one.partition.topic_partition, one.stop
    expired = (
        f"{name}: {one.expired} of the segments are older than retention.ms: brokers delete them, and their objects, as"
        " soon as they copy again"
    )
    at_risk = (
        f"{name}: its leader does not count what was announced as remote yet: keep retention.bytes at -1 until it has"
        " copied by itself"
    )
    return Reported(
        what=one,
        partly_done=request.publish and bool(one.segments),
        warnings=(*((expired,) if one.expired else ()), *((at_risk,) if one.awaits_leader else ())),
        faults=(UsageError(f"{name}: {stop.reason.value}: {stop.detail}", hint=stop.hint),)
        if stop is not None and not one.segments
        else (),
    )


def _stored_bytes(one: Announcement) -> int:
    return sum(segment.stored_bytes for segment in one.segments)


class StopRow(TypedDict):
    """Where announcing a partition stops, and why."""

    hurdle: Annotated[str, "reason"]
    offset: int
    detail: str
    hint: str


def _stop(stop: StopRow | None) -> str:
    return "-" if stop is None else f"{stop['hurdle']}: {stop['detail']}"


class AnnouncedRow(TypedDict):
    """One partition of `resnap announce`."""

    topic: Annotated[str, "partition.name"]
    partition: Annotated[int, "partition.partition", PARTITION]
    topicId: Annotated[str, "partition.id"]
    startOffset: Annotated[int | None, lambda one: one.segments[0].base_offset if one.segments else None]
    endOffset: Annotated[int | None, lambda one: one.segments[-1].next_base_offset if one.segments else None]
    segments: Annotated[int, lambda one: len(one.segments), Column(title="SEGMENTS", right=True)]
    bytes: Annotated[int, _stored_bytes, BYTES]
    below: Annotated[int, Column(title="BELOW", right=True)]
    expired: int
    awaitsLeader: bool
    stop: Annotated[StopRow | None, Column(title="STOPS", show=_stop)]


class AnnounceView(SummedView["Reported[Announcement] | Unread"]):
    """A row per partition of what was announced, or could be."""

    kind = "partition"
    most_first = "segments"

    def __init__(self, *, published: bool) -> None:
        self.columns = (
            PARTITION,
            Column(key="span", title="ANNOUNCED" if published else "TO BE ANNOUNCED", of=offset_span),
            *columns_of(AnnouncedRow, "segments", "bytes", "below", "stop"),
        )
        self._totals = {"segments": 0, "bytes": 0, "below": 0, "awaitLeaders": 0, "published": published}

    def row(self, result: Reported[Announcement] | Unread) -> Row | None:
        """Return the row of a partition, and count it."""
        if isinstance(result, Unread):
            return None
        row = row_of(AnnouncedRow, result.what)
        for key in ("segments", "bytes", "below"):
            self._totals[key] += row[key]
        self._totals["awaitLeaders"] += row["awaitsLeader"]
        return row

    @property
    def exit_code(self) -> int:
        """3 where all is announced, and leaders do not count it yet."""
        is_all_announced = not self._totals["segments"] and not self._totals["published"]
        return PARTIAL if is_all_announced and self._totals["awaitLeaders"] else OK

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what brokers do next."""
        yield from self.summed_note()
        waiting = some(self._totals["awaitLeaders"], "partition")
        what = f"{some(self._totals['segments'], 'segment')} ({human_bytes(self._totals['bytes'])})"
        if not self._totals["published"]:
            if self._totals["segments"]:
                yield f"{what} could be announced. Nothing was written."
                yield "Next: the same command with --publish, which announces them to brokers."
            elif self.has_faults or not self._totals["below"]:
                yield "Nothing is left that could be announced. Nothing was written."
                yield _AGAIN
            elif self._totals["awaitLeaders"]:
                yield f"All is announced. Not done yet: the leaders of {waiting} do not count it; see the warnings."
                yield "Next: let them copy, then the same command again."
            else:
                yield "Done: all is announced, and leaders count it: retention.bytes may be set back."
                yield "Next: nothing is left to do here; `resnap remote status` shows what brokers do with it."
            return
        yield f"{what} read back and announced."
        if self._totals["segments"]:
            yield (
                "Leaders use them once they begin to copy again: set remote.log.copy.disable=false, or start them."
                " Then they delete their own copies according to local.retention."
            )
        if self._totals["awaitLeaders"]:
            yield (
                f"Not done yet in {waiting}: keep retention.bytes at -1 until this command, without --publish, says"
                " that leaders count what was announced."
            )
        if self.has_faults or self.is_cut_short:
            yield _AGAIN
        else:
            yield "Next: let leaders copy again, then the same command without --publish, until that says done."


VERB = Verb(
    takes=(TOPIC, CLUSTER, KEY_PREFIX, STORE),
    request=AnnounceRequest,
    run=run,
    view=lambda request, _: AnnounceView(published=request.publish),
)
