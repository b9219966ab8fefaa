"""What a store holds already: a segment that has a manifest is done, whatever T is now.

A segment that is shipped under another range, by another replica with other boundaries, is neither done nor to be
shipped beside it: two segments with the same offsets would leave it to the reader which of them is the log.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from storage.remote.layouts import aiven
from storage.remote.layouts.aiven_log import copied_segment
from storage.remote.layouts.flat import MANIFEST_EXTENSION, UNKNOWN, key_part, manifest_prefix, parse_key
from storage.remote.manifest import ObjectKind, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage.remote.manifest import Manifest
    from storage.remote.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedSegment:
    """A segment [base offset, next base offset) that the store holds, by its manifest."""

    base_offset: int
    next_base_offset: int
    manifest_key: str
    log_bytes: int
    """Size of its log."""


def shipped_segment(manifest_key: str, manifest: Manifest) -> ShippedSegment:
    """Return what ``manifest`` names."""
    return ShippedSegment(
        base_offset=manifest.base_offset,
        next_base_offset=manifest.next_base_offset,
        manifest_key=manifest_key,
        log_bytes=next(entry.size_bytes for entry in manifest.objects if entry.kind is ObjectKind.LOG),
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

    def read(self, key: str, data: bytes) -> tuple[ShippedSegment, Mapping[str, int]]:
        """Return the segment that the manifest ``data`` makes visible, and the bytes of its other objects, by key.

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

    def read(self, key: str, data: bytes) -> tuple[ShippedSegment, Mapping[str, int]]:
        """Return the segment, and the bytes of its objects."""
        manifest = read_manifest(data)
        return shipped_segment(key, manifest), {entry.key: entry.size_bytes for entry in manifest.objects}


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

    def read(self, key: str, data: bytes) -> tuple[ShippedSegment, Mapping[str, int]]:
        """Return the segment, and the bytes of its objects."""
        parsed = aiven.parse_key(key.removeprefix(self.key_prefix))
        if parsed is None:
            raise AssertionError(f"{key} is no key of a manifest")
        segment, stem = copied_segment(parsed, data), key.removesuffix(f".{aiven.MANIFEST}")
        chunks, indexes = segment.manifest.chunks, segment.manifest.indexes
        shipped = ShippedSegment(
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            manifest_key=key,
            log_bytes=chunks.file_size,
        )
        return shipped, {f"{stem}.{aiven.LOG}": chunks.stored_size, f"{stem}.{aiven.INDEXES}": indexes.end}


class ShippedTopic:
    """What a store holds of one topic, whatever its id was known to be: one listing, manifests read when asked for."""

    def __init__(self, store: ObjectStore, manifests: Manifests) -> None:
        self._store, self._layout = store, manifests
        self._sizes = {info.key: info.size_bytes for info in store.list(manifests.prefix)}
        self._known: dict[str, tuple[ShippedSegment, Mapping[str, int]]] = {}
        """The manifest read last: the next segment asked for looks at it as its neighbour."""
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

    def find(
        self, partition: int, base_offset: int, next_base_offset: int, *, topic_id: str | None = None
    ) -> ShippedSegment | None:
        """Return what is shipped of [``base_offset``, ``next_base_offset``), the same range or one that overlaps it.

        Each object of it must be there with its length. What was shipped of a topic whose id was not known then counts;
        that of another id is of another topic, which had the same name before it was deleted. Without ``topic_id`` all
        count.

        Raises:
            VerificationError: an object that the manifest names is missing or of another length.
            FormatError: the manifest is damaged.
            StoreError: the store failed.

        """
        overlapping: ShippedSegment | None = None
        problem: FormatError | VerificationError | None = None
        for key in self._near(partition, base_offset, next_base_offset, topic_id):
            try:
                found, _ = self._manifest(key)
                if (found.base_offset, found.next_base_offset) == (base_offset, next_base_offset):
                    self._check(key)
                    return found
            except (FormatError, VerificationError) as error:
                problem = problem or error
                continue
            if found.next_base_offset > base_offset:
                overlapping = overlapping or found
        if problem is not None:
            raise problem
        return overlapping

    def _near(self, partition: int, base_offset: int, next_base_offset: int, topic_id: str | None) -> list[str]:
        """Return the manifests that begin in the range, and those of the nearest base below it."""
        found = self._of(partition, topic_id)
        first, end = (bisect_left(found, offset, key=itemgetter(0)) for offset in (base_offset, next_base_offset))
        below = bisect_left(found, found[first - 1][0], key=itemgetter(0)) if first else 0
        return [key for _, key in (*found[first:end], *found[below:first])]

    def _of(self, partition: int, topic_id: str | None) -> list[tuple[int, str]]:
        if (partition, topic_id) not in self._by_id:
            manifests = self._manifests.get(partition, [])
            self._by_id[partition, topic_id] = [one for one in manifests if self._may_be_of(one[1], topic_id)]
        return self._by_id[partition, topic_id]

    def _manifest(self, key: str) -> tuple[ShippedSegment, Mapping[str, int]]:
        if key not in self._known:
            with in_file(key):
                self._known = {key: self._layout.read(key, self._store.get(key))}
        return self._known[key]

    def _check(self, key: str) -> None:
        for named, size in self._manifest(key)[1].items():
            found = self._size(named)
            if found != size:
                raise VerificationError(
                    f"{key}: names {named} of {size} bytes, found {found}",
                    hint="see `resnap verify --store URL`; delete the manifest to have the segment shipped anew",
                )

    def _may_be_of(self, key: str, topic_id: str | None) -> bool:
        place = self._layout.place(key)
        return topic_id is None or place is None or place.topic_id in {key_part(topic_id), None}

    def _size(self, key: str) -> int | None:
        """Return the length of an object; asked for, where another run wrote it while the topic was being listed."""
        if key not in self._sizes:
            try:
                self._sizes[key] = self._store.head(key).size_bytes
            except ObjectNotFoundError:
                return None
        return self._sizes[key]
