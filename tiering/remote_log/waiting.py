"""Finds the closed segments that wait to be copied to remote storage, and since when: tiering that has stopped.

A leader copies a closed segment within seconds of its roll, so one that has waited for hours shows that tiering has
stopped, whatever the cause: a segment without a snapshot, a task that an Error ended, a request to the store that never
returns, a paused topic, an open transaction. The cause is not looked for. In a log dir, a segment was closed when the
broker wrote the snapshot at its end, or after the last append to it where there is no such file.

For the leaders of a running cluster, whose disks are not read, it is estimated. The metadata topic says where remote
storage ends, the leader how large its log is. A segment begins where remote storage ends. It is closed for certain if
more than ``segment.bytes`` follow, or if there is a record that is more than ``segment.ms`` younger than its first one;
a segment that was closed for another reason is not seen. Its end is estimated by size, as if all records were equally
large, and the timestamp of the record there is when it was closed.

Source: ``RemoteLogManager.RLMCopyTask.candidateLogSegments``, ``LogSegment.shouldRoll``, ``DescribeLogDirsResponse``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.broker_settings import log_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.cluster.facts import PartitionFacts, TopicFacts
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadataCache

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The closed segments of a partition that are not in remote storage."""

    offset: int
    """Base offset of the oldest."""
    since_ms: int
    """When the oldest was closed."""
    segments: int
    size_bytes: int
    is_estimate: bool = False
    """Whether number and size were estimated from the outside of a broker, and the size includes the active segment."""


def waiting_segments(partition: PartitionDir, remote_end: int) -> Waiting | None:
    """Return the closed local segments with offsets from ``remote_end`` on; None if there are none.

    Segments above the high watermark are not copied, and those below the log start are about to be deleted.
    """
    lowest, end = max(remote_end, partition.log_start_offset), partition.high_watermark
    found = [
        (segment, closed_at)
        for segment in partition.segments
        if (closed_at := segment.next_base_offset) is not None
        and closed_at > lowest
        and (end is None or closed_at <= end)
        and partition.is_local(segment.base_offset)
    ]
    if not found:
        return None
    oldest, its_end = found[0]
    rolled = next((snapshot.mtime_ns for snapshot in partition.snapshots if snapshot.offset == its_end), 0)
    return Waiting(
        offset=oldest.base_offset,
        since_ms=max(oldest.mtime_ns, rolled) // _NS_PER_MS,
        segments=len(found),
        size_bytes=sum(segment.size_bytes for segment, _ in found),
    )


class _Tail(NamedTuple):
    """What follows the end of remote storage in a leader's log."""

    start: int
    end: int
    size_bytes: int
    topic: TopicFacts

    def setting(self, name: str) -> int | None:
        """Return a setting of the topic that is a number; None if the cluster does not report it."""
        value = self.topic.settings.get(name)
        return None if value is None else int(value)

    def closed(self, since_ms: int) -> Waiting:
        """Return the segments that are closed at least, the first of them since ``since_ms``."""
        most = self.setting("segment.bytes")
        count = 1 if not most else max(1, self.size_bytes // most)
        size_bytes = max(self.size_bytes, 0)
        return Waiting(offset=self.start, since_ms=since_ms, segments=count, size_bytes=size_bytes, is_estimate=True)


def waiting_on_leaders(
    cluster: Cluster,
    topics: Iterable[TopicFacts],
    caches: Mapping[TopicPartition, RemoteLogMetadataCache],
    now_ms: int,
    warn: Callable[[str], None],
) -> dict[TopicPartition, Waiting]:
    """Return what waits to be copied in the partitions of ``topics`` that have a leader and a closed segment.

    Args:
        cluster: the running cluster.
        topics: tiered ones, with all their partitions.
        caches: what is in remote storage.
        now_ms: the current time.
        warn: called about leaders that do not report the sizes of their logs, or offsets by time.

    Raises:
        ClusterError: the cluster does not answer.

    """
    tails = dict(_tails(cluster, topics, caches, warn))
    by_size = {
        name: tail.start + (tail.end - tail.start) * most // tail.size_bytes
        for name, tail in tails.items()
        if (most := tail.setting("segment.bytes")) and tail.size_bytes > most
    }
    found = {name: tails[name].closed(at) for name, at in cluster.timestamps(by_size).items()}
    limits = {
        name: limit for name, tail in tails.items() if name not in found and (limit := tail.setting("segment.ms"))
    }
    try:
        return found | _closed_by_time(cluster, {name: tails[name] for name in limits}, limits, now_ms)
    except ClusterError as error:  # a leader looks in remote storage for an offset by time, and may not reach it
        warn(f"what leaders have not copied is judged by size alone: {error}")
        return found


def _closed_by_time(
    cluster: Cluster, tails: Mapping[TopicPartition, _Tail], limits: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, Waiting]:
    younger = cluster.first_since({name: max(now_ms - limit, 0) for name, limit in limits.items()})
    old = {name: tails[name].start for name in limits if name not in younger or younger[name][0] > tails[name].start}
    begun = cluster.timestamps(old)
    ends = cluster.first_since({name: at + limits[name] for name, at in begun.items()})
    return {name: tails[name].closed(at) for name, (offset, at) in ends.items() if offset > tails[name].start}


def _tails(
    cluster: Cluster,
    topics: Iterable[TopicFacts],
    caches: Mapping[TopicPartition, RemoteLogMetadataCache],
    warn: Callable[[str], None],
) -> Iterable[tuple[TopicPartition, _Tail]]:
    led: dict[int, dict[TopicPartition, tuple[TopicFacts, PartitionFacts]]] = defaultdict(dict)
    for topic in topics:
        for number, facts in topic.partitions.items():
            if facts.leader is not None and facts.high_watermark is not None:  # else it does not answer
                led[facts.leader][TopicPartition(topic.name, number)] = topic, facts
    for leader, partitions in led.items():
        try:
            sizes = log_sizes(cluster, leader, partitions)
        except ClusterError as error:
            warn(f"what broker {leader} has not copied is judged by time alone: {error}")
            sizes = {}
        for name, (topic, facts) in partitions.items():
            cache = caches.get(name)
            start = max(facts.log_start_offset or 0, 0 if cache is None else cache.end_offset or 0)
            end = facts.high_watermark or 0
            if end <= start:
                continue
            local = facts.local_start_offset or 0
            copied = sum(one.size_bytes for one in (cache.readable if cache else ()) if one.start_offset >= local)
            yield name, _Tail(start=start, end=end, size_bytes=sizes.get(name, 0) - copied, topic=topic)
