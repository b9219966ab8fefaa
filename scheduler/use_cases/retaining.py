"""The use case of applying a retention to what was shipped."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from resnap.scheduler.use_cases.tier_run import this_run
from resnap.storage.errors import LockedError, ObjectNotFoundError, StoreError, UsageError, VerificationError
from resnap.storage.layouts.flat.keys import is_tombstone, lease_place
from resnap.storage.layouts.local_tiered.keys import ROOT
from resnap.tiering.checking.aiven_verification import holds_copies
from resnap.tiering.checking.verification import StoreReader, list_shipped
from resnap.tiering.keeping.retention import delete_beyond, retention_of
from resnap.tiering.shipping.lease import leased

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.answers.progress import Progress
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.storage.errors import ResnapError
    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.layouts.manifest import Manifest
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.keeping.retention import Limits, PartitionRetention, ShippedManifest


_HIDDEN: Final = (
    "run again: unless it was shipped just now, the store's listings leave out what is there, and to go by them would"
    " cut a gap; `resnap doctor --store URL` looks into it"
)


@dataclass(slots=True, kw_only=True)
class Retaining:
    """One look at a store, and what is deleted of it."""

    store: ObjectStore
    scope: Scope
    """Only its topics count."""
    within: str = ""
    """The part of the store that counts: folders with a slash after each."""
    now_ms: int
    problems: list[ResnapError] = field(default_factory=list)
    """Manifests that cannot be read, of whose partitions nothing is deleted; and what kept others from it."""

    def look(self, limits: Limits) -> list[PartitionRetention]:
        """Return what is beyond ``limits``, by partition; nothing is changed.

        Raises:
            UsageError: nothing was shipped there, or it is for brokers to delete.
            StoreError: the store failed.

        """
        listing = list_shipped(self.store, self._wants, within=self.within)
        reader = StoreReader(store=self.store, topic_ids=listing.topic_ids)
        manifests: dict[str, Manifest] = {}
        broken: set[str] = set()
        for key in listing.manifests:
            found = reader.verify(key, reads_objects=False)
            if found.manifest is None:
                hint = "see `resnap verify --store URL`; nothing of this partition is deleted until it is mended"
                self.problems.append(VerificationError(found.problems[0], hint=hint))
                broken.add(listing.folder(key))
            elif self.scope.wants(found.manifest.topic):
                manifests[key] = found.manifest
        for key in sorted(listing.sizes.keys() - listing.manifests.keys()):
            if self._is_hidden(key):
                self.problems.append(VerificationError(f"{key}: is there, and was not listed", hint=_HIDDEN))
                broken.add(listing.folder(key))
        if not manifests and not broken:
            raise self._nothing()
        if any(_is_read_by_brokers(manifest) for manifest in manifests.values()):
            raise self._for_brokers("local-tiered")
        sound = {key: manifest for key, manifest in manifests.items() if listing.folder(key) not in broken}
        return retention_of(sound, limits, self.now_ms)

    def _is_hidden(self, key: str) -> bool:
        """Whether there is a manifest at ``key``, which the store did not list beside the objects that it did."""
        with suppress(ObjectNotFoundError):
            return not is_tombstone(self.store.head(key))
        return False

    def delete(self, found: list[PartitionRetention], progress: Progress) -> Iterator[PartitionRetention]:
        """Delete what is beyond retention, each partition under its lease, and yield what has gone of it, and stays.

        A partition at which another run is at work stays as it is, and so do all from where the store fails on: an
        uploader that finds no manifest writes the very objects that are being deleted. Both are among ``problems``.
        """
        progress.expect(sum(len(one.beyond) for one in found), sum(one.size_bytes for one in found))
        has_failed = False
        for one in found:
            gone: list[ShippedManifest] = []
            if one.beyond and not has_failed:
                try:
                    self._delete(one, gone, progress)
                except (LockedError, StoreError) as error:
                    self.problems.append(error)
                    has_failed = isinstance(error, StoreError)
            yield replace(one, beyond=tuple(gone), kept=one.kept + len(one.beyond) - len(gone))

    def _delete(self, one: PartitionRetention, gone: list[ShippedManifest], progress: Progress) -> None:
        def done(deleted: ShippedManifest) -> None:
            gone.append(deleted)
            progress.advance(1, deleted.log_bytes)

        place = lease_place(one.cluster_id, one.topic_partition)
        with leased(self.store, place, who=f"{this_run()} (retain)", now_ms=self.now_ms) as lease:
            delete_beyond(self.store, one, done, lease.hold)

    def _nothing(self) -> UsageError:
        if holds_copies(self.store):
            return self._for_brokers("aiven")
        return UsageError(f"{self.store.url} holds no shipped segment", hint="give what `resnap tier --to` was given")

    def _for_brokers(self, layout: str) -> UsageError:
        return UsageError(
            f"{self.store.url} is in the layout {layout}: brokers delete what they were told of by the topic's own"
            " retention, and would go on asking for what somebody else has deleted",
            hint="set retention.ms or retention.bytes of the topic; `resnap remote status --store` tells what"
            " brokers were never told of (unreferenced-objects)",
        )

    def _wants(self, key: FlatKey) -> bool:
        return "=" in key.topic or self.scope.wants(key.topic)


def _is_read_by_brokers(manifest: Manifest) -> bool:
    """Whether the objects lie where Kafka's LocalTieredStorage reads them, and not beside the manifest."""
    return any(entry.key.startswith(f"{ROOT}/") for entry in manifest.objects)
