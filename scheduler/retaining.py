"""The use case of applying a retention to what was shipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage.errors import UsageError, VerificationError
from tiering.retention import delete_beyond, retention_of
from tiering.verification import StoreReader, list_shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.progress import Progress
    from scheduler.sources import Scope
    from storage.remote.layouts.flat import FlatKey
    from storage.remote.manifest import Manifest
    from storage.remote.object_store import ObjectStore
    from tiering.retention import Limits, PartitionRetention


@dataclass(slots=True, kw_only=True)
class Retaining:
    """One look at a store, and what is deleted of it."""

    store: ObjectStore
    scope: Scope
    """Of which the topics count."""
    now_ms: int
    problems: list[VerificationError] = field(default_factory=list)
    """Manifests that cannot be read: nothing of their partitions is deleted."""

    def look(self, limits: Limits) -> list[PartitionRetention]:
        """Return what is beyond ``limits``, by partition; nothing is changed.

        Raises:
            UsageError: nothing was shipped there.
            StoreError: the store failed.

        """
        reader = StoreReader(store=self.store)
        manifests: dict[str, Manifest] = {}
        broken: set[str] = set()
        for key in list_shipped(self.store, self._wants).manifests:
            found = reader.verify(key, reads_objects=False)
            if found.manifest is None:
                hint = "see `resnap verify --store URL`; nothing of this partition is deleted until it is mended"
                self.problems.append(VerificationError(found.problems[0], hint=hint))
                broken.add(_folder(key))
            elif self.scope.wants(found.manifest.topic):
                manifests[key] = found.manifest
        if not manifests and not broken:
            raise UsageError(
                f"{self.store.url} holds no shipped segment", hint="give what `resnap tier --to` was given"
            )
        sound = {key: manifest for key, manifest in manifests.items() if _folder(key) not in broken}
        return retention_of(sound, limits, self.now_ms)

    def delete(self, found: list[PartitionRetention], progress: Progress) -> Iterator[PartitionRetention]:
        """Delete what is beyond retention, and yield each partition when that is done.

        Raises:
            StoreError: the store failed; what was deleted before stays so.

        """
        progress.expect(sum(len(one.beyond) for one in found), sum(one.size_bytes for one in found))
        for one in found:
            delete_beyond(self.store, one, lambda gone: progress.advance(1, gone.log_bytes))
            yield one

    def _wants(self, key: FlatKey) -> bool:
        return "=" in key.topic or self.scope.wants(key.topic)


def _folder(key: str) -> str:
    """Return what the manifests of one partition of one topic share."""
    return key.rpartition("/")[0]
