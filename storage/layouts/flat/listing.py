"""Reads a store in the layout ``flat``: segments by their manifests, as a log dir or one by one; and what none names.

Only manifests count; an object that no manifest names is ignored. All segments are closed, and all shipped segments are
below the high watermark. The files of a segment share the beginning of their keys, as in a log dir.

A topic that was deleted and created again has the old name, another id, and offsets that begin again at 0. The id in
their keys separates its segments from the old ones. Segments under ``none`` have no id: a batch that both logs must
have shows which topic they belong to. Without such a batch they belong to the only remaining topic; if several remain,
or none, they are a topic of their own (``topic_ids_of``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import FileDigest
from resnap.storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, is_tombstone, parse_key, segment_of_manifest
from resnap.storage.layouts.lineage import openable_segment, shared_batch
from resnap.storage.layouts.local_tiered import EXTENSIONS, BrokersFolders
from resnap.storage.layouts.manifest import TOMBSTONE, Manifest, ObjectKind, read_manifest
from resnap.storage.layouts.segments import Listing, ManifestRecords, StoredManifest, Unnamed
from resnap.storage.layouts.stored_log import (
    ListedSegment,
    ManifestSegment,
    closed_segment,
    end_snapshot,
    stored_log_dir,
    whole_chain,
)
from resnap.storage.log.names import StorePath, TopicPartition
from resnap.storage.stores.protocol import UNKNOWN
from resnap.storage.threads import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.layouts.lineage import OpenableSegment, SharedBatch
    from resnap.storage.layouts.manifest import ManifestObject
    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_HINT: Final = "see `resnap verify URL`; ship what is missing, or delete a manifest, and run again"
_REPLACEABLE: Final = frozenset({ObjectKind.SNAPSHOT, ObjectKind.TXN_INDEX})
"""What `resnap repair` makes again."""
_URL_OF_ONE: Final = "<URL>/<cluster id>/<topic>/<topic id>"
_TOPIC_FOLDERS: Final = 2
"""From a store down to a topic, whatever its id."""


def listing_prefix(within: str) -> str:
    """Return the key prefix that covers all segments belonging to ``within``, folders with a slash after each.

    Segments of a topic may be under ``none``, and finding their topic takes all topics of the name.
    """
    folders = within.split("/")
    is_of_one_id = len(folders) > _TOPIC_FOLDERS + 1 and folders[_TOPIC_FOLDERS] != UNKNOWN
    return "".join(f"{folder}/" for folder in folders[:_TOPIC_FOLDERS]) if is_of_one_id else within


def topic_ids_of(store: ObjectStore, keys: Iterable[str]) -> Callable[[FlatKey], str]:
    """Return what gives the topic id, as in keys, of the segment of a key; ``keys`` has those of all manifests.

    Nothing is read for a topic with a single id, unless it has segments without an id.

    Raises:
        StoreError: the store failed.

    """
    by_topic: dict[tuple[str, str], dict[str, list[str]]] = {}
    for key in keys:
        place = parse_key(key)
        if place is not None and place.suffix == MANIFEST_EXTENSION:
            by_topic.setdefault((place.cluster, place.topic), {}).setdefault(place.topic_id, []).append(key)
    owners = {
        topic: _owner_without_id(store, {topic_id: [_place(key) for key in of_id] for topic_id, of_id in ids.items()})
        for topic, ids in by_topic.items()
        if UNKNOWN in ids and len(ids) > 1
    }
    return lambda key: owners.get((key.cluster, key.topic), UNKNOWN) if key.topic_id == UNKNOWN else key.topic_id


def _folder(topic_id_of: Callable[[FlatKey], str], key: FlatKey) -> str:
    """Return the folder of the partition that the segment of ``key`` belongs to; its key may be in another."""
    return f"{key.cluster}/{key.topic}/{topic_id_of(key)}/{key.partition}/"


def _owner_without_id(store: ObjectStore, by_id: Mapping[str, Sequence[FlatKey]]) -> str:
    """Return the id of the topic that owns the segments without an id."""
    possible = []
    for topic_id in sorted(by_id.keys() - {UNKNOWN}):
        is_same = _is_one_topic(store, by_id[UNKNOWN], by_id[topic_id])
        if is_same:
            return topic_id
        if is_same is None:
            possible.append(topic_id)
    return possible[0] if len(possible) == 1 else UNKNOWN


def _is_one_topic(store: ObjectStore, ours: Sequence[FlatKey], theirs: Sequence[FlatKey]) -> bool | None:
    """Return whether both belong to one topic, by the first partition with a batch of both; None if there is none."""
    for partition in sorted({key.partition for key in ours} & {key.partition for key in theirs}):
        here, there = (
            sorted((key for key in side if key.partition == partition), key=attrgetter("base_offset"))
            for side in (ours, theirs)
        )
        shared = _compare_first(store, here, there)
        if shared is not None:
            return shared.is_same
    return None


def _compare_first(store: ObjectStore, here: Sequence[FlatKey], there: Sequence[FlatKey]) -> SharedBatch | None:
    """Compare at the first offset of both, by four manifests; all are read only where those do not settle it."""
    ends = [piece.next_base_offset or 0 for side in (here, there) for piece in _pieces_at(store, side[-1:])]
    first = max(here[0].base_offset, there[0].base_offset)
    if len(ends) == len((here, there)) and min(ends) <= first:
        return None
    near = [[key for key in side if key.base_offset <= first][-1:] for side in (here, there)]
    return _compare_all(store, *near) or _compare_all(store, here, there)


def _compare_all(store: ObjectStore, here: Sequence[FlatKey], there: Sequence[FlatKey]) -> SharedBatch | None:
    """Return the first batch of both that could be compared; their manifests are read."""
    return shared_batch(_pieces_at(store, here), _pieces_at(store, there))


def _pieces_at(store: ObjectStore, places: Iterable[FlatKey]) -> list[OpenableSegment]:
    """Return the segments at ``places`` whose manifests can be read."""
    pieces = []
    for place in places:
        with suppress(FormatError, ObjectNotFoundError):  # reading the partition reports it
            manifest = read_manifest(store.get(place.key))
            pieces.append(openable_segment(store, manifest.log.key, manifest.base_offset, manifest.next_base_offset))
    return pieces


def _read_stored(store: ObjectStore, topic_id_of: Callable[[FlatKey], str], key: str) -> StoredManifest:
    """Return the content of a manifest; one under another segment's key is a problem, without valid digests."""
    manifest, place = read_manifest(store.get(key)), _place(key)
    facts, topic_id = manifest.facts, topic_id_of(place)
    if facts.topic_id is None and topic_id != UNKNOWN:
        facts = replace(facts, topic_id=topic_id)
    if place.segment_id != str(manifest.segment_id):
        strange = f"{key}: holds the manifest of the segment {manifest.segment_id}"
        return StoredManifest(key=key, facts=facts, size_bytes=0, problems=(strange,))
    size = sum(entry.size_bytes for entry in manifest.objects)
    return StoredManifest(key=key, facts=facts, size_bytes=size, objects=manifest.objects)


def list_shipped(store: ObjectStore, wants: Callable[[str], bool], within: str = "") -> Listing:
    """Return the segments in ``store`` of the topics that ``wants`` selects; names that keys escape always count.

    Of a part of the store, the folders ``within``, all that belongs to its topic counts, wherever it is.

    Raises:
        StoreError: the store failed.

    """
    manifests: dict[str, ObjectInfo] = {}
    sizes: dict[str, int] = {}
    deleted: set[str] = set()
    for info in store.list(listing_prefix(within)):
        if is_tombstone(info):
            deleted.add(info.key)
            continue
        parsed = parse_key(info.key)
        if parsed is None or not ("=" in parsed.topic or wants(parsed.topic)):
            continue
        if parsed.suffix == MANIFEST_EXTENSION:
            manifests[info.key] = info
        else:
            beside = replace(parsed, suffix=MANIFEST_EXTENSION).key
            sizes[beside] = sizes.get(beside, 0) + info.size_bytes
    sizes = {key: size for key, size in sizes.items() if key not in deleted}  # what a deletion has left is no segment
    topic_id_of = topic_ids_of(store, manifests)
    if within:
        belong = {key for key in {**manifests, **sizes} if _folder(topic_id_of, _place(key)).startswith(within)}
        manifests = {key: info for key, info in manifests.items() if key in belong}
        sizes = {key: size for key, size in sizes.items() if key in belong}
    return Listing(
        manifests=manifests,
        sizes=sizes,
        source=lambda key: (_place(key).cluster, topic_id_of(_place(key))),
        read=partial(_read_stored, store, topic_id_of),
        folder=lambda key: _folder(topic_id_of, _place(key)),
    )


def manifest_records(store: ObjectStore, partition: PartitionDir) -> ManifestRecords:
    """Return the digests of all files of ``partition``, and what brokers tiered beside its segments."""
    manifests = []
    for locator in filter(None, (segment.manifest for segment in partition.segments)):
        with in_file(locator):
            manifests.append(read_manifest(store.get(locator.removeprefix(f"{store.url}/"))))
    entries = [entry for manifest in manifests for entry in manifest.objects]
    checkpoints = [entry.key for entry in entries if entry.kind is ObjectKind.LEADER_EPOCH_CHECKPOINT]
    return ManifestRecords(
        leader_epochs=tuple(f"{store.url}/{key}" for key in checkpoints),
        digests={f"{store.url}/{one.key}": FileDigest(size_bytes=one.size_bytes, sha256=one.sha256) for one in entries},
        passed_over=tuple(BrokersFolders(store).without_manifest(manifests)),
    )


def unnamed_objects(store: ObjectStore, listed: Sequence[ObjectInfo]) -> Unnamed:
    """Return the objects in ``listed`` that no manifest in it names.

    A partition with an unreadable manifest is skipped: that manifest may name any object.
    """
    places = [place for info in listed if (place := segment_of_manifest(info))]
    read = list(each(partial(_named_by, store), places, remote=True))
    named = frozenset[str]().union(*(found for found in read if not isinstance(found, FormatError)))
    closed = {place.folder for place, found in zip(places, read, strict=True) if isinstance(found, FormatError)}
    return Unnamed(
        objects=tuple(
            info
            for info in listed
            if info.key not in named
            and (place := parse_key(info.key)) is not None
            and place.suffix != MANIFEST_EXTENSION
            and place.folder not in closed
        ),
        unreadable=tuple(found for found in read if isinstance(found, FormatError)),
    )


def _named_by(store: ObjectStore, place: FlatKey) -> frozenset[str] | FormatError:
    """Return the objects that a manifest names, itself included, or the reason why it cannot be read."""
    try:
        body = store.get(place.key)
        if body == TOMBSTONE:
            return frozenset()
        with in_file(place.key):
            manifest = read_manifest(body)
    except ObjectNotFoundError:
        return frozenset()
    except FormatError as error:
        return error
    return frozenset({place.key, *(entry.key for entry in manifest.objects)})


def _place(key: str) -> FlatKey:
    place = parse_key(key)
    if place is None:
        raise AssertionError(f"{key} is not a key of a manifest")
    return place


def shipped_log_dir(
    store: ObjectStore,
    listed: Iterable[ObjectInfo],
    topics: Callable[[TopicPartition], bool] | None,
    *,
    within: str = "",
    topic_ids: Mapping[str, str] | None = None,
) -> LogDir:
    """Return the log dir that the manifests in ``listed`` of ``store`` make, of the folders ``within`` only.

    A partition whose manifests are damaged, contradict each other or leave a gap becomes a problem; so do those of
    several topics of one name, unless ``topic_ids`` chooses one by name.

    Raises:
        UsageError: segments of several clusters.
        StoreError: the store failed.

    """
    infos = {info.key: info for info in listed}
    places = [place for info in infos.values() if (place := segment_of_manifest(info))]
    topic_id_of = topic_ids_of(store, (place.key for place in places))
    wanted = [one for one in places if _folder(topic_id_of, one).startswith(within) and _may_be_wanted(one, topics)]
    brokers = BrokersFolders(store)
    found = each(lambda one: _read(store, infos, brokers, one, topic_id_of(one)), wanted, remote=True)
    return stored_log_dir(
        StorePath(store.url),
        (segment for segment in found if segment is not None and (topics is None or topics(segment.topic_partition))),
        partial(whole_chain, hint=_HINT),
        topic_ids=topic_ids,
        url_of_one=_URL_OF_ONE,
    )


def _may_be_wanted(place: FlatKey, topics: Callable[[TopicPartition], bool] | None) -> bool:
    """Whether to read the manifest: a name that is escaped in the key is known only then."""
    return topics is None or "=" in place.topic or topics(TopicPartition(place.topic, place.partition))


def _read(
    store: ObjectStore, infos: dict[str, ObjectInfo], brokers: BrokersFolders, place: FlatKey, topic_id: str
) -> ListedSegment | None:
    """Return the segment, or the reason why it cannot be read; None if brokers' retention has deleted it."""
    key, root = place.key, StorePath(store.url)
    path = root / place.cluster / place.topic / topic_id / str(place.partition)
    found = ListedSegment(TopicPartition(place.topic, place.partition), topic_id, place.base_offset, path, None)
    try:
        with in_file(f"{store.url}/{key}"):
            manifest = read_manifest(store.get(key))
    except FormatError as error:
        return found._replace(error=error)
    try:
        _check_objects(store, infos, key, manifest)
    except VerificationError as error:
        is_retained_away = brokers.have_lost(manifest.base_offset, [entry.key for entry in manifest.objects])
        return None if is_retained_away else found._replace(error=error)
    topic_partition = TopicPartition(manifest.topic, place.partition)
    return found._replace(topic_partition=topic_partition, segment=_log_segment(root, infos, key, manifest))


def _check_objects(store: ObjectStore, infos: dict[str, ObjectInfo], key: str, manifest: Manifest) -> None:
    """Check that the objects that the manifest names exist, under keys that differ only in their extensions.

    Snapshots and transaction indexes are not checked here: the replay judges them, and whether they exist.
    """
    place, stem = parse_key(key), manifest.log.key.removesuffix(ObjectKind.LOG)
    for entry in manifest.objects:
        found = infos.get(entry.key) or _elsewhere(store, infos, entry.key)
        beside_log = {f"{stem}{entry.kind}", f"{stem}{EXTENSIONS[entry.kind]}"}
        is_of_segment = entry.key in beside_log or _is_beside(place, entry)
        is_judged = entry.kind in _REPLACEABLE
        if not is_of_segment or (not is_judged and (found is None or found.size_bytes != entry.size_bytes)):
            size = "nothing" if found is None else f"{found.size_bytes} bytes"
            segment = f"the segment [{manifest.base_offset}, {manifest.next_base_offset})"
            raise VerificationError(
                f"{manifest.topic}-{manifest.partition}: {segment} lacks an object: its manifest {store.url}/{key}"
                f" names {entry.key} of {entry.size_bytes} bytes, found {size}",
                hint=f"bring the object back from another copy of the store; or delete the manifest and ship the"
                f" segment again; `resnap verify {store.url}` shows what else is wrong",
            )


def _is_beside(place: FlatKey | None, entry: ManifestObject) -> bool:
    """Whether an object is beside its manifest: under the same id, or under one of its own after a repair."""
    found = parse_key(entry.key)
    if found is None or place is None or found.suffix != entry.kind:
        return False
    is_repaired = entry.kind in _REPLACEABLE
    same = replace(found, segment_id=place.segment_id) if is_repaired else found
    return replace(same, suffix=place.suffix) == place


def _elsewhere(store: ObjectStore, infos: dict[str, ObjectInfo], key: str) -> ObjectInfo | None:
    """Return the facts of an object that was not listed: not all layouts have objects beside the manifest."""
    with suppress(ObjectNotFoundError):
        return infos.setdefault(key, store.head(key))
    return None


def _log_segment(root: StorePath, infos: Mapping[str, ObjectInfo], key: str, manifest: Manifest) -> ManifestSegment:
    facts, sizes = manifest.facts, {entry.kind: entry.size_bytes for entry in manifest.objects}
    log = infos[manifest.log.key]
    snapshot = infos.get(facts.snapshot_key) or replace(log, key=facts.snapshot_key, size_bytes=0, etag="")
    transactions, checkpoint = (
        None if entry is None else str(root / entry.key)
        for entry in (manifest.object(ObjectKind.TXN_INDEX), manifest.object(ObjectKind.LEADER_EPOCH_CHECKPOINT))
    )
    return ManifestSegment(
        facts,
        replace(
            closed_segment(facts, str(root / log.key), log, sizes),
            transaction_index=transactions,
            manifest=str(root / key),
        ),
        end_snapshot(facts, str(root / snapshot.key), snapshot, snapshot.size_bytes),
        checkpoint,
    )
