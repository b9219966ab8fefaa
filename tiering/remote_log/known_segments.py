"""What brokers' metadata say of the segments in remote storage, for reading these as a log.

A listing shows what lies there. The metadata say which of it counts: not a copy that was never finished, not what is
being deleted, and not what another leader has replaced. What they do not name counts as it is listed, since the
metadata topic has a retention of its own, and what lies of it in a log dir may be old; so does what Resnap has shipped.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING

from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.log.internal_topic import partitions_of
from resnap.storage.log.survey import PartitionProblem
from resnap.storage.sources.registry import brokers_layout
from resnap.tiering.judging.leader_epochs import checkpointed_epochs
from resnap.tiering.remote_log.announceable import is_ours
from resnap.tiering.remote_log.codec import event_of, read_events
from resnap.tiering.remote_log.metadata_cache import fold_events
from resnap.tiering.remote_log.records import METADATA_TOPIC, TopicIdPartition, metadata_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.remote_log.codec import Event
    from resnap.tiering.remote_log.metadata_cache import RemoteLogMetadata, RemoteSegment


class KnownSegments:
    """The segments that brokers know of."""

    def __init__(self, metadata: RemoteLogMetadata, problems: Sequence[PartitionProblem] = ()) -> None:
        """Take what the metadata topic amounts to, and what of it could not be read."""
        self.problems = tuple(problems)
        self._readable = {(one.partition.id, one.partition.partition): one.readable for one in metadata.partitions}
        self._not_readable = {
            (one.partition.id, one.partition.partition, segment.id)
            for one in metadata.partitions
            for segment in one.segments
            if segment.id not in one.readable_ids and not is_ours(segment.id)
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
        for epoch in reversed(checkpointed_epochs(partition.leader_epochs, sources)):
            ends = [
                one.end_offset + 1
                for one in self._of(partition)
                if any(entry.leader_epoch == epoch.epoch for entry in one.leader_epochs)
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
    for partition in chain.from_iterable(partitions_of(METADATA_TOPIC, [one]).values() for one in log_dirs):
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
        events = events_of(cluster, [
            TopicIdPartition(name=one.topic_partition.topic, id=one.topic_id, partition=one.topic_partition.partition)
            for one in partitions
            if one.topic_id is not None
        ])  # fmt: skip
    except UsageError:
        return None
    return KnownSegments(fold_events(chain.from_iterable(events.values())))


def events_of(cluster: Cluster, wanted: Iterable[TopicIdPartition] | None = None) -> dict[int, Iterator[Event]]:
    """Return the records of each metadata partition of a running cluster, of those only that say ``wanted``, if given.

    Raises:
        UsageError: it has no such topic.
        ClusterError: it does not answer; what is returned raises it, too.

    """
    topic = cluster.facts(lambda name: name == METADATA_TOPIC).topics.get(METADATA_TOPIC)
    if topic is None:
        raise UsageError(f"the cluster has no topic {METADATA_TOPIC}", hint="is tiered storage on in its brokers?")
    numbers = set(topic.partitions)
    if wanted is not None:
        numbers &= {metadata_partition(one, len(topic.partitions)) for one in wanted}
    return {
        number: starmap(partial(event_of, number), cluster.read(METADATA_TOPIC, number)) for number in sorted(numbers)
    }
