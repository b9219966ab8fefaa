"""What brokers know of remote storage, by their metadata topic, compared with their disks and the store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import UsageError
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.messages.wire import ZERO_UUID
from resnap.tiering.controller.metadata.cluster import ClusterMetadata, find_metadata_log
from resnap.tiering.controller.metadata.image import ResourceType
from resnap.tiering.judging.inventory import NEVER_TIERED
from resnap.tiering.remote_log.comparison import compare
from resnap.tiering.remote_log.metadata_cache import fold_events, nothing_copied
from resnap.tiering.remote_log.records import METADATA_TOPIC, TopicIdPartition, metadata_partition, read_events
from resnap.tiering.remote_log.stored import events_of, stored_segments
from resnap.tiering.remote_log.waiting import waiting_on_leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.errors import ResnapError
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import ClusterFacts
    from resnap.tiering.remote_log.comparison import RemoteComparison
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata
    from resnap.tiering.remote_log.records import Event
    from resnap.tiering.remote_log.stored import StoredSegments
    from resnap.tiering.remote_log.waiting import Waiting
    from resnap.tiering.selection import Scope

_NO_METADATA: Final = (
    "give the log dirs of a broker with tiered storage; only brokers with a replica of a partition of the topic have it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStatus:
    """What was found, and how much of the metadata topic it depends on."""

    comparison: RemoteComparison
    metadata_partitions: tuple[int, ...]
    cut: tuple[int, ...]
    """Metadata partitions whose first records retention has deleted: what these said is not known."""
    problems: tuple[ResnapError, ...]
    """What could not be read in the log dirs."""
    now_ms: int
    """When it was read."""


def read_status(
    survey: Callable[[], Sequence[LogDir]],
    scope: Scope,
    store: ObjectStore | None,
    cluster: Cluster | None = None,
    *,
    now_ms: int,
    overdue_ms: int,
    warn: Callable[[str], None],
) -> RemoteStatus:
    """Return what the metadata topic says of the partitions of ``scope``, compared with log dirs and ``store``.

    The topic is that of the running ``cluster``, where one is given, else what is of it in the log dirs. It is read
    again where the store has what it does not name, or lacks something: brokers may have gone on in between.

    Raises:
        UsageError: there is no such topic, or no partition of it; or nothing matches the topics of ``scope``.
        ResnapError: it, or the store, cannot be read.

    """
    warn_once = cache(warn)

    def reading() -> _TopicRead:
        read = _read(survey(), scope, cluster, now_ms, overdue_ms)
        return read if cluster is None else _with_leaders(read, scope, cluster, warn_once)

    read = reading()
    if store is None:
        return read.status(None)
    stored = stored_segments(store.list())
    status = read.status(stored)
    if not status.comparison.asks_for_another_reading:
        return status
    return reading().status(stored, before=read.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicRead:
    """The metadata topic as it was read once, and the log dirs as they were."""

    metadata: RemoteLogMetadata
    log_dirs: Sequence[LogDir]
    firsts: Mapping[int, int | None]
    """Offset of the first record of each metadata partition."""
    now_ms: int
    overdue_from_ms: int
    settings: Mapping[str, Mapping[str, str]]
    """The settings of the topics, as the running cluster or the metadata log beside the log dirs have them."""
    on_leaders: Mapping[TopicIdPartition, Waiting] = field(default_factory=dict)
    """What the leaders have not copied yet, where a cluster was asked."""

    def status(self, stored: StoredSegments | None, before: RemoteLogMetadata | None = None) -> RemoteStatus:
        local = chain.from_iterable(log_dir.partitions for log_dir in self.log_dirs)
        return RemoteStatus(
            comparison=compare(
                self.metadata,
                local,
                stored,
                before,
                on_leaders=self.on_leaders,
                overdue_from_ms=self.overdue_from_ms,
                settings=self.settings,
            ),
            metadata_partitions=tuple(self.firsts),
            cut=tuple(number for number, first in self.firsts.items() if first),
            problems=tuple(problem.error for log_dir in self.log_dirs for problem in log_dir.problems),
            now_ms=self.now_ms,
        )


def _read(
    log_dirs: Sequence[LogDir], scope: Scope, cluster: Cluster | None, now_ms: int, overdue_ms: int
) -> _TopicRead:
    events = _events_in(log_dirs) if cluster is None else events_of(cluster)
    firsts: dict[int, int | None] = dict.fromkeys(events)
    metadata = fold_events(_with_firsts(chain.from_iterable(events.values()), firsts))
    wanted = tuple(partition for partition in metadata.partitions if scope.wants(partition.partition.name))
    local = chain.from_iterable(log_dir.partitions for log_dir in log_dirs)
    if scope.topics and not wanted and not any(scope.wants(partition.topic_partition.topic) for partition in local):
        what = f"{METADATA_TOPIC} names no topic that matches --topic {' or '.join(scope.topics)}"
        raise UsageError(what, hint="without --topic all topics that it names are shown")
    return _TopicRead(
        metadata=replace(metadata, partitions=wanted),
        log_dirs=log_dirs,
        firsts=firsts,
        overdue_from_ms=now_ms - overdue_ms,
        now_ms=now_ms,
        settings=_settings({cache.partition.name for cache in wanted if cache.deletions}, log_dirs, cluster),
    )


def _with_leaders(read: _TopicRead, scope: Scope, cluster: Cluster, warn: Callable[[str], None]) -> _TopicRead:
    """Return the reading with what leaders have not copied, and with tiered partitions that the topic does not name."""
    named = {cache.partition.name for cache in read.metadata.partitions} | {METADATA_TOPIC}
    facts = cluster.facts(
        lambda name: name == METADATA_TOPIC or (scope.wants(name) and name not in NEVER_TIERED), named
    )
    for name in sorted(facts.refused.keys() - {METADATA_TOPIC}):
        warn(f"whether segments wait to be copied is not known: {facts.refusal(name)}")
    for leader, why in facts.silent.items():
        warn(f"whether segments that broker {leader} leads wait to be copied is not known: {why}")
    count = len(facts.topics[METADATA_TOPIC].partitions)
    tiered = [topic for topic in facts.topics.values() if topic.is_tiered and topic.name != METADATA_TOPIC]
    known = {cache.partition: cache for cache in read.metadata.partitions}
    for topic in tiered:
        for number in topic.partitions:
            partition = TopicIdPartition(name=topic.name, id=topic.topic_id or ZERO_UUID, partition=number)
            if partition not in known:
                known[partition] = nothing_copied(partition, metadata_partition(partition, count))
    caches = {partition.topic_partition: cache for partition, cache in known.items() if _is_now(partition, facts)}
    waiting = waiting_on_leaders(cluster, tiered, caches, read.now_ms, warn)
    found = sorted(known.values(), key=lambda cache: (cache.partition.topic_partition, cache.partition.id))
    return replace(
        read,
        metadata=replace(read.metadata, partitions=tuple(found)),
        on_leaders={cache.partition: waiting[name] for name, cache in caches.items() if name in waiting},
    )


def _is_now(partition: TopicIdPartition, facts: ClusterFacts) -> bool:
    """Whether the cluster's topic of this name has this id: an older one was deleted."""
    topic = facts.topics.get(partition.name)
    return topic is not None and topic.topic_id == partition.id


def _settings(topics: set[str], log_dirs: Sequence[LogDir], cluster: Cluster | None) -> Mapping[str, Mapping[str, str]]:
    """Return the settings of topics; those that the topics themselves set, where no cluster is asked."""
    if not topics:
        return {}
    if cluster is not None:
        return {name: topic.settings for name, topic in cluster.facts(topics.__contains__).topics.items()}
    image = ClusterMetadata(find_metadata_log([str(log_dir.path) for log_dir in log_dirs])).image()
    configs = {} if image is None else image.configs
    return {
        one.name: values for one, values in configs.items() if one.type == ResourceType.TOPIC and one.name in topics
    }


def _with_firsts(events: Iterable[Event], firsts: dict[int, int | None]) -> Iterator[Event]:
    """Pass ``events`` on, and keep the offset of the first one of each metadata partition."""
    for event in events:
        if firsts[event.metadata_partition] is None:
            firsts[event.metadata_partition] = event.offset
        yield event


def _events_in(log_dirs: Sequence[LogDir]) -> dict[int, Iterator[Event]]:
    found = partitions_of(METADATA_TOPIC, log_dirs)
    if not found:
        places = ", ".join(str(log_dir.path) for log_dir in log_dirs)
        raise UsageError(f"no partition of {METADATA_TOPIC} lies in {places}", hint=_NO_METADATA)
    return {number: read_events(partition) for number, partition in found.items()}
