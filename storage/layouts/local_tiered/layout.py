"""The layout ``local-tiered``: objects where Kafka's reference implementation reads them, without manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.layouts.local_tiered.keys import EXTENSIONS, NEEDED, ROOT, object_key, parse_key
from resnap.storage.layouts.local_tiered.listing import LocalTieredListing, list_tiered, vouched_by_none
from resnap.storage.layouts.local_tiered.log import tiered_log_dir
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.segments import BrokersObject, Rewritten, check_key_length, known_topic_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from resnap.storage.encryption import KeyRing
    from resnap.storage.layouts.segments import NewSegment, RightParts, StoredManifest, Vouched
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

REMEDY: Final = (
    "brokers cannot read it either, if `resnap remote status LOG_DIR --store` says that they know it: only another copy"
    " of the objects helps then"
)


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
        return tiered_log_dir(store, listed, topics, topic_ids=topic_ids)

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
        """Return the complete segments."""
        return list_tiered(store, wants, within)

    def vouched(self, store: ObjectStore, partition: PartitionDir) -> Vouched:  # noqa: ARG002 - no digests
        """Return where the leader epochs of all segments are stored."""
        return vouched_by_none(partition)

    def rewritten(
        self,
        read: Callable[[str], bytes],  # noqa: ARG002 - objects are replaced whole
        manifest_key: str,
        parts: RightParts,
        keys: KeyRing,  # noqa: ARG002
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
