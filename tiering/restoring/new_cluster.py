"""Makes the metadata records that give a new KRaft cluster its restored topics, before its first start.

A partition begins without a leader, so that one is elected as soon as a broker is up: followers would not fetch from a
leader that has not started yet, and would never begin to. All replicas are in sync, because they have the same bytes.
If the cluster has eligible leader replicas (KIP-966), none are in sync, because an unknown broker counts as not shut
down cleanly when it registers: then the first replica is the last known leader, which may lead.

Leader epochs and the first block of producer ids begin above all restored ones, by a margin: returning clients of the
old cluster may have seen later ones, in segments that were never shipped.

Source: ``ReplicationControlManager``, ``ProducerIdControlManager``, ``Metadata`` of the clients; KIP-320, KIP-730,
KIP-858, KIP-966.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.tiering.controller.metadata.image import METADATA_VERSION, METADATA_VERSIONS, ResourceType
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_LEADER,
    PRODUCER_ID_BLOCK_SIZE,
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resnap.tiering.controller.metadata.records import MetadataRecord

IDS_LEFT_OUT: Final = 1_000_000
"""Producer ids above the highest one that is known: of producers whose records were never shipped."""
EPOCHS_LEFT_OUT: Final = 1_000
"""Leader epochs above the last one that is known: clients ignore leaders of older ones than they have seen."""
_UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The log dir of a replica that its broker has not placed yet. Source: ``DirectoryId.UNASSIGNED``."""
_ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"
_DIRECTORIES_SINCE: Final = next(level for level, name in METADATA_VERSIONS.items() if name == "3.7-IV2")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartition:
    """A partition of a new topic."""

    partition: int
    replicas: tuple[int, ...]
    """Brokers, the preferred leader first."""
    last_leader_epoch: int | None
    """Of the last leader of its log; None for one without records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic in its initial state."""

    name: str
    topic_id: str
    partitions: tuple[NewPartition, ...]
    config: Mapping[str, str]


def records_for(
    topics: Sequence[NewTopic],
    highest_producer_id: int,
    known: Sequence[MetadataRecord],
    features: Mapping[str, int],
) -> list[MetadataRecord]:
    """Return the records of ``topics``, after those of producer ids.

    ``known`` are the records of an earlier run: its topics are kept, except those with the same names or ids.
    ``features`` are the initial feature levels of the cluster.
    """
    names, ids = {one.name for one in topics}, {one.topic_id for one in topics}
    ids |= {one.topic_id for one in known if isinstance(one, TopicRecord) and one.name in names}
    names |= {one.name for one in known if isinstance(one, TopicRecord) and one.topic_id in ids}
    before = max((one.next_producer_id for one in known if isinstance(one, ProducerIdsRecord)), default=0)
    block = max(before, _block_above(highest_producer_id))
    stay = [
        one for one in known
        if (isinstance(one, TopicRecord | PartitionRecord) and one.topic_id not in ids)
        or (isinstance(one, ConfigRecord) and one.resource_name not in names)
    ]  # fmt: skip
    ours = [record for one in topics for record in _topic(one, features)]
    return [ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=block), *stay, *ours]


def _block_above(highest_producer_id: int) -> int:
    """Return the first id of the first block above ``highest_producer_id`` and the margin."""
    return -(-(highest_producer_id + 1 + IDS_LEFT_OUT) // PRODUCER_ID_BLOCK_SIZE) * PRODUCER_ID_BLOCK_SIZE


def _topic(topic: NewTopic, features: Mapping[str, int]) -> Iterator[MetadataRecord]:
    has_directories = features[METADATA_VERSION] >= _DIRECTORIES_SINCE
    has_eligible = features.get(_ELIGIBLE_LEADER_REPLICAS, 0) > 0
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for one in topic.partitions:
        yield PartitionRecord(
            partition_id=one.partition,
            topic_id=topic.topic_id,
            replicas=one.replicas,
            isr=() if has_eligible else one.replicas,
            leader=NO_LEADER,
            leader_epoch=0 if one.last_leader_epoch is None else one.last_leader_epoch + EPOCHS_LEFT_OUT,
            partition_epoch=0,
            directories=(_UNASSIGNED,) * len(one.replicas) if has_directories else (),
            last_known_elr=one.replicas[:1] if has_eligible else None,
        )
    for name, value in sorted(topic.config.items()):
        yield ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
