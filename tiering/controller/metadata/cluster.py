"""What the metadata log beside a log dir, if there is one, says: asked only when it matters, and read once for a run.

One that cannot be used says nothing of topics: reading the settings from it has warned, or refused.

A topic's name alone may be that of another cluster's topic: an id is taken only where the image has the partition on
the very broker whose log dir this is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.stores.urls import is_store_url
from resnap.tiering.controller.metadata.folding import TOPIC_TYPES, load_current_image, load_settings_image
from resnap.tiering.controller.metadata.image import ResourceType
from resnap.tiering.controller.metadata.log_files import METADATA_PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
    from resnap.tiering.controller.metadata.image import MetadataImage

CLEANUP_POLICY: Final = "cleanup.policy"


@dataclass(slots=True)
class ClusterMetadata:
    """A metadata log, unread as yet."""

    directory: Path | None
    _ahead: MetadataImage | None = field(default=None, repr=False, compare=False)
    """What was read for the settings of a run, for its first selection of topics; later ones read it again."""

    def read_settings(self) -> MetadataImage:
        """Return the settings of brokers and topics as they are now; raises as ``load_settings_image`` does."""
        if self.directory is None:
            raise UsageError("there is no metadata log to read")
        self._ahead = load_settings_image(self.directory)
        return self._ahead

    def image(self) -> MetadataImage | None:
        """Return how things are now; None where nothing is known."""
        return self._load(lambda directory: load_current_image(directory).relying_on(*TOPIC_TYPES))

    def cleanup_policies(self) -> dict[str, str]:
        """Return the cleanup policy of the topics that have one of their own."""
        image, self._ahead = self._ahead or self._load(load_settings_image), None
        topics = {} if image is None else image.configs
        return {
            resource.name: values[CLEANUP_POLICY]
            for resource, values in topics.items()
            if resource.type == ResourceType.TOPIC and CLEANUP_POLICY in values
        }

    def _load(self, load: Callable[[Path], MetadataImage]) -> MetadataImage | None:
        with suppress(ResnapError):
            return None if self.directory is None else load(self.directory)
        return None


def find_metadata_log(places: Iterable[str | Path]) -> Path | None:
    """Return the first metadata log that lies in, or beside, one of ``places``: log dirs, partitions' directories."""
    for place in places:
        if not is_store_url(str(place)):
            directory = Path(place).absolute()
            for candidate in (directory, directory.parent):
                if is_there(candidate / str(METADATA_PARTITION)):
                    return candidate / str(METADATA_PARTITION)
    return None


def is_there(path: Path) -> bool:
    """Whether ``path`` is there, as far as we may look; reading the log dir reports where we may not."""
    try:
        return path.exists()
    except OSError:
        return False


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
