"""`resnap remote status`: compares brokers' metadata of remote storage with their disks and the store."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typing_extensions import TypedDict  # the one that pydantic takes, for the description of the API

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.flags import CLUSTER, COPYING_IN_TIME, S3, TOPIC
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Verb, View
from resnap.scheduler.job.reports import AGAIN
from resnap.scheduler.job.wiring import cluster_of, scope_of
from resnap.scheduler.output.records import columns_of, record, row_of
from resnap.scheduler.output.rendering import BYTES, PARTITION, Column, Row, offset_span, or_dash
from resnap.storage.errors import FormatError, VerificationError
from resnap.storage.sources.files import Sources
from resnap.storage.sources.log_dirs import open_source
from resnap.storage.stores.urls import open_store
from resnap.storage.words import human_bytes, human_count, human_duration, instant, some
from resnap.tiering.remote_log.comparison import HARMFUL, FindingKind, PartitionComparison
from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadataCache, RemoteSegment
from resnap.tiering.remote_log.records import METADATA_TOPIC, SegmentState
from resnap.tiering.remote_log.stored import read_custom_metadata
from resnap.tiering.remote_log.waiting import Waiting
from resnap.tiering.remote_status import RemoteStatus, read_status


class RemoteStatusRequest(Request):
    """Show what brokers know of remote storage: segments by state, orphans, gaps; against disk and store.

    By the metadata topic in LOG_DIR, or of the cluster that --bootstrap-server names, where LOG_DIR is optional.
    WAITING shows the closed segments that are not in remote storage, and for how long the oldest has waited. Exits with
    13 if that is longer than --copy-overdue-after: tiering has stopped, whatever the cause.
    """

    log_dirs: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG_DIR", help="Log dirs of one broker; the default is log.dirs."),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store that brokers tier to; it is compared with what they know."),
    ] = None


def run(request: RemoteStatusRequest, context: Context, report: Report) -> None:
    """Report the one status of all partitions; what is harmful, or could not be read, is a fault.

    Raises:
        UsageError: there is no metadata topic, or no partition of it; or nothing matches the topics asked for.
        ResnapError: it, or the store, cannot be read.

    """
    settings, live = context.settings, context.settings.bootstrap_server
    places = request.log_dirs or [*map(str, settings.log_dirs)]
    scope = scope_of(settings, places if live is None or places else [live])
    sources = Sources(s3=settings.s3())
    with nullcontext() if live is None else cluster_of(settings) as cluster:
        status = read_status(
            lambda: [open_source(place, sources) for place in places],
            scope,
            None if request.store is None else open_store(request.store, settings.s3()),
            cluster,
            now_ms=context.clock.now_ms(),
            overdue_ms=settings.copy_overdue_after_ms,
            warn=context.warn,
        )
    is_mistyped = status.comparison.is_of_another_store
    harmful = tuple(
        VerificationError(
            f"{finding.place}: {finding.kind.value}: {finding.detail}",
            hint=f"{request.store} holds no object that brokers know of: check the URL; if it is right, {finding.hint}"
            if is_mistyped and finding.kind is FindingKind.MISSING_OBJECTS
            else finding.hint,
        )
        for finding in status.comparison.findings
        if finding.kind in HARMFUL
    )
    report(Reported(what=status, faults=(*status.problems, *harmful)))


def _waiting_text(waiting: Mapping[str, Any] | None) -> str:
    if waiting is None:
        return "-"
    about = "about " if waiting["isEstimate"] else ""
    return f"{about}{human_bytes(waiting['bytes'])} for {human_duration(waiting['seconds'])}"


def _states(comparison: PartitionComparison) -> dict[str, int]:
    counts = {state.label: 0 for state in SegmentState if state is not SegmentState.DELETE_SEGMENT_FINISHED}
    for segment in comparison.cache.segments:
        counts[segment.state.label] += 1
    return counts


def _last_record(comparison: PartitionComparison) -> str | None:
    newest_ms = max((segment.event_timestamp_ms for segment in comparison.cache.segments), default=None)
    return None if newest_ms is None else instant(newest_ms)


class RemoteRow(TypedDict):
    """One partition of `resnap remote status`."""

    topic: Annotated[str, "cache.partition.name"]
    partition: Annotated[int, "cache.partition.partition", PARTITION]
    topicId: Annotated[str, "cache.partition.id"]
    metadataPartition: Annotated[int, "cache.metadata_partition"]
    startOffset: Annotated[int | None, "cache.start_offset"]
    endOffset: Annotated[int | None, "cache.end_offset"]
    readable: Annotated[int, lambda one: len(one.cache.readable), Column(title="SEGMENTS", right=True)]
    bytes: Annotated[int, lambda one: sum(segment.size_bytes for segment in one.cache.readable), BYTES]
    states: Annotated[dict[str, int], _states]
    orphans: Annotated[int, lambda one: len(one.cache.orphans), Column(title="ORPHANS", right=True)]
    replaced: Annotated[int, lambda one: len(one.cache.replaced), Column(title="REPLACED", right=True)]
    copying: Annotated[str | None, "cache.copying.id"]
    waiting: Annotated[Any, Column(title="WAITING", right=True, show=_waiting_text)]
    """The view knows for how long."""
    deleteState: Annotated[str | None, "cache.delete_state.name"]
    localStartOffset: Annotated[int | None, "local_start", Column(title="ON DISK FROM", show=or_dash)]
    told: Annotated[str | None, _last_record, Column(title="LAST RECORD")]


class RemoteFindingRow(TypedDict):
    """A problem."""

    kind: str
    harmful: Annotated[bool, lambda finding: finding.kind in HARMFUL]
    place: str
    count: int
    bytes: Annotated[int, "size_bytes"]
    detail: str


class RemoteStatusView(View["Reported[RemoteStatus]"]):
    """A row per partition, with all its segments where ``whole``; then the findings."""

    kind = "partition"
    columns = (
        PARTITION,
        Column(key="remote", title="REMOTE", of=offset_span),
        *columns_of(RemoteRow, "readable", "bytes", "orphans", "replaced", "localStartOffset", "told", "waiting"),
    )

    exit_code = OK
    _status: RemoteStatus

    def __init__(self, *, whole: bool, has_store: bool) -> None:
        self._whole, self._has_store = whole, has_store

    def rows(self, result: Reported[RemoteStatus]) -> Iterator[Row]:
        """Yield the rows of all partitions."""
        self._status = result.what
        if any(finding.kind in HARMFUL for finding in result.what.comparison.findings):
            self.exit_code = VerificationError.exit_code
        for partition in result.what.comparison.partitions:
            waiting = partition.waiting and _waiting_row(partition.waiting, self._status.now_ms)
            row: dict[str, object] = {**row_of(RemoteRow, partition), "waiting": waiting}
            if self._whole:
                row["segments"] = [_segment_row(segment, partition.cache) for segment in partition.cache.segments]
            yield row

    def totals(self) -> Row:
        """Return how much of the metadata topic was read, and the findings."""
        status = self._status
        return {
            "metadataPartitions": list(status.metadata_partitions),
            "metadataPartitionsCut": list(status.cut),
            "otherStoredSegments": status.comparison.other_objects,
            "findings": [row_of(RemoteFindingRow, finding) for finding in status.comparison.findings],
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words."""
        yield ""
        status, comparison = self._status, self._status.comparison
        numbers = ", ".join(map(str, status.metadata_partitions))
        yield f"From partitions {numbers} of {METADATA_TOPIC}; its other partitions, if any, are not included."
        if status.cut:
            yield f"Partitions {', '.join(map(str, status.cut))} of it have lost their first records to retention."
        for finding in comparison.findings:
            size = f" ({human_bytes(finding.size_bytes)})" if finding.size_bytes else ""
            yield f"{finding.kind.value}: {finding.place}: {human_count(finding.count)}{size}: {finding.detail}"
        if comparison.other_objects:
            yield (
                f"The store holds {some(comparison.other_objects, 'segment')} of partitions that these do not name. If"
                " brokers have lost their metadata: `resnap announce URL --brokers`."
            )
        harmful = [finding for finding in comparison.findings if finding.kind in HARMFUL]
        if harmful or status.problems:
            yield AGAIN
        elif comparison.findings:
            yield "Next: nothing stops tiering; `resnap gc URL` shows what may be deleted of what nothing refers to."
        elif any(partition.waiting is not None for partition in comparison.partitions):
            yield "Next: the same command again: closed segments wait to be copied, and none for too long."
        elif not self._has_store:
            yield "Next: the same command with --store URL, which compares with the store, too."
        else:
            yield "Next: nothing is left to do: brokers, disk and store agree."


def _waiting_row(waiting: Waiting, now_ms: int) -> Row:
    return {
        "offset": waiting.offset,
        "since": instant(waiting.since_ms),
        "seconds": max(now_ms - waiting.since_ms, 0) // 1000,
        "segments": waiting.segments,
        "bytes": waiting.size_bytes,
        "isEstimate": waiting.is_estimate,
    }


def _segment_row(segment: RemoteSegment, cache: RemoteLogMetadataCache) -> Row:
    return {
        "id": segment.id,
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "state": segment.state.name,
        "readable": segment.id in cache.readable_ids,
        "segmentSizeInBytes": segment.size_bytes,
        "brokerId": segment.broker_id,
        "maxTimestampMs": segment.max_timestamp_ms,
        "eventTimestampMs": segment.event_timestamp_ms,
        "segmentLeaderEpochs": {str(epoch.leader_epoch): epoch.offset for epoch in segment.leader_epochs},
        "customMetadata": _custom_metadata(segment.custom_metadata),
    }


def _custom_metadata(data: bytes | None) -> Row | None:
    """Return what a plugin keeps with a segment; its bytes alone, where they are not those of the layout ``aiven``."""
    if data is None:
        return None
    try:
        fields = record(read_custom_metadata(data))
    except FormatError:
        return {"bytes": data.hex()}
    return {"bytes": data.hex(), **{name: value for name, value in fields.items() if value is not None}}


VERB = Verb(
    takes=(TOPIC, CLUSTER, COPYING_IN_TIME, S3),
    request=RemoteStatusRequest,
    run=run,
    view=lambda request, context: RemoteStatusView(
        whole=context.settings.output != "table", has_store=request.store is not None
    ),
)
