"""Object keys of the layout ``local-tiered``, as ``LocalTieredStorage`` in Kafka's tests makes them.

    kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset, 20 digits>-<segment id>.<extension>

relative to the broker's ``rsm.config.dir``. Ids are 22 characters of base64url, which may hold dashes themselves, so
names are taken apart from their ends.

Source: ``RemoteLogSegmentFileset`` and ``RemoteTopicPartitionDirectory`` in the test jar of Kafka's storage module.

``BrokersFolders`` shows what brokers delete and tier on their own in a store to which Resnap ships in this layout.
Brokers' retention deletes whole segments from the beginning of a log, but not Resnap's manifests, which brokers do not
know. Segments that brokers tier after those that Resnap shipped have no manifest. In other layouts there is neither.

Source: ``RemoteLogManager.cleanupExpiredRemoteLogSegments``, ``LocalTieredStorage.deleteLogSegmentData``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.log.names import MAX_OFFSET, MAX_PARTITION, OFFSET_DIGITS
from resnap.storage.messages.wire import uuid_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.stores.protocol import ObjectStore

ROOT: Final = "kafka-tiered-storage"
EXTENSIONS: Final = {
    ObjectKind.LOG: "log",
    ObjectKind.INDEX: "index",
    ObjectKind.TIME_INDEX: "timeindex",
    ObjectKind.TXN_INDEX: "txnindex",
    ObjectKind.SNAPSHOT: "snapshot",
    ObjectKind.LEADER_EPOCH_CHECKPOINT: "leader_epoch_checkpoint",
}
"""All but that of aborted transactions must be there."""
NEEDED: Final = frozenset(ObjectKind) - {ObjectKind.TXN_INDEX}
"""The objects without which brokers cannot read a segment."""
_KINDS: Final = {extension: kind for kind, extension in EXTENSIONS.items()}
_UUID: Final = "[A-Za-z0-9_-]{22}"
_KEY = re.compile(
    rf"(?:.*/)?(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>0|[1-9][0-9]{{0,9}})-(?P<topic_id>{_UUID})"
    rf"/(?P<base_offset>[0-9]{{{OFFSET_DIGITS}}})-(?P<segment_id>{_UUID})\.(?P<extension>[a-z_]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTieredKey:
    """An object key of this layout, taken apart."""

    topic: str
    partition: int
    topic_id: str
    base_offset: int
    segment_id: str
    """In Kafka's base64 form."""
    kind: ObjectKind

    @property
    def key(self) -> str:
        """The key itself."""
        directory = f"{ROOT}/{self.topic}-{self.partition}-{self.topic_id}"
        return f"{directory}/{self.base_offset:0{OFFSET_DIGITS}d}-{self.segment_id}.{EXTENSIONS[self.kind]}"


def object_key(
    topic_partition: TopicPartition, topic_id: str, base_offset: int, segment_id: UUID | str, kind: ObjectKind
) -> str:
    """Return the key of one object of a segment, relative to ``rsm.config.dir``."""
    return LocalTieredKey(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        topic_id=topic_id,
        base_offset=base_offset,
        segment_id=segment_id if isinstance(segment_id, str) else uuid_text(segment_id.bytes),
        kind=kind,
    ).key


def parse_key(key: str) -> LocalTieredKey | None:
    """Return the parts of a key of this layout, seen from any folder; None for any other key."""
    match = _KEY.fullmatch(key)
    kind = _KINDS.get(match["extension"]) if match else None
    if match is None or kind is None:
        return None
    partition, base_offset = int(match["partition"]), int(match["base_offset"])
    if partition > MAX_PARTITION or base_offset > MAX_OFFSET:
        return None
    return LocalTieredKey(
        topic=match["topic"],
        partition=partition,
        topic_id=match["topic_id"],
        base_offset=base_offset,
        segment_id=match["segment_id"],
        kind=kind,
    )


@dataclass(frozen=True, slots=True)
class BrokersFolders:
    """The folders of ``store`` that brokers write to, each listed once, at its first use."""

    store: ObjectStore
    _listed: dict[str, frozenset[str]] = field(default_factory=dict)

    def have_lost(self, base_offset: int, keys: Collection[str]) -> bool:
        """Whether retention deleted the segment of ``keys``: nothing lies at or below its base offset.

        Some segment must lie above it: a partition without any segment has lost its objects in another way.

        Raises:
            StoreError: the store failed.

        """
        folder = next((folder for key in keys if (folder := _folder(key)) is not None), None)
        if folder is None:
            return False
        there = self._objects(folder)
        begins = _begins(there)
        return there.isdisjoint(keys) and bool(begins) and min(begins) > base_offset

    def without_manifest(self, manifests: Collection[Manifest]) -> list[int]:
        """Return the base offsets of segments beside those of ``manifests``, of one partition, that none of them names.

        Raises:
            StoreError: the store failed.

        """
        named = {entry.key for manifest in manifests for entry in manifest.objects}
        folders = {folder for manifest in manifests if (folder := _folder(manifest.log.key)) is not None}
        return sorted(base for folder in folders for base in _begins(self._objects(folder) - named))

    def _objects(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            self._listed[folder] = frozenset(info.key for info in self.store.list(folder))
        return self._listed[folder]


def _folder(key: str) -> str | None:
    """Return the key prefix of the partition; None in any other layout."""
    return f"{key.rpartition('/')[0]}/" if key.startswith(f"{ROOT}/") else None


def _begins(keys: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments whose logs are in ``keys``."""
    parsed = map(parse_key, keys)
    return [one.base_offset for one in parsed if one is not None and one.kind is ObjectKind.LOG]
