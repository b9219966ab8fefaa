"""What verifying a store asks of the layout that its segments lie in: Resnap's own, or that of brokers' plugin.

In both, manifests make segments visible. Those of the plugin, which brokers write, tell no digests and no moment T:
what lies there is held against itself, and snapshots against a replay under the rules that are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from resnap.scheduler.use_cases.sources import Scope
from resnap.storage.layouts.aiven import keys as aiven
from resnap.storage.layouts.aiven.log import REMEDY, CopiedSegment
from resnap.storage.layouts.aiven.members import Member
from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.layouts.manifest import Manifest, ObjectKind
from resnap.tiering.checking.aiven_verification import list_copies, verify_copy
from resnap.tiering.checking.verification import StoreReader, list_shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from resnap.tiering.checking.aiven_verification import PartitionSeen
    from resnap.tiering.checking.verification import ShippedListing, VerifiedSegment

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
    within: str = ""
    """The part of the store that counts: folders with a slash after each."""
    remedy: str = "delete the manifest, and tier the segment again"
    _reader: StoreReader = field(init=False)

    def __post_init__(self) -> None:
        """Begin to read."""
        self._reader = StoreReader(store=self.store)

    def list(self) -> ShippedListing:
        """Return what lies there."""
        listing = list_shipped(
            self.store, lambda key: "=" in key.topic or self.scope.wants(key.topic), within=self.within
        )
        self._reader = StoreReader(store=self.store, topic_ids=listing.topic_ids)
        return listing

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[Manifest]:
        """Return what the manifest at ``key`` is worth."""
        return self._reader.verify(key, reads_objects=reads_objects)

    def scopes(self, found: Mapping[str, Manifest]) -> Iterator[Scope]:
        """Yield those of each cluster's part of the store: a source has one cluster, and one topic of a name."""
        ids = self._reader.topic_ids
        by_cluster: dict[str, dict[str, set[str]]] = {}
        for key, manifest in found.items():
            place = parse_key(key)
            if place is not None and self.scope.wants(manifest.topic):
                by_cluster.setdefault(place.cluster, {}).setdefault(manifest.topic, set()).add(ids.of(place))
        for cluster, topics in sorted(by_cluster.items()):
            yield from _one_of_each_name(f"{self.store.url}/{cluster}", topics)

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
    within: str = ""
    """The part of the store that counts: folders with a slash after each."""
    remedy: str = REMEDY
    _infos: dict[str, ObjectInfo] = field(default_factory=dict)
    _seen: dict[str, PartitionSeen] = field(default_factory=dict)

    def list(self) -> ShippedListing:
        """Return what lies there."""
        listing, self._infos = list_copies(self.store, lambda key: self.scope.wants(key.topic), within=self.within)
        return listing

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[CopiedSegment]:
        """Return what the manifest at ``key`` is worth."""
        return verify_copy(self.store, self._infos, key, self._seen, self.sources, reads_objects=reads_objects)

    def scopes(self, found: Mapping[str, CopiedSegment]) -> Iterator[Scope]:
        """Yield those of each folder above topics, which is where a source begins."""
        by_prefix: dict[str, dict[str, set[str]]] = {}
        for one in found.values():
            by_prefix.setdefault(one.place.prefix, {}).setdefault(one.topic, set()).add(one.topic_id)
        for prefix, topics in sorted(by_prefix.items()):
            yield from _one_of_each_name(f"{self.store.url}/{prefix}".rstrip("/"), topics)

    def snapshot_of(self, key: str, held: CopiedSegment) -> str:  # noqa: ARG002 - its key tells
        """Return where the snapshot lies: among the indexes beside the manifest."""
        return Member(f"{self.store.url}/{key.removesuffix(f'.{aiven.MANIFEST}')}", "snapshot").locator

    def origin(self, held: CopiedSegment) -> SnapshotOrigin | None:
        """Return what stands beside the leases, if Resnap has shipped it."""
        return held.origin


def _one_of_each_name(source: str, topics: Mapping[str, set[str]]) -> Iterator[Scope]:
    """Yield scopes with all of ``topics``, ids by name, each with one topic of a name at most."""
    most = max(map(len, topics.values()))
    for index in range(most):
        ids = {topic: sorted(found)[index] for topic, found in topics.items() if index < len(found)}
        yield Scope(sources=(source,), topics=tuple(sorted(ids)), topic_ids=ids)
