"""Reads a store back: every object that a manifest names must be there, byte for byte, and hold what it should.

Objects that no manifest names are none of a reader's business: an upload may be under way. All manifests are read,
since what they say together (``chains``) is judged, too; the objects only of those that are asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, UNKNOWN, is_tombstone, parse_key
from resnap.storage.layouts.flat.topics import TopicIds, listing_prefix, topic_ids_of
from resnap.storage.layouts.lineage import is_one_lineage
from resnap.storage.layouts.local_tiered.brokers_own import BrokersFolders
from resnap.storage.layouts.manifest import ObjectKind, read_manifest
from resnap.storage.log.producer_snapshot import read_snapshot_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.layouts.manifest import Manifest, ManifestObject
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

Held_co = TypeVar("Held_co", covariant=True)
"""What a manifest says of its segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedListing:
    """What one listing of a store shows of shipped segments."""

    manifests: Mapping[str, ObjectInfo]
    """By key, ascending."""
    sizes: Mapping[str, int]
    """Bytes of the objects beside each manifest, by its key."""
    topic_ids: TopicIds = field(default_factory=TopicIds)
    """Which topics the segments are of, where keys do not tell."""

    def folder(self, key: str) -> str:
        """Return the folder of the partition that the segment belongs to whose manifest is at ``key``."""
        parsed = parse_key(key)
        return key.rpartition("/")[0] if parsed is None else self.topic_ids.folder(parsed)

    def size_of(self, keys: set[str]) -> int:
        """Return the bytes of the objects beside the manifests ``keys``."""
        return sum(self.sizes.get(key, 0) for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSegment(Generic[Held_co]):
    """What reading one shipped segment back showed, whatever its layout."""

    manifest_key: str
    manifest: Held_co | None
    """None where it could not be read."""
    problems: tuple[str, ...]
    """Empty if all is well."""
    undecided: tuple[str, ...] = ()
    """What may be wrong or right, since what it depends on was not read."""
    size_bytes: int = 0
    """Size of the objects that were read."""
    objects_read: int = 0
    is_retained_away: bool = False
    """Whether the retention of brokers, who know nothing of manifests, has taken it; ``manifest`` is None then."""
    was_read: bool = True
    """Whether its objects were read; else its manifest alone."""


def list_shipped(store: ObjectStore, wants: Callable[[FlatKey], bool], within: str = "") -> ShippedListing:
    """Return what lies in ``store`` of the segments that ``wants`` asks for, by their keys.

    Of a part of the store, the folders ``within``, all that belongs to its topic counts, wherever it lies.

    Raises:
        StoreError: the store failed.

    """
    manifests: dict[str, ObjectInfo] = {}
    sizes: dict[str, int] = {}
    listed = (info for info in store.list(listing_prefix(within)) if not is_tombstone(info))
    found = [(parsed, info) for info in listed if (parsed := parse_key(info.key))]
    topic_ids = topic_ids_of(store, (info.key for _, info in found))
    for parsed, info in found:
        if not wants(parsed) or not topic_ids.folder(parsed).startswith(within):
            continue
        if parsed.extension == MANIFEST_EXTENSION:
            manifests[info.key] = info
        else:
            beside = replace(parsed, extension=MANIFEST_EXTENSION).key
            sizes[beside] = sizes.get(beside, 0) + info.size_bytes
    return ShippedListing(manifests=manifests, sizes=sizes, topic_ids=topic_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReader:
    """Verifies the segments of a store one after the other."""

    store: ObjectStore
    topic_ids: TopicIds = field(default_factory=TopicIds)
    """Which topics the segments are of, where keys do not tell."""
    first_at: dict[tuple[str, int], VerifiedSegment[Manifest]] = field(default_factory=dict)
    """The first manifest of each segment that was met, by the folder it belongs into and base offset."""
    brokers: BrokersFolders = field(init=False)

    def __post_init__(self) -> None:
        """Begin to look at what brokers do on their own."""
        object.__setattr__(self, "brokers", BrokersFolders(self.store))

    def verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[Manifest]:
        """Return what the manifest at ``key`` is worth, and the objects that it names if they are to be read.

        Raises:
            StoreError: the store itself failed.

        """
        verified = self._verify(key, reads_objects=reads_objects)
        parsed = parse_key(key)
        if parsed is None:
            raise AssertionError(f"{key} is no key of a manifest")
        topic_id = self.topic_ids.of(parsed)
        if verified.manifest is not None and verified.manifest.topic_id is None and topic_id != UNKNOWN:
            verified = replace(verified, manifest=replace(verified.manifest, topic_id=topic_id))
        first = self.first_at.setdefault((self.topic_ids.folder(parsed), parsed.base_offset), verified)
        if _may_stand_together(first, verified):
            return verified
        twice = f"{key}: the same segment has another manifest, of another log: {first.manifest_key}"
        return replace(verified, problems=(*verified.problems, twice))

    def _verify(self, key: str, *, reads_objects: bool) -> VerifiedSegment[Manifest]:
        try:
            with in_file(key):
                manifest = read_manifest(self.store.get(key))
        except FormatError as error:
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(str(error),))
        except ObjectNotFoundError as error:
            gone = f"{error}: it was there when the store was listed"
            return VerifiedSegment(manifest_key=key, manifest=None, problems=(gone,))
        place = parse_key(key)
        if place is None or place.segment_id != manifest.segment_id:
            strange = f"{key}: holds the manifest of the segment {manifest.segment_id}"
            return VerifiedSegment(manifest_key=key, manifest=manifest, problems=(strange,), was_read=False)
        found = VerifiedSegment(manifest_key=key, manifest=manifest, problems=(), was_read=reads_objects)
        if not reads_objects:
            return found
        problems = [problem for entry in manifest.objects for problem in _object_problems(self.store, entry)]
        if problems and self.brokers.have_lost(manifest.base_offset, [entry.key for entry in manifest.objects]):
            return replace(found, manifest=None, is_retained_away=True)
        return replace(
            found,
            problems=tuple(problems),
            objects_read=len(manifest.objects),
            size_bytes=sum(entry.size_bytes for entry in manifest.objects),
        )


def _may_stand_together(first: VerifiedSegment[Manifest], other: VerifiedSegment[Manifest]) -> bool:
    """Whether both tell of the same log: two runs at the same instant may leave two manifests, and both are true.

    So may two replicas, which end the segment at other offsets.
    """
    if first.manifest is None or other.manifest is None:
        return True
    if first.manifest.next_base_offset != other.manifest.next_base_offset:
        return is_one_lineage(first.manifest, other.manifest)
    return _log_digest(first.manifest) == _log_digest(other.manifest)


def _log_digest(manifest: Manifest) -> str | None:
    log = manifest.object(ObjectKind.LOG)
    return None if log is None else log.sha256


def _object_problems(store: ObjectStore, entry: ManifestObject) -> Iterator[str]:
    size_bytes, checksum, sha256 = 0, 0, hashlib.sha256()
    kept = bytearray()
    try:
        with store.open(entry.key) as chunks:
            for chunk in chunks:
                size_bytes += len(chunk)
                checksum = crc32c(chunk, checksum)
                sha256.update(chunk)
                if entry.kind is ObjectKind.SNAPSHOT:
                    kept += chunk
    except ObjectNotFoundError:
        yield f"{entry.key}: missing"
        return
    if size_bytes != entry.size_bytes:
        yield f"{entry.key}: expected {entry.size_bytes} bytes, found {size_bytes}"
    elif checksum != entry.crc32c or sha256.hexdigest() != entry.sha256:
        yield f"{entry.key}: other bytes than the manifest says: CRC-32C {entry.crc32c:08x}, found {checksum:08x}"
    elif entry.kind is ObjectKind.SNAPSHOT:
        yield from _snapshot_problems(entry.key, bytes(kept))


def _snapshot_problems(key: str, body: bytes) -> Iterator[str]:
    try:
        with in_file(key):
            read_snapshot_array(body)
    except FormatError as error:
        yield str(error)
