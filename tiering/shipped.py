"""What a store holds already: a segment that has a manifest is done, whatever T is now.

A segment that is shipped under another range, by another replica with other boundaries, is neither done nor to be
shipped beside it: two segments with the same offsets would leave it to the reader which of them is the log.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from storage.remote.layouts.flat import MANIFEST_EXTENSION, UNKNOWN, key_part, manifest_prefix, parse_key
from storage.remote.manifest import ObjectKind, read_manifest

if TYPE_CHECKING:
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


class ShippedTopic:
    """What a store holds of one topic, whatever its id was known to be: one listing, manifests read when asked for."""

    def __init__(self, store: ObjectStore, cluster_id: str | None, topic: str) -> None:
        self._store = store
        self._sizes = {info.key: info.size_bytes for info in store.list(manifest_prefix(cluster_id, topic))}
        self._known: dict[str, tuple[ShippedSegment, Manifest]] = {}
        """The manifest read last: the next segment asked for looks at it as its neighbour."""
        self._manifests: dict[int, list[tuple[int, str]]] = {}
        """By partition: (base offset, key), ascending."""
        self._by_id: dict[tuple[int, str | None], list[tuple[int, str]]] = {}
        """The same, of one topic id."""
        for key in self._sizes:
            parsed = parse_key(key)
            if parsed is not None and parsed.extension == MANIFEST_EXTENSION:
                self._manifests.setdefault(parsed.partition, []).append((parsed.base_offset, key))
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
            self._by_id[partition, topic_id] = [entry for entry in manifests if _may_be_of(entry[1], topic_id)]
        return self._by_id[partition, topic_id]

    def _manifest(self, key: str) -> tuple[ShippedSegment, Manifest]:
        if key not in self._known:
            with in_file(key):
                manifest = read_manifest(self._store.get(key))
            self._known = {key: (shipped_segment(key, manifest), manifest)}
        return self._known[key]

    def _check(self, key: str) -> None:
        for entry in self._manifest(key)[1].objects:
            found = self._size(entry.key)
            if found != entry.size_bytes:
                raise VerificationError(
                    f"{key}: names {entry.key} of {entry.size_bytes} bytes, found {found}",
                    hint="see `resnap verify --store URL`; delete the manifest to have the segment shipped anew",
                )

    def _size(self, key: str) -> int | None:
        """Return the length of an object; asked for, where another run wrote it while the topic was being listed."""
        if key not in self._sizes:
            try:
                self._sizes[key] = self._store.head(key).size_bytes
            except ObjectNotFoundError:
                return None
        return self._sizes[key]


def _may_be_of(key: str, topic_id: str | None) -> bool:
    parsed = parse_key(key)
    return topic_id is None or parsed is None or parsed.topic_id in {key_part(topic_id), UNKNOWN}
