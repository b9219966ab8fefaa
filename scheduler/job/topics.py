"""Stores the configuration of shipped topics beside their segments, from a cluster or its metadata log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType
from resnap.tiering.shipping.stored_topics import TopicSettings, keep_topic, topic_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.scheduler.job.sources import Scope, SelectedPartition
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster.facts import TopicFacts
    from resnap.tiering.controller.metadata.image import MetadataImage


def keep_topics(store: ObjectStore, partitions: Iterable[SelectedPartition], scope: Scope, key_prefix: str) -> None:
    """Write the settings of the topics of ``partitions`` to ``store``, for topics with an id, as far as known.

    Raises:
        StoreError: the store failed.

    """
    images: dict[str, MetadataImage | None] = {}
    topics = {one.topic_partition.topic: one for one in partitions}
    for topic, one in topics.items():
        topic_id, source = one.inventory.partition.topic_id, str(one.log_dir.path)
        if topic_id is None:
            continue
        if one.live is not None:
            settings: TopicSettings | None = _by_cluster(one.live)
        else:
            if source not in images:
                images[source] = scope.metadata(source).image()
            settings = _by_metadata(topic, topic_id, images[source])
        if settings is not None:
            keep_topic(store, topic_key(topic, topic_id, key_prefix), settings)


def _by_cluster(facts: TopicFacts) -> TopicSettings:
    own = {name: value for name, value in facts.settings.items() if name in facts.own_settings}
    return TopicSettings(partitions=len(facts.partitions), config=own)


def _by_metadata(topic: str, topic_id: str, image: MetadataImage | None) -> TopicSettings | None:
    known = None if image is None else image.topics.get(topic)
    if image is None or known is None or known.topic_id != topic_id:
        return None
    config = image.configs.get(ConfigResource(ResourceType.TOPIC, topic), {})
    return TopicSettings(partitions=len(known.partitions), config=dict(config))
