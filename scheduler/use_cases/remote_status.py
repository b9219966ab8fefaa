"""The use case of asking what brokers know of remote storage, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.clock import instant
from resnap.storage.errors import FormatError, UsageError
from resnap.storage.layouts.aiven.metadata import read_custom_metadata
from resnap.tiering.remote_log.comparison import HARMFUL, Comparison, compare
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.metadata_log import event_of, metadata_partitions, read_events
from resnap.tiering.remote_log.records import METADATA_TOPIC, SegmentState
from resnap.tiering.remote_log.stored import stored_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.remote_log.comparison import Finding, PartitionComparison
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata, RemoteLogMetadataCache, RemoteSegment
    from resnap.tiering.remote_log.metadata_log import Event
    from resnap.tiering.remote_log.stored import SegmentPlace, StoredSegment

_NO_METADATA: Final = (
    "give the log dirs of a broker with tiered storage; only brokers that follow a partition of the topic have it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStatus:
    """What was found, and how much of the metadata topic it rests on."""

    comparison: Comparison
    metadata_partitions: tuple[int, ...]
    cut: tuple[int, ...]
    """Those whose first records retention has taken: what those said is not known."""
    problems: tuple[ResnapError, ...]
    """What could not be read in the log dirs."""


def look(
    survey: Callable[[], Sequence[LogDir]], scope: Scope, store: ObjectStore | None, cluster: Cluster | None = None
) -> RemoteStatus:
    """Return how the partitions of ``scope`` stand by the metadata topic, against the log dirs surveyed and ``store``.

    The topic is that of the running ``cluster``, where one is given, else what lies of it in the log dirs. It is read
    again where the store has what it does not name, or lacks something: brokers may have gone on in between.

    Raises:
        UsageError: there is no such topic, or no partition of it; or nothing matches the topics of ``scope``.
        ResnapError: it, or the store, cannot be read.

    """
    read = _read(survey(), scope, cluster)
    if store is None:
        return read.status(None)
    stored = stored_segments(store.list())
    status = read.status(stored)
    if not status.comparison.asks_for_another_reading:
        return status
    return _read(survey(), scope, cluster).status(stored, before=read.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The metadata topic as it was read once, and the log dirs as they were."""

    metadata: RemoteLogMetadata
    log_dirs: Sequence[LogDir]
    firsts: Mapping[int, int | None]
    """Offset of the first record of each metadata partition."""

    def status(
        self, stored: dict[SegmentPlace, StoredSegment] | None, before: RemoteLogMetadata | None = None
    ) -> RemoteStatus:
        local = chain.from_iterable(one.partitions for one in self.log_dirs)
        return RemoteStatus(
            comparison=compare(self.metadata, local, stored, before),
            metadata_partitions=tuple(self.firsts),
            cut=tuple(number for number, first in self.firsts.items() if first),
            problems=tuple(problem.error for one in self.log_dirs for problem in one.problems),
        )


def _read(log_dirs: Sequence[LogDir], scope: Scope, cluster: Cluster | None) -> _Reading:
    events = _events_in(log_dirs) if cluster is None else _events_of(cluster)
    firsts: dict[int, int | None] = dict.fromkeys(events)
    metadata = fold_events(_noting_first(chain.from_iterable(events.values()), firsts))
    wanted = tuple(one for one in metadata.partitions if scope.wants(one.partition.name))
    local = chain.from_iterable(one.partitions for one in log_dirs)
    if scope.topics and not wanted and not any(scope.wants(one.topic_partition.topic) for one in local):
        what = f"{METADATA_TOPIC} names no topic that matches --topic {' or '.join(scope.topics)}"
        raise UsageError(what, hint="without --topic all are shown that it names")
    return _Reading(metadata=replace(metadata, partitions=wanted), log_dirs=log_dirs, firsts=firsts)


def _noting_first(events: Iterable[Event], firsts: dict[int, int | None]) -> Iterator[Event]:
    """Pass ``events`` on, and note the offset of the first one of each metadata partition."""
    for event in events:
        if firsts[event.metadata_partition] is None:
            firsts[event.metadata_partition] = event.offset
        yield event


def _events_in(log_dirs: Sequence[LogDir]) -> dict[int, Iterator[Event]]:
    found = metadata_partitions(log_dirs)
    if not found:
        places = ", ".join(str(one.path) for one in log_dirs)
        raise UsageError(f"no partition of {METADATA_TOPIC} lies in {places}", hint=_NO_METADATA)
    return {number: read_events(partition) for number, partition in found.items()}


def _events_of(cluster: Cluster) -> dict[int, Iterator[Event]]:
    topic = cluster.facts(lambda name: name == METADATA_TOPIC).topics.get(METADATA_TOPIC)
    if topic is None:
        raise UsageError(f"the cluster has no topic {METADATA_TOPIC}", hint="is tiered storage on in its brokers?")
    return {number: _read_live(cluster, number) for number in sorted(topic.partitions)}


def _read_live(cluster: Cluster, number: int) -> Iterator[Event]:
    return (event_of(number, offset, value) for offset, value in cluster.read(METADATA_TOPIC, number))


def status_answer(status: RemoteStatus, *, whole: bool) -> Answer:
    """Return what is shown: a row per partition, with all its segments where ``whole``; then the findings."""
    comparison = status.comparison
    findings = comparison.findings
    return Answer(
        name="partitions",
        kind="partition",
        rows=(_row(one, whole=whole) for one in comparison.partitions),
        columns=[
            PARTITION,
            Column(key="remote", title="REMOTE", of=_span),
            Column(key="readable", title="SEGMENTS", right=True),
            Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
            Column(key="orphans", title="ORPHANS", right=True),
            Column(key="replaced", title="REPLACED", right=True),
            Column(key="localStartOffset", title="ON DISK FROM", show=_offset),
            Column(key="told", title="LAST RECORD"),
        ],
        tail=lambda: {
            "metadataPartitions": list(status.metadata_partitions),
            "metadataPartitionsCut": list(status.cut),
            "otherStoredSegments": comparison.other_objects,
            "findings": [finding_row(one) for one in findings],
        },
        closing=lambda: _closing(status, findings),
    )


def finding_row(finding: Finding) -> Row:
    """Return a finding as plain values."""
    return {
        "kind": finding.kind.value,
        "harmful": finding.kind in HARMFUL,
        "place": finding.place,
        "count": finding.count,
        "bytes": finding.size_bytes,
        "detail": finding.detail,
    }


def _row(one: PartitionComparison, *, whole: bool) -> Row:
    cache = one.cache
    readable = cache.readable
    last_ms = max((segment.event_timestamp_ms for segment in cache.segments), default=None)
    row = {
        "topic": cache.partition.name,
        "partition": cache.partition.partition,
        "topicId": cache.partition.id,
        "metadataPartition": cache.metadata_partition,
        "startOffset": cache.start_offset,
        "endOffset": cache.end_offset,
        "readable": len(readable),
        "bytes": sum(segment.size_bytes for segment in readable),
        "states": _states(cache),
        "orphans": len(cache.orphans),
        "replaced": len(cache.replaced),
        "copying": None if cache.copying is None else cache.copying.id,
        "deleteState": None if cache.delete_state is None else cache.delete_state.name,
        "localStartOffset": one.local_start,
        "told": None if last_ms is None else instant(last_ms),
    }
    return {**row, "segments": [_segment_row(segment, cache) for segment in cache.segments]} if whole else row


def _span(row: Row) -> str:
    return "-" if row["endOffset"] is None else f"[{row['startOffset']}, {row['endOffset']})"


def _offset(value: object) -> str:
    return "-" if value is None else str(value)


def _states(cache: RemoteLogMetadataCache) -> dict[str, int]:
    counts = {state.label: 0 for state in SegmentState if state is not SegmentState.DELETE_SEGMENT_FINISHED}
    for segment in cache.segments:
        counts[segment.state.label] += 1
    return counts


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
        "segmentLeaderEpochs": {str(one.leader_epoch): one.offset for one in segment.leader_epochs},
        "customMetadata": _custom_metadata(segment.custom_metadata),
    }


def _custom_metadata(data: bytes | None) -> Row | None:
    """Return what a plugin said of a segment; its bytes alone, where they are not those of the layout ``aiven``."""
    if data is None:
        return None
    try:
        custom = read_custom_metadata(data)
    except FormatError:
        return {"bytes": data.hex()}
    fields = {"remoteSize": custom.remote_size, "objectPrefix": custom.object_prefix, "objectKey": custom.object_key}
    return {"bytes": data.hex(), **{name: value for name, value in fields.items() if value is not None}}


def _closing(status: RemoteStatus, findings: Iterable[Finding]) -> Iterator[str]:
    yield ""
    comparison = status.comparison
    numbers = ", ".join(map(str, status.metadata_partitions))
    yield f"By partitions {numbers} of {METADATA_TOPIC}; others know more, where there are others."
    if status.cut:
        yield f"Partitions {', '.join(map(str, status.cut))} of it have lost their first records to retention."
    for one in findings:
        size = f" ({human_bytes(one.size_bytes)})" if one.size_bytes else ""
        yield f"{one.kind.value}: {one.place}: {human_count(one.count)}{size}: {one.detail}"
    if comparison.other_objects:
        yield f"{human_count(comparison.other_objects)} segments in the store are of partitions that these do not name."
