"""The state of folding a metadata log, and the position of the record being applied."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import MetadataLogError
from resnap.tiering.controller.metadata.image import MetadataImage, Note

if TYPE_CHECKING:
    from resnap.tiering.controller.metadata.batches import MetadataBatch
    from resnap.tiering.controller.metadata.image import (
        Broker,
        ConfigChange,
        ConfigResource,
        Controller,
        DeletedTopic,
        MetadataTransaction,
        Partition,
        ProducerIdBlock,
        QuotaEntity,
        SkippedRecords,
        Topic,
    )


class Place(NamedTuple):
    """The position of a record."""

    batch: MetadataBatch
    offset: int | None
    """None in a checkpoint."""
    timestamp: int
    """When it was appended, milliseconds; in a checkpoint, when the last record that it covers was."""

    def wrong(self, what: str) -> MetadataLogError:
        """Return the error for a record that contradicts the ones before it."""
        return MetadataLogError(
            f"{self}: {what}", hint="part of the log is missing or is of another cluster; copy the directory again"
        )

    def __str__(self) -> str:
        where = "in the batch" if self.offset is None else f"record at offset {self.offset}, in the batch"
        return f"{self.batch.file}: {where} at byte {self.batch.position}"


@dataclass(slots=True)
class FoldState:
    """An image under construction; mutable."""

    offset: int
    """Of the last record so far."""
    leader_epoch: int = 0
    timestamp: int = 0
    features: dict[str, int] = field(default_factory=dict)
    zk_migration_state: int | None = None
    brokers: dict[int, Broker] = field(default_factory=dict)
    controllers: dict[int, Controller] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    """By topic id, with the partitions by number in ``partitions``."""
    partitions: defaultdict[str, dict[int, Partition]] = field(default_factory=lambda: defaultdict(dict))
    deleted_topics: list[DeletedTopic] = field(default_factory=list)
    configs: defaultdict[ConfigResource, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    broker_config_changes: list[ConfigChange] = field(default_factory=list)
    quotas: defaultdict[QuotaEntity, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    producer_id_blocks: list[ProducerIdBlock] = field(default_factory=list)
    next_producer_id: int | None = None
    transactions: list[MetadataTransaction] = field(default_factory=list)
    left_aside: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, SkippedRecords] = field(default_factory=dict)
    """By kind."""
    notes: list[Note] = field(default_factory=list)

    def image(self) -> MetadataImage:
        """Return the state as an image."""
        topics = sorted(self.topics.values(), key=lambda one: one.name)
        skipped = tuple(self.skipped[kind] for kind in sorted(self.skipped))
        return MetadataImage(
            offset=self.offset,
            leader_epoch=self.leader_epoch,
            timestamp=self.timestamp,
            features=dict(sorted(self.features.items())),
            zk_migration_state=self.zk_migration_state,
            brokers=dict(sorted(self.brokers.items())),
            controllers=dict(sorted(self.controllers.items())),
            topics={topic.name: self._whole(topic) for topic in topics},
            deleted_topics=tuple(self.deleted_topics),
            configs={resource: dict(sorted(self.configs[resource].items())) for resource in sorted(self.configs)},
            broker_config_changes=tuple(self.broker_config_changes),
            quotas={entity: dict(sorted(values.items())) for entity, values in self.quotas.items()},
            producer_id_blocks=tuple(self.producer_id_blocks),
            next_producer_id=self.next_producer_id,
            transactions=tuple(self.transactions),
            left_aside=dict(sorted(self.left_aside.items())),
            skipped=skipped,
            notes=(*self.notes, *(Note(offset=None, text=str(one)) for one in skipped)),
        )

    def _whole(self, topic: Topic) -> Topic:
        partitions = self.partitions[topic.topic_id]
        return replace(topic, partitions=tuple(partitions[number] for number in sorted(partitions)))
