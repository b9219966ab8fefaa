"""The use case of asking what brokers believe of remote storage, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.clock import instant
from resnap.storage.errors import FormatError, UsageError
from resnap.storage.layouts.aiven.metadata import read_custom_metadata
from resnap.tiering.remote_log.beliefs import fold_events
from resnap.tiering.remote_log.metadata_log import event_of, metadata_partitions, read_events
from resnap.tiering.remote_log.records import METADATA_TOPIC, SegmentState
from resnap.tiering.remote_log.standing import HARMFUL, Standing, stand
from resnap.tiering.remote_log.stored import stored_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.remote_log.beliefs import Beliefs, PartitionBeliefs, RemoteSegment
    from resnap.tiering.remote_log.metadata_log import Event
    from resnap.tiering.remote_log.standing import Finding, PartitionStanding
    from resnap.tiering.remote_log.stored import SegmentPlace, StoredSegment

_NO_METADATA: Final = (
    "give the log dirs of a broker with tiered storage; only brokers that follow a partition of the topic have it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStatus:
    """What was found, and how much of the metadata topic it rests on."""

    standing: Standing
    metadata_partitions: tuple[int, ...]
    cut: tuple[int, ...]
    """Those whose first records retention has taken: what they told of is not known."""
    problems: tuple[ResnapError, ...]
    """What could not be read in the log dirs."""


def look(
    survey: Callable[[], Sequence[LogDir]], scope: Scope, store: ObjectStore | None, cluster: Cluster | None = None
) -> RemoteStatus:
    """Return how the partitions of ``scope`` stand by the metadata topic, against the log dirs surveyed and ``store``.

    The topic is that of the running ``cluster``, where one is given, else what lies of it in the log dirs. It is read
    again where the store has what it does not tell of, or lacks something: brokers may have gone on in between.

    Raises:
        UsageError: there is no such topic, or no partition of it; or nothing matches the topics of ``scope``.
        ResnapError: it, or the store, cannot be read.

    """
    read = _read(survey(), scope, cluster)
    if store is None:
        return read.status(None)
    stored = stored_segments(store.list())
    status = read.status(stored)
    if not status.standing.asks_for_another_reading:
        return status
    return _read(survey(), scope, cluster).status(stored, before=read.beliefs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The metadata topic as it was read once, and the log dirs as they were."""

    beliefs: Beliefs
    log_dirs: Sequence[LogDir]
    firsts: Mapping[int, int | None]
    """Offset of the first record of each metadata partition."""

    def status(self, stored: dict[SegmentPlace, StoredSegment] | None, before: Beliefs | None = None) -> RemoteStatus:
        local = chain.from_iterable(one.partitions for one in self.log_dirs)
        return RemoteStatus(
            standing=stand(self.beliefs, local, stored, before),
            metadata_partitions=tuple(self.firsts),
            cut=tuple(number for number, first in self.firsts.items() if first),
            problems=tuple(problem.error for one in self.log_dirs for problem in one.problems),
        )


def _read(log_dirs: Sequence[LogDir], scope: Scope, cluster: Cluster | None) -> _Reading:
    told = _told_in(log_dirs) if cluster is None else _told_by(cluster)
    firsts: dict[int, int | None] = dict.fromkeys(told)
    beliefs = fold_events(_noting_first(chain.from_iterable(told.values()), firsts))
    wanted = tuple(one for one in beliefs.partitions if scope.wants(one.partition.name))
    local = chain.from_iterable(one.partitions for one in log_dirs)
    if scope.topics and not wanted and not any(scope.wants(one.topic_partition.topic) for one in local):
        what = f"{METADATA_TOPIC} tells of no topic that matches --topic {' or '.join(scope.topics)}"
        raise UsageError(what, hint="without --topic all are shown that it tells of")
    return _Reading(beliefs=replace(beliefs, partitions=wanted), log_dirs=log_dirs, firsts=firsts)


def _noting_first(events: Iterable[Event], firsts: dict[int, int | None]) -> Iterator[Event]:
    """Pass ``events`` on, and note the offset of the first one of each metadata partition."""
    for event in events:
        if firsts[event.metadata_partition] is None:
            firsts[event.metadata_partition] = event.offset
        yield event


def _told_in(log_dirs: Sequence[LogDir]) -> dict[int, Iterator[Event]]:
    found = metadata_partitions(log_dirs)
    if not found:
        places = ", ".join(str(one.path) for one in log_dirs)
        raise UsageError(f"no partition of {METADATA_TOPIC} lies in {places}", hint=_NO_METADATA)
    return {number: read_events(partition) for number, partition in found.items()}


def _told_by(cluster: Cluster) -> dict[int, Iterator[Event]]:
    topic = cluster.facts(lambda name: name == METADATA_TOPIC).topics.get(METADATA_TOPIC)
    if topic is None:
        raise UsageError(f"the cluster has no topic {METADATA_TOPIC}", hint="is tiered storage on in its brokers?")
    return {number: _read_live(cluster, number) for number in sorted(topic.partitions)}


def _read_live(cluster: Cluster, number: int) -> Iterator[Event]:
    return (event_of(number, offset, value) for offset, value in cluster.read(METADATA_TOPIC, number))


def status_answer(status: RemoteStatus, *, whole: bool) -> Answer:
    """Return what is shown: a row per partition, with all its segments where ``whole``; then the findings."""
    standing = status.standing
    findings = standing.findings
    return Answer(
        name="partitions",
        kind="partition",
        rows=(_row(one, whole=whole) for one in standing.partitions),
        columns=[
            PARTITION,
            Column(key="remote", title="REMOTE", of=_span),
            Column(key="readable", title="SEGMENTS", right=True),
            Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
            Column(key="orphans", title="ORPHANS", right=True),
            Column(key="replaced", title="REPLACED", right=True),
            Column(key="localStartOffset", title="ON DISK FROM", show=_offset),
            Column(key="told", title="LAST TOLD"),
        ],
        tail=lambda: {
            "metadataPartitions": list(status.metadata_partitions),
            "metadataPartitionsCut": list(status.cut),
            "otherStoredSegments": standing.other_objects,
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


def _row(one: PartitionStanding, *, whole: bool) -> Row:
    beliefs = one.beliefs
    readable = beliefs.readable
    told = max((segment.event_timestamp_ms for segment in beliefs.segments), default=None)
    row = {
        "topic": beliefs.partition.name,
        "partition": beliefs.partition.partition,
        "topicId": beliefs.partition.id,
        "metadataPartition": beliefs.metadata_partition,
        "startOffset": beliefs.start_offset,
        "endOffset": beliefs.end_offset,
        "readable": len(readable),
        "bytes": sum(segment.size_bytes for segment in readable),
        "states": _states(beliefs),
        "orphans": len(beliefs.orphans),
        "replaced": len(beliefs.replaced),
        "copying": None if beliefs.copying is None else beliefs.copying.id,
        "deleteState": None if beliefs.delete_state is None else beliefs.delete_state.name,
        "localStartOffset": one.local_start,
        "told": None if told is None else instant(told),
    }
    return {**row, "segments": [_segment_row(segment, beliefs) for segment in beliefs.segments]} if whole else row


def _span(row: Row) -> str:
    return "-" if row["endOffset"] is None else f"[{row['startOffset']}, {row['endOffset']})"


def _offset(value: object) -> str:
    return "-" if value is None else str(value)


def _states(beliefs: PartitionBeliefs) -> dict[str, int]:
    counts = {state.label: 0 for state in SegmentState if state is not SegmentState.DELETE_SEGMENT_FINISHED}
    for segment in beliefs.segments:
        counts[segment.state.label] += 1
    return counts


def _segment_row(segment: RemoteSegment, beliefs: PartitionBeliefs) -> Row:
    return {
        "id": segment.id,
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "state": segment.state.name,
        "readable": segment.id in beliefs.readable_ids,
        "segmentSizeInBytes": segment.size_bytes,
        "brokerId": segment.broker_id,
        "maxTimestampMs": segment.max_timestamp_ms,
        "eventTimestampMs": segment.event_timestamp_ms,
        "segmentLeaderEpochs": {str(one.leader_epoch): one.offset for one in segment.leader_epochs},
        "customMetadata": _custom_metadata(segment.custom_metadata),
    }


def _custom_metadata(data: bytes | None) -> Row | None:
    """Return what a plugin told of a segment; its bytes alone, where they are not those of the layout ``aiven``."""
    if data is None:
        return None
    try:
        told = read_custom_metadata(data)
    except FormatError:
        return {"bytes": data.hex()}
    fields = {"remoteSize": told.remote_size, "objectPrefix": told.object_prefix, "objectKey": told.object_key}
    return {"bytes": data.hex(), **{name: value for name, value in fields.items() if value is not None}}


def _closing(status: RemoteStatus, findings: Iterable[Finding]) -> Iterator[str]:
    yield ""
    standing = status.standing
    numbers = ", ".join(map(str, status.metadata_partitions))
    yield f"By partitions {numbers} of {METADATA_TOPIC}; others know more, where there are others."
    if status.cut:
        yield f"Partitions {', '.join(map(str, status.cut))} of it have lost their first records to retention."
    for one in findings:
        size = f" ({human_bytes(one.size_bytes)})" if one.size_bytes else ""
        yield f"{one.kind.value}: {one.place}: {human_count(one.count)}{size}: {one.detail}"
    if standing.other_objects:
        yield f"{human_count(standing.other_objects)} segments in the store are of partitions not told of here."
