"""Lists the segments that Resnap's manifests name, one by one, and the objects that no manifest names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from resnap.storage.disk import FileDigest
from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.brokers_own import BrokersFolders
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, is_tombstone, manifest_place, parse_key
from resnap.storage.layouts.flat.topics import TopicIds, listing_prefix, topic_ids_of
from resnap.storage.layouts.local_tiered.keys import parse_key as parse_brokers_key
from resnap.storage.layouts.manifest import TOMBSTONE, ObjectKind, read_manifest
from resnap.storage.layouts.segments import StoredManifest, Unnamed, Vouched
from resnap.storage.log.names import OFFSET_DIGITS
from resnap.storage.messages.wire import uuid_bytes
from resnap.storage.small_pieces import each
from resnap.storage.stores.key_part import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.log.partition_dir import PartitionDir, Segment
    from resnap.storage.log.survey import Incomplete
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


class _Names(NamedTuple):
    """The objects that a manifest names, or the reason why it cannot be read."""

    place: FlatKey
    keys: frozenset[str]
    error: FormatError | None = None


@dataclass(frozen=True, slots=True)
class FlatListing:
    """One listing of ``store``."""

    store: ObjectStore
    manifests: Mapping[str, ObjectInfo] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=TopicIds)
    """Which topics the segments are of, where keys do not say."""
    incomplete: Sequence[Incomplete] = ()
    """None: what no manifest names is not a segment."""

    def folder(self, key: str) -> str:
        """Return the folder of the partition; if shipped without a topic id, the folder of the topic that owns it."""
        return self.topic_ids.folder(_place(key))

    def source(self, key: str) -> tuple[str, str]:
        """Return the folder of the cluster, and the topic's id."""
        return _place(key).cluster, self.topic_ids.of(_place(key))

    def read(self, key: str) -> StoredManifest:
        """Return the content of a manifest; one under another segment's key is a problem, without valid digests."""
        manifest, place = read_manifest(self.store.get(key)), _place(key)
        facts, topic_id = manifest.facts, self.topic_ids.of(place)
        if facts.topic_id is None and topic_id != UNKNOWN:
            facts = replace(facts, topic_id=topic_id)
        if place.segment_id != manifest.segment_id:
            strange = f"{key}: holds the manifest of the segment {manifest.segment_id}"
            return StoredManifest(facts=facts, size_bytes=0, problems=(strange,))
        size = sum(entry.size_bytes for entry in manifest.objects)
        return StoredManifest(facts=facts, size_bytes=size, objects=manifest.objects)


def list_shipped(store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> FlatListing:
    """Return the segments in ``store`` of the topics that ``wants`` selects; names that keys escape always count.

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
        is_wanted = "=" in parsed.topic or wants(parsed.topic)
        if not is_wanted or not topic_ids.folder(parsed).startswith(within):
            continue
        if parsed.extension == MANIFEST_EXTENSION:
            manifests[info.key] = info
        else:
            beside = replace(parsed, extension=MANIFEST_EXTENSION).key
            sizes[beside] = sizes.get(beside, 0) + info.size_bytes
    return FlatListing(store, manifests, sizes, topic_ids)


def vouched_by_manifests(store: ObjectStore, partition: PartitionDir) -> Vouched:
    """Return the digests of all files of ``partition``, and what brokers tiered beside its segments."""
    manifests = []
    for segment in partition.segments:
        locator = _manifest_locator(partition, segment)
        with in_file(locator):
            manifests.append(read_manifest(store.get(locator.removeprefix(f"{store.url}/"))))
    entries = [entry for manifest in manifests for entry in manifest.objects]
    checkpoints = [entry.key for entry in entries if entry.kind is ObjectKind.LEADER_EPOCH_CHECKPOINT]
    return Vouched(
        leader_epochs=tuple(f"{store.url}/{key}" for key in checkpoints),
        digests={f"{store.url}/{one.key}": FileDigest(size_bytes=one.size_bytes, sha256=one.sha256) for one in entries},
        passed_over=tuple(BrokersFolders(store).without_manifest(manifests)),
    )


def unnamed_objects(store: ObjectStore, listed: Sequence[ObjectInfo]) -> Unnamed:
    """Return the objects in ``listed`` that no manifest in it names.

    A partition with an unreadable manifest is skipped: that manifest may name any object.
    """
    places = [place for info in listed if (place := manifest_place(info))]
    read = list(each(partial(_names, store), places, remote=True))
    named = frozenset().union(*(one.keys for one in read))
    closed = {one.place.folder for one in read if one.error is not None}
    return Unnamed(
        objects=tuple(
            info
            for info in listed
            if info.key not in named
            and (place := parse_key(info.key)) is not None
            and place.extension != MANIFEST_EXTENSION
            and place.folder not in closed
        ),
        unreadable=tuple(one.error for one in read if one.error is not None),
    )


def _names(store: ObjectStore, place: FlatKey) -> _Names:
    try:
        body = store.get(place.key)
        if body == TOMBSTONE:
            return _Names(place, frozenset())
        with in_file(place.key):
            manifest = read_manifest(body)
    except ObjectNotFoundError:
        return _Names(place, frozenset())
    except FormatError as error:
        return _Names(place, frozenset(), error)
    return _Names(place, frozenset({place.key, *(entry.key for entry in manifest.objects)}))


def _manifest_locator(partition: PartitionDir, segment: Segment) -> str:
    """Return the locator of the manifest that names the log of ``segment``, part of ``partition`` as listed."""
    key = parse_brokers_key(segment.path)
    if key is None:
        return f"{segment.path.removesuffix('log')}{MANIFEST_EXTENSION}"
    segment_id = UUID(bytes=uuid_bytes(key.segment_id))
    return f"{partition.path}/{key.base_offset:0{OFFSET_DIGITS}d}-{segment_id}.{MANIFEST_EXTENSION}"


def _place(key: str) -> FlatKey:
    place = parse_key(key)
    if place is None:
        raise AssertionError(f"{key} is not a key of a manifest")
    return place
