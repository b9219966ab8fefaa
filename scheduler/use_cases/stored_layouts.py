"""What verifying a store asks of the layout that its segments lie in: Resnap's own, or that of brokers' plugin.

In both, manifests make segments visible. Those of the plugin, which brokers write, tell no digests and no moment T:
what lies there is held against itself, and snapshots against a replay under the rules that are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from scheduler.use_cases.sources import Scope
from storage.remote.layouts import aiven
from storage.remote.layouts.aiven_log import REMEDY, CopiedSegment
from storage.remote.layouts.aiven_members import Member
from storage.remote.manifest import Manifest, ObjectKind
from tiering.checking.aiven_verification import list_copies, verify_copy
from tiering.checking.verification import StoreReader, list_shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from storage.remote.manifest import SnapshotOrigin
    from storage.remote.object_store import ObjectInfo, ObjectStore
    from storage.source import Sources
    from tiering.checking.verification import ShippedListing, VerifiedSegment
    from tiering.shipping.transaction_history import TransactionHistory

Held = TypeVar("Held", Manifest, CopiedSegment)
"""What a manifest tells of its segment."""


class StoredLayout(Protocol[Held]):
    """The segments of a store, in one layout."""

    remedy: str
    """What to do about a segment that is damaged."""

    def list(self) -> ShippedListing:
        """Return what lies there; raises StoreError."""
        ...

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[Held]:
        """Return what the manifest at ``key`` is worth, after ``list``; raises StoreError, ConfigurationError."""
        ...

    def scopes(self, found: Mapping[str, Held]) -> Iterator[Scope]:
        """Yield what is to be replayed for the segments ``found``, by the keys of their manifests."""
        ...

    def snapshot_of(self, key: str, held: Held) -> str:
        """Return the locator of the snapshot of a segment, as a source has it, by the manifest at ``key``."""
        ...

    def origin(self, held: Held) -> SnapshotOrigin | None:
        """Return where the snapshot comes from; None where nothing says so, as of what brokers wrote."""
        ...


@dataclass(slots=True, kw_only=True)
class ShippedLayout:
    """What Resnap has shipped in a layout of which its own manifests tell."""

    store: ObjectStore
    scope: Scope
    """Only its topics count."""
    remedy: str = "delete the manifest, and tier the segment again"
    _reader: StoreReader = field(init=False)

    def __post_init__(self) -> None:
        """Begin to read."""
        self._reader = StoreReader(store=self.store)

    def list(self) -> ShippedListing:
        """Return what lies there."""
        return list_shipped(self.store, lambda key: "=" in key.topic or self.scope.wants(key.topic))

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[Manifest]:
        """Return what the manifest at ``key`` is worth."""
        return self._reader.verify(key, reads_objects=reads_objects)

    def scopes(self, found: Mapping[str, Manifest]) -> Iterator[Scope]:
        """Yield one for each cluster's part of the store: a source has one cluster only."""
        topics = tuple(sorted({manifest.topic for manifest in found.values()}))
        for cluster in sorted({key.partition("/")[0] for key in found}):
            yield Scope(sources=(f"{self.store.url}/{cluster}",), topics=topics)

    def snapshot_of(self, key: str, held: Manifest) -> str:  # noqa: ARG002 - the manifest names it
        """Return where the snapshot lies; in some layouts not beside its manifest."""
        return next(f"{self.store.url}/{one.key}" for one in held.objects if one.kind is ObjectKind.SNAPSHOT)

    def origin(self, held: Manifest) -> SnapshotOrigin:
        """Return what the manifest says."""
        return held.snapshot_origin


@dataclass(slots=True, kw_only=True)
class CopiedLayout:
    """What lies in the layout ``aiven``, whoever wrote it."""

    store: ObjectStore
    scope: Scope
    """Only its topics count."""
    sources: Sources
    """Which open what was encrypted, too."""
    remedy: str = REMEDY
    _infos: dict[str, ObjectInfo] = field(default_factory=dict)
    _histories: dict[str, TransactionHistory] = field(default_factory=dict)

    def list(self) -> ShippedListing:
        """Return what lies there."""
        listing, self._infos = list_copies(self.store, lambda key: self.scope.wants(key.topic))
        return listing

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[CopiedSegment]:
        """Return what the manifest at ``key`` is worth."""
        return verify_copy(self.store, self._infos, key, self._histories, self.sources, reads_objects=reads_objects)

    def scopes(self, found: Mapping[str, CopiedSegment]) -> Iterator[Scope]:
        """Yield one for each folder above topics, which is where a source begins."""
        topics = tuple(sorted({one.topic for one in found.values()}))
        for prefix in sorted({one.place.prefix for one in found.values()}):
            yield Scope(sources=(f"{self.store.url}/{prefix}".rstrip("/"),), topics=topics)

    def snapshot_of(self, key: str, held: CopiedSegment) -> str:  # noqa: ARG002 - its key tells
        """Return where the snapshot lies: among the indexes beside the manifest."""
        return Member(f"{self.store.url}/{key.removesuffix(f'.{aiven.MANIFEST}')}", "snapshot").locator

    def origin(self, held: CopiedSegment) -> None:
        """Return nothing: no manifest says it."""
