"""What a running cluster says of topics and their partitions, and a log dir with these facts applied.

The high watermark and the start of the log are taken from a partition's leader alone, and only for the leader's own log
dir: a follower's log may end below, or differ from, what the leader counts as committed. A directory of another topic
id than the cluster's topic of that name is what remains of a topic that was deleted; nothing is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from resnap.storage.errors import ClusterError, LogDirError, UsageError
from resnap.storage.log.log_dir import PartitionProblem
from resnap.storage.messages.wire import ZERO_UUID, uuid_text

_OF_THE_TOPIC: Final = 1
"""Where a setting comes from that was set for the topic itself (``DescribeConfigsResponse.ConfigSource``)."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition, as its leader has it; no offset is known without a leader, or of one that does not answer."""

    partition: int
    leader: int | None
    """Node id of the leader; None where there is none now."""
    log_start_offset: int | None = None
    local_start_offset: int | None = None
    """First offset on the leader's disk; None where the broker does not say (before 3.6)."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    remote_end_offset: int | None = None
    """First offset that is not in remote storage; None where the broker does not say (before 3.9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic."""

    name: str
    topic_id: str | None
    """In Kafka's base64 form; None before 2.8."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The values in effect, by default or set."""
    own_settings: frozenset[str] = frozenset()
    """Names of those that are set for the topic itself."""
    partitions: Mapping[int, PartitionFacts] = field(default_factory=dict)

    @property
    def is_tiered(self) -> bool:
        """Whether tiered storage is on for it."""
        return self.settings.get("remote.storage.enable") == "true"

    @property
    def is_copying_paused(self) -> bool:
        """Whether leaders are configured to copy nothing (3.9 and later, with KRaft)."""
        return self.settings.get("remote.log.copy.disable") == "true"

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner works on it."""
        return "compact" in self.settings.get("cleanup.policy", "")

    @property
    def retention_ms(self) -> int | None:
        """After how long brokers delete segments; None for never."""
        retention_ms = int(self.settings.get("retention.ms", "-1"))
        return retention_ms if retention_ms >= 0 else None

    @property
    def retention_bytes(self) -> int:
        """From which size on brokers delete segments of a partition; -1 for no limit."""
        return int(self.settings.get("retention.bytes", "-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The topics that were asked for."""

    cluster_id: str | None
    topics: Mapping[str, TopicFacts]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Topics that the user may not describe, whole or in their settings, with Kafka's error."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Leaders that do not answer, and why: of what they lead no offset is known."""

    def refusal(self, topic: str) -> ClusterError | None:
        """Return what a command says of ``topic`` if the user may not describe it."""
        if topic not in self.refused:
            return None
        return ClusterError(
            f"{topic}: the cluster does not describe the topic to this user: {self.refused[topic]}",
            hint="grant the user of --command-config Describe and DescribeConfigs on the topic; --exclude-topic leaves"
            " a topic out",
        )

    def topic_settings(self) -> dict[str, Mapping[str, str]]:
        """Return the settings of each topic, where they are known."""
        return {name: topic.settings for name, topic in self.topics.items() if topic.settings}

    def partition(self, of: TopicPartition) -> PartitionFacts | None:
        """Return what is known of a partition; None where the cluster has none."""
        topic = self.topics.get(of.topic)
        return None if topic is None else topic.partitions.get(of.partition)


def with_facts(log_dir: LogDir, facts: ClusterFacts) -> LogDir:
    """Return ``log_dir`` with topic ids, high watermarks and log starts as the cluster has them now.

    Raises:
        UsageError: it is of another cluster.

    """
    if log_dir.cluster_id is not None and facts.cluster_id is not None and log_dir.cluster_id != facts.cluster_id:
        raise UsageError(
            f"{log_dir.path} is of cluster {log_dir.cluster_id}, the running one is {facts.cluster_id}",
            hint="check --bootstrap-server",
        )
    partitions: list[PartitionDir] = []
    problems = list(log_dir.problems)
    for one in log_dir.partitions:
        topic = facts.topics.get(one.topic_partition.topic)
        if refusal := facts.refusal(one.topic_partition.topic):
            problems.append(PartitionProblem(path=one.path, error=refusal, topic_partition=one.topic_partition))
        elif topic is None:
            partitions.append(one)
        elif None not in (one.topic_id, topic.topic_id) and one.topic_id != topic.topic_id:
            error = LogDirError(
                f"{one.path} is of the topic with id {one.topic_id}, the cluster's {topic.name} has {topic.topic_id}",
                hint="the topic was deleted and created again: its broker will remove the directory",
            )
            problems.append(PartitionProblem(path=one.path, error=error, topic_partition=one.topic_partition))
        else:
            partitions.append(_update(one, topic, log_dir.broker_id))
    return replace(log_dir, partitions=tuple(partitions), problems=tuple(problems))


def _update(one: PartitionDir, topic: TopicFacts, broker_id: int | None) -> PartitionDir:
    known = replace(one, topic_id=one.topic_id or topic.topic_id)
    facts = topic.partitions.get(one.topic_partition.partition)
    if facts is None or facts.leader is None or facts.leader != broker_id:
        return known
    high_watermark = one.high_watermark if facts.high_watermark is None else facts.high_watermark
    start = max(one.log_start_offset, facts.log_start_offset or 0)
    return replace(known, high_watermark=high_watermark, log_start_offset=start)


def topic_facts(
    described: dict[str, Any], settings: dict[str, Any], offsets: dict[str, dict[tuple[str, int], int]]
) -> TopicFacts:
    """Return a topic as brokers describe it, with its settings, and the offsets by what they are."""
    name = described["name"]
    partitions = {}
    for partition in described["partitions"]:
        number = partition["partition_index"]
        known = {what: found.get((name, number)) for what, found in offsets.items()}
        leader = partition["leader_id"] if partition["leader_id"] >= 0 else None
        partitions[number] = PartitionFacts(partition=number, leader=leader, **known)
    return TopicFacts(
        name=name,
        topic_id=topic_id_of(described.get("topic_id")),
        settings=setting_values(settings),
        own_settings=frozenset(setting for setting, entry in settings.items() if entry.config_source == _OF_THE_TOPIC),
        partitions=partitions,
    )


def setting_values(settings: dict[str, Any]) -> dict[str, str]:
    """Return the values of settings as brokers describe them."""
    return {name: entry.value for name, entry in settings.items()}


def topic_id_of(given: Any) -> str | None:  # noqa: ANN401 - the library gives a UUID, or text of one
    """Return the id of a topic as Kafka shows it; None if it has none."""
    if given is None:
        return None
    found = uuid_text((given if isinstance(given, UUID) else UUID(str(given))).bytes)
    return None if found == ZERO_UUID else found
