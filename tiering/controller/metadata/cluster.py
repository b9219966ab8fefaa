"""The metadata log beside a log dir, if there is one: read only when needed, and once per run.

An unusable metadata log gives no topics: reading the settings from it has already warned, or refused.

Another cluster may have a topic of the same name: an id is used only if the image has the partition on the broker that
owns this log dir.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.stores.urls import is_store_url
from resnap.tiering.controller.metadata.folding import TOPIC_TYPES, load_image, load_settings_image
from resnap.tiering.controller.metadata.image import MIGRATING, ResourceType
from resnap.tiering.controller.metadata.log_files import METADATA_PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.tiering.controller.metadata.image import MetadataImage

CLEANUP_POLICY: Final = "cleanup.policy"
RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS: Final = "retention.ms"


@dataclass(slots=True)
class ClusterMetadata:
    """A metadata log, read on demand."""

    directory: Path | None
    _ahead: MetadataImage | None = field(default=None, repr=False, compare=False)
    """What was read for the settings of a run, for its first selection of topics; later ones read it again."""

    def read_settings(self) -> MetadataImage:
        """Return the current settings of brokers and topics; raises as ``load_settings_image`` does."""
        if self.directory is None:
            raise UsageError("there is no metadata log to read")
        self._ahead = load_settings_image(self.directory)
        return self._ahead

    def image(self) -> MetadataImage | None:
        """Return the current image; None if it is unknown."""
        return self._load(lambda directory: load_image(directory, is_current=True).relying_on(*TOPIC_TYPES))

    def topic_settings(self) -> dict[str, Mapping[str, str]]:
        """Return the settings that topics override, by topic."""
        image, self._ahead = self._ahead or self._load(load_settings_image), None
        topics = {} if image is None else image.configs
        return {resource.name: values for resource, values in topics.items() if resource.type == ResourceType.TOPIC}

    def unknown(self, topic_ids: Collection[str]) -> Collection[str]:
        """Return those of ``topic_ids`` that no topic of the cluster has; none if not all topics are known."""
        unknown: Collection[str] = ()
        for image in (self._ahead, None):  # a topic may have been created since
            self._ahead = image or self._load(load_settings_image)
            if self._ahead is None or self._ahead.zk_migration_state in MIGRATING:
                return ()
            unknown = set(topic_ids) - {topic.topic_id for topic in self._ahead.topics.values()}
            if not unknown:
                break
        return unknown

    def _load(self, load: Callable[[Path], MetadataImage]) -> MetadataImage | None:
        with suppress(ResnapError):
            return None if self.directory is None else load(self.directory)
        return None


def find_metadata_log(places: Iterable[str | Path]) -> Path | None:
    """Return the first metadata log in, or beside, one of ``places``: log dirs, or partitions' directories."""
    for place in places:
        if not is_store_url(str(place)):
            directory = Path(place).absolute()
            for candidate in (directory, directory.parent):
                if is_there(candidate / str(METADATA_PARTITION)):
                    return candidate / str(METADATA_PARTITION)
    return None


def is_there(path: Path) -> bool:
    """Whether ``path`` exists, as far as permissions allow; reading the log dir reports missing permissions."""
    try:
        return path.exists()
    except OSError:
        return False


def with_strays(log_dir: LogDir, unknown: Callable[[Collection[str]], Collection[str]]) -> LogDir:
    """Return ``log_dir`` with the partitions marked that its broker takes for stray ones when it starts.

    ``unknown`` returns which of some topic ids no topic of the cluster has.

    Source: ``LogManager.isStrayKraftReplica``.
    """
    if not log_dir.is_kraft or not log_dir.partitions:
        return log_dir
    strange = unknown({partition.topic_id for partition in log_dir.partitions if partition.topic_id is not None})
    return replace(log_dir, partitions=tuple(replace(one, stray=_why(one, strange)) for one in log_dir.partitions))


def _why(partition: PartitionDir, unknown: Collection[str]) -> str | None:
    if partition.topic_id is None:
        return f"{partition.path} has no partition.metadata"
    if partition.topic_id not in unknown:
        return None
    return (
        f"{partition.path}/partition.metadata has topic id {partition.topic_id}, which the metadata log does not have"
    )


def with_topic_ids(log_dir: LogDir, load: Callable[[], MetadataImage | None]) -> LogDir:
    """Return ``log_dir`` with missing topic ids added from the image.

    ``load`` returns the image, None if there is none; it is called only if a topic id is missing.
    """
    if all(partition.topic_id for partition in log_dir.partitions):
        return log_dir
    image = load()
    if image is None:
        return log_dir
    known = (replace(one, topic_id=one.topic_id or topic_id(one, log_dir, image)) for one in log_dir.partitions)
    return replace(log_dir, partitions=tuple(known))


def topic_id(partition: PartitionDir, log_dir: LogDir, image: MetadataImage) -> str | None:
    """Return the id of the partition's topic; None if the image does not have the partition on the log dir's broker."""
    topic = image.topics.get(partition.topic_partition.topic)
    if topic is None:
        return None
    number = partition.topic_partition.partition
    replicas = next((partition.replicas for partition in topic.partitions if partition.partition == number), ())
    return topic.topic_id if log_dir.broker_id in replicas else None
