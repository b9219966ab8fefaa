"""What the layout ``flat`` holds, as a log dir: segments by their manifests, and a chain of them per partition.

Only manifests count; what no manifest names is not there. All segments are closed, and what was shipped lies below the
high watermark. The files of a segment share the front of their keys, as those of a log dir share theirs.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, ObjectNotFoundError, UsageError, VerificationError, in_file
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, manifest_place
from resnap.storage.layouts.flat.topics import topic_ids_of
from resnap.storage.layouts.local_tiered.brokers_own import BrokersFolders
from resnap.storage.layouts.local_tiered.keys import EXTENSIONS
from resnap.storage.layouts.manifest import Manifest, ObjectKind, read_manifest
from resnap.storage.layouts.stored_log import (
    ClosedSegment,
    closed_segment,
    end_snapshot,
    one_of_each_name,
    refused,
    stored_log_dir,
    stored_partition,
    whole_chain,
)
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.store_path import StorePath
from resnap.storage.side_by_side import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_HINT: Final = "see `resnap verify --store URL`; ship what is missing, or delete a manifest, and run again"
_URL_OF_ONE: Final = "<URL>/<cluster id>/<topic>/<topic id>"


class _Read(NamedTuple):
    """A manifest, or why it is none; neither, where brokers' retention has taken the segment."""

    place: FlatKey
    manifest: Manifest | None
    error: FormatError | VerificationError | None


def shipped_log_dir(
    store: ObjectStore,
    listed: Iterable[ObjectInfo],
    topics: Callable[[TopicPartition], bool] | None,
    *,
    within: str = "",
    topic_ids: Mapping[str, str] | None = None,
) -> LogDir:
    """Return what the objects ``listed`` of ``store`` hold by their manifests, of what belongs into ``within`` alone.

    A partition whose manifests are damaged, contradict each other or leave a gap becomes a problem; so do those of
    several topics of one name, unless ``topic_ids`` chooses one by name.

    Raises:
        UsageError: segments of several clusters.
        StoreError: the store failed.

    """
    infos = {info.key: info for info in listed}
    places = [place for info in infos.values() if (place := manifest_place(info))]
    ids = topic_ids_of(store, (place.key for place in places))
    wanted = [one for one in places if ids.folder(one).startswith(within) and _may_be_wanted(one, topics)]
    partitions: dict[TopicPartition, dict[str, list[_Read]]] = {}
    for one in each(partial(_read, store, infos, BrokersFolders(store)), wanted, remote=True):
        if one.manifest is None and one.error is None:
            continue
        topic = one.place.topic if one.manifest is None else one.manifest.topic
        topic_partition = TopicPartition(topic, one.place.partition)
        if topics is None or topics(topic_partition):
            partitions.setdefault(topic_partition, {}).setdefault(ids.of(one.place), []).append(one)
    return _log_dir(StorePath(store.url), infos, dict(sorted(partitions.items())), topic_ids or {})


def _may_be_wanted(place: FlatKey, topics: Callable[[TopicPartition], bool] | None) -> bool:
    """Whether to read the manifest: a name that stands escaped in the key is known only then."""
    return topics is None or "=" in place.topic or topics(TopicPartition(place.topic, place.partition))


def _read(store: ObjectStore, infos: dict[str, ObjectInfo], brokers: BrokersFolders, place: FlatKey) -> _Read:
    key = place.key
    try:
        with in_file(f"{store.url}/{key}"):
            manifest = read_manifest(store.get(key))
    except FormatError as error:
        return _Read(place, None, error)
    try:
        _check_objects(store, infos, key, manifest)
    except VerificationError as error:
        is_retained_away = brokers.have_lost(manifest.base_offset, [entry.key for entry in manifest.objects])
        return _Read(place, None, None if is_retained_away else error)
    return _Read(place, manifest, None)


def _check_objects(store: ObjectStore, infos: dict[str, ObjectInfo], key: str, manifest: Manifest) -> None:
    """Make sure that what the manifest names is there, under keys of this layout or of one that brokers read."""
    flat, brokers = key.removesuffix(MANIFEST_EXTENSION), _key_of(manifest, ObjectKind.LOG).removesuffix("log")
    for entry in manifest.objects:
        found = infos.get(entry.key) or _elsewhere(store, infos, entry.key)
        is_of_segment = entry.key in {f"{flat}{entry.kind}", f"{brokers}{EXTENSIONS[entry.kind]}"}
        if not is_of_segment or found is None or found.size_bytes != entry.size_bytes:
            size = "nothing" if found is None else f"{found.size_bytes} bytes"
            raise VerificationError(
                f"{store.url}/{key}: names {entry.key} of {entry.size_bytes} bytes, found {size}",
                hint="see `resnap verify --store URL`; delete the manifest to have the segment shipped again",
            )


def _elsewhere(store: ObjectStore, infos: dict[str, ObjectInfo], key: str) -> ObjectInfo | None:
    """Return what describes an object that was not listed, since not all layouts have theirs beside the manifest."""
    with suppress(ObjectNotFoundError):
        return infos.setdefault(key, store.head(key))
    return None


def _log_dir(
    root: StorePath,
    infos: Mapping[str, ObjectInfo],
    partitions: Mapping[TopicPartition, Mapping[str, Sequence[_Read]]],
    chosen: Mapping[str, str],
) -> LogDir:
    read = [one for by_id in partitions.values() for found in by_id.values() for one in found]
    known = [one.manifest for one in read if one.manifest is not None]
    clusters = {manifest.cluster_id for manifest in known}
    if len(clusters) > 1:
        names = ", ".join(sorted(str(cluster) for cluster in clusters))
        raise UsageError(f"{root}: segments of several clusters: {names}", hint="give the URL with the id of one")
    return stored_log_dir(
        root,
        [
            (
                _directory(root, found[0].place, topic_id),
                partial(_partition, root, infos, topic_partition, topic_id, found)
                if error is None
                else partial(refused, error),
            )
            for topic_partition, topic_id, found, error in one_of_each_name(partitions, chosen, _URL_OF_ONE)
        ],
        cluster_id=next(iter(clusters), None),
        broker_ids={manifest.broker_id for manifest in known},
    )


def _directory(root: StorePath, place: FlatKey, topic_id: str) -> StorePath:
    return root / place.cluster / place.topic / topic_id / str(place.partition)


def _partition(
    root: StorePath,
    infos: Mapping[str, ObjectInfo],
    topic_partition: TopicPartition,
    topic_id: str,
    found: Sequence[_Read],
) -> PartitionDir:
    error = next((one.error for one in found if one.error is not None), None)
    if error is not None:
        raise error
    manifests = (one.manifest for one in found if one.manifest is not None)
    chain = whole_chain(topic_partition, sorted(manifests, key=attrgetter("made")), hint=_HINT)
    checkpoint = chain[-1].object(ObjectKind.LEADER_EPOCH_CHECKPOINT)
    return stored_partition(
        _directory(root, found[0].place, topic_id),
        topic_partition,
        [_closed(root, infos, one) for one in chain],
        # That of the last segment has those of all before it.
        leader_epochs=None if checkpoint is None else str(root / checkpoint.key),
        topic_id=next((manifest.topic_id for manifest in chain if manifest.topic_id is not None), None),
    )


def _closed(root: StorePath, infos: Mapping[str, ObjectInfo], manifest: Manifest) -> ClosedSegment:
    sizes = {entry.kind: entry.size_bytes for entry in manifest.objects}
    log, snapshot = infos[_key_of(manifest, ObjectKind.LOG)], infos[manifest.snapshot_key]
    return ClosedSegment(
        closed_segment(manifest, str(root / log.key), log, sizes),
        end_snapshot(manifest, str(root / snapshot.key), snapshot, snapshot.size_bytes),
    )


def _key_of(manifest: Manifest, kind: ObjectKind) -> str:
    return next(entry.key for entry in manifest.objects if entry.kind is kind)
