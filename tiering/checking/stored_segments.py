"""The segments of a store, verified one after the other in whatever layout they lie.

In all layouts manifests make segments visible. Where they have digests, objects are held against these; where brokers
write them, too, they have none, and what lies there is held against itself (``content_verification``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from resnap.storage.layouts.aiven.keys import parse_key as parse_copy
from resnap.storage.layouts.flat.keys import parse_key
from resnap.storage.sources.registry import layout_in
from resnap.tiering.checking.content_verification import list_copies, verify_copy
from resnap.tiering.checking.verification import StoreReader, list_shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resnap.storage.layouts.protocol import Layout, ManifestFacts
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from resnap.tiering.checking.content_verification import PartitionSeen
    from resnap.tiering.checking.verification import ShippedListing, VerifiedSegment


class ReplaySource(NamedTuple):
    """What is to be replayed together: a source has one cluster, and one topic of a name."""

    url: str
    topic_ids: Mapping[str, str]
    """By topic, all that count."""


class StoredSegments(Protocol):
    """The segments of a store."""

    @property
    def layout(self) -> Layout:
        """The layout that they lie in."""
        ...

    def list(self) -> ShippedListing:
        """Return what lies there.

        Raises:
            StoreError: the store failed.

        """
        ...

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[ManifestFacts]:
        """Return what the manifest at ``key`` is worth, after ``list``; keys are to come in ascending order.

        Raises:
            ConfigurationError: the segment is encrypted, and its key is not at hand.
            StoreError: the store failed.

        """
        ...

    def locator_of(self, held: ManifestFacts) -> str:
        """Return the locator of the snapshot of a segment, as a source has it."""
        ...

    def sources_of(self, found: Mapping[str, ManifestFacts]) -> Iterator[ReplaySource]:
        """Yield what is to be replayed for the segments ``found``, by the keys of their manifests."""
        ...


def stored_segments(
    store: ObjectStore, wants: Callable[[str], bool], sources: Sources, within: str = ""
) -> StoredSegments:
    """Return the segments of the topics that ``wants`` asks for, in the layout of the first one that is met.

    Only what lies in the folders ``within`` of ``store`` counts, each with a slash after it.

    Raises:
        StoreError: the store failed.

    """
    layout = layout_in(store, within)
    if layout.tells_digests:
        return _WithDigests(store=store, layout=layout, wants=wants, within=within)
    return _WithoutDigests(store=store, layout=layout, wants=wants, within=within, sources=sources)


@dataclass(slots=True, kw_only=True)
class _Segments:
    """What both kinds have."""

    store: ObjectStore
    layout: Layout
    wants: Callable[[str], bool]
    within: str

    def locator_of(self, held: ManifestFacts) -> str:
        """Return where the snapshot lies; in some layouts not beside its manifest."""
        return f"{self.store.url}/{held.snapshot_key}"


@dataclass(slots=True, kw_only=True)
class _WithDigests(_Segments):
    """What Resnap has shipped in a layout of which its own manifests tell."""

    _reader: StoreReader = field(init=False)

    def __post_init__(self) -> None:
        """Begin to read."""
        self._reader = StoreReader(store=self.store)

    def list(self) -> ShippedListing:
        """Return what lies there."""
        listing = list_shipped(self.store, lambda key: "=" in key.topic or self.wants(key.topic), within=self.within)
        self._reader = StoreReader(store=self.store, topic_ids=listing.topic_ids)
        return listing

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[ManifestFacts]:
        """Return what the manifest at ``key`` is worth."""
        return self._reader.verify(key, reads_objects=reads_objects)

    def sources_of(self, found: Mapping[str, ManifestFacts]) -> Iterator[ReplaySource]:
        """Yield those of each cluster's part of the store."""
        by_cluster: dict[str, dict[str, set[str]]] = {}
        for key, manifest in found.items():
            place = parse_key(key)
            if place is not None and self.wants(manifest.topic):
                ids = by_cluster.setdefault(place.cluster, {}).setdefault(manifest.topic, set())
                ids.add(self._reader.topic_ids.of(place))
        for cluster, topics in sorted(by_cluster.items()):
            yield from _one_of_each_name(f"{self.store.url}/{cluster}", topics)


@dataclass(slots=True, kw_only=True)
class _WithoutDigests(_Segments):
    """What lies in a layout that brokers write, too, whoever wrote it."""

    sources: Sources
    """Which open what was encrypted, too."""
    _infos: dict[str, ObjectInfo] = field(default_factory=dict)
    _seen: dict[str, PartitionSeen] = field(default_factory=dict)

    def list(self) -> ShippedListing:
        """Return what lies there."""
        listing, self._infos = list_copies(self.store, lambda key: self.wants(key.topic), within=self.within)
        return listing

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[ManifestFacts]:
        """Return what the manifest at ``key`` is worth."""
        return verify_copy(self.store, self._infos, key, self._seen, self.sources, reads_objects=reads_objects)

    def sources_of(self, found: Mapping[str, ManifestFacts]) -> Iterator[ReplaySource]:
        """Yield those of each folder above topics, which is where a source begins."""
        by_prefix: dict[str, dict[str, set[str]]] = {}
        for key, one in found.items():
            place = parse_copy(key)
            if place is not None:
                by_prefix.setdefault(place.prefix, {}).setdefault(one.topic, set()).add(place.topic_id)
        for prefix, topics in sorted(by_prefix.items()):
            yield from _one_of_each_name(f"{self.store.url}/{prefix}".rstrip("/"), topics)


def _one_of_each_name(url: str, topics: Mapping[str, set[str]]) -> Iterator[ReplaySource]:
    """Yield sources with all of ``topics``, ids by name, each with one topic of a name at most."""
    most = max(map(len, topics.values()))
    for index in range(most):
        yield ReplaySource(url, {topic: sorted(ids)[index] for topic, ids in topics.items() if index < len(ids)})
