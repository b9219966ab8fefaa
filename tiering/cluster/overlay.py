"""A log dir with what the running cluster says of it, where that is newer or surer than the files.

The high watermark and the start of the log are taken from a partition's leader alone, and only for the leader's own log
dir: a follower's log may end below, or differ from, what the leader counts as committed. A directory of another topic
id than the cluster's topic of that name is what remains of a topic that was deleted; nothing is made of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from resnap.storage.errors import LogDirError, UsageError
from resnap.storage.log.survey import PartitionProblem

if TYPE_CHECKING:
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
    from resnap.tiering.cluster.facts import ClusterFacts, TopicFacts


def with_facts(log_dir: LogDir, facts: ClusterFacts) -> LogDir:
    """Return ``log_dir`` with topic ids, high watermarks and log starts as the cluster has them now.

    Raises:
        UsageError: it is of another cluster.

    """
    if log_dir.cluster_id is not None and facts.cluster_id is not None and log_dir.cluster_id != facts.cluster_id:
        raise UsageError(
            f"{log_dir.path} is of cluster {log_dir.cluster_id}, the running one is {facts.cluster_id}",
            hint="look at --bootstrap-server",
        )
    partitions: list[PartitionDir] = []
    problems = list(log_dir.problems)
    for one in log_dir.partitions:
        topic = facts.topics.get(one.topic_partition.topic)
        if topic is None:
            partitions.append(one)
        elif None not in (one.topic_id, topic.topic_id) and one.topic_id != topic.topic_id:
            problems.append(PartitionProblem(path=one.path, error=_of_another_topic(one, topic)))
        else:
            partitions.append(_updated(one, topic, log_dir.broker_id))
    return replace(log_dir, partitions=tuple(partitions), problems=tuple(problems))


def _updated(one: PartitionDir, topic: TopicFacts, broker_id: int | None) -> PartitionDir:
    known = replace(one, topic_id=one.topic_id or topic.topic_id)
    facts = topic.partitions.get(one.topic_partition.partition)
    if facts is None or facts.leader is None or facts.leader != broker_id:
        return known
    high_watermark = one.high_watermark if facts.high_watermark is None else facts.high_watermark
    start = max(one.log_start_offset, facts.log_start_offset or 0)
    return replace(known, high_watermark=high_watermark, log_start_offset=start)


def _of_another_topic(one: PartitionDir, topic: TopicFacts) -> LogDirError:
    return LogDirError(
        f"{one.path} is of the topic with id {one.topic_id}, the cluster's {topic.name} has {topic.topic_id}",
        hint="the topic was deleted and made anew: its broker will remove the directory",
    )
