"""What brokers delete and tier on their own in a store to which Resnap ships in the layout ``local-tiered``.

Brokers' retention deletes whole segments from the beginning of a log, but not Resnap's manifests, which brokers do not
know. Segments that brokers tier after those that Resnap shipped have no manifest. In other layouts there is neither.

Source: ``RemoteLogManager.cleanupExpiredRemoteLogSegments``, ``LocalTieredStorage.deleteLogSegmentData``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.storage.layouts.local_tiered.keys import ROOT, parse_key
from resnap.storage.layouts.manifest import ObjectKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.stores.protocol import ObjectStore


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
