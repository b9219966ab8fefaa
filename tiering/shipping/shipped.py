"""What a store holds already: a segment that has a manifest is done, whatever T is now.

A segment that is shipped under another range comes from another replica, whose boundaries are others: ``placement``
judges what is shipped beside it. A key tells where a segment begins, its manifest where it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from resnap.storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from resnap.storage.layouts.aiven import keys as aiven
from resnap.storage.layouts.aiven import origin as aiven_origin
from resnap.storage.layouts.aiven.log import REMEDY, copied_segment
from resnap.storage.layouts.aiven.members import Member
from resnap.storage.layouts.aiven.origin import read_origin
from resnap.storage.layouts.brokers_own import BrokersFolders
from resnap.storage.layouts.flat.keys import (
    MANIFEST_EXTENSION,
    UNKNOWN,
    is_tombstone,
    key_part,
    manifest_prefix,
    parse_key,
    partition_prefix,
)
from resnap.storage.layouts.manifest import ObjectKind, read_manifest
from resnap.storage.side_by_side import each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resnap.storage.layouts.manifest import Manifest, SnapshotOrigin
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedSegment:
    """A segment [base offset, next base offset) that the store holds, by its manifest."""

    base_offset: int
    next_base_offset: int
    manifest_key: str
    log_key: str
    log_bytes: int
    """Size of its log."""
    leader_epochs: tuple[LeaderEpoch, ...]
    objects: tuple[tuple[str, int], ...]
    """Key and length of each."""
    snapshot: str
    """What the locator of its snapshot ends in, below the URL of the store."""
    made_ms: int
    """When it was shipped; of several with the same offsets the last one is read."""
    origin: SnapshotOrigin | None
    """Where its snapshot comes from; None where nothing says so, as of what brokers wrote."""


class Unreadable(NamedTuple):
    """A manifest that cannot be read: nobody knows where its segment ends."""

    base_offset: int
    error: FormatError


class Neighbours(NamedTuple):
    """What is shipped of some offsets, and where they begin and end."""

    segments: list[ShippedSegment]
    """By base offset."""
    unreadable: list[Unreadable]
    is_all_below: bool
    """Whether everything below the offsets was looked at."""


def shipped_segment(manifest_key: str, manifest: Manifest) -> ShippedSegment:
    """Return what ``manifest`` names."""
    log = next(entry for entry in manifest.objects if entry.kind is ObjectKind.LOG)
    return ShippedSegment(
        base_offset=manifest.base_offset,
        next_base_offset=manifest.next_base_offset,
        manifest_key=manifest_key,
        log_key=log.key,
        log_bytes=log.size_bytes,
        leader_epochs=manifest.leader_epochs,
        objects=tuple((entry.key, entry.size_bytes) for entry in manifest.objects),
        snapshot=next(entry.key for entry in manifest.objects if entry.kind is ObjectKind.SNAPSHOT),
        made_ms=manifest.created_at_ms,
        origin=manifest.snapshot_origin,
    )


class Place(NamedTuple):
    """Of what a manifest is, by its key."""

    partition: int
    base_offset: int
    topic_id: str | None
    """None where it was not known when the segment was shipped."""


class Manifests(Protocol):
    """The manifests of one topic in a layout."""

    @property
    def prefix(self) -> str:
        """What all keys of the topic begin with, whatever its id was known to be."""
        ...

    def place(self, key: str) -> Place | None:
        """Return of what the manifest at ``key`` is; None for every other object."""
        ...

    @property
    def may_overlap(self) -> bool:
        """Whether readers find their way where segments overlap."""
        ...

    @property
    def remedy(self) -> str:
        """What to do about a segment that is damaged."""
        ...

    def partition_prefixes(self, partition: int, topic_id: str) -> list[str]:
        """Return what all keys of a partition begin with, if the id of its topic is or was not known."""
        ...

    def origin_key(self, manifest_key: str) -> str | None:
        """Return the key of the object that says where a snapshot comes from; None where the manifest does."""
        ...

    def read(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment that the manifest ``data`` makes visible.

        Raises:
            FormatError: the manifest is damaged.

        """
        ...


@dataclass(frozen=True, slots=True)
class FlatManifests:
    """Those of Resnap's own."""

    cluster_id: str | None
    topic: str

    @property
    def prefix(self) -> str:
        """What all keys of the topic begin with."""
        return manifest_prefix(self.cluster_id, self.topic)

    def place(self, key: str) -> Place | None:
        """Return of what the manifest at ``key`` is."""
        parsed = parse_key(key)
        if parsed is None or parsed.extension != MANIFEST_EXTENSION:
            return None
        return Place(parsed.partition, parsed.base_offset, None if parsed.topic_id == UNKNOWN else parsed.topic_id)

    @property
    def may_overlap(self) -> bool:
        """Readers take one chain."""
        return True

    @property
    def remedy(self) -> str:
        """Nobody else knows of it."""
        return "see `resnap verify --store URL`; delete the manifest to have the segment shipped anew"

    def partition_prefixes(self, partition: int, topic_id: str) -> list[str]:
        """Return what all keys of a partition begin with."""
        return [
            partition_prefix(cluster_id=self.cluster_id, topic=self.topic, topic_id=one, partition=partition)
            for one in (topic_id, None)
        ]

    def origin_key(self, manifest_key: str) -> None:
        """Manifests say it themselves."""

    def read(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment."""
        return shipped_segment(key, read_manifest(data))


@dataclass(frozen=True, slots=True)
class AivenManifests:
    """Those that the plugin reads, whether brokers wrote them or we."""

    key_prefix: str
    topic: str

    @property
    def prefix(self) -> str:
        """What all keys of the topic begin with; another topic's may, too."""
        return f"{self.key_prefix}{self.topic}-"

    def place(self, key: str) -> Place | None:
        """Return of what the manifest at ``key`` is."""
        parsed = aiven.parse_key(key.removeprefix(self.key_prefix))
        if parsed is None or parsed.suffix != aiven.MANIFEST or (parsed.prefix, parsed.topic) != ("", self.topic):
            return None
        return Place(parsed.partition, parsed.base_offset, parsed.topic_id)

    @property
    def may_overlap(self) -> bool:
        """Brokers write here, too, and expect one chain."""
        return False

    @property
    def remedy(self) -> str:
        """Brokers may know of it."""
        return REMEDY

    def partition_prefixes(self, partition: int, topic_id: str) -> list[str]:
        """Return what all keys of a partition begin with."""
        return [f"{self.prefix}{topic_id}/{partition}/"]

    def origin_key(self, manifest_key: str) -> str | None:
        """Return the key of an object of Resnap's own."""
        place = aiven.parse_key(manifest_key)
        return None if place is None else aiven_origin.origin_key(place)

    def read(self, key: str, data: bytes) -> ShippedSegment:
        """Return the segment."""
        parsed = aiven.parse_key(key.removeprefix(self.key_prefix))
        if parsed is None:
            raise AssertionError(f"{key} is no key of a manifest")
        segment, stem = copied_segment(parsed, data), key.removesuffix(f".{aiven.MANIFEST}")
        chunks, indexes = segment.manifest.chunks, segment.manifest.indexes
        return ShippedSegment(
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            manifest_key=key,
            log_key=f"{stem}.{aiven.LOG}",
            log_bytes=chunks.file_size,
            leader_epochs=segment.leader_epochs,
            objects=((f"{stem}.{aiven.LOG}", chunks.stored_size), (f"{stem}.{aiven.INDEXES}", indexes.end)),
            snapshot=Member(stem, "snapshot").locator,
            made_ms=segment.metadata.event_timestamp_ms,
            origin=None,
        )


class ShippedTopic:
    """What a store holds of one topic, whatever its id was known to be: one listing, manifests read when asked for."""

    def __init__(self, store: ObjectStore, manifests: Manifests, *, only: Sequence[str] | None = None) -> None:
        """Look at the whole topic, or at what lies below the prefixes ``only`` of it."""
        self.store, self._layout, self._brokers = store, manifests, BrokersFolders(store)
        self._prefixes = [manifests.prefix] if only is None else only
        self._sizes = {info.key: info.size_bytes for info in self._listed()}
        self._known: dict[str, ShippedSegment] = {}
        """By key: what the manifests say that were read for the partition looked at last."""
        self._manifests: dict[int, list[tuple[int, str]]] = {}
        """By partition: (base offset, key), ascending."""
        self._by_id: dict[tuple[int, str | None], list[tuple[int, str]]] = {}
        """The same, of one topic id."""
        for key in self._sizes:
            place = manifests.place(key)
            if place is not None:
                self._manifests.setdefault(place.partition, []).append((place.base_offset, key))
        for found in self._manifests.values():
            found.sort()

    @property
    def may_overlap(self) -> bool:
        """Whether readers of the layout find their way where segments overlap."""
        return self._layout.may_overlap

    def topic_id_of(self, segment: ShippedSegment) -> str | None:
        """Return the id that the topic of ``segment`` was known by when that was shipped."""
        place = self._layout.place(segment.manifest_key)
        return None if place is None else place.topic_id

    def is_same(self, partition: int) -> bool:
        """Whether the store has the same manifests of ``partition`` still; all else goes on telling of the first look.

        Raises:
            StoreError: the store failed.

        """
        places = {info.key: self._layout.place(info.key) for info in self._listed()}
        now = {key for key, place in places.items() if place is not None and place.partition == partition}
        return now == {key for _, key in self._manifests.get(partition, [])}

    def _listed(self) -> Iterator[ObjectInfo]:
        for prefix in self._prefixes:
            yield from (info for info in self.store.list(prefix) if not is_tombstone(info))

    def with_origin(self, segment: ShippedSegment) -> ShippedSegment:
        """Return ``segment`` with where its snapshot comes from, if anything says so.

        Raises:
            StoreError: the store failed.

        """
        key = self._layout.origin_key(segment.manifest_key) if segment.origin is None else None
        if key is None:
            return segment
        with suppress(ObjectNotFoundError, FormatError):  # that it is damaged is for verification to say
            return replace(segment, origin=read_origin(self.store.get(key)))
        return segment

    def find(
        self, partition: int, base_offset: int, next_base_offset: int, *, topic_id: str | None = None
    ) -> ShippedSegment | None:
        """Return what is shipped of just [``base_offset``, ``next_base_offset``).

        Each object of it must be there with its length. What was shipped of a topic whose id was not known then counts;
        that of another id is of another topic, which had the same name before it was deleted. Without ``topic_id`` all
        count.

        Raises:
            VerificationError: an object that the manifest names is missing or of another length.
            FormatError: the manifest is damaged.
            StoreError: the store failed.

        """
        problem: FormatError | VerificationError | None = None
        for key in self._based_in(partition, base_offset, base_offset + 1, topic_id):
            try:
                found = self._manifest(key)
                if found.next_base_offset == next_base_offset:
                    self.check(found)
                    return found
            except (FormatError, VerificationError) as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def neighbours(self, partition: int, start: int, end: int, *, topic_id: str | None, deep: bool) -> Neighbours:
        """Return what is shipped that shares offsets with [``start``, ``end``), or adjoins it.

        From below come those that reach ``start``, down to the first that does not; a longer one may begin even below
        that, and only if it is ``deep`` all manifests down there are read.

        Raises:
            StoreError: the store failed.

        """
        if not deep:
            self._known.clear()
        found = self._of(partition, topic_id)
        first, above = (bisect_left(found, offset, key=itemgetter(0)) for offset in (start, end + 1))
        below = 0 if deep else first
        read = self._read(found[below : above + 1])
        while below and (below == first or self._reaches(found[below], start)):
            below -= 1
            read = [self._look(found[below]), *read]
        return Neighbours(
            segments=[one for one in read if isinstance(one, ShippedSegment)],
            unreadable=[one for one in read if isinstance(one, Unreadable)],
            is_all_below=not below,
        )

    def _reaches(self, entry: tuple[int, str], offset: int) -> bool:
        found = self._look(entry)
        return isinstance(found, ShippedSegment) and found.next_base_offset >= offset

    def _read(self, entries: list[tuple[int, str]]) -> list[ShippedSegment | Unreadable]:
        return list(each(self._look, entries, remote=len(entries) > 1))

    def _look(self, entry: tuple[int, str]) -> ShippedSegment | Unreadable:
        base_offset, key = entry
        try:
            return self._manifest(key)
        except FormatError as error:
            error.hint = self._layout.remedy
            return Unreadable(base_offset, error)

    def _based_in(self, partition: int, start: int, end: int, topic_id: str | None) -> list[str]:
        found = self._of(partition, topic_id)
        first, last = (bisect_left(found, offset, key=itemgetter(0)) for offset in (start, end))
        return [key for _, key in found[first:last]]

    def _of(self, partition: int, topic_id: str | None) -> list[tuple[int, str]]:
        if (partition, topic_id) not in self._by_id:
            manifests = self._manifests.get(partition, [])
            self._by_id[partition, topic_id] = [one for one in manifests if self._may_be_of(one[1], topic_id)]
        return self._by_id[partition, topic_id]

    def _manifest(self, key: str) -> ShippedSegment:
        if key not in self._known:
            with in_file(key):
                self._known[key] = self._layout.read(key, self.store.get(key))
        return self._known[key]

    def is_torn(self, segment: ShippedSegment) -> bool:
        """Whether an object of ours that ``segment`` names is gone or cut off: shipped again, it is whole."""
        stem = segment.manifest_key.removesuffix(MANIFEST_EXTENSION)
        return any(key.startswith(stem) and self._size(key) != size for key, size in segment.objects)

    def check(self, segment: ShippedSegment) -> None:
        """Make sure that each object of ``segment`` is there with its length, or brokers' retention has taken them all.

        Raises:
            VerificationError: one is missing or of another length.

        """
        for key, size_bytes in segment.objects:
            found = self._size(key)
            if found != size_bytes:
                if self._brokers.have_lost(segment.base_offset, [one for one, _ in segment.objects]):
                    return
                raise VerificationError(
                    f"{segment.manifest_key}: names {key} of {size_bytes} bytes, found {found}",
                    hint=self._layout.remedy,
                )

    def _may_be_of(self, key: str, topic_id: str | None) -> bool:
        place = self._layout.place(key)
        return topic_id is None or place is None or place.topic_id in {key_part(topic_id), None}

    def _size(self, key: str) -> int | None:
        """Return the length of an object; asked for, where another run wrote it while the topic was being listed."""
        if key not in self._sizes:
            try:
                self._sizes[key] = self.store.head(key).size_bytes
            except ObjectNotFoundError:
                return None
        return self._sizes[key]
