"""Lists the segments that brokers tiered in the layout ``local-tiered``; the log object serves as the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.layouts.local_tiered.keys import EXTENSIONS
from resnap.storage.layouts.local_tiered.log import SegmentObjects, read_segment, tiered_segments
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import SegmentFiles, StoredManifest, Vouched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import Incomplete
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_CHECKPOINT: Final = EXTENSIONS[ObjectKind.LEADER_EPOCH_CHECKPOINT]


@dataclass(frozen=True, slots=True)
class LocalTieredListing:
    """One listing of ``store``."""

    store: ObjectStore
    segments: Mapping[str, SegmentObjects]
    """By the key of the log."""
    manifests: Mapping[str, ObjectInfo]
    """The logs of all segments that are whole."""
    sizes: Mapping[str, int]
    """Bytes of all objects of each segment."""
    incomplete: Sequence[Incomplete]
    """Segments that are not whole, each with one of the keys at which nothing lies."""

    def folder(self, key: str) -> str:
        """Return the folder of the partition."""
        return key.rpartition("/")[0]

    def source(self, key: str) -> tuple[str, str]:
        """Return the folder above those of partitions, and the topic's id."""
        return self.folder(key).rpartition("/")[0], self.segments[key].topic_id

    def read(self, key: str) -> StoredManifest:
        """Return the facts of a segment, from its objects."""
        found = read_segment(self.store, self.segments[key])
        files = SegmentFiles(found.segment, found.snapshot.path, found.segment.sibling(_CHECKPOINT))
        return StoredManifest(facts=found.facts, size_bytes=self.sizes[key], files=files)

    def is_retained_away(self, manifest: StoredManifest) -> bool:  # noqa: ARG002
        """Return False: brokers delete all objects of a segment."""
        return False


def list_tiered(store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> LocalTieredListing:
    """Return the complete segments below ``within`` of the topics that ``wants`` selects.

    Raises:
        StoreError: the store failed.

    """
    found, incomplete = tiered_segments(store.list(within), lambda partition: wants(partition.topic))
    segments = {one.infos[ObjectKind.LOG].key: one for one in found}
    return LocalTieredListing(
        store,
        segments,
        manifests={key: one.infos[ObjectKind.LOG] for key, one in segments.items()},
        sizes={key: sum(info.size_bytes for info in one.infos.values()) for key, one in segments.items()},
        incomplete=incomplete,
    )


def vouched_by_none(partition: PartitionDir) -> Vouched:
    """Return where the leader epochs of all segments are stored; there are no digests."""
    return Vouched(leader_epochs=tuple(segment.sibling(_CHECKPOINT) for segment in partition.segments), digests={})
