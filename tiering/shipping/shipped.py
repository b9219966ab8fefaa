"""The segments that a store already holds; a segment with a manifest is done, whatever T is now.

A segment with other offsets comes from another replica, with other boundaries: ``placement`` decides what is shipped
beside it. A key gives the base offset of a segment, its manifest the end.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from resnap.storage.layouts.local_tiered import BrokersFolders
from resnap.storage.layouts.segments import ShippedSegment, read_origin
from resnap.storage.log.names import OFFSET_DIGITS, TopicPartition
from resnap.storage.stores.protocol import length_of
from resnap.storage.threads import each
from resnap.tiering.shipping.notes import read_retained, retained_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from resnap.storage.layouts.protocol import Layout
    from resnap.storage.layouts.segments import SegmentIdentity
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore
    from resnap.tiering.shipping.notes import RetentionNote


class Unreadable(NamedTuple):
    """A manifest that cannot be read: the end of its segment is unknown."""

    base_offset: int
    error: FormatError


class Neighbours(NamedTuple):
    """The stored segments around some offsets, and their start and end."""

    segments: list[ShippedSegment]
    """The segments by base offset."""
    unreadable: list[Unreadable]
    is_all_below: bool
    """Whether everything below the offsets was checked."""


class ShippedTopic:
    """The segments of one topic in a store, with any id: one listing, manifests read on demand."""

    def __init__(
        self,
        store: ObjectStore,
        layout: Layout,
        cluster_id: str | None,
        topic: str,
        *,
        only: tuple[str, int] | None = None,
    ) -> None:
        """List the whole topic, or ``only`` the partition of this topic id and number."""
        self.store, self._layout, self._cluster_id, self._topic = store, layout, cluster_id, topic
        self._brokers = BrokersFolders(store)
        self._prefixes = layout.key_prefixes(cluster_id, topic, only)
        self._sizes: dict[str, int] = {}
        self._places: dict[str, SegmentIdentity] = {}
        """The segment of each manifest, by key."""
        self._versions: dict[str, str] = {}
        """The etag and the time of each manifest, by key."""
        for info, place in self._list_objects():
            self._sizes[info.key] = info.size_bytes
            if place is not None:
                self._places[info.key] = place
                self._versions[info.key] = f"{info.etag} {info.modified_ms}"
        self._recalled: Mapping[str, bytes] = {}
        """Manifests that earlier runs have read or written, by version."""
        self._seen: dict[str, bytes] | None = None
        """Manifests that are read or recalled, if their etag is their MD5; None: nothing is kept."""
        self._beside: dict[str, list[ObjectInfo]] = {}
        """Objects of segments, by base offset as keys have it."""
        self.damaged: list[FormatError] = []
        """Retention notes that cannot be read."""
        self._known: dict[str, ShippedSegment] = {}
        """The manifests that were read for the last partition, by key."""
        self._manifests: dict[int, list[tuple[int, str]]] = {}
        """Base offsets and keys of manifests, ascending, by partition."""
        self._by_id: dict[tuple[int, str | None], list[tuple[int, str]]] = {}
        """Base offsets and keys of manifests, ascending, by partition of one topic id."""
        for key, place in self._places.items():
            self._manifests.setdefault(place.partition, []).append((place.base_offset, key))
        for found in self._manifests.values():
            found.sort()

    @contextmanager
    def recalling(self, manifests: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
        """Yield the manifests that are used within the context, by version; those of earlier runs are not read again.

        Only manifests whose etag is their MD5 are recalled, and yielded.
        """
        self._recalled, self._seen = manifests, {}
        try:
            yield self._seen
        finally:
            self._recalled, self._seen = {}, None  # many partitions wait at a time

    @property
    def may_overlap(self) -> bool:
        """Whether readers of the layout can handle overlapping segments."""
        return self._layout.may_overlap

    def topic_id_of(self, segment: ShippedSegment) -> str | None:
        """Return the topic id under which ``segment`` was shipped."""
        return self._places[segment.manifest_key].topic_id

    def list_again(self, partition: int) -> bool:
        """List ``partition`` again, for ``beside``; return whether the store still has the same manifests of it.

        All other methods use the first listing.

        Raises:
            StoreError: the store failed.

        """
        now, self._beside = set(), {}
        for info, place in self._list_objects():
            if place is not None and place.partition == partition:
                now.add(info.key)
            if place is not None or self._layout.is_tombstone(info):
                self._beside.setdefault(info.key.rpartition("/")[2][:OFFSET_DIGITS], []).append(info)
        return now == {key for _, key in self._manifests.get(partition, [])}

    def beside(self, base_offset: int) -> tuple[ObjectInfo, ...]:
        """Return the manifests of segments at ``base_offset``, and their tombstones, as of ``list_again``."""
        return tuple(self._beside.get(f"{base_offset:0{OFFSET_DIGITS}d}", ()))

    def _list_objects(self) -> Iterator[tuple[ObjectInfo, SegmentIdentity | None]]:
        for prefix in self._prefixes:
            yield from ((info, self._layout.segment_of_manifest(info, self._topic)) for info in self.store.list(prefix))

    def with_origins(self, segments: Iterable[ShippedSegment]) -> list[ShippedSegment]:
        """Return ``segments`` with the origins of their snapshots, if recorded.

        Raises:
            StoreError: the store failed.

        """
        given = list(segments)
        return list(each(self._with_origin, given, remote=any(segment.origin_key for segment in given)))

    def _with_origin(self, segment: ShippedSegment) -> ShippedSegment:
        """Read the origin of its snapshot, where it is an object; if it is damaged, verification reports that."""
        if segment.origin_key is not None:
            with suppress(ObjectNotFoundError, FormatError):
                return replace(segment, snapshot_origin=read_origin(self.store.get(segment.origin_key)))
        return segment

    def retained(self, partition: int, topic_id: str | None) -> RetentionNote | None:
        """Return the retention note of a partition; None if `retain` has deleted nothing, or it is one of ``damaged``.

        Raises:
            StoreError: the store failed.

        """
        place = TopicPartition(self._topic, partition)
        try:
            return read_retained(self.store, retained_key(self._cluster_id, place, topic_id))
        except FormatError as error:
            self.damaged.append(error)
            return None

    def find(
        self, partition: int, base_offset: int, next_base_offset: int, *, topic_id: str | None = None
    ) -> ShippedSegment | None:
        """Return the stored segment with exactly the offsets [``base_offset``, ``next_base_offset``).

        Each of its objects must exist with its length. Segments shipped without a topic id count; those of another id
        belong to another topic, which had the same name before it was deleted. Without ``topic_id`` all count.

        Raises:
            VerificationError: an object that the manifest names is missing or of another length.
            FormatError: the manifest is damaged.
            StoreError: the store failed.

        """
        problem: FormatError | VerificationError | None = None
        for key in (key for at, key in self._of(partition, topic_id) if at == base_offset):
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
        """Return the stored segments that share offsets with [``start``, ``end``), or adjoin it.

        Below, these are the segments that reach ``start``, down to the first that does not; a longer one may begin even
        lower, but all lower manifests are read only if ``deep``.

        Raises:
            StoreError: the store failed.

        """
        if not deep:
            self._known.clear()
        found = self._of(partition, topic_id)
        first, above = (bisect_left(found, offset, key=itemgetter(0)) for offset in (start, end + 1))
        below = 0 if deep else first
        near = found[below : above + 1]
        read = list(each(self._look, near, remote=len(near) > 1))
        while below and (below == first or self._reaches(found[below], start)):
            below -= 1
            read = [self._look(found[below]), *read]
        return Neighbours(
            segments=[found for found in read if isinstance(found, ShippedSegment)],
            unreadable=[found for found in read if isinstance(found, Unreadable)],
            is_all_below=not below,
        )

    def _reaches(self, entry: tuple[int, str], offset: int) -> bool:
        found = self._look(entry)
        return isinstance(found, ShippedSegment) and found.next_base_offset >= offset

    def _look(self, entry: tuple[int, str]) -> ShippedSegment | Unreadable:
        base_offset, key = entry
        try:
            return self._manifest(key)
        except FormatError as error:
            error.hint = self._layout.remedy
            return Unreadable(base_offset, error)

    def _of(self, partition: int, topic_id: str | None) -> list[tuple[int, str]]:
        if (partition, topic_id) not in self._by_id:
            manifests = self._manifests.get(partition, [])
            self._by_id[partition, topic_id] = [
                (at, key) for at, key in manifests if topic_id is None or self._places[key].topic_id in {topic_id, None}
            ]
        return self._by_id[partition, topic_id]

    def _manifest(self, key: str) -> ShippedSegment:
        if key not in self._known:
            with in_file(key):
                self._known[key] = self._layout.read_manifest(key, self._body(key))
        return self._known[key]

    def _body(self, key: str) -> bytes:
        """Return the manifest at ``key``; as recalled, if the listing has the MD5 of these bytes.

        The time, too, is that of the listing by which an earlier run has read them: it shows what was changed behind
        the store's back, which keeps the etag. The time of what a run has written is not known without a request. But
        there the etag is enough: the run has read back what it wrote, and what anybody writes there since has another
        MD5, or is the same.
        """
        version = self._versions[key]
        body = self._recalled.get(version) or self._recalled.get(f"{version.partition(' ')[0]} ")
        if body is None or not _is_md5(version, body):
            body = self.store.get(key)
        if self._seen is not None and _is_md5(version, body):
            self._seen[version] = body
        return body

    def is_torn(self, segment: ShippedSegment) -> bool:
        """Whether an object of ours that ``segment`` names is missing or truncated: shipping it again completes it."""
        return segment.is_replaceable and any(self._size(key) != size for key, size in segment.objects)

    def check(self, segment: ShippedSegment) -> None:
        """Check that all objects of ``segment`` exist with their lengths, or were all deleted by brokers' retention.

        Raises:
            VerificationError: one is missing or of another length.

        """
        for key, size_bytes in segment.objects:
            found = self._size(key)
            if found != size_bytes:
                if self._brokers.have_lost(segment.base_offset, [key for key, _ in segment.objects]):
                    return
                raise VerificationError(
                    f"{segment.manifest_key}: names {key} of {size_bytes} bytes, found {found}",
                    hint=self._layout.remedy,
                )

    def _size(self, key: str) -> int | None:
        """Return the length of an object; requests it if another run wrote the object during the listing."""
        if key not in self._sizes:
            found = length_of(self.store, key)
            if found is None:
                return None
            self._sizes[key] = found
        return self._sizes[key]


def written_version(body: bytes) -> str:
    """Return the version under which a manifest is recalled that a run has written: without a time."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}" '


def _is_md5(version: str, body: bytes) -> bool:
    """Whether the etag of ``version`` is the MD5 of ``body``: such an etag changes with the bytes."""
    return version.startswith(written_version(body))
