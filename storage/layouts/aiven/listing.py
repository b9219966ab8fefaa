"""Lists the segments of a store in the layout ``aiven``, one by one; their manifests have no digests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from resnap.storage.errors import FormatError, ObjectNotFoundError, in_file
from resnap.storage.layouts.aiven.keys import MANIFEST, parse_key, place_of
from resnap.storage.layouts.aiven.log import copied_segment, log_segment, without_manifest
from resnap.storage.layouts.aiven.origin import ORIGINS, origin_key, place_of_origin
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.origin_object import read_origin
from resnap.storage.layouts.segments import SegmentFiles, StoredManifest
from resnap.storage.log.store_path import StorePath

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resnap.storage.layouts.aiven.log import CopiedSegment
    from resnap.storage.layouts.manifest import ManifestFacts, SnapshotOrigin
    from resnap.storage.log.survey import Incomplete
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True)
class AivenListing:
    """One listing of ``store``."""

    store: ObjectStore
    infos: Mapping[str, ObjectInfo]
    """All objects of the segments, and the origins of their snapshots, by key."""
    manifests: Mapping[str, ObjectInfo]
    sizes: Mapping[str, int]

    @property
    def incomplete(self) -> list[Incomplete]:
        """Return the segments that have an object but no manifest."""
        return without_manifest(list(filter(None, map(parse_key, self.infos))))

    def folder(self, key: str) -> str:
        """Return the folder of the partition."""
        return key.rpartition("/")[0]

    def source(self, key: str) -> tuple[str, str]:
        """Return the folder above the topic folders, and the topic's id."""
        place = place_of(key)
        return place.prefix.rstrip("/"), place.topic_id

    def read(self, key: str) -> StoredManifest:
        """Return the content of a manifest, and the locations of the files if both other objects exist."""
        found = copied_segment(place_of(key), self.store.get(key))
        facts, problems = found.facts, tuple[str, ...]()
        try:
            facts = replace(facts, snapshot_origin=self._origin(origin_key(key)))
        except (FormatError, ObjectNotFoundError) as error:
            problems = (str(error),)
        missing = tuple(
            f"{one}: missing" if there is None else f"{one}: expected {size} bytes, found {there.size_bytes}"
            for one, size, there in found.unfit(self.infos)
        )
        return StoredManifest(
            facts=facts,
            size_bytes=sum(self.infos[one].size_bytes for one in found.objects if one in self.infos),
            files=None if missing else self._files(found, facts),
            missing=missing,
            problems=problems,
        )

    def _origin(self, key: str) -> SnapshotOrigin | None:
        """Return the snapshot origin at ``key``, if Resnap shipped the segment."""
        if key not in self.infos:
            return None
        with in_file(key):
            return read_origin(self.store.get(key))

    def _files(self, found: CopiedSegment, facts: ManifestFacts) -> SegmentFiles:
        segment = log_segment(StorePath(self.store.url), self.infos, found).segment
        return SegmentFiles(
            segment, segment.sibling(ObjectKind.SNAPSHOT), segment.sibling(ObjectKind.LEADER_EPOCH_CHECKPOINT), facts
        )


def list_copies(store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> AivenListing:
    """Return the segments below ``within`` of the topics that ``wants`` selects.

    Raises:
        StoreError: the store failed.

    """
    infos: dict[str, ObjectInfo] = {}
    manifests: dict[str, ObjectInfo] = {}
    sizes: dict[str, int] = {}
    for info in chain(store.list(within), store.list(f"{ORIGINS}{within}") if within else ()):
        place = parse_key(info.key) or place_of_origin(info.key)
        if place is None or not wants(place.topic):
            continue
        infos[info.key] = info
        if info.key == (manifest := place.beside(MANIFEST)):
            manifests[info.key] = info
        else:
            sizes[manifest] = sizes.get(manifest, 0) + info.size_bytes
    return AivenListing(store, infos, manifests, sizes)
