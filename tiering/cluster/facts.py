"""What a running cluster tells of topics and their partitions, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resnap.storage.log.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition, as its leader has it; nothing but the number is known without a leader."""

    partition: int
    leader: int | None
    """Node id of the leader; None where there is none now."""
    log_start_offset: int | None = None
    local_start_offset: int | None = None
    """First offset on the leader's disk; None where the broker does not tell (before 3.6)."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic."""

    name: str
    topic_id: str | None
    """In Kafka's base64 form; None before 2.8."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the topic goes by, whoever set it."""
    partitions: Mapping[int, PartitionFacts] = field(default_factory=dict)

    @property
    def is_tiered(self) -> bool:
        """Whether tiered storage is on for it."""
        return self.settings.get("remote.storage.enable") == "true"

    @property
    def is_copying_paused(self) -> bool:
        """Whether leaders have been told to copy nothing (3.9 and later, with KRaft)."""
        return self.settings.get("remote.log.copy.disable") == "true"

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner works on it."""
        return "compact" in self.settings.get("cleanup.policy", "")

    @property
    def retention_ms(self) -> int | None:
        """After how long brokers delete segments; None for never."""
        told = int(self.settings.get("retention.ms", "-1"))
        return told if told >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The topics that were asked for."""

    cluster_id: str | None
    topics: Mapping[str, TopicFacts]

    def cleanup_policies(self) -> dict[str, str]:
        """Return the cleanup policy of each topic that tells it."""
        policies = {name: topic.settings.get("cleanup.policy") for name, topic in self.topics.items()}
        return {name: policy for name, policy in policies.items() if policy is not None}

    def partition(self, of: TopicPartition) -> PartitionFacts | None:
        """Return what is known of a partition; None where the cluster has none."""
        topic = self.topics.get(of.topic)
        return None if topic is None else topic.partitions.get(of.partition)
