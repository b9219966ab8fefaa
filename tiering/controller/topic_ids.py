"""Topic ids from the metadata log, for partitions without ``partition.metadata``.

A name alone may be that of another cluster's topic: an id is taken only where the image has the partition on the very
broker whose log dir this is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
    from resnap.tiering.controller.metadata.image import MetadataImage


def with_topic_ids(log_dir: LogDir, load: Callable[[], MetadataImage | None]) -> LogDir:
    """Return ``log_dir`` with the topic ids that its partitions lack, where the image knows them.

    ``load`` gives the image, None if there is none; it is asked only if a topic id is missing.
    """
    if all(partition.topic_id for partition in log_dir.partitions):
        return log_dir
    image = load()
    if image is None:
        return log_dir
    known = (replace(one, topic_id=one.topic_id or topic_id(one, log_dir, image)) for one in log_dir.partitions)
    return replace(log_dir, partitions=tuple(known))


def topic_id(partition: PartitionDir, log_dir: LogDir, image: MetadataImage) -> str | None:
    """Return the id of the partition's topic; None where the image has no such partition on the log dir's broker."""
    topic = image.topics.get(partition.topic_partition.topic)
    if topic is None:
        return None
    number = partition.topic_partition.partition
    replicas = next((one.replicas for one in topic.partitions if one.partition == number), ())
    return topic.topic_id if log_dir.broker_id in replicas else None
