"""The segments that brokers tier, as a store holds them, and whether they agree with brokers' metadata.

A plugin may return custom metadata to the broker: the key of a segment's objects, and their total size. The plugin then
reads the log and the indexes at that key, even if its key prefix has changed.

Custom metadata are tagged fields as in Kafka's protocol, ascending, at most 128 bytes by default. They are only read:
without them, the plugin finds a segment by its ids and its current key prefix.

The segments are read as a log by both. A listing shows what is there. The metadata say which of it counts: not a copy
that was never finished, not what is being deleted, and not what another leader has replaced. What they do not name
counts as it is listed, since the metadata topic has a retention of its own, and what is of it in a log dir may be old;
so does what Resnap has shipped.

Source: ``ObjectKeyFactory``, ``RemoteStorageManager``, ``SegmentCustomMetadataSerde`` of Aiven's
tiered-storage-for-apache-kafka, 1.0.0; ``TaggedFields`` of Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, TypeAlias

from resnap.storage.errors import FormatError, ResnapError, UsageError
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.log.log_dir import PartitionProblem
from resnap.storage.messages.wire import Cursor, Text, read_varlong
from resnap.storage.sources.registry import TIERED, brokers_layout
from resnap.tiering.judging.inventory import checkpointed_epochs
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.records import (
    METADATA_TOPIC,
    TopicIdPartition,
    event_of,
    is_ours,
    metadata_partition,
    read_events,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.storage.layouts.protocol import Tiered
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import ClusterFacts, TopicFacts
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata, RemoteSegment
    from resnap.tiering.remote_log.records import Event

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetadata:
    """The fields of ``custom.metadata.fields.include``; missing ones are None."""

    remote_size: int | None = None
    """Bytes of the three objects."""
    object_prefix: str | None = None
    object_key: str | None = None
    """Without prefix and suffix."""


def read_custom_metadata(data: bytes) -> CustomMetadata:
    """Return the custom metadata in ``data``; unknown fields are skipped.

    Raises:
        FormatError: cut short, too long, or tags that do not ascend.

    """
    cursor = Cursor(data)
    found: dict[int, Any] = {}
    for _ in range(cursor.unsigned() if data else 0):
        tag, size = cursor.unsigned(), cursor.unsigned()
        if tag <= max(found, default=-1):
            raise cursor.wrong("custom metadata: tag", "one above those before it", tag)
        with cursor.exactly(size, f"custom metadata: field {tag}"):
            if tag == _REMOTE_SIZE:
                found[tag], cursor.position = read_varlong(data, cursor.position)
            elif tag in {_OBJECT_PREFIX, _OBJECT_KEY}:
                found[tag] = Text().read(cursor, 0)
            else:
                found[tag] = cursor.take(size, "custom metadata: field")
    if cursor.remaining:
        raise cursor.wrong("custom metadata", "their end", f"{cursor.remaining} bytes more")
    return CustomMetadata(
        remote_size=found.get(_REMOTE_SIZE),
        object_prefix=found.get(_OBJECT_PREFIX),
        object_key=found.get(_OBJECT_KEY),
    )


@dataclass(slots=True)
class StoredSegment:
    """The objects of one segment in a store."""

    layout: Tiered
    objects: set[str] = field(default_factory=set)
    """What each of them is, in the layout's own words."""
    stems: set[str] = field(default_factory=set)
    """Their keys without suffixes, where they are announced to brokers; more than one where there are copies."""
    size_bytes: int = 0

    @property
    def lacks(self) -> list[str]:
        """The missing objects that brokers need."""
        return sorted(self.layout.needed_parts - self.objects)

    def contradiction(self, segment: RemoteSegment) -> str | None:
        """Return where the custom metadata of ``segment`` differ from the stored objects; None if nowhere.

        A store may be listed from above, or from within, the key prefix that brokers use.
        """
        if not self.stems or segment.custom_metadata is None:
            return None
        try:
            custom = read_custom_metadata(segment.custom_metadata)
        except FormatError as error:
            return f"has custom metadata that the plugin cannot read: {error}"
        stem = f"{custom.object_prefix or ''}{custom.object_key or ''}"
        if custom.object_key is not None and not any(_is_within(stem, there) for there in self.stems):
            return f"lies at {min(self.stems)}, and its metadata say {stem}"
        is_whole = len(self.stems) == 1 and not self.lacks
        if is_whole and custom.remote_size not in {None, self.size_bytes}:
            return f"has {self.size_bytes} bytes, and its metadata say {custom.remote_size}"
        return None


def _is_within(one: str, other: str) -> bool:
    """Whether the keys are equal, apart from folders in front of one of them."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


StoredSegments: TypeAlias = "dict[tuple[str, int], dict[str, StoredSegment]]"
"""Stored segments by topic id and partition, then by segment id."""


def stored_segments(listed: Iterable[ObjectInfo]) -> StoredSegments:
    """Return the segments that the objects ``listed`` make, in layouts that brokers read."""
    found: StoredSegments = {}
    for info in listed:
        parsed = ((layout, layout.brokers_object(info.key)) for layout in TIERED)
        layout, one = next((pair for pair in parsed if pair[1] is not None), (None, None))
        if layout is None or one is None:
            continue
        of_partition = found.setdefault((one.topic_id, one.partition), {})
        stored = of_partition.setdefault(one.segment_id, StoredSegment(layout))
        stored.objects.add(one.suffix)
        stored.stems |= {one.stem} if one.stem is not None else set()
        stored.size_bytes += info.size_bytes
    return found


class KnownSegments:
    """The segments that brokers know of."""

    def __init__(self, metadata: RemoteLogMetadata, problems: Sequence[PartitionProblem] = ()) -> None:
        """Take what the metadata topic amounts to, and what of it could not be read."""
        self.problems = tuple(problems)
        self._readable = {(one.partition.id, one.partition.partition): one.readable for one in metadata.partitions}
        self._not_readable = {
            (cache.partition.id, cache.partition.partition, segment.id)
            for cache in metadata.partitions
            for segment in cache.segments
            if segment.id not in cache.readable_ids and not is_ours(segment.id)
        }

    def counts(self, key: str) -> bool:
        """Whether the object at ``key`` is not of a segment that brokers would not read."""
        layout = brokers_layout(key) if self._not_readable else None
        one = None if layout is None else layout.brokers_object(key)
        return one is None or (one.topic_id, one.partition, one.segment_id) not in self._not_readable

    def between(self, partition: PartitionDir, start: int, end: int) -> list[str]:
        """Return the ids of the segments that brokers read for offsets from ``start`` up to ``end``."""
        return [one.id for one in self._of(partition) if one.start_offset < end and one.end_offset >= start]

    def end(self, partition: PartitionDir, sources: Sources) -> int | None:
        """Return the first offset that brokers have not tiered; None if they name no segment of the partition's log.

        Source: ``RemoteLogManager.findHighestRemoteOffset``.
        """
        above: int | None = None
        known = self._of(partition)
        for epoch in reversed(checkpointed_epochs(partition.leader_epochs, sources)) if known else ():
            ends = [
                segment.end_offset + 1
                for segment in known
                if any(entry.leader_epoch == epoch.epoch for entry in segment.leader_epochs)
            ]
            if ends:
                return max(ends) if above is None else min(max(ends), above)
            above = epoch.start_offset
        return None

    def _of(self, partition: PartitionDir) -> Sequence[RemoteSegment]:
        return self._readable.get((partition.topic_id or "", partition.topic_partition.partition), ())


def known_in(log_dirs: Iterable[LogDir]) -> KnownSegments:
    """Return the part of the metadata topic in ``log_dirs``, of one broker or of several."""
    events: list[Event] = []
    problems = []
    for partition in chain.from_iterable(partitions_of(METADATA_TOPIC, [log_dir]).values() for log_dir in log_dirs):
        try:
            events += read_events(partition)
        except ResnapError as error:
            problems.append(
                PartitionProblem(path=partition.path, error=error, topic_partition=partition.topic_partition)
            )
    return KnownSegments(fold_events(events), problems)


def known_by(cluster: Cluster, partitions: Iterable[PartitionDir]) -> KnownSegments | None:
    """Return what the metadata topic of a running cluster says of ``partitions``; None without such a topic.

    Raises:
        ClusterError: it cannot be read.

    """
    try:
        return KnownSegments(metadata_of(cluster, [
            TopicIdPartition(name=one.topic_partition.topic, id=one.topic_id, partition=one.topic_partition.partition)
            for one in partitions
            if one.topic_id is not None
        ]))  # fmt: skip
    except UsageError:
        return None


def metadata_of(cluster: Cluster, wanted: Iterable[TopicIdPartition] | None = None) -> RemoteLogMetadata:
    """Return what the metadata topic of a running cluster says, of those metadata partitions only that say ``wanted``.

    Raises:
        UsageError: it has no such topic.
        ClusterError: it does not answer.

    """
    return fold_events(chain.from_iterable(events_of(cluster, wanted).values()))


def metadata_topic(facts: ClusterFacts) -> TopicFacts:
    """Return what ``facts``, for which it was asked by name, say of the metadata topic.

    Raises:
        UsageError: the cluster has no such topic.
        ClusterError: the user may not describe it.

    """
    topic = facts.topics.get(METADATA_TOPIC)
    if topic is None:
        hint = "brokers make it when the first topic is tiered; remote.log.storage.system.enable must be set"
        raise facts.refusal(METADATA_TOPIC) or UsageError(f"the cluster has no topic {METADATA_TOPIC}", hint=hint)
    return topic


def events_of(cluster: Cluster, wanted: Iterable[TopicIdPartition] | None = None) -> dict[int, Iterator[Event]]:
    """Return the records of each metadata partition of a running cluster, of those only that say ``wanted``, if given.

    Raises:
        UsageError: it has no such topic.
        ClusterError: it does not answer; what is returned raises it, too.

    """
    topic = metadata_topic(cluster.facts(METADATA_TOPIC.__eq__, [METADATA_TOPIC]))
    numbers = set(topic.partitions)
    if wanted is not None:
        numbers &= {metadata_partition(partition, len(topic.partitions)) for partition in wanted}
    return {
        number: starmap(partial(event_of, number), cluster.read(METADATA_TOPIC, number)) for number in sorted(numbers)
    }
