"""The layout ``local-tiered``: objects where Kafka's reference implementation reads them, without manifests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.storage.layouts.local_tiered.log import (
    EXTENSIONS,
    NEEDED,
    ROOT,
    TieredSegment,
    chain_to_read,
    found_segment,
    object_key,
    parse_key,
    read_segment,
    tiered_segments,
)
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import (
    BrokersObject,
    Rewritten,
    SegmentFiles,
    StoredManifest,
    Vouched,
    check_key_length,
    known_topic_id,
)
from resnap.storage.layouts.stored_log import stored_log_dir
from resnap.storage.log.names import StorePath
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from resnap.storage.encryption import KeyRing
    from resnap.storage.layouts.segments import NewSegment, RightParts
    from resnap.storage.log.log_dir import Incomplete, LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

REMEDY: Final = (
    "brokers cannot read it either, if `resnap remote status LOG_DIR --store` says that they know it: only another copy"
    " of the objects helps then"
)


_CHECKPOINT: Final = EXTENSIONS[ObjectKind.LEADER_EPOCH_CHECKPOINT]
_URL_OF_ONE: Final = "<URL>/<topic>-<partition>-<topic id>"


@dataclass(frozen=True, slots=True)
class LocalTieredListing:
    """One listing of ``store``."""

    store: ObjectStore
    segments: Mapping[str, TieredSegment]
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


@dataclass(frozen=True, slots=True)
class LocalTiered:
    """Segments as brokers tier them, without a manifest."""

    name: str = "local-tiered"
    folders: int = 2
    is_plain_copy: bool = False
    tells_digests: bool = False
    remedy_when_verified: str = REMEDY
    needed_parts: frozenset[str] = NEEDED
    """All but the transaction index."""

    def is_key(self, key: str) -> bool:
        """Whether ``key`` belongs to a segment, seen from the brokers' folder or from above it."""
        return key.removeprefix(f"{ROOT}/").count("/") == 1 and parse_key(key) is not None

    def log_dir(
        self,
        store: ObjectStore,
        listed: Iterable[ObjectInfo],
        topics: Callable[[TopicPartition], bool] | None,
        *,
        within: str = "",  # noqa: ARG002 - a partition lies in one folder, which was listed
        topic_ids: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Return the complete segments in ``listed``, of brokers or of Resnap."""
        segments, incomplete = tiered_segments(listed, topics)
        return stored_log_dir(
            StorePath(store.url),
            filter(None, each(partial(found_segment, store), segments, remote=True)),
            chain_to_read,
            topic_ids=topic_ids,
            url_of_one=_URL_OF_ONE,
            incomplete=incomplete,
        )

    def log_key(
        self,
        topic_partition: TopicPartition,
        topic_id: str,
        base_offset: int,
        remote_id: str,
        *,
        key_prefix: str,  # noqa: ARG002
    ) -> str:
        """Return the key at which brokers read the log of a segment."""
        return object_key(topic_partition, topic_id, base_offset, remote_id, ObjectKind.LOG)

    def misplaced(self, key: str, found: StoredManifest, *, key_prefix: str) -> str | None:  # noqa: ARG002
        """Return None: brokers wrote the object, so it is where they read it."""
        return None

    def listing(self, store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> LocalTieredListing:
        """Return the complete segments; the log of each serves as its manifest."""
        found, incomplete = tiered_segments(store.list(within), lambda partition: wants(partition.topic))
        segments = {one.infos[ObjectKind.LOG].key: one for one in found}
        return LocalTieredListing(
            store,
            segments,
            manifests={key: one.infos[ObjectKind.LOG] for key, one in segments.items()},
            sizes={key: sum(info.size_bytes for info in one.infos.values()) for key, one in segments.items()},
            incomplete=incomplete,
        )

    def vouched(self, store: ObjectStore, partition: PartitionDir) -> Vouched:  # noqa: ARG002 - no digests
        """Return where the leader epochs of all segments are stored."""
        return Vouched(leader_epochs=tuple(one.sibling(_CHECKPOINT) for one in partition.segments), digests={})

    def rewritten(
        self,
        read: Callable[[str], bytes],  # noqa: ARG002 - objects are replaced whole
        manifest_key: str,
        parts: RightParts,
        key_ring: KeyRing,  # noqa: ARG002
    ) -> Rewritten:
        """Return the objects as brokers read them, each replacing the old one."""
        stem = manifest_key.removesuffix(EXTENSIONS[ObjectKind.LOG])
        return Rewritten(tuple((f"{stem}{EXTENSIONS[kind]}", body) for kind, body in parts.bodies().items()))

    def brokers_object(self, key: str) -> BrokersObject | None:
        """Return which segment an object belongs to, seen from any folder."""
        found = parse_key(key)
        if found is None:
            return None
        return BrokersObject(
            found.topic_id, found.partition, found.base_offset, found.segment_id, part=found.kind, stem=None
        )


def key_for_brokers(segment: NewSegment, segment_id: UUID, kind: ObjectKind) -> str:
    """Return the key at which a broker reads an object of ``segment``.

    Raises:
        TopicIdUnknownError, TopicNameTooLongError: it has no key in this layout.

    """
    topic_id = known_topic_id(segment)
    key = object_key(segment.provenance.topic_partition, topic_id, segment.base_offset, segment_id, kind)
    check_key_length(key, segment)
    return key
