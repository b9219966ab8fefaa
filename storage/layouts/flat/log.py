"""Reads a store in the layout ``flat`` as a log dir: segments by their manifests, one chain for each partition.

Only manifests count; an object that no manifest names is ignored. All segments are closed, and all shipped segments lie
below the high watermark. The files of a segment share the beginning of their keys, as in a log dir.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError, ObjectNotFoundError, VerificationError, in_file
from resnap.storage.layouts.brokers_own import BrokersFolders
from resnap.storage.layouts.flat.keys import manifest_place, parse_key
from resnap.storage.layouts.flat.topics import topic_ids_of
from resnap.storage.layouts.local_tiered.keys import EXTENSIONS
from resnap.storage.layouts.manifest import Manifest, ObjectKind, read_manifest
from resnap.storage.layouts.stored_log import (
    Found,
    LogSegment,
    closed_segment,
    end_snapshot,
    stored_log_dir,
    whole_chain,
)
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.store_path import StorePath
from resnap.storage.small_pieces import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.layouts.manifest import ManifestObject
    from resnap.storage.log.survey import LogDir
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore

_HINT: Final = "see `resnap verify URL`; ship what is missing, or delete a manifest, and run again"
_REPLACEABLE: Final = frozenset({ObjectKind.SNAPSHOT, ObjectKind.TXN_INDEX})
"""What `resnap repair` makes again."""
_URL_OF_ONE: Final = "<URL>/<cluster id>/<topic>/<topic id>"


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
    places = [place for info in infos.values() if (place := manifest_place(info))]
    ids = topic_ids_of(store, (place.key for place in places))
    wanted = [one for one in places if ids.folder(one).startswith(within) and _may_be_wanted(one, topics)]
    brokers = BrokersFolders(store)
    found = each(lambda one: _read(store, infos, brokers, one, ids.of(one)), wanted, remote=True)
    return stored_log_dir(
        StorePath(store.url),
        (one for one in found if one is not None and (topics is None or topics(one.topic_partition))),
        partial(whole_chain, hint=_HINT),
        topic_ids=topic_ids,
        url_of_one=_URL_OF_ONE,
    )


def _may_be_wanted(place: FlatKey, topics: Callable[[TopicPartition], bool] | None) -> bool:
    """Whether to read the manifest: a name that is escaped in the key is known only then."""
    return topics is None or "=" in place.topic or topics(TopicPartition(place.topic, place.partition))


def _read(
    store: ObjectStore, infos: dict[str, ObjectInfo], brokers: BrokersFolders, place: FlatKey, topic_id: str
) -> Found | None:
    """Return the segment, or the reason why it cannot be read; None if brokers' retention has deleted it."""
    key, root = place.key, StorePath(store.url)
    path = root / place.cluster / place.topic / topic_id / str(place.partition)
    found = Found(TopicPartition(place.topic, place.partition), topic_id, place.base_offset, path, None)
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
    return found._replace(topic_partition=topic_partition, segment=_log_segment(root, infos, manifest))


def _check_objects(store: ObjectStore, infos: dict[str, ObjectInfo], key: str, manifest: Manifest) -> None:
    """Check that the objects that the manifest names exist, under keys of this layout or one that brokers read.

    Snapshots and transaction indexes are not checked here: the replay judges them, and whether they exist.
    """
    flat, brokers = parse_key(key), manifest.log.key.removesuffix("log")
    for entry in manifest.objects:
        found = infos.get(entry.key) or _elsewhere(store, infos, entry.key)
        is_of_segment = entry.key == f"{brokers}{EXTENSIONS[entry.kind]}" or _is_beside(flat, entry)
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
    """Whether an object lies beside its manifest: under the same id, or under one of its own after a repair."""
    found = parse_key(entry.key)
    if found is None or place is None or found.extension != entry.kind:
        return False
    is_repaired = entry.kind in _REPLACEABLE
    same = replace(found, segment_id=place.segment_id) if is_repaired else found
    return replace(same, extension=place.extension) == place


def _elsewhere(store: ObjectStore, infos: dict[str, ObjectInfo], key: str) -> ObjectInfo | None:
    """Return the facts of an object that was not listed: not all layouts have objects beside the manifest."""
    with suppress(ObjectNotFoundError):
        return infos.setdefault(key, store.head(key))
    return None


def _log_segment(root: StorePath, infos: Mapping[str, ObjectInfo], manifest: Manifest) -> LogSegment:
    facts, sizes = manifest.facts, {entry.kind: entry.size_bytes for entry in manifest.objects}
    log = infos[manifest.log.key]
    snapshot = infos.get(facts.snapshot_key) or replace(log, key=facts.snapshot_key, size_bytes=0, etag="")
    transactions, checkpoint = (
        None if entry is None else str(root / entry.key)
        for entry in (manifest.object(ObjectKind.TXN_INDEX), manifest.object(ObjectKind.LEADER_EPOCH_CHECKPOINT))
    )
    return LogSegment(
        facts,
        replace(closed_segment(facts, str(root / log.key), log, sizes), transaction_index=transactions),
        end_snapshot(facts, str(root / snapshot.key), snapshot, snapshot.size_bytes),
        checkpoint,
    )
