"""Reads a store in the layout ``aiven`` as a log dir: segments by their manifests, one chain for each partition.

Only manifests count: a segment without one may be an upload of a broker that is still in progress. All segments are
closed. Which of them brokers use is recorded in ``__remote_log_metadata``, which is not read here: of several segments
with the same offsets, as retries leave them, the one copied last is taken.

Segments are also listed one by one (``list_copies``); their manifests have no digests.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from resnap.storage.layouts.aiven.manifest import INDEX_NAMES, AivenManifest, read_manifest
from resnap.storage.layouts.aiven.members import (
    INDEXES,
    LOG,
    MANIFEST,
    ORIGINS,
    Member,
    index_size,
    origin_key,
    parse_key,
    parse_own_key,
    segment_key_of_origin,
)
from resnap.storage.layouts.manifest import ManifestFacts, ObjectKind
from resnap.storage.layouts.segments import Listing, SegmentFiles, StoredManifest, read_origin
from resnap.storage.layouts.stored_log import (
    ListedSegment,
    ManifestSegment,
    all_read,
    closed_segment,
    end_snapshot,
    stored_log_dir,
)
from resnap.storage.log.log_dir import Incomplete
from resnap.storage.log.names import StorePath, TopicPartition
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.layouts.aiven.members import AivenKey
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

REMEDY: Final = (
    "brokers cannot read it either: `resnap remote status LOG_DIR --store` says whether they know it; if they do, only"
    " another copy of the object helps, else delete the three objects of the segment, and tier it again"
)
"""What to do about a damaged segment: without its manifest a segment that brokers use is lost for good."""
_URL_OF_ONE: Final = "<URL>/<topic>-<topic id>"


class AivenSegment(NamedTuple):
    """A segment that a manifest makes visible."""

    place: AivenKey
    manifest: AivenManifest
    facts: ManifestFacts

    @property
    def objects(self) -> dict[str, int]:
        """The lengths of the other two objects, by key; a repair appends to the indexes."""
        manifest, place = self.manifest, self.place
        return {place.beside(LOG): manifest.chunks.stored_size, place.beside(INDEXES): manifest.indexes_end}

    def mismatched_objects(self, infos: Mapping[str, ObjectInfo]) -> Iterator[tuple[str, int, ObjectInfo | None]]:
        """Yield key, expected length and facts of each of them that is missing, or of another length."""
        for key, size in self.objects.items():
            found = infos.get(key)
            if found is None or found.size_bytes < size or (found.size_bytes > size and key == self.place.beside(LOG)):
                yield key, size, found


def copied_segment(place: AivenKey, data: bytes) -> AivenSegment:
    """Return the segment at ``place`` as its manifest describes it.

    Raises:
        FormatError: the manifest is damaged, lacks the segment's offsets, or describes another segment.

    """
    manifest = read_manifest(data)
    metadata = manifest.segment
    if metadata is None:
        raise FormatError("manifest: remoteLogSegmentMetadata", position=0, expected="what a broker says of a segment",
                          found="something else, or nothing")  # fmt: skip
    stated = (metadata.topic_id, metadata.partition, metadata.start_offset, metadata.segment_id)
    if stated != (place.topic_id, place.partition, place.base_offset, place.segment_id):
        raise FormatError("manifest: remoteLogSegmentMetadata", position=0, expected="the segment that its key names",
                          found=f"{metadata.segment_id} of {metadata.topic}-{metadata.partition}")  # fmt: skip
    if not place.topic.endswith(metadata.topic) or metadata.end_offset < metadata.start_offset:
        raise FormatError("manifest: remoteLogSegmentMetadata", position=0, expected="the topic that its key names,"
                          " and offsets that ascend", found=f"{metadata.topic} to {metadata.end_offset}")  # fmt: skip
    facts = ManifestFacts(
        cluster_id=None,  # the manifest does not record it
        topic=metadata.topic,
        topic_id=metadata.topic_id,
        partition=metadata.partition,
        base_offset=metadata.start_offset,
        next_base_offset=metadata.end_offset + 1,
        leader_epochs=metadata.leader_epochs,
        snapshot_origin=None,
        snapshot_key=Member(place.key.removesuffix(f".{MANIFEST}"), "snapshot").locator,
        max_timestamp_ms=metadata.max_timestamp_ms,
        log_bytes=manifest.chunks.file_size,
        broker_id=metadata.broker_id if metadata.broker_id >= 0 else None,
        remote_id=metadata.segment_id,
        made=(metadata.event_timestamp_ms, metadata.segment_id),
    )
    return AivenSegment(place, manifest, facts)


def copied_log_dir(
    store: ObjectStore,
    listed: Iterable[ObjectInfo],
    topics: Callable[[TopicPartition], bool] | None,
    *,
    topic_ids: Mapping[str, str] | None = None,
) -> LogDir:
    """Return the log dir that the objects ``listed`` of ``store`` make by their manifests.

    A partition whose manifests are damaged, contradict each other or leave a gap becomes a problem; so do those of
    several topics of one name, unless ``topic_ids`` chooses one by name.

    Raises:
        StoreError: the store failed.

    """
    infos = {info.key: info for info in listed}
    objects = list(filter(None, map(parse_key, infos)))
    places = [place for place in objects if place.suffix == MANIFEST]
    named = {TopicPartition(key.topic, key.partition) for key in places}
    maybe = named if topics is None else {partition for partition in named if _may_be_wanted(partition, topics)}
    wanted = [key for key in places if TopicPartition(key.topic, key.partition) in maybe]
    read = [
        found
        for found in each(partial(_read, store, infos), wanted, remote=True)
        if topics is None or found.segment is None or topics(found.topic_partition)
    ]
    return stored_log_dir(
        StorePath(store.url),
        read,
        _chain,
        topic_ids=topic_ids,
        url_of_one=_URL_OF_ONE,
        incomplete=(one for one in without_manifest(objects) if topics is None or topics(one.topic_partition)),
    )


def without_manifest(objects: Collection[AivenKey]) -> list[Incomplete]:
    """Return the segments that have other ``objects``, but no manifest."""
    whole = {place.key for place in objects if place.suffix == MANIFEST}
    lacking = {key: place for place in objects if (key := place.beside(MANIFEST)) not in whole}
    return [
        Incomplete(TopicPartition(place.topic, place.partition), place.base_offset, key)
        for key, place in sorted(lacking.items())
    ]


def _may_be_wanted(named: TopicPartition, topics: Callable[[TopicPartition], bool]) -> bool:
    """Return whether to read manifests whose keys name ``named``, in which a key prefix may be included."""
    return any(topics(TopicPartition(named.topic[at:], named.partition)) for at in range(len(named.topic)))


def _read(store: ObjectStore, infos: Mapping[str, ObjectInfo], place: AivenKey) -> ListedSegment:
    """Return the segment; if the key prefix does not end in a slash, only its manifest shows where its topic begins."""
    root = StorePath(store.url)
    found = ListedSegment(
        TopicPartition(place.topic, place.partition),
        place.topic_id,
        place.base_offset,
        root / place.folder.rstrip("/"),
        None,
    )
    try:
        with in_file(f"{store.url}/{place.key}"):
            segment = copied_segment(place, store.get(place.key))
        _check_objects(store, infos, segment)
    except (FormatError, VerificationError) as error:
        error.hint = REMEDY
        return found._replace(error=error)
    topic_partition = TopicPartition(segment.facts.topic, place.partition)
    return found._replace(topic_partition=topic_partition, segment=log_segment(root, infos, segment))


def _check_objects(store: ObjectStore, infos: Mapping[str, ObjectInfo], segment: AivenSegment) -> None:
    """Check that the other two objects exist and are as long as the manifest says."""
    of = segment.facts
    for key, size, found in segment.mismatched_objects(infos):
        there = "nothing" if found is None else f"{found.size_bytes} bytes"
        raise VerificationError(
            f"{of.topic_partition}: the segment {of.offsets} lacks an object: its manifest"
            f" {store.url}/{segment.place.key} names {key} of {size} bytes, found {there}"
        )


def _chain(topic_partition: TopicPartition, found: Sequence[ListedSegment]) -> list[ManifestSegment]:
    """Return the segments in offset order; of several with the same offsets the one copied last.

    Raises:
        VerificationError: they overlap, leave a gap, or are under several key prefixes.
        ResnapError: one of them cannot be read.

    """
    segments = all_read(found)
    folders = sorted({f"{segment.facts.snapshot_key.rpartition('/')[0]}/" for segment in segments})
    if len(folders) > 1:
        raise VerificationError(
            f"{topic_partition}: segments under several key prefixes: {', '.join(folders)}",
            hint=f"give the URL of one: {_URL_OF_ONE}",
        )
    ordered = sorted(segments, key=lambda one: one.facts.made[0])
    newest = {segment.facts.offsets: segment for segment in ordered}
    for below, above in pairwise(sorted(newest)):
        if below.end != above.start:
            what = "overlap" if above.start < below.end else "leave a gap"
            raise VerificationError(
                f"{topic_partition}: the segments {below} and {above} {what}",
                hint="see `resnap verify URL`",
            )
    return [newest[offsets] for offsets in sorted(newest)]


def log_segment(root: StorePath, infos: Mapping[str, ObjectInfo], copied: AivenSegment) -> ManifestSegment:
    """Return the segment as part of a log dir at ``root``; all its objects are in ``infos``."""
    facts, stem = copied.facts, f"{root}/{copied.place.key.removesuffix(f'.{MANIFEST}')}"
    log, indexes = infos[copied.place.beside(LOG)], infos[copied.place.beside(INDEXES)]
    sizes = {kind: index_size(copied.manifest, kind) for kind in ObjectKind if kind in INDEX_NAMES}
    snapshot_bytes = sizes[ObjectKind.SNAPSHOT] or 0
    return ManifestSegment(
        facts,
        closed_segment(facts, Member(stem, LOG).locator, log, sizes | {ObjectKind.LOG: facts.log_bytes}),
        end_snapshot(facts, Member(stem, ObjectKind.SNAPSHOT).locator, indexes, snapshot_bytes),
        Member(stem, ObjectKind.LEADER_EPOCH_CHECKPOINT).locator,
    )


def _read_stored(store: ObjectStore, infos: Mapping[str, ObjectInfo], key: str) -> StoredManifest:
    """Return the content of a manifest, and the locations of the files if both other objects exist.

    ``infos`` are all objects of the segments, and the origins of their snapshots, by key.
    """
    found = copied_segment(parse_own_key(key), store.get(key))
    facts, problems = found.facts, tuple[str, ...]()
    try:
        facts = replace(facts, snapshot_origin=_origin(store, infos, origin_key(key)))
    except (FormatError, ObjectNotFoundError) as error:
        problems = (str(error),)
    missing = tuple(
        f"{key}: missing" if there is None else f"{key}: expected {size} bytes, found {there.size_bytes}"
        for key, size, there in found.mismatched_objects(infos)
    )
    return StoredManifest(
        key=key,
        facts=facts,
        size_bytes=sum(infos[key].size_bytes for key in found.objects if key in infos),
        files=None if missing else _files(store, infos, found, facts),
        missing=missing,
        problems=problems,
    )


def _origin(store: ObjectStore, infos: Mapping[str, ObjectInfo], key: str) -> SnapshotOrigin | None:
    """Return the snapshot origin at ``key``, if Resnap shipped the segment."""
    if key not in infos:
        return None
    with in_file(key):
        return read_origin(store.get(key))


def _files(
    store: ObjectStore, infos: Mapping[str, ObjectInfo], found: AivenSegment, facts: ManifestFacts
) -> SegmentFiles:
    segment = log_segment(StorePath(store.url), infos, found).segment
    return SegmentFiles(
        segment, segment.sibling(ObjectKind.SNAPSHOT), segment.sibling(ObjectKind.LEADER_EPOCH_CHECKPOINT), facts
    )


def _source(key: str) -> tuple[str, str]:
    """Return the folder above the topic folders, and the topic's id."""
    place = parse_own_key(key)
    return place.prefix.rstrip("/"), place.topic_id


def list_copies(store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> Listing:
    """Return the segments below ``within`` of the topics that ``wants`` selects.

    Raises:
        StoreError: the store failed.

    """
    infos: dict[str, ObjectInfo] = {}
    objects: list[AivenKey] = []
    manifests: dict[str, ObjectInfo] = {}
    sizes: dict[str, int] = {}
    for info in chain(store.list(within), store.list(f"{ORIGINS}{within}") if within else ()):
        own = parse_key(info.key)
        place = own or segment_key_of_origin(info.key)
        if place is None or not wants(place.topic):
            continue
        infos[info.key] = info
        objects += [] if own is None else [own]
        if info.key == (manifest := place.beside(MANIFEST)):
            manifests[info.key] = info
        else:
            sizes[manifest] = sizes.get(manifest, 0) + info.size_bytes
    return Listing(
        manifests=manifests,
        sizes=sizes,
        source=_source,
        read=partial(_read_stored, store, infos),
        incomplete=without_manifest(objects),
    )
