"""What the metadata log beside a log dir, if there is one, says: asked only when it matters, and read once for a run.

One that cannot be used says nothing of topics: whoever read the settings from it has warned, or refused.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ResnapError, UsageError
from resnap.storage.stores.urls import is_store_url
from resnap.tiering.controller.metadata.folding import TOPIC_TYPES, load_current_image, load_settings_image
from resnap.tiering.controller.metadata.image import ResourceType
from resnap.tiering.controller.metadata.log_files import METADATA_PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    """Whether ``path`` is there, as far as we may look; whoever reads the log dir says where we may not."""
    try:
        return path.exists()
    except OSError:
        return False
