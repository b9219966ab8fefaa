"""Reads a store in the layout ``aiven`` as a log dir: segments by their manifests, one chain for each partition.

Only manifests count: a segment without one may be an upload of a broker that is still in progress. All segments are
closed. Which of them brokers use is recorded in ``__remote_log_metadata``, which is not read here: of several segments
with the same offsets, as retries leave them, the one copied last is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, ResnapError, VerificationError, in_file
from resnap.storage.layouts.aiven.keys import INDEXES, LOG, MANIFEST, parse_key
from resnap.storage.layouts.aiven.manifest import AivenManifest, read_manifest
from resnap.storage.layouts.aiven.members import Member, index_size
from resnap.storage.layouts.manifest import ObjectKind
from resnap.storage.layouts.stored_log import (
    ClosedSegment,
    closed_segment,
    end_snapshot,
    stored_log_dir,
    stored_partition,
)
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.store_path import StorePath
from resnap.storage.log.survey import Incomplete
from resnap.storage.small_pieces import each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from resnap.storage.layouts.aiven.keys import AivenKey
    from resnap.storage.layouts.aiven.metadata import SegmentMetadata
    from resnap.storage.layouts.manifest import SnapshotOrigin
    from resnap.storage.log.checkpoints import LeaderEpoch
    from resnap.storage.log.partition_dir import PartitionDir, Segment, SnapshotFile
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

REMEDY: Final = (
    "brokers cannot read it either: `resnap remote status LOG_DIR --store` says whether they know it; if they do, only"
    " another copy of the object helps, else delete the three objects of the segment, and tier it again"
)
"""What to do about a damaged segment: without its manifest a segment that brokers use is lost for good."""
_URL_OF_ONE: Final = "<URL>/<topic>-<topic id>"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """A segment that a manifest makes visible."""

    place: AivenKey
    manifest: AivenManifest
    metadata: SegmentMetadata
    snapshot_origin: SnapshotOrigin | None = None
    """Where its snapshot comes from; None where nothing says so, as of what brokers copied."""

    @property
    def snapshot_key(self) -> str:
        """The key of the object that holds its snapshot: the indexes beside the manifest."""
        return Member(self.place.key.removesuffix(f".{MANIFEST}"), "snapshot").locator

    @property
    def topic(self) -> str:
        """The topic's name, as the broker recorded it."""
        return self.metadata.topic

    @property
    def topic_id(self) -> str:
        """The topic's id, in Kafka's base64 form."""
        return self.metadata.topic_id

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.metadata.partition

    @property
    def cluster_id(self) -> None:
        """None: the manifest does not record it."""
        return

    @property
    def leader_epochs(self) -> tuple[LeaderEpoch, ...]:
        """The leader epochs of this segment only."""
        return self.metadata.leader_epochs

    @property
    def log_bytes(self) -> int:
        """Size of its log, uncompressed and unencrypted."""
        return self.manifest.chunks.file_size

    @property
    def broker_id(self) -> int | None:
        """The broker that copied it."""
        return self.metadata.broker_id if self.metadata.broker_id >= 0 else None

    @property
    def remote_id(self) -> str:
        """The segment id, as in its key."""
        return self.metadata.segment_id

    @property
    def made(self) -> tuple[int, str]:
        """When copying began, and the segment id."""
        return self.metadata.event_timestamp_ms, self.metadata.segment_id

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp that the broker recorded; -1 if it knows none."""
        return self.metadata.max_timestamp_ms

    @property
    def base_offset(self) -> int:
        """First offset."""
        return self.metadata.start_offset

    @property
    def next_base_offset(self) -> int:
        """The base offset of the next segment; brokers record the offset before it."""
        return self.metadata.end_offset + 1


def copied_segment(place: AivenKey, data: bytes) -> CopiedSegment:
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
    return CopiedSegment(place=place, manifest=manifest, metadata=metadata)


@dataclass(frozen=True, slots=True)
class _Read:
    """A manifest, or the reason why it cannot be read."""

    place: AivenKey
    segment: CopiedSegment | None
    error: ResnapError | None

    @property
    def topic_partition(self) -> TopicPartition:
        """If the key prefix does not end in a slash, only the manifest shows where the topic's name begins."""
        topic = self.place.topic if self.segment is None else self.segment.metadata.topic
        return TopicPartition(topic, self.place.partition)


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
    named = {TopicPartition(one.topic, one.partition) for one in places}
    maybe = named if topics is None else {one for one in named if _may_be_wanted(one, topics)}
    wanted = [one for one in places if TopicPartition(one.topic, one.partition) in maybe]
    partitions: dict[TopicPartition, dict[str, list[_Read]]] = {}
    for one in each(partial(_read, store, infos), wanted, remote=True):
        if topics is None or one.segment is None or topics(one.topic_partition):
            partitions.setdefault(one.topic_partition, {}).setdefault(one.place.topic_id, []).append(one)
    root = StorePath(store.url)
    read = [one for by_id in partitions.values() for found in by_id.values() for one in found]
    return stored_log_dir(
        root,
        partitions,
        lambda found, _: _folder(root, found[0].place),
        partial(_partition, root, infos),
        topic_ids=topic_ids,
        url_of_one=_URL_OF_ONE,
        incomplete=(one for one in without_manifest(objects) if topics is None or topics(one.topic_partition)),
        broker_ids={one.segment.metadata.broker_id for one in read if one.segment is not None},
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


def _read(store: ObjectStore, infos: Mapping[str, ObjectInfo], place: AivenKey) -> _Read:
    try:
        with in_file(f"{store.url}/{place.key}"):
            segment = copied_segment(place, store.get(place.key))
        _check_objects(store, infos, segment)
    except (FormatError, VerificationError) as error:
        error.hint = REMEDY
        return _Read(place, None, error)
    return _Read(place, segment, None)


def _check_objects(store: ObjectStore, infos: Mapping[str, ObjectInfo], segment: CopiedSegment) -> None:
    """Check that the other two objects exist and are as long as the manifest says."""
    log, indexes = segment.place.beside(LOG), segment.place.beside(INDEXES)
    expected = {log: segment.manifest.chunks.stored_size, indexes: segment.manifest.indexes.end}
    for key, size in expected.items():
        found = infos.get(key)
        if found is None or found.size_bytes < size or (key == log and found.size_bytes != size):
            there = "nothing" if found is None else f"{found.size_bytes} bytes"
            raise VerificationError(
                f"{segment.metadata.topic}-{segment.metadata.partition}: the segment [{segment.base_offset},"
                f" {segment.next_base_offset}) lacks an object: its manifest {store.url}/{segment.place.key} names"
                f" {key} of {size} bytes, found {there}"
            )


def _folder(root: StorePath, place: AivenKey) -> StorePath:
    return root / place.folder.rstrip("/")


def _partition(
    root: StorePath, infos: Mapping[str, ObjectInfo], topic_partition: TopicPartition, _: str, found: Sequence[_Read]
) -> PartitionDir:
    error = next((one.error for one in found if one.error is not None), None)
    if error is not None:
        raise error
    chain = _chain(topic_partition, [one.segment for one in found if one.segment is not None])
    return stored_partition(
        _folder(root, chain[-1].place),
        topic_partition,
        [ClosedSegment(segment_of(root, infos, one), _snapshot(root, infos, one)) for one in chain],
        leader_epochs=_member(root, chain[-1], "leader-epoch-checkpoint"),
        topic_id=chain[-1].metadata.topic_id,
    )


def _chain(topic_partition: TopicPartition, segments: Sequence[CopiedSegment]) -> list[CopiedSegment]:
    """Return the segments in offset order; of several with the same offsets the one copied last.

    Raises:
        VerificationError: they overlap, leave a gap, or lie under several key prefixes.

    """
    folders = sorted({segment.place.folder for segment in segments})
    if len(folders) > 1:
        raise VerificationError(
            f"{topic_partition}: segments under several key prefixes: {', '.join(folders)}",
            hint=f"give the URL of one: {_URL_OF_ONE}",
        )
    ordered = sorted(segments, key=lambda one: one.metadata.event_timestamp_ms)
    newest = {(one.base_offset, one.next_base_offset): one for one in ordered}
    chain = [newest[offsets] for offsets in sorted(newest)]
    for below, above in pairwise(chain):
        if below.next_base_offset != above.base_offset:
            what = "overlap" if above.base_offset < below.next_base_offset else "leave a gap"
            raise VerificationError(
                f"{topic_partition}: the segments [{below.base_offset}, {below.next_base_offset}) and"
                f" [{above.base_offset}, {above.next_base_offset}) {what}",
                hint="see `resnap verify --store URL`",
            )
    return chain


def segment_of(root: StorePath, infos: Mapping[str, ObjectInfo], segment: CopiedSegment) -> Segment:
    """Return the segment as part of a log dir at ``root``; all its objects are in ``infos``."""
    indexes = (ObjectKind.INDEX, ObjectKind.TIME_INDEX, ObjectKind.TXN_INDEX)
    sizes = {kind: index_size(segment.manifest, kind) for kind in indexes}
    log = infos[segment.place.beside(LOG)]
    return closed_segment(segment, _member(root, segment, LOG), log, {ObjectKind.LOG: segment.log_bytes, **sizes})


def _snapshot(root: StorePath, infos: Mapping[str, ObjectInfo], segment: CopiedSegment) -> SnapshotFile:
    indexes, size = infos[segment.place.beside(INDEXES)], index_size(segment.manifest, ObjectKind.SNAPSHOT)
    return end_snapshot(segment, _member(root, segment, ObjectKind.SNAPSHOT), indexes, size or 0)


def _member(root: StorePath, segment: CopiedSegment, suffix: str) -> str:
    stem = segment.place.key.removesuffix(f".{MANIFEST}")
    return Member(f"{root}/{stem}", suffix).locator
