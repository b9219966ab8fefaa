"""What runs that were killed have left in a store: found by what nobody names, deleted only where nobody is at work.

Garbage is an object of the layout ``flat`` that no manifest names, an upload in parts that nobody completed, what lies
in the folders for staging and probes, and what is said of a segment in the layout ``aiven`` that is gone, each older
than a given age by the store's own clock. Never touched is what a manifest names, what is not in a form of ours, and a
partition of which any manifest cannot be read: it may name anything.

An uploader writes its objects anew even where it finds them, so what is old belongs to nobody who is at work. Before
the first object of a segment goes, a tombstone is put where its manifest would be, on condition that nothing is there:
from then on nothing can name what is deleted, however late, and who ships the segment again gives it other keys.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from resnap.storage.errors import FormatError, LockedError, ObjectExistsError, ObjectNotFoundError, in_file
from resnap.storage.layouts.aiven import keys as aiven
from resnap.storage.layouts.aiven.origin import place_of_origin
from resnap.storage.layouts.flat.keys import MANIFEST_EXTENSION, is_tombstone, manifest_place, parse_key
from resnap.storage.layouts.manifest import TOMBSTONE, read_manifest
from resnap.storage.side_by_side import each
from resnap.storage.stores.probe import store_clock_ms
from resnap.tiering.shipping.lease import leased

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.storage.layouts.aiven.keys import AivenKey
    from resnap.storage.layouts.flat.keys import FlatKey
    from resnap.storage.stores.protocol import ObjectInfo, ObjectStore, Unfinished

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PASSING = re.compile(rf"\.staging/{_UUID}/.+|\.resnap/probe/[0-9a-f]{{32}}(?:/[0-9]+)?")
"""What only lives as long as a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What may be deleted, and what was left out for a reason."""

    objects: tuple[ObjectInfo, ...]
    """In order of key."""
    unfinished: tuple[Unfinished, ...]
    listed: int
    """Objects in all, named and strange ones included."""
    younger: int
    """Objects and uploads that nobody names and that are not old enough."""
    unreadable: tuple[FormatError, ...]
    """Manifests; nothing is touched beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What became of one thing."""

    key: str
    size_bytes: int
    problem: LockedError | None = None
    """Why the partition of ``key`` was left as it is."""


class _Names(NamedTuple):
    """What a manifest names, or why it cannot be read."""

    place: FlatKey
    keys: frozenset[str]
    error: FormatError | None


def find_garbage(store: ObjectStore, *, older_than_ms: int, is_alone: bool = False) -> Garbage:
    """Return what nobody names in ``store`` and is at least ``older_than_ms`` old.

    Tombstones count where it ``is_alone`` that there is no other run, nor one that was stopped and may go on.

    Raises:
        StoreError: the store failed.

    """
    before_ms = store_clock_ms(store) - older_than_ms
    listed = list(store.list())
    read = _read_manifests(store, listed)
    named = frozenset().union(*(one.keys for one in read))
    closed = {_partition(one.place) for one in read if one.error is not None}
    segments = {_segment(place) for info in listed if (place := aiven.parse_key(info.key))}
    unnamed = [
        info
        for info in listed
        if (info.key not in named and _is_of_a_run(info.key, closed)) or _is_said_of_nothing(info.key, segments)
    ]
    unnamed += [info for info in listed if is_alone and is_tombstone(info) and parse_key(info.key)]
    unnamed.sort(key=lambda info: info.key)
    old = tuple(info for info in unnamed if info.modified_ms <= before_ms)
    begun = [one for one in store.unfinished() if _is_of_a_run(one.key, set()) or _is_temporary(one)]
    stale = tuple(one for one in begun if one.begun_ms <= before_ms)
    return Garbage(
        objects=old,
        unfinished=stale,
        listed=len(listed),
        younger=len(unnamed) - len(old) + len(begun) - len(stale),
        unreadable=tuple(one.error for one in read if one.error is not None),
    )


def collect(
    store: ObjectStore, garbage: Garbage, *, who: str, now_ms: int, is_alone: bool = False
) -> Iterator[Collected]:
    """Delete ``garbage``, partition by partition, each under its lease and after another look.

    No tombstones are written where it ``is_alone`` that nobody else could need them.

    Raises:
        StoreError: the store failed.

    """
    for place, infos in groupby(garbage.objects, key=lambda info: _place(info.key)):
        found = list(infos)
        if place is None:
            yield from (_deleted(store, info) for info in found if _is_gone(store, info))
            continue
        try:
            with leased(store, place, who=who, now_ms=now_ms) as lease:
                lease.hold()
                buried = cache(partial(_bury, store))
                for info in _still_garbage(store, found):
                    lease.hold()
                    if is_alone or buried(_manifest_key(info.key)):
                        lease.hold()
                        yield _deleted(store, info)
        except LockedError as error:
            yield Collected(key=found[0].key, size_bytes=0, problem=error)
    for unfinished in garbage.unfinished:
        store.discard(unfinished)
        yield Collected(key=unfinished.key, size_bytes=0)


def _still_garbage(store: ObjectStore, found: list[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield those of one partition that nobody has named or written anew since they were found."""
    places = [place for info in found if (place := parse_key(info.key)) is not None]
    for folder in sorted({_partition(place) for place in places}):
        read = _read_manifests(store, store.list(folder))
        if any(one.error is not None for one in read):
            continue
        named = frozenset().union(*(one.keys for one in read))
        for info in found:
            if info.key.startswith(folder) and info.key not in named and _is_as_it_was(store, info):
                yield info


def _segment(place: AivenKey) -> str:
    """Return what the keys of all objects of the segment at ``place`` begin with."""
    return place.beside("")


def _is_said_of_nothing(key: str, segments: set[str]) -> bool:
    """Whether ``key`` is of an object that says where a snapshot comes from, and its segment is not among those."""
    place = place_of_origin(key)
    return place is not None and _segment(place) not in segments


def _is_gone(store: ObjectStore, info: ObjectInfo) -> bool:
    """Whether the segment that the object tells of is not there now either; true for what tells of none."""
    place = place_of_origin(info.key)
    if place is None:
        return True
    return next(store.list(_segment(place)), None) is None and _is_as_it_was(store, info)


def _bury(store: ObjectStore, manifest_key: str) -> bool:
    """Make sure that there will never be a manifest at ``manifest_key``; False if there is one."""
    with suppress(ObjectExistsError):
        store.put(manifest_key, TOMBSTONE, if_absent=True)
    # Also after a success: the store may have ignored the condition, and a manifest may have come since.
    with suppress(ObjectNotFoundError):
        return store.get(manifest_key) == TOMBSTONE
    return False


def _is_as_it_was(store: ObjectStore, info: ObjectInfo) -> bool:
    try:
        now = store.head(info.key)
    except ObjectNotFoundError:
        return False
    return (now.size_bytes, now.modified_ms // 1000) == (info.size_bytes, info.modified_ms // 1000)


def _deleted(store: ObjectStore, info: ObjectInfo) -> Collected:
    store.delete(info.key)
    return Collected(key=info.key, size_bytes=info.size_bytes)


def _read_manifests(store: ObjectStore, infos: Iterable[ObjectInfo]) -> list[_Names]:
    places = [place for info in infos if (place := manifest_place(info))]
    return list(each(partial(_names, store), places, remote=True))


def _names(store: ObjectStore, place: FlatKey) -> _Names:
    try:
        body = store.get(place.key)
        if body == TOMBSTONE:
            return _Names(place, frozenset(), None)
        with in_file(place.key):
            manifest = read_manifest(body)
    except ObjectNotFoundError:
        return _Names(place, frozenset(), None)
    except FormatError as error:
        return _Names(place, frozenset(), error)
    return _Names(place, frozenset({place.key, *(entry.key for entry in manifest.objects)}), None)


def _is_of_a_run(key: str, closed: set[str]) -> bool:
    """Whether ``key`` is in a form of ours, in a partition whose manifests can be read; manifests are no garbage."""
    place = parse_key(key)
    if place is None:
        return _PASSING.fullmatch(key) is not None
    return place.extension != MANIFEST_EXTENSION and _partition(place) not in closed


def _is_temporary(unfinished: Unfinished) -> bool:
    """Whether it is a temporary file of a store that is a directory, whose name no key can have."""
    return parse_key(unfinished.key) is None and unfinished.key.endswith("~")


def _partition(place: FlatKey) -> str:
    return f"{place.cluster}/{place.topic}/{place.topic_id}/{place.partition}/"


def _manifest_key(key: str) -> str:
    place = parse_key(key)
    if place is None:
        raise AssertionError(f"{key} is no key of this layout")
    return replace(place, extension=MANIFEST_EXTENSION).key


def _place(key: str) -> str | None:
    """Return what the lease of the partition of ``key`` is called; None for what no lease guards."""
    place = parse_key(key)
    return None if place is None else f"{place.cluster}/{place.topic}/{place.partition}"
