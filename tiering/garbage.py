"""Deletes garbage from a store, which killed runs have left there.

Garbage is an object of the layout ``flat`` that no manifest names, an upload in parts that was not completed, objects
in the folders for staging and probes, the snapshot origin of a deleted segment in the layout ``aiven``, and the
originals of repaired objects, each older than a given age by the store's own clock. Never touched are objects that a
manifest names, objects in a form that is not ours, and a partition with an unreadable manifest: it may name any object.

A run writes its objects again even if it finds them, so an old object belongs to no active run. Before the first object
of a segment is deleted, a tombstone is written where its manifest would be, on condition that the key is free: from
then on no late manifest can name deleted objects, and a later run ships the segment under other keys.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import (
    FormatError,
    LockedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from resnap.storage.layouts.manifest import TOMBSTONE, read_manifest
from resnap.storage.layouts.segments import Deletion
from resnap.storage.sources.registry import SHIPPED
from resnap.storage.stores.probe import store_clock_ms
from resnap.storage.stores.protocol import listed_object
from resnap.tiering.repairing.originals import RECORD, folders, folders_in, is_lost, named_by_records, read_record, runs
from resnap.tiering.repairing.replacing import Replacer
from resnap.tiering.shipping.lease import lease_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore, Unfinished
    from resnap.tiering.repairing.originals import Folder

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PASSING = re.compile(rf"\.staging/{_UUID}/.+|\.resnap/probe/[0-9a-f]{{32}}(?:/[0-9]+)?")
"""What only lives as long as a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What may be deleted, and what was skipped for a reason."""

    objects: tuple[ObjectInfo, ...]
    """In order of key."""
    unfinished: tuple[Unfinished, ...]
    listed: int
    """All objects, including named and unknown ones."""
    younger: int
    """Objects and uploads that nothing names and that are not old enough."""
    unreadable: tuple[FormatError, ...]
    """Manifests; nothing is touched beside them."""
    repairs: tuple[Folder, ...] = ()
    """What ``repair`` has replaced, and what cannot be undone any more, once the objects are deleted."""

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs of ``repair`` that made ``repairs``."""
        return tuple(runs(self.repairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The outcome of one item."""

    key: str
    size_bytes: int
    problem: LockedError | None = None
    """Why the partition of ``key`` was skipped."""


def find_garbage(store: ObjectStore, *, older_than_ms: int, is_alone: bool = False) -> Garbage:
    """Return what nothing in ``store`` names and is at least ``older_than_ms`` old.

    Tombstones count as garbage only if it ``is_alone``: there is no other run, not even a stopped one that may
    continue.

    Raises:
        StoreError: the store failed.

    """
    if not any(True for _ in chain(store.list(), store.unfinished())):
        # A mistyped path is not made, as asking for the store's clock would.
        return Garbage(objects=(), unfinished=(), listed=0, younger=0, unreadable=())
    before_ms = store_clock_ms(store) - older_than_ms
    listed = list(store.list())
    unnamed = [info for info in listed if _PASSING.fullmatch(info.key)]
    unreadable: list[FormatError] = []
    for layout in SHIPPED:
        found = layout.unnamed_objects(store, listed)
        unnamed += found.objects
        unreadable += found.unreadable
        unnamed += [info for info in listed if is_alone and layout.is_tombstone(info)]
    repaired = folders(listed)
    ended = [
        one
        for one in repaired
        if max(info.modified_ms for info in one.infos) <= before_ms and (not one.is_unfinished or is_lost(store, one))
    ]
    named = named_by_records(store, (folder for folder in repaired if folder not in ended))
    unnamed = [info for info in unnamed if info.key not in named]
    unnamed += [info for folder in ended for info in folder.infos]
    unnamed.sort(key=lambda info: info.key)
    old = tuple(info for info in unnamed if info.modified_ms <= before_ms)
    begun = [upload for upload in store.unfinished() if _is_of_a_run(upload)]
    stale = tuple(upload for upload in begun if upload.begun_ms <= before_ms)
    return Garbage(
        objects=old,
        unfinished=stale,
        listed=len(listed),
        younger=len(unnamed) - len(old) + len(begun) - len(stale),
        unreadable=tuple(unreadable),
        repairs=tuple(ended),
    )


def collect(
    store: ObjectStore, garbage: Garbage, *, now_ms: int, is_alone: bool = False, is_conditional: bool = False
) -> Iterator[Collected]:
    """Delete ``garbage``, partition by partition, each under its lease and after listing it again.

    If it ``is_alone``, no tombstones are written, because no other run could need them. If it ``is_conditional``, the
    store keeps conditions on the version that is deleted.

    Raises:
        StoreError: the store failed.

    """
    delete = partial(delete_version, store, is_conditional=is_conditional)
    for folder in garbage.repairs:
        yield from _delete_originals(store, folder, delete, now_ms=now_ms, is_alone=is_alone)
    of_repairs = {info.key for folder in garbage.repairs for info in folder.infos}
    others = (info for info in garbage.objects if info.key not in of_repairs)
    for lease_name, infos in groupby(others, key=lambda info: _deletion_of(info.key).lease):
        found = list(infos)
        if lease_name is None:
            yield from chain.from_iterable(map(delete, _still_garbage(store, found)))
            continue
        try:
            with lease_on(store, lease_name, verb="gc", now_ms=now_ms) as lease:
                lease.hold()
                tombstone_written = cache(partial(_write_tombstone, store))
                for info in _still_garbage(store, found):
                    deletion = _deletion_of(info.key)
                    lease.hold()
                    key = deletion.manifest_key
                    if is_alone or key is None or tombstone_written(key) or not _may_name(store, key, info.key):
                        lease.hold()
                        yield from delete(info)
        except LockedError as error:
            yield Collected(key=found[0].key, size_bytes=0, problem=error)
    for unfinished in garbage.unfinished:
        store.discard(unfinished)
        yield Collected(key=unfinished.key, size_bytes=0)


def _delete_originals(
    store: ObjectStore,
    folder: Folder,
    delete: Callable[[ObjectInfo], Iterator[Collected]],
    *,
    now_ms: int,
    is_alone: bool,
) -> Iterator[Collected]:
    """Delete the originals of a repair, under the lease of their partition."""
    try:
        record = read_record(store, folder.path) if RECORD in folder.names else None
    except (FormatError, ObjectNotFoundError):
        record = None  # nothing can be put back with it
    if record is None:
        yield from chain.from_iterable(map(delete, folder.infos))
        return
    try:
        with lease_on(store, record.lease, verb="gc", now_ms=now_ms) as lease:
            replacer = Replacer(store=store, run=folder.run, is_conditional=not is_alone, hold_lease=lease.hold)
            replacer.drop(folder.path, record)
    except LockedError as error:
        yield Collected(key=folder.infos[0].key, size_bytes=0, problem=error)
    else:
        yield from (Collected(key=info.key, size_bytes=info.size_bytes) for info in folder.infos)


def _still_garbage(store: ObjectStore, found: Sequence[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield the objects in ``found`` that are still garbage: not named or rewritten since the listing."""
    for beside, group in groupby(found, key=lambda info: _deletion_of(info.key).beside):
        infos = list(group)
        if not beside:
            yield from infos
            continue
        listed = [info for prefix in beside for info in store.list(prefix)]
        still: set[str] = set()
        for layout in SHIPPED:
            unnamed = layout.unnamed_objects(store, listed)
            tombstones = [] if unnamed.unreadable else filter(layout.is_tombstone, listed)
            still |= {info.key for info in (*unnamed.objects, *tombstones)}
        still -= named_by_records(store, folders_in(store))
        yield from (info for info in infos if info.key in still and is_as_it_was(store, info))


def _deletion_of(key: str) -> Deletion:
    """Return how the object at ``key`` is deleted: without further objects, if it belongs to no layout."""
    found = (layout.deletion_of(key) for layout in SHIPPED)
    return next((one for one in found if one is not None), Deletion(beside=(), lease=None, manifest_key=None))


def _write_tombstone(store: ObjectStore, manifest_key: str) -> bool:
    """Put a tombstone at ``manifest_key``, so that no manifest is written there later; False if there is one."""
    with suppress(ObjectExistsError):
        store.put(manifest_key, TOMBSTONE, if_absent=True)
    # Also after a success: the store may have ignored the condition, and a manifest may have come since.
    with suppress(ObjectNotFoundError):
        return store.get(manifest_key) == TOMBSTONE
    return False


def _may_name(store: ObjectStore, manifest_key: str, key: str) -> bool:
    """Whether the object in a manifest's place may name ``key``; it never names the original of a repair."""
    try:
        return any(entry.key == key for entry in read_manifest(store.get(manifest_key)).objects)
    except (FormatError, ObjectNotFoundError):
        return True


def is_as_it_was(store: ObjectStore, info: ObjectInfo) -> bool:
    """Whether the object is there, and as it was listed."""
    try:
        now = store.head(info.key)
        if (now.size_bytes, now.modified_ms // 1000) == (info.size_bytes, info.modified_ms // 1000):
            return True
        # rclone gives ETags with quotes in a HEAD and without them in a listing.
        is_same = now.etag.strip('"') == info.etag.strip('"')
        return is_same and listed_object(store, info.key) == info
    except ObjectNotFoundError:
        return False


def delete_version(store: ObjectStore, info: ObjectInfo, *, is_conditional: bool) -> Iterator[Collected]:
    """Delete the object and yield it; with ``is_conditional`` only if it was not replaced since it was listed."""
    with suppress(ObjectChangedError):
        store.delete(info.key, etag=info.etag if is_conditional else None)
        yield Collected(key=info.key, size_bytes=info.size_bytes)


def _is_of_a_run(begun: Unfinished) -> bool:
    """Whether a run has begun it: an object of ours, or a temporary file of a store in a directory."""
    if _PASSING.fullmatch(begun.key):
        return True
    deletion = _deletion_of(begun.key)
    is_object = deletion.manifest_key not in {None, begun.key}
    return is_object or (not deletion.beside and begun.key.endswith("~"))
